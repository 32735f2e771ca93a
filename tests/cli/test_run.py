"""`correlator run`: from start to end, stopped by signals, failing."""

import json
import os
import pty
import re
import signal
import sqlite3

import pytest

from correlator.cli.run import _shown
from correlator.configuration.problems import Overridden
from correlator.pipeline.processors import processors_of
from correlator.pipeline.spec import PipelineFile
from tests.cli.commands import assert_fails, run, start, wait_for, write
from tests.cli.conftest import ENGINE, MONITOR, trade


def rows(table: str) -> dict[str, dict[str, str]]:
    header, *lines = (line.split("\t") for line in table.splitlines())
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


def test_u6_a_file_is_run_to_its_end(place):
    result = run("run", "engine.yaml", cwd=place)
    assert result.returncode == 0, result.stderr
    table = rows(result.stdout)
    assert list(table) == ["receiver trades", "sender out", "total"]
    assert table["receiver trades"] | {"in/s": ""} == {
        "part": "receiver trades",
        "received": "11",
        "duplicates dropped": "1",
        "dead letters": "0",
        "sent": "",
        "checkpoints": "",
        "in/s": "",
        "out/s": "",
    }
    assert (table["sender out"]["sent"], table["total"]["sent"]) == ("10", "10")
    assert int(table["total"]["checkpoints"]) > 0
    assert float(table["total"]["in/s"]) > 0


def test_the_next_run_finds_nothing_left(place):
    run("run", "engine.yaml", cwd=place)
    assert rows(run("run", "engine.yaml", cwd=place).stdout)["total"]["received"] == "0"


def test_logs_as_json(place):
    result = run("run", "engine.yaml", "--log-json", cwd=place)
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert [event["event"] for event in events] == ["starting", "running", "ended"]
    assert events[0] | {"timestamp": ""} == {
        "event": "starting",
        "level": "info",
        "engine": "trades",
        "file": "engine.yaml",
        "timestamp": "",
    }


def test_the_log_says_that_spark_takes_its_time_before_spark_starts(place):
    """Given a service without a terminal, and a start of many seconds, then the log says at once what takes them."""
    pipelines = ["pipelines:", "  - {name: p, from: [trades], steps: [{route: {to: out}}]}"]
    write(
        place / "spark.yaml", [ENGINE.replace(' event: "positions:Trade",', "").partition("monitors:")[0], *pipelines]
    )
    result = run("run", "spark.yaml", cwd=place, env={"JAVA_HOME": str(place)})
    assert "E1514 spark: JAVA_HOME" in result.stderr
    first = result.stderr.splitlines()[0]
    assert re.search(r"starting +engine=trades file=spark\.yaml spark='takes about 20 s to start'$", first)


def test_a_level_hides_lower_ones(place):
    assert run("run", "engine.yaml", "--log-level", "error", cwd=place).stderr == ""


def test_an_engine_without_pipelines_needs_no_spark():
    assert processors_of(PipelineFile(name="e")) == ()


def test_a9_18_settings_of_the_command_line(place):
    settings = ["--set", "max_queued=7", "--set", "checkpoint.interval=1s", "--set", "max_queued=8"]
    secret = ["--set", "connections.broker.password=geheim99"]
    result = run("run", "engine.yaml", *settings, "--log-json", cwd=place)
    lines = [json.loads(line) for line in result.stderr.splitlines()[:3]]
    told = [tuple(line[key] for key in ("level", "source", "setting", "before", "after")) for line in lines]
    assert told == [
        ("info", "--set", "max_queued", "the default", "7"),
        ("info", "--set", "checkpoint.interval", "the default", "1s"),
        ("info", "--set", "max_queued", "7", "8"),
    ]
    assert result.returncode == 0
    result = run("run", "engine.yaml", *secret, cwd=place)
    assert_fails(result, "E1020", 2, "--set connections.broker.password: ")
    assert "geheim99" not in result.stderr


def test_a9_18_secrets_are_not_logged():
    assert _shown(Overridden("a.password", "x", "y")) == ("***", "***")
    assert _shown(Overridden("store", "postgresql://u:x@h/d", "sqlite:///d")) == ("***", "***")
    assert _shown(Overridden("name", None, "n")) == ("the default", "n")


def test_a9_13_options_of_client_libraries_are_those_of_the_process(place):
    write(place / "positions.py", [MONITOR, "import os, sys", "print(os.environ.get('SSL_CERT_DIR'), file=sys.stderr)"])
    chosen = ["--client-option", "SSL_CERT_DIR=/nowhere", "--client-option", "SSL_CERT_DIR=/certificates"]
    assert "/certificates\n" in run("run", "engine.yaml", *chosen, cwd=place).stderr
    assert_fails(run("run", "engine.yaml", "--client-option", "x", cwd=place), "E2031", 2, "'x' is not NAME=VALUE")


def test_a1_7_a_run_without_a_static_part_of_the_last_one_is_refused(place):
    """Given a sender in the first run, when it is not configured in the next one, then that ends and writes nothing."""
    assert run("run", "engine.yaml", cwd=place).returncode == 0
    before = run("inspect", "checkpoints", "engine.yaml", "--json", cwd=place).stdout
    write(place / "engine.yaml", [ENGINE.replace("{id: out,", "{id: other,")])
    refused = run("run", "engine.yaml", cwd=place)
    assert_fails(refused, "E4301", 6, "sender 'out'", "remove is only possible for dynamic ones")
    write(place / "engine.yaml", [ENGINE])
    assert run("inspect", "checkpoints", "engine.yaml", "--json", cwd=place).stdout == before
    assert run("run", "engine.yaml", cwd=place).returncode == 0


def test_a9_15_clear_state_begins_anew(place):
    run("run", "engine.yaml", cwd=place)
    before = (place / "store" / "trades.db").read_bytes()
    refused = run("run", "engine.yaml", "--clear-state", cwd=place)
    assert_fails(refused, "E2020", 2, "would be lost: endpoint 2 rows", "If you mean it: --yes")
    assert (place / "store" / "trades.db").read_bytes() == before
    write(place / "engine.yaml", [ENGINE.replace("EXACTLY_ONCE, event", "AT_LEAST_ONCE, event")])
    assert run("run", "engine.yaml", cwd=place).returncode == 6
    cleared = run("run", "engine.yaml", "--clear-state", "--yes", cwd=place)
    assert cleared.returncode == 0, cleared.stderr
    assert "state cleared" in cleared.stderr


def test_a9_15_a_store_that_holds_nothing_needs_no_yes(place):
    result = run("run", "engine.yaml", "--clear-state", cwd=place)
    assert (result.returncode, "state cleared" in result.stderr) == (0, False)


def test_a9_15_on_a_terminal_it_asks(place):
    run("run", "engine.yaml", cwd=place)
    master, slave = pty.openpty()
    os.write(master, b"y\n")
    result = run("run", "engine.yaml", "--clear-state", cwd=place, stdin=slave)
    os.write(master, b"n\n")
    refused = run("run", "engine.yaml", "--clear-state", cwd=place, stdin=slave)
    os.close(master)
    os.close(slave)
    assert result.returncode == 0, result.stderr
    assert "Empty " in result.stderr
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "? [y/N] E2020 " in refused.stderr


def test_a9_15_a_running_engine_is_not_cleared(endless, place):
    assert_fails(run("run", "endless.yaml", "--clear-state", "--yes", cwd=place), "E3201", 5)


# --- mistakes ---


def test_all_mistakes_of_a_file_at_once(place):
    write(place / "engine.yaml", [ENGINE, "colour: red", "checkpoint: {interval: 5}"])
    result = run("run", "engine.yaml", cwd=place)
    assert_fails(result, "E1025", 2, "E1020 engine.yaml:", "colour: unknown key")


def test_what_connectors_refuse_has_its_place(place):
    write(place / "engine.yaml", [ENGINE.replace("path: data", "path: data, pth: x")])
    result = run("run", "engine.yaml", cwd=place)
    assert_fails(result, "E1020", 2, "engine.yaml:5:", "connections.files.pth")


def test_a_query_that_spark_refuses_is_told_before_anything_is_taken_in(place):
    steps = "[{decode: {format: json, schema: 'number INT'}}, {where: nummer > 1}, {route: out}]"
    pipeline = f"pipelines: [{{name: p, from: [trades], steps: {steps}}}]"
    without_monitors = ENGINE.replace(', event: "positions:Trade"', "").partition("monitors:")[0]
    write(place / "engine.yaml", [without_monitors, pipeline])
    assert_fails(run("run", "engine.yaml", cwd=place), "E1511", 2, "pipeline p step 2 (where)", "`nummer`")
    for part in ("registry", "receive-log"):
        assert run("inspect", part, "engine.yaml", "--json", cwd=place).stdout == "[]\n"


def test_a_handler_that_raises_stops_the_engine(place):
    write(place / "data" / "trades.jsonl", [trade(1, "boom")])
    result = run("run", "engine.yaml", cwd=place)
    assert_fails(result, "E5500", 1, "ValueError", "no such account")
    assert "traceback=" not in result.stderr


def test_a_traceback_is_in_the_debug_log_only(place):
    write(place / "data" / "trades.jsonl", [trade(1, "boom")])
    result = run("run", "engine.yaml", "--log-level", "DEBUG", "--log-json", cwd=place)
    logged = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert "no such account" in next(event["traceback"] for event in logged if "traceback" in event)
    assert result.returncode == 1


def test_a_store_of_another_instance(place):
    run("run", "engine.yaml", cwd=place)
    write(place / "engine.yaml", [ENGINE.replace("name: trades", "name: other")])
    assert_fails(run("run", "engine.yaml", cwd=place), "E4310", 6, "'trades'", "'other'")


def test_a_store_that_is_no_database(place):
    (place / "store" / "trades.db").write_bytes(b"PK not a database" * 100)
    assert_fails(run("run", "engine.yaml", cwd=place), "E3001", 3, "trades.db")


def test_secrets_are_in_no_output(place):
    write(
        place / "engine.yaml",
        [ENGINE.replace("sqlite:///store/trades.db", "postgresql://u:${DB_PASSWORD}@127.0.0.1:1/d")],
    )
    result = run("run", "engine.yaml", "--log-level", "DEBUG", cwd=place, env={"DB_PASSWORD": "geheim99"})
    assert result.returncode == 3
    assert "geheim99" not in result.stderr + result.stdout


# --- signals ---


@pytest.fixture
def endless(place):
    """A running engine that waits for messages."""
    process = start("run", "endless.yaml", cwd=place)
    wait_for(process, "running")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_64_the_first_signal_stops_in_order(number, status, endless, place):
    endless.send_signal(number)
    out, err = endless.communicate(timeout=60)
    assert endless.returncode == status
    assert rows(out)["total"]["received"] == "0"
    assert number.name in err
    assert "Traceback" not in err
    assert run("run", "engine.yaml", cwd=place).returncode == 6  # the store is free again, and knows its receiver


def test_64_a_second_signal_ends_at_once(place):
    process = start("run", "stuck.yaml", cwd=place)
    wait_for(process, "no connection")
    process.send_signal(signal.SIGTERM)
    assert "a second signal ends the process at once" in wait_for(process, "SIGTERM").splitlines()[-1]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_65_nohup(place):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start("run", "endless.yaml", cwd=place)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for(process, "running")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGPIPE)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_60_one_store_has_one_engine(endless, place):
    result = run("run", "endless.yaml", cwd=place)
    assert_fails(result, "E3201", 5, f"pid {endless.pid}", "since")


def test_an_engine_goes_on_when_nobody_reads_its_log(place):
    write(place / "data" / "trades.jsonl", ["no json"] * 100)
    process = start("run", "engine.yaml", cwd=place)
    process.stderr.close()
    assert rows(process.stdout.read())["total"]["dead letters"] == "100"
    assert process.wait(60) == 0
    process.stdout.close()


def test_an_engine_ends_in_order_when_nobody_reads_its_table(place):
    process = start("run", "engine.yaml", cwd=place)
    process.stdout.close()
    assert process.wait(60) == 141
    process.stderr.close()
    with sqlite3.connect(place / "store" / "trades.db") as store:
        assert store.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    store.close()


def test_the_relative_paths_begin_at_the_working_directory(place):
    other = place / "elsewhere"
    other.mkdir()
    os.rename(place / "data", other / "data")  # noqa: PTH104
    (other / "store").mkdir(mode=0o700)
    assert rows(run("run", str(place / "engine.yaml"), cwd=other).stdout)["total"]["received"] == "11"
    assert (other / "store" / "trades.db").exists()
