"""docs/web.md: its file without a program is a configuration without mistakes; `test_pages.py` runs the examples."""

from pathlib import Path

import pytest

from correlator.cli import main
from tests.docs.test_pages import ROOT, blocks

PAGE = ROOT / "docs" / "web.md"
HOOKS = """from correlator import Message, Monitor, on


class Payments(Monitor):
    @on(Message)
    def payment(self, payment: Message) -> None:
        pass
"""


def test_the_receiver_of_webhooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (text,) = (text for kind, text in blocks(PAGE) if kind == "yaml" and text.startswith("# webhooks.yaml\n"))
    (tmp_path / "webhooks.yaml").write_text(text)
    (tmp_path / "hooks.py").write_text(HOOKS)
    monkeypatch.chdir(tmp_path)
    for name in ("NEW_SECRET", "OLD_SECRET"):
        monkeypatch.setenv(name, "whsec_" + "Zm9vYmFy" * 4)
    assert main.execute(["lint", "webhooks.yaml"]) == 0, capsys.readouterr()
