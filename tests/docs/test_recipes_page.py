"""docs/recipes.md: every recipe runs, then its commands show what the page says, in the same directory."""

from pathlib import Path

from tests.docs.test_pages import ROOT, run_examples
from tests.docs.test_transcripts import blocks, environment, run_transcripts

MOST_RECIPES = 20


def test_the_recipes_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    page = ROOT / "docs" / "recipes.md"
    run_examples(page, tmp_path)
    assert run_transcripts(blocks("recipes.md"), tmp_path, environment()) > 5
    assert 10 < page.read_text().count("\n## ") <= MOST_RECIPES
