"""docs/input-log.md: its commands show what the page says, after the engine of the page has run."""

from pathlib import Path

from tests.docs.test_transcripts import blocks, environment, files_of, run, run_transcripts


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    files_of("input-log.md", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "data" / "orders.jsonl").write_text('{"id": "A"}\n{"id": "B"}\n')
    assert run("correlator run orders.yaml", tmp_path, environment()).returncode == 0
    assert run_transcripts(blocks("input-log.md"), tmp_path, environment()) == 2
