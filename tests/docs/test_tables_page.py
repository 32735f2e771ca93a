"""docs/tables.md: its commands show what the page says; `test_pages.py` runs its other examples."""

from pathlib import Path

from tests.docs.test_transcripts import blocks, environment, files_of, run_transcripts


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "billing.db").touch()
    files_of("tables.md", tmp_path)
    assert run_transcripts(blocks("tables.md"), tmp_path, environment()) > 1
