"""docs/rerun.md: its commands show what the page says."""

from pathlib import Path

from tests.docs.test_transcripts import blocks, environment, files_of, run_transcripts


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    files_of("rerun.md", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "store").mkdir(mode=0o700)
    assert run_transcripts(blocks("rerun.md"), tmp_path, environment()) > 5
