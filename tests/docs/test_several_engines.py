"""docs/several-engines.md: its example passes lint, and members run it as the page says."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from correlator.cli import main
from tests.cli.commands import run, start, wait_for
from tests.docs.test_pages import ROOT, blocks

PAGE = ROOT / "docs" / "several-engines.md"
MODULE = """
from correlator import Monitor, event, on


@event
class Trade:
    account: str
    quantity: int


class Positions(Monitor, persistent=True):
    quantity: int = 0

    @on(Trade)
    def trade(self, trade: Trade) -> None:
        self.quantity += trade.quantity
        self.send(trade, to="alerts")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (text,) = (text for language, text in blocks(PAGE) if language == "yaml")
    (tmp_path / "risk.yaml").write_text(text)
    (tmp_path / "risk.py").write_text(MODULE)
    (program,) = (text for language, text in blocks(PAGE) if language == "py")
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setenv("BROKER", f"sqlite:///{tmp_path}/broker.db")
    monkeypatch.setenv("STORE", "postgresql://me@db.example.com/trading")
    return tmp_path


def test_the_example_is_correct(place: Path) -> None:
    result = run("lint", "risk.yaml", cwd=place)
    assert result.returncode == 0
    assert "E1" not in result.stdout


@pytest.mark.postgres
def test_a_command_and_a_program_are_members_of_one_engine(place: Path, postgres_server, monkeypatch) -> None:
    monkeypatch.setenv("STORE", postgres_server.fresh_database())
    with contextlib.ExitStack() as started:
        command = start("run", "risk.yaml", cwd=place)
        started.callback(command.kill)
        wait_for(command, "share taken")
        program = subprocess.Popen([sys.executable, "program.py"], cwd=place, stderr=subprocess.PIPE, text=True)
        started.callback(program.kill)
        while [one["shares"] for one in table(place)["members"]] != [4, 4]:
            assert (command.poll(), program.poll()) == (None, None)
        assert {one["state"] for one in table(place)["shares"]} == {"held"}
        for process in (command, program):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        assert (command.returncode, program.returncode) == (143, 0)
    assert {one["state"] for one in table(place)["shares"]} == {"free"}


def table(place: Path) -> dict:
    result = run("shares", "risk.yaml", "--json", cwd=place)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_commands_that_need_a_share_are_those_of_the_page() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"`(\w+)`", text.partition("Commands that read a store")[2].partition("##")[0]))
    assert named
    assert named <= {command.name for command in main.COMMANDS}
