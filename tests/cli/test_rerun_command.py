"""`rerun`: what changed code would have sent and remembered, beside what the life has sent and stored."""

import dataclasses
import json
import shutil
import zlib

import pytest
from msgspec import structs

from correlator import Reliability
from correlator.cli import main
from correlator.cli.rerun import _compared
from correlator.core.tape import CutTaken
from correlator.runtime import inputlog
from correlator.runtime.comparison import SentLine
from correlator.runtime.replay import Cause, Replayed
from correlator.settings import EngineSettings, SenderSettings
from correlator.storage import inspect
from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import ENGINE, fill, trade


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """A life with an input log, what it has sent, and a copy of its store; a second life after it."""
    place = fill(tmp_path_factory.mktemp("life"))
    write(place / "recording.yaml", [ENGINE, "input_log: input.log"])
    assert run("run", "recording.yaml", cwd=place).returncode == 0
    assert run("db", "backup", "recording.yaml", "copy.db", cwd=place).returncode == 0
    assert run("replay", "input.log.1", "--out", "sent.jsonl", cwd=place).returncode == 0
    with (place / "data" / "trades.jsonl").open("a") as file:
        file.write(trade(11) + "\n")
    assert run("run", "recording.yaml", cwd=place).returncode == 0
    return place


@pytest.fixture
def place(life, tmp_path):
    shutil.copytree(life, tmp_path, dirs_exist_ok=True)
    return tmp_path


def change(place, before, after):
    code = (place / "positions.py").read_text()
    assert before in code
    write(place / "positions.py", [code.replace(before, after)])


COPY = ("--store", "sqlite:///copy.db")
BOTH = ("--sent", "sent.jsonl", *COPY)


def test_unchanged_code(place):
    result = run("rerun", "input.log.1", *BOTH, cwd=place)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("rerun through checkpoint ")
    assert ": 10 sends equal, 0 not; 0 values of state differ; 0 dead letters\n" in result.stdout


def test_changed_code(place):
    """One send less, one that goes elsewhere, one with another field, and other state. The files stay as they were."""
    before = {path: path.read_bytes() for path in (place / "store").iterdir() if path.is_file()}
    change(place, ", 0) + 1", ", 0) + 2")
    change(
        place,
        'self.send(trade, to="out")',
        """if trade.number == 4:
            return
        if trade.number == 5:
            trade = Trade(number=5, account="b")
        self.send(trade, to="out", key="k" if trade.number == 6 else None)""",
    )
    result = run("rerun", "input.log.1", *BOTH, "--config", "recording.yaml", "--json", cwd=place)
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert [(one["what"], (one["before"] or one["now"])["cause"]["number"]) for one in found["send_differences"]] == [
        ("missing", 5),
        ("different", 6),
        ("missing", 7),
        ("additional", 7),
    ]
    assert found["send_differences"][1]["fields"] == [{"field": "body.account", "before": '"a"', "after": '"b"'}]
    assert [(one["key"], one["equal"], one["additional"]) for one in found["sends"]] == [(None, 7, 0), ("k", 0, 1)]
    assert found["state_differences"] == [
        {
            "kind": "different",
            "owner": "monitor:Positions",
            "key": "0",
            "fields": [{"field": "attributes.counts.a", "before": "10", "after": "20"}],
        }
    ]
    shown = run("rerun", "input.log.1", *BOTH, cwd=place).stdout.splitlines()
    assert "7 sends equal, 4 not; 1 values of state differ" in shown[0]
    assert 'different\tout\tqueue:out\t\tmessage 6 of trades\tbody.account: "a" -> "b"' in shown
    assert {path: path.read_bytes() for path in (place / "store").iterdir() if path.is_file()} == before


def test_code_that_fails(place):
    change(place, 'trade.account == "boom"', "trade.number == 3")
    shown = run("rerun", "input.log.1", *BOTH, cwd=place).stdout
    assert "there a handler stops the engine: E5500 monitor Positions: " in shown


@pytest.mark.parametrize(
    ("arguments", "code", "status", "text"),
    [
        (("input.log.1",), "E5600", 2, "--sent, --store or both"),
        (("input.log.2", "--sent", "sent.jsonl"), "E5601", 6, "sent.jsonl:1"),
        (("input.log.2", *COPY), "E5602", 6, "is missing"),
        (("input.log.1", "--store", "sqlite:///store/trades.db"), "E5602", 6, "is missing"),
        (("input.log.1", "--store", "sqlite:///nothing.db"), "E3010", 3, "nothing.db"),
        (("input.log.1", "--sent", "nothing.jsonl"), "E2041", 2, "cannot be read"),
        (("input.log.1", "--sent", "positions.py"), "E2041", 2, "replay --out"),
        (("engine.yaml", *COPY), "E4320", 6, "is not an input log"),
        (("input.log.1", *COPY, "--config", "renamed.yaml"), "E4322", 6, "other name"),
        (("input.log.1", *COPY, "--config", "bridged.yaml"), "E4322", 6, "other contexts: main, now main, pass"),
        (("input.log.1", *COPY, "--config", "piped.yaml"), "E2040", 2, "has pipelines"),
    ],
)
def test_what_does_not_belong_together(place, arguments, code, status, text):
    write(place / "renamed.yaml", [ENGINE.replace("name: trades", "name: others")])
    write(place / "bridged.yaml", [ENGINE, "bridges: [{name: pass, from: [trades], to: [out]}]"])
    write(place / "piped.yaml", [ENGINE, "pipelines: [{name: pass, from: [trades], steps: [{route: out}]}]"])
    assert_fails(run("rerun", *arguments, cwd=place), code, status, text)


def test_a_store_of_another_engine(place):
    write(place / "other.yaml", [ENGINE.replace("name: trades", "name: others").replace("trades.db", "others.db")])
    assert run("run", "other.yaml", cwd=place).returncode == 0
    result = run("rerun", "input.log.1", "--store", "sqlite:///store/others.db", cwd=place)
    assert_fails(result, "E5601", 6, "belongs to engine 'others', and the log to engine 'trades'")


def test_a_store_that_began_anew(place):
    """The same engine and the same number of a checkpoint, but with another content."""
    with (place / "anew.log").open("wb") as file:
        file.write(inputlog.MAGIC)
        for record in inputlog.read_log(place / "input.log.1"):
            one = structs.replace(record, digest=b"another") if isinstance(record, CutTaken) else record
            content = inputlog._encode(one)
            file.write(inputlog._FRAME.pack(len(content), zlib.crc32(content)) + content)
    assert_fails(run("rerun", "anew.log", *COPY, cwd=place), "E5601", 6, "that differs from the checkpoint in the log")


def test_a_store_that_changes_while_it_is_read(place, monkeypatch, capsys):
    """An engine works with it."""
    (found,) = inspect.checkpoints("sqlite:///" + str(place / "copy.db"))
    answers = iter([[found], [dataclasses.replace(found, number=found.number + 1)]])
    monkeypatch.setattr(inspect, "checkpoints", lambda _url: next(answers))
    monkeypatch.chdir(place)
    assert main.execute(["rerun", "input.log.1", *COPY]) == 6
    assert "E5603 sqlite:///copy.db: changes while it is read" in capsys.readouterr().err


def test_sends_after_the_checkpoint_of_the_copy_do_not_count():
    """A send to a BEST_EFFORT sender has the number of the checkpoint before it, any other one that of the next."""
    settings = EngineSettings(
        name="e",
        senders=[
            SenderSettings(id="quick", connection="c"),
            SenderSettings(id="sure", connection="c", reliability=Reliability.EXACTLY_ONCE),
        ],
    )
    before = [line(sender, checkpoint) for sender in ("quick", "sure") for checkpoint in (4, 5, 6)]
    _, found = _compared(before, Replayed(number=5), settings, 5)
    assert [(one.group.sender, one.before.checkpoint) for one in found] == [("quick", 4), ("sure", 4), ("sure", 5)]
    assert len(_compared(before, Replayed(number=6), settings, None)[1]) == 6


def line(sender, checkpoint):
    return SentLine(
        checkpoint=checkpoint,
        sender=sender,
        sequence=checkpoint,
        destination="queue:q",
        key=None,
        properties={},
        headers={},
        body="x",
        cause=Cause("main", "in", checkpoint),
    )
