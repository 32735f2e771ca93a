"""`correlator status` against running engines."""

import json
import re
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.cli import asking
from correlator.cli.status import COLUMNS, headline, lasting, rows
from correlator.errors import ConnectionLost
from correlator.runtime.control.protocol import Ask
from correlator.storage.database import digest_of
from tests.cli.commands import assert_fails, on_terminal, run, start, wait_for, write
from tests.servers import free_port
from tests.waiting import wait_until

FILE = """
name: shop
http: {{port: {port}}}
connection_retry_interval: 100ms
connections:
  local: {{type: embedded, store: "sqlite:///broker.db"}}
  away: {{type: rabbitmq, host: 127.0.0.1, port: {away}}}
receivers:
  - {{id: orders, connection: local, destination: "queue:orders"}}
senders:
  - {{id: bills, connection: away, destination: "queue:bills", reliability: BEST_EFFORT}}
"""


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "shop.yaml", FILE.format(port=free_port(), away=free_port()).splitlines())


@pytest.fixture
def engine(file):
    with start("run", file.name, cwd=file.parent) as process:
        wait_for(process, "no connection")
        # one part may lose its connection before the other has got its own
        wait_until(lambda: '"CONNECTING"' not in run("status", file.name, "--json", cwd=file.parent).stdout)
        yield process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.usefixtures("engine")
def test_the_parts_that_are_not_connected_come_first(file):
    result = run("status", file.name, cwd=file.parent)
    assert (result.returncode, result.stderr) == (0, "")
    head, names, first, *others = result.stdout.splitlines()
    assert head == "shop: running, ready"  # a sender of BEST_EFFORT keeps nobody waiting
    assert names.split("\t") == list(COLUMNS)
    assert re.match(r"sender bills\tERROR\t\d+ s\t0\t\t0\t0\tE7001 ", first)
    assert {line.partition("\t")[0] for line in others} == {"receiver orders", "context main"}


def test_the_first_line_counts_dead_letters_which_no_row_may_show():
    now = {
        "name": "shop",
        "phase": "running",
        "not_ready": [],
        "paused": ["receiver in"],
        "totals": {"dead_letters": 2},
    }
    assert headline(now) == "shop: running, ready, paused: receiver in, 2 dead letters since the start"
    assert headline({**now, "paused": [], "totals": {"dead_letters": 1}}) == (
        "shop: running, ready, 1 dead letter since the start"
    )
    assert headline({**now, "paused": [], "totals": {"dead_letters": 0}, "handler_skips": 1}) == (
        "shop: running, ready, 1 event skipped since the start: a handler failed"
    )
    conflicts = {"a": {"conflicts": 1}, "b": {"conflicts": 1}, "c": {}}
    assert headline({**now, "paused": [], "totals": {"dead_letters": 0}, "receivers": conflicts}) == (
        "shop: running, ready, 2 messages with the unique id of another message dropped since the start"
    )
    assert headline({**now, "not_ready": ["sender bills: ERROR"]}) == (
        "shop: running, paused: receiver in, 2 dead letters since the start, not ready: sender bills: ERROR"
    )


@pytest.mark.usefixtures("engine")
def test_json_is_all_that_the_engine_tells(file):
    shown = json.loads(run("status", file.name, "--json", cwd=file.parent).stdout)
    assert shown["phase"] == "running"
    assert shown["connections"]["away"]["status"] == "ERROR"


def test_watching_goes_on_until_the_engine_is_gone(file, engine):
    with start("status", file.name, "--watch", cwd=file.parent) as watching:
        heads = (line for line in watching.stdout if line.startswith("shop: "))
        assert [next(heads), next(heads)] == ["shop: running, ready\n"] * 2
        engine.send_signal(signal.SIGTERM)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 4
    assert "E7050 " in errors


@pytest.mark.usefixtures("engine")
def test_the_table_fits_into_100_columns(file):
    drawn = on_terminal("status", file.name, cwd=file.parent, env={"COLUMNS": "100"})
    shown = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert max(map(len, shown.splitlines())) <= 100
    assert "sender bills" in shown


def test_the_second_look_shows_what_was_done_in_between():
    part = {
        "status": "OK",
        "since": 90.0,
        "error": "",
        "dead_letters": 0,
        "waits_for": "outbox:s",
        "backlog": None,
        "paused": False,
    }
    first = {"receivers": {"r": part | {"received": 5}}, "senders": {}, "pipelines": {}, "contexts": {}}
    second = first | {"receivers": {name: part | {"received": 12} for name in ("r", "new")}}
    assert rows(second, first, 100.0) == [
        ("receiver r", "OK", "10 s", 12, 7, None, 0, "waits for outbox:s"),
        ("receiver new", "OK", "10 s", 12, None, None, 0, "waits for outbox:s"),
    ]


@pytest.mark.parametrize(
    ("outstanding", "error", "paused", "why"),
    [
        (4, "", False, ""),
        (5, "", False, "outbox full (max_outstanding 5)"),
        (6, "E7001 broker: down", False, "outbox full (max_outstanding 5); E7001 broker: down"),
        (5, "", True, "outbox full (max_outstanding 5); paused"),
        (0, "E7001 broker: down", True, "paused; E7001 broker: down"),
    ],
)
def test_the_row_of_a_sender_says_that_its_outbox_is_full(outstanding, error, paused, why):
    part = {"status": "OK", "since": 90.0, "error": error, "dead_letters": 0, "paused": paused, "sent": 1}
    full = part | {"outstanding": outstanding, "max_outstanding": 5}
    old = part | {"outstanding": outstanding}  # an engine of an earlier version tells no limit
    shown = {"receivers": {}, "senders": {"s": full, "old": old}, "pipelines": {}, "contexts": {}}
    whys = {row[0]: row[-1] for row in rows(shown, None, 100.0)}
    assert whys["sender s"] == why
    assert "full" not in whys["sender old"]


def test_without_an_engine(file):
    result = run("status", file.name, cwd=file.parent)
    assert_fails(result, "E7050", 4, "no engine answers: Connection refused", "correlator run")


def test_without_a_port_it_asks_the_control_socket(tmp_path):
    for name, more in (("x", ""), ("y", "http: {port: 0}")):
        write(tmp_path / f"{name}.yaml", [f"name: {name}", f"store: sqlite:///{name}.db", more])
        result = run("status", f"{name}.yaml", cwd=tmp_path)
        assert_fails(result, "E7050", 4, ".control: no engine answers: it does not run")


class Answers(BaseHTTPRequestHandler):
    """Answers each request as its server says."""

    def do_GET(self):
        status, body, *headers = self.server.answer
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def other_program():
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_answer_of_another_program_is_not_taken_for_that_of_an_engine(tmp_path, other_program):
    write(tmp_path / "x.yaml", ["name: x", f"http: {{port: {other_program.server_port}}}"])
    for status, body, says in (
        (200, b"<html>", "no engine: HTTP 200"),
        (200, b"[]", "no engine: HTTP 200"),
        (200, b"{}", "no engine: HTTP 200"),
        (404, b"{}", "no engine: HTTP 404"),
        (401, b"", "the token is not that of the engine"),
    ):
        other_program.answer = status, body
        assert_fails(run("status", "x.yaml", cwd=tmp_path), "E2046", 2, says)


def test_the_answer_of_another_engine_is_not_taken_for_that_of_this_one(tmp_path, other_program):
    write(tmp_path / "x.yaml", ["name: x", f"http: {{port: {other_program.server_port}}}"])
    other_program.answer = 200, b'{"name": "y", "phase": "running"}'
    assert_fails(run("status", "x.yaml", cwd=tmp_path), "E2046", 2, "engine 'y' answers at this port, and not 'x'")


def test_an_engine_of_this_name_with_another_store_is_not_taken_for_this_one(tmp_path):
    """Two engines of one name: only one of them can listen at the port, and the other one is asked for."""
    port = free_port()
    for store in ("one", "two"):
        write(tmp_path / f"{store}.yaml", ["name: x", f"store: sqlite:///{store}.db", f"http: {{port: {port}}}"])
    with start("run", "one.yaml", cwd=tmp_path) as process:
        wait_until(lambda: run("status", "one.yaml", cwd=tmp_path).returncode == 0)
        (tmp_path / "elsewhere").mkdir()
        same, other = run("status", "../one.yaml", cwd=tmp_path / "elsewhere"), run("status", "two.yaml", cwd=tmp_path)
        second = run("run", "two.yaml", cwd=tmp_path)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert same.returncode == 0
    assert_fails(other, "E2046", 2, "the engine 'x' at this port has another store than")
    assert_fails(second, "E1604", 2, "cannot listen")


@pytest.mark.parametrize("answered", [[], [("Correlator-Store", digest_of("postgresql://u:one@host/shop"))]])
def test_an_engine_that_does_not_tell_another_store_is_taken_for_this_one(tmp_path, other_program, answered):
    """One of an earlier version does not tell its store; and the password of a store may have changed."""
    address = "postgresql://u:two@host/shop"
    write(tmp_path / "x.yaml", ["name: x", f"store: {address}", f"http: {{port: {other_program.server_port}}}"])
    (tmp_path / "x.yaml").chmod(0o600)
    shown = b'{"name": "x", "phase": "running", "not_ready": [], "paused": [], "totals": {"dead_letters": 0}}'
    other_program.answer = 200, shown, *answered
    result = run("status", "x.yaml", "--json", cwd=tmp_path)
    assert (result.returncode, json.loads(result.stdout)["name"]) == (0, "x")


def test_an_engine_that_ends_while_it_answers_counts_as_gone(tmp_path, other_program):
    write(tmp_path / "x.yaml", ["name: x", f"http: {{port: {other_program.server_port}}}"])
    other_program.answer = 500, b"Internal Server Error"
    assert_fails(run("status", "x.yaml", cwd=tmp_path), "E7050", 4, "HTTP 500, as from an engine that is just ending")


def test_an_engine_that_ends_in_the_middle_of_its_line_counts_as_gone(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def answer():
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(b'{"result": {"pha')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionLost, match="E7050 .*it has hung up"):
            asking.ask([tmp_path / "s"], Ask())
        thread.join()


@given(seconds=st.floats(-1e6, 1e9))
def test_a_duration_is_short_and_never_negative(seconds):
    assert re.fullmatch(r"\d+ (s|min|h|d)", lasting(seconds))


def test_durations():
    assert [lasting(one) for one in (-1, 0.9, 59, 60, 3599, 3600, 86_400)] == [
        "0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "1 d",
    ]  # fmt: skip
