"""Every Python example of the documentation runs.

The examples of a page are one script, in an empty directory. A YAML example whose first line is `# NAME.yaml`, and any
other one that begins with `# FILE NAME`, is written there before.
"""

import os
import re
import runpy
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
RUN_ELSEWHERE = {"notebook", "recipes"}
"""Pages whose examples another test runs: in a kernel, or together with their commands."""
PAGES = [
    page
    for page in sorted((ROOT / "docs").glob("*.md"))
    if "```python" in page.read_text() and page.stem not in RUN_ELSEWHERE
]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# (?:FILE )?(\S+\.\w+)\n")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each example."""
    return _BLOCK.findall(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    run_examples(page, tmp_path)


def run_examples(page: Path, place: Path, language: str = "python", variables: Mapping[str, str] = {}) -> str:
    """Write the files of a page into a directory and run its script there; returns what it printed.

    Args:
        page: the page.
        place: the directory.
        language: of the examples that are the script: `python` for those that need nothing else.
        variables: variables of the environment, besides those of the tests.
    """
    write_files(page, place)
    script = [text for kind, text in blocks(page) if kind == language and not _NAMED.match(text)]
    (place / "example.py").write_text("\n\n".join(script))
    done = forked.run(_strict_example, ["example.py"], place, {**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _strict_example() -> None:
    """As `python -W error example.py` in a process of its own, which has imported more than that."""
    sys.warnoptions.append("error")
    warnings.simplefilter("error")
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path("example.py", run_name="__main__")


def write_files(page: Path, place: Path) -> None:
    """Write the files of a page into a directory."""
    for _, text in blocks(page):
        if named := _NAMED.match(text):
            (place / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (place / named[1]).write_text(text)
