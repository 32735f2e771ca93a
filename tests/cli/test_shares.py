"""`shares`, `run` with shares, and the commands that look at the store of one share."""

import json
import signal

import pytest

from correlator.cli.loading import importable, load
from correlator.runtime.member import shares_of
from correlator.storage.leases import LeaseTable
from tests.cli.commands import assert_fails, run, start, wait_for, write

FILE = """
name: trades
store: ${STORE}
shares: {count: 2, lease: 2s}
connections: {broker: {type: embedded, store: "sqlite:///store/broker.db"}}
receivers:
  - {id: trades, connection: broker, destination: "queue:in-${share}", reliability: EXACTLY_ONCE, event: "positions:Trade",
     unique_message_id: "${body.number}"}
senders:
  - {id: out, connection: broker, destination: "queue:out-${share}", reliability: EXACTLY_ONCE}
monitors:
  - {type: "positions:Positions"}
"""
TRADES = '{"number": 1, "account": "a"}\n{"number": 2, "account": "a"}\n'


@pytest.fixture
def shared(place, postgres_server, monkeypatch):
    """A directory with an engine of two shares."""
    write(place / "shares.yaml", [FILE])
    monkeypatch.setenv("STORE", postgres_server.fresh_database())
    return place


@pytest.fixture
def after_members(shared):
    """The same after a member has run both shares."""
    write(shared / "trades.jsonl", [TRADES.strip()])
    assert run("publish", "shares.yaml", "broker", "queue:in-1", "trades.jsonl", cwd=shared).returncode == 0
    process = start("run", "shares.yaml", cwd=shared)
    try:
        wait_for(process, "share taken")
        while rows(shared)["shares"] == [] or len(sent(shared)) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, err
    return shared, out


def rows(place):
    result = run("shares", "shares.yaml", "--json", cwd=place)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def sent(place):
    result = run("browse", "shares.yaml", "broker", "queue:out-1", "--json", cwd=place)
    return json.loads(result.stdout) if result.returncode == 0 else []


@pytest.mark.postgres
def test_run_is_a_member_until_a_signal(after_members):
    place, out = after_members
    table = [line.split("\t") for line in out.splitlines()]
    assert [line[:2] for line in table] == [["part", "received"], ["share 0", "0"], ["share 1", "2"], ["total", "2"]]
    held = rows(place)
    assert [(one["number"], one["state"], one["epoch"], one["problem"]) for one in held["shares"]] == [
        (0, "free", 1, ""),
        (1, "free", 1, ""),
    ]
    assert held["members"] == []
    text = run("shares", "shares.yaml", cwd=place).stdout
    assert text.splitlines()[0].split("\t") == ["number", "state", "member", "epoch", "seconds", "problem"]


@pytest.mark.postgres
def test_commands_look_at_the_store_of_a_share(after_members):
    place, _ = after_members
    result = run("inspect", "state", "shares.yaml", "--share", "1", "--json", cwd=place)
    assert "counts" in result.stdout
    assert json.loads(run("inspect", "state", "shares.yaml", "--share", "0", "--json", cwd=place).stdout)
    for command in (
        ("db", "current", "shares.yaml"),
        ("db", "check", "shares.yaml"),
        ("db", "upgrade", "shares.yaml"),
        ("dup", "explain", "shares.yaml", "1"),
        ("deadletter", "list", "shares.yaml"),
        ("plan", "shares.yaml"),
    ):
        result = run(*command, "--share", "1", cwd=place)
        assert (result.returncode, result.stderr) == (0, ""), command
    result = run("db", "reset", "shares.yaml", "--share", "1", cwd=place)
    assert (result.returncode, result.stderr.split()[0]) == (2, "E2020")


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "state", "shares.yaml"),
        ("db", "current", "shares.yaml"),
        ("db", "check", "shares.yaml"),
        ("db", "upgrade", "shares.yaml"),
        ("db", "reset", "shares.yaml"),
        ("db", "forget", "shares.yaml", "out"),
        ("db", "backup", "shares.yaml", "copy"),
        ("dup", "explain", "shares.yaml", "1"),
        ("deadletter", "list", "shares.yaml"),
        ("deadletter", "show", "shares.yaml", "1"),
        ("deadletter", "replay", "shares.yaml", "--all"),
        ("deadletter", "discard", "shares.yaml", "--all"),
    ],
    ids=" ".join,
)
def test_commands_that_open_a_store_ask_for_the_share(command, place, monkeypatch):
    write(place / "shares.yaml", [FILE])
    monkeypatch.setenv("STORE", "postgresql://me@127.0.0.1:1/nowhere")
    result = run(*command, cwd=place)
    assert_fails(result, "E2060", 2)
    assert "has 2 shares, each with a store of its own. Name one with --share NUMBER" in result.stderr
    assert_fails(run(*command, "--share", "2", cwd=place), "E2060", 2)


def test_other_commands_need_no_share(place, monkeypatch):
    write(place / "shares.yaml", [FILE])
    monkeypatch.setenv("STORE", "postgresql://me@127.0.0.1:1/nowhere")
    assert run("lint", "shares.yaml", cwd=place).returncode == 0
    assert run("explain", "shares.yaml", cwd=place).returncode == 0
    assert run("doctor", "shares.yaml", cwd=place).returncode == 0
    assert_fails(run("run", "shares.yaml", "--clear-state", "--yes", cwd=place), "E2060", 2)
    assert_fails(run("shares", "engine.yaml", cwd=place), "E2061", 2)
    assert_fails(run("inspect", "state", "engine.yaml", "--share", "0", cwd=place), "E2060", 2)
    assert_fails(run("inspect", "state", "sqlite:///store/trades.db", "--share", "0", cwd=place), "E2060", 2)


def test_lint_names_what_shares_cannot_have(place):
    write(place / "wrong.yaml", [FILE.replace("${STORE}", "sqlite:///a.db").replace("in-${share}", "in")])
    result = run("lint", "wrong.yaml", cwd=place)
    assert result.returncode == 2
    assert [line.split()[0] for line in result.stdout.splitlines()][:2] == ["E1331", "E1332"]


@pytest.mark.postgres
def test_an_unused_engine_has_an_empty_table(shared):
    assert rows(shared) == {"shares": [], "members": []}


@pytest.mark.postgres
def test_the_number_of_shares_changes_by_command_only(after_members):
    place, _ = after_members
    write(place / "shares.yaml", [FILE.replace("count: 2", "count: 1")])
    assert_fails(run("run", "shares.yaml", cwd=place), "E4340", 6)
    shown = run("shares", "shares.yaml", "--recount", cwd=place)
    assert (shown.returncode, shown.stderr.split()[0]) == (2, "E2020")
    assert any(line.startswith("1\tstate_log\t") for line in shown.stdout.splitlines()), "share 1 holds state"
    done = run("shares", "shares.yaml", "--recount", "--yes", cwd=place)
    assert (done.returncode, done.stdout) == (0, "2 -> 1 shares\n")
    assert len(rows(place)["shares"]) == 1
    assert run("shares", "shares.yaml", "--recount", cwd=place).stdout == "1 shares, as before\n"


@pytest.mark.postgres
def test_the_number_does_not_change_while_a_member_lives(shared):
    with importable(shared / "shares.yaml"):
        member = LeaseTable(shares_of(load(shared / "shares.yaml").settings), "somebody", 60.0)
    member.join()
    write(shared / "shares.yaml", [FILE.replace("count: 2", "count: 3")])
    assert_fails(run("shares", "shares.yaml", "--recount", "--yes", cwd=shared), "E2062", 2)
    member.renew(leaving=True)
    member.close()
    assert run("shares", "shares.yaml", "--recount", "--yes", cwd=shared).stdout == "2 -> 3 shares\n"
