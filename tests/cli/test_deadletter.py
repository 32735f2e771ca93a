"""`correlator deadletter`: list, show, replay, discard (rules Z7, Z8)."""

import json

import pytest

from correlator.cli import main
from tests.cli.commands import assert_fails, run, start, wait_for, write
from tests.cli.conftest import ENGINE, trade


@pytest.fixture
def done(after_a_run, monkeypatch):
    """Two lines that are no JSON among ten trades."""
    place = after_a_run(b"\x1b[31mno json\n\xff\xfe\n")
    monkeypatch.chdir(place)
    return place


def listed(capsys, *arguments):
    assert main.execute(["deadletter", "list", "engine.yaml", "--json", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_z8_letters_are_listed_and_chosen(done, capsys):
    assert [(one["number"], one["kind"], one["receiver"]) for one in listed(capsys)] == [
        (1, "mapping", "trades"),
        (2, "mapping", "trades"),
    ]
    assert listed(capsys, "--kind", "send") == []
    assert len(listed(capsys, "--origin", "trades")) == 2
    assert listed(capsys, "--origin", "others") == []


def test_z8_a_letter_is_shown_in_full_and_safely(done, capsys):
    assert main.execute(["deadletter", "show", "engine.yaml", "1", "2"]) == 0
    out, _ = capsys.readouterr()
    assert "\x1b" not in out
    assert "body: \\x1b[31mno json" in out
    assert "body_base64: //4=" in out
    assert "reason: E5101 receiver trades" in out


def test_z8_plain_lines(done):
    result = run("deadletter", "list", "sqlite:///store/trades.db", cwd=done)
    header, *lines = (line.split("\t") for line in result.stdout.splitlines())
    assert header == ["number", "kind", "origin", "receiver", "unique_id", "engine_time", "reason", "body"]
    assert [line[:4] for line in lines] == [[str(n), "mapping", "trades", "trades"] for n in (1, 2)]


def test_z8_a_letter_is_replayed(done, capsys):
    assert main.execute(["deadletter", "replay", "engine.yaml", "1"]) == 0
    assert capsys.readouterr().out == "1 replayed\n"
    assert [one["number"] for one in listed(capsys)] == [2]
    assert run("run", "engine.yaml", cwd=done).returncode == 0
    assert [one["body"] for one in listed(capsys) if one["number"] != 2] == ["\x1b[31mno json"]


def test_z8_nothing_is_discarded_without_yes(done, capsys):
    before = (done / "store" / "trades.db").read_bytes()
    assert main.execute(["deadletter", "discard", "engine.yaml", "--all"]) == 2
    out, err = capsys.readouterr()
    assert out == "kind\torigin\tmessages\nmapping\ttrades\t2\n"
    assert err.startswith("E2020 ")
    assert "2 dead letters would be lost" in err
    assert (done / "store" / "trades.db").read_bytes() == before
    assert main.execute(["deadletter", "discard", "engine.yaml", "--all", "--yes"]) == 0
    assert capsys.readouterr().out == "2 discarded\n"
    assert listed(capsys) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["replay", "engine.yaml"], "E2022", "names no dead letter"),
        (["discard", "engine.yaml", "--yes"], "E2022", "names no dead letter"),
        (["replay", "engine.yaml", "1", "--all"], "E2022", "both --all and a selection"),
        (["replay", "engine.yaml", "1", "9"], "E2021", "dead letter 9"),
        (["discard", "engine.yaml", "9", "--yes"], "E2021", "dead letter 9"),
        (["show", "engine.yaml", "9"], "E2021", "dead letter 9"),
        (["replay", "engine.yaml", "9" * 23], "E2021", f"dead letter {'9' * 23}"),
        (["discard", "engine.yaml", "9" * 23, "--yes"], "E2021", f"dead letter {'9' * 23}"),
        (["show", "engine.yaml", "9" * 23], "E2021", f"dead letter {'9' * 23}"),
        (["show", "engine.yaml"], "E2005", "NUMBER"),
        (["replay", "engine.yaml", "first"], "E2004", "NUMBER"),
        (["list", "engine.yaml", "--kind", "all"], "E2004", "'mapping', 'handler', 'step', 'send', 'poison'"),
        (["lst", "engine.yaml"], "E2001", "Did you mean 'list'?"),
    ],
)
def test_z8_58_mistakes_change_nothing(arguments, code, text, done, capsys):
    before = (done / "store" / "trades.db").read_bytes()
    assert main.execute(["deadletter", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{code} ")
    assert text in err
    assert (done / "store" / "trades.db").read_bytes() == before


def test_z8_a_letter_that_cannot_go_back_stays(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    write(place / "engine.yaml", [ENGINE.replace('trades.jsonl", reliability: EXACTLY_ONCE', 'trades.jsonl"')])
    write(place / "data" / "trades.jsonl", [trade(1), "no json"])
    assert run("run", "engine.yaml", cwd=place).returncode == 0
    assert main.execute(["deadletter", "replay", "engine.yaml", "--all"]) == 2
    assert (
        "E2023 dead letter 1: (mapping, trades) cannot go back: receiver 'trades' is BEST_EFFORT"
        in capsys.readouterr().err
    )
    assert len(listed(capsys)) == 1


def test_z8_a_running_engine_owns_its_letters(place):
    process = start("run", "stuck.yaml", cwd=place)
    try:
        wait_for(process, "no connection")
        for command in (["replay"], ["discard", "--yes"]):
            url = "sqlite:///store/trades.db"
            result = run("deadletter", command[0], url, "--all", *command[1:], cwd=place)
            assert_fails(result, "E3201", 5, f"pid {process.pid}")
            done = run("deadletter", command[0], "stuck.yaml", "--all", *command[1:], cwd=place)
            assert (done.returncode, done.stdout) == (0, f"0 {command[0]}ed\n")
    finally:
        process.kill()
        process.communicate()


def test_looking_for_letters_makes_no_store(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    for arguments in (["list"], ["show", "1"], ["replay", "--all"], ["discard", "--all", "--yes"]):
        assert main.execute(["deadletter", arguments[0], "engine.yaml", *arguments[1:]]) == 3
        assert capsys.readouterr().err.startswith("E3010 ")
    assert list((place / "store").iterdir()) == []
