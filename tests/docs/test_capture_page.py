"""docs/change-capture.md: its examples run against a server, and its files are without mistakes."""

from pathlib import Path

import pytest

from correlator.cli import main
from tests.docs.test_pages import ROOT, run_examples
from tests.servers import PostgresServer

PAGE = ROOT / "docs" / "change-capture.md"


@pytest.mark.postgres
def test_the_examples(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres_server.fresh_database()
    run_examples(PAGE, tmp_path, "py", {"SHOP_DATABASE": url})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_DATABASE", url)
    assert main.execute(["lint", "order-changes.yaml"]) == 0, capsys.readouterr()
    assert main.execute(["explain", "order-changes.yaml"]) == 0
    assert "A snapshot of 'changes' that is interrupted begins again" in capsys.readouterr().out
