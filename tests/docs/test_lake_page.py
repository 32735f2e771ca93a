"""docs/lake.md: the example of a pipeline runs as the page says; `test_pages.py` runs the other one."""

import subprocess
import sys
from pathlib import Path

import pytest

from connectors.lake import read
from tests.docs.test_pages import ROOT, blocks

PAGE = ROOT / "docs" / "lake.md"
RUN = "from correlator.cli.entry import main; main()"


def text_of(language: str, beginning: str) -> str:
    (found,) = (text for kind, text in blocks(PAGE) if kind == language and text.startswith(beginning))
    return found


@pytest.mark.spark
def test_the_pipeline_of_the_page_fills_a_table(tmp_path: Path) -> None:
    (tmp_path / "late.yaml").write_text(text_of("yaml", "# late.yaml\n"))
    lines = text_of("json", "# FILE departures.jsonl\n").partition("\n")[2]
    (tmp_path / "departures.jsonl").write_text(lines)
    done = subprocess.run(
        [sys.executable, "-c", RUN, "run", "late.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert read(tmp_path / "lake" / "late").num_rows == 2
    reading = text_of("py", "from connectors.lake import read\n")
    subprocess.run([sys.executable, "-c", reading], cwd=tmp_path, check=True)
