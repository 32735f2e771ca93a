"""`inspect`, `browse` and `db`: they show the store of a stopped or a running engine."""

import json
import signal
import sqlite3
import stat

import pytest

from correlator import Engine, Reliability
from correlator.cli import main
from correlator.settings import ConnectionSettings, EngineSettings, SenderSettings
from tests.cli.commands import assert_fails, run, start, wait_for, write
from tests.cli.conftest import ENGINE, trade


@pytest.fixture
def done(after_a_run):
    """The directory after a run with ten trades: one came twice, one was no JSON."""
    return after_a_run(b"\x1b[31mno json\n")


def inspected(part, place, target="engine.yaml"):
    result = run("inspect", part, target, "--json", cwd=place)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize("target", ["engine.yaml", "sqlite:///store/trades.db"])
def test_every_part_of_a_store(target, done):
    assert [(row["id"], row["kind"]) for row in inspected("registry", done, target)] == [
        ("out", "sender"),
        ("trades", "receiver"),
    ]
    assert [row["domain"] for row in inspected("dups", done, target)] == ["files:queue:trades.jsonl"]
    assert [row["part"] for row in inspected("checkpoints", done, target)] == ["digest", "context main", "sender out"]
    assert {row["owner"] for row in inspected("state", done, target)} != set()
    assert inspected("receive-log", done, target) == []
    assert inspected("outbox", done, target) == []


def test_dead_letters_are_shown_safely(done):
    (letter,) = inspected("dead-letters", done)
    assert letter["reason"].startswith("E5101 receiver trades")
    assert letter["body"] == "\\x1b[31mno json"


def test_plain_lines_where_nobody_looks(done):
    result = run("inspect", "registry", "engine.yaml", cwd=done)
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["id", "out", "trades"]


def test_what_waits_for_a_broker_is_in_the_outbox_of_a_running_engine(place):
    process = start("run", "stuck.yaml", cwd=place)
    try:
        wait_for(process, "no connection")
        while not (rows := inspected("outbox", place)):
            pass
        assert [(row["sender"], row["messages"]) for row in rows] == [("out", 10)]
        assert_fails(run("db", "reset", "sqlite:///store/trades.db", "--yes", cwd=place), "E3201", 5)
    finally:
        process.kill()
        process.communicate()


def test_an_engine_without_a_store(place):
    write(place / "engine.yaml", ["name: e"])
    assert_fails(run("inspect", "state", "engine.yaml", cwd=place), "E2011", 2, "has no store")


# --- browse ---


def test_browsing_takes_nothing(done):
    for _ in range(2):
        result = run("browse", "engine.yaml", "broker", "queue:out", "--limit", "3", "--json", cwd=done)
        assert [json.loads(row["body"])["number"] for row in json.loads(result.stdout)] == [0, 1, 2]


def test_an_empty_queue_is_no_mistake(place):
    write(place / "none.jsonl", [])
    assert run("publish", "endless.yaml", "broker", "queue:in", "none.jsonl", cwd=place).returncode == 0
    process = start("run", "endless.yaml", cwd=place)
    wait_for(process, "running")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    result = run("browse", "endless.yaml", "broker", "queue:in", "--json", cwd=place)
    assert (result.returncode, result.stdout) == (0, "[]\n")


def test_t61_a_body_cannot_steer_the_terminal(place):
    write(place / "lines.txt", ["\x1b[31mred"])
    assert run("publish", "endless.yaml", "broker", "queue:in", "lines.txt", "--text", cwd=place).returncode == 0
    result = run("browse", "endless.yaml", "broker", "queue:in", cwd=place)
    assert "\\x1b[31mred" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("connection", "destination", "code", "status", "text"),
    [
        ("broke", "queue:out", "E2012", 2, "Did you mean 'broker'?"),
        ("nothing", "queue:out", "E2012", 2, "Defined: files, broker"),
        ("files", "queue:a.csv", "E2014", 2, "type 'file'"),
        ("broker", "topic:out", "E2110", 2, "only queues"),
        ("broker", "out", "E1215", 2, "queue:NAME"),
        ("broker", "queue:outt", "E2027", 2, "Did you mean 'queue:out'?"),
        ("broker", "queue:elsewhere", "E2027", 2, "There are: queue:mq.sys.dmq, queue:out"),
    ],
)
def test_what_cannot_be_browsed(connection, destination, code, status, text, done):
    assert_fails(run("browse", "engine.yaml", connection, destination, cwd=done), code, status, text)


def test_a_broker_that_is_not_there(place):
    refused = run("browse", "stuck.yaml", "broker", "queue:out", cwd=place)
    assert_fails(
        refused,
        "E7003",
        4,
        "connections.broker",
        "database /dev/null/nowhere/broker.db is not there yet",
        "sends or receives",
    )
    assert "Start the engine" not in refused.stderr


def test_a_database_without_a_broker(place):
    sqlite3.connect(place / "store" / "broker.db").close()
    (place / "store" / "broker.db").touch()
    refused = run("browse", "engine.yaml", "broker", "queue:out", cwd=place)
    assert_fails(refused, "E7003", 4, "broker.db holds no broker yet", "correct connections.broker.store")


def test_a_server_of_streams_that_cannot_be_reached_is_named_by_its_connection(place):
    streams = "name: e\nconnections: {s: {type: rabbitmq_stream, host: 127.0.0.1, port: 1}}"
    write(place / "streams.yaml", [streams])
    assert_fails(run("browse", "streams.yaml", "s", "queue:q", cwd=place), "E7001", 4, "connections.s: cannot connect")


# --- db ---


def test_upgrade_makes_a_store_and_leaves_a_current_one(place):
    first = run("db", "upgrade", "engine.yaml", cwd=place)
    revision = run("db", "current", "engine.yaml", cwd=place).stdout.strip()
    assert (first.returncode, first.stdout) == (0, f"new -> {revision}\n")
    assert run("db", "upgrade", "engine.yaml", cwd=place).stdout == f"{revision}\n"
    with sqlite3.connect(place / "store" / "trades.db") as store:
        store.execute("UPDATE correlator_schema SET version_num = '0099'")
    store.close()
    newer = run("db", "current", "engine.yaml", cwd=place)
    assert (newer.stdout, "upgrade this program" in newer.stderr) == ("0099\n", True)


def test_141_a_check_of_a_store_that_is_intact_and_of_one_that_is_not(done):
    """Nothing is changed, an engine could be running; status 3 and a line for each damage."""
    before = (done / "store" / "trades.db").read_bytes()
    intact = run("db", "check", "engine.yaml", cwd=done)
    assert (intact.returncode, intact.stderr) == (0, "")
    table = {line.split("\t")[0]: line.split("\t")[1:] for line in intact.stdout.splitlines()}
    assert (table["endpoint"], table["dead_letter"]) == (["2", "0"], ["1", "0"])
    assert (done / "store" / "trades.db").read_bytes() == before
    with sqlite3.connect(done / "store" / "trades.db") as store:
        store.execute("UPDATE dead_letter SET crc = crc + 1")
        store.execute("UPDATE checkpoint SET number = 700")
    store.close()
    result = run("db", "check", "sqlite:///store/trades.db", cwd=done)
    told = result.stderr.splitlines()
    assert result.returncode == 3
    assert told[:2] == [
        "checkpoint 700: content does not match its digest",
        "dead letter 1: content does not match its digest",
    ]
    assert told[2].startswith("E3011 ")
    assert "2 parts of the store are damaged" in told[2]
    assert "dead_letter\t0\t1" in result.stdout
    assert_fails(run("db", "check", "sqlite:///none.db", cwd=done), "E3010", 3, "there is no store yet")


def test_61_a_store_is_not_emptied_without_yes(done):
    before = (done / "store" / "trades.db").read_bytes()
    result = run("db", "reset", "engine.yaml", cwd=done)
    assert result.returncode == 2
    assert result.stderr.startswith("E2020 ")
    assert "--yes" in result.stderr
    table = {line.split("\t")[0]: line.split("\t")[1:] for line in result.stdout.splitlines()}
    assert table["dead_letter"] == ["1", "1"]
    assert table["endpoint"] == ["2", ""]
    assert (done / "store" / "trades.db").read_bytes() == before


def test_an_emptied_store_starts_anew(done):
    assert run("db", "reset", "engine.yaml", "--yes", cwd=done).returncode == 0
    for part in ("registry", "checkpoints", "state", "dups", "dead-letters"):
        assert inspected(part, done) == []
    with (done / "data" / "trades.jsonl").open("a") as file:
        file.write(trade(3) + "\n")
    assert run("run", "engine.yaml", cwd=done).returncode == 0
    assert [row["ids"] for row in inspected("dups", done)] == [1]


def test_a9_15_t7_a_backup_while_the_engine_runs_opens_as_a_store(place):
    process = start("run", "stuck.yaml", cwd=place)
    try:
        wait_for(process, "no connection")
        while not inspected("outbox", place):
            pass
        result = run("db", "backup", "stuck.yaml", "copy.db", cwd=place)
        assert (result.returncode, result.stderr) == (0, "")
    finally:
        process.kill()
        process.communicate()
    copy = place / "copy.db"
    assert result.stdout == f"{copy.stat().st_size} bytes\n"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [row["messages"] for row in inspected("outbox", place, "sqlite:///copy.db")] == [10]
    write(place / "engine.yaml", [ENGINE.replace("sqlite:///store/trades.db", "sqlite:///copies/trades.db")])
    (place / "copies").mkdir(mode=0o700)
    copy.rename(place / "copies" / "trades.db")
    assert run("run", "engine.yaml", cwd=place).returncode == 0
    queue = run("browse", "engine.yaml", "broker", "queue:out", "--json", cwd=place)
    assert [json.loads(row["body"])["number"] for row in json.loads(queue.stdout)] == list(range(10))


def test_a9_15_a_backup_is_of_one_moment(done):
    """What a checkpoint writes is in the copy whole or not at all, whatever is written meanwhile."""
    assert run("db", "backup", "engine.yaml", "copy.db", cwd=done).returncode == 0
    for part in ("registry", "checkpoints", "state", "dups", "dead-letters"):
        assert inspected(part, done, "sqlite:///copy.db") == inspected(part, done)
    with sqlite3.connect(done / "copy.db") as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    copy.close()


@pytest.mark.parametrize(
    ("target", "copy", "code", "status", "text"),
    [
        ("engine.yaml", "engine.yaml", "E2025", 2, "exists already"),
        ("engine.yaml", "nowhere/copy.db", "E2025", 2, "cannot be written"),
        ("postgresql://u:geheim@127.0.0.1:1/d", "copy.db", "E2026", 2, "pg_dump"),
        ("sqlite:///none.db", "copy.db", "E3010", 3, "none.db"),
    ],
)
def test_a9_15_what_cannot_be_backed_up(target, copy, code, status, text, done):
    result = run("db", "backup", target, copy, cwd=done)
    assert_fails(result, code, status, text)
    assert "geheim" not in result.stderr
    assert not (done / "copy.db").exists()


def test_a_store_that_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["db", "current"], ["db", "reset"], ["inspect", "state"]):
        assert main.execute([*command, "sqlite:///none.db"]) == 3
        assert capsys.readouterr().err.startswith(
            f"E3010 {tmp_path / 'none.db'}: there is no store yet. Start the engine"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_no_start_accepts_is_named_and_can_be_forgotten(tmp_path):
    """A sender that code added, whose connection left the file."""
    url = f"sqlite:///{tmp_path}/store.db"
    local = {"local": ConnectionSettings(type="embedded", options={"store": f"sqlite:///{tmp_path}/broker.db"})}
    with Engine(EngineSettings(name="desk", store=url, connections=local)) as engine:
        engine.add_sender(SenderSettings(id="added", connection="local", reliability=Reliability.EXACTLY_ONCE))
    write(tmp_path / "desk.yaml", [f"name: desk\nstore: {url}\nconnections: {{other: {{type: embedded}}}}\n"])
    for command in ("plan", "run"):
        refused = run(command, "desk.yaml", cwd=tmp_path)
        assert refused.returncode == 6
        assert refused.stderr.strip().split("\n")[-1].startswith("E4305 sender 'added': was added by code before")
        assert "E1211 sender 'added'.connection: 'local' is not defined" in refused.stderr
        assert "correlator db forget STORE added" in refused.stderr
    asked = run("db", "forget", "desk.yaml", "added", cwd=tmp_path)
    assert asked.returncode == 2
    assert "all of this of 'added' would be lost" in asked.stderr
    assert run("plan", "desk.yaml", cwd=tmp_path).returncode == 6
    assert run("db", "forget", "desk.yaml", "added", "--yes", cwd=tmp_path).returncode == 0
    assert run("plan", "desk.yaml", cwd=tmp_path).returncode == 0
    assert_fails(run("db", "forget", "desk.yaml", "added", "--yes", cwd=tmp_path), "E8302", 2)
