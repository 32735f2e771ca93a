"""What the status page asks of the HTTP server: its files, changes of the status, dead letters, state, control
(docs/status-page.md)."""

import hashlib
import http.client
import json
import platform
import re
import socket
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator import Message
from correlator.runtime import effective
from correlator.runtime import logs as engine_logs
from correlator.runtime.http import routes
from correlator.runtime.http.files import DIRECTORY, page_files
from correlator.runtime.http.merging import patch
from correlator.settings import CheckpointSettings
from correlator.storage import inspect
from tests.runtime.flows import Forwards, Hears, Keeps
from tests.runtime.serving import PATIENCE_S, TOKEN, served
from tests.runtime.world import AT_LEAST_ONCE, BEST_EFFORT, EXACTLY_ONCE, message, receiver, sender
from tests.waiting import wait_until

BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {**BEARER, "Content_Type": "application/json"}
ORDERS = "tests.runtime.flows:Order"


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


@contextmanager
def shop(url, **options):
    """An engine with a token, whose receiver cannot map what is no JSON."""
    parts = receiver("in", EXACTLY_ONCE, event=ORDERS), sender("out", EXACTLY_ONCE)
    options = {"token": TOKEN, "monitors": [Keeps], **options}
    with served(*parts, store=url, **options) as (engine, broker, client):
        yield engine, broker, client


def posted(client, command, **headers):
    body = command if isinstance(command, bytes) else json.dumps(command).encode()
    status, text, _ = client.ask("/control", "POST", body=body, **{**JSON, **headers})
    return status, json.loads(text) if text.startswith("{") else text


# --- the files ---


def test_o21_the_files_of_the_page_are_served_with_a_strict_policy_and_to_everybody():
    with served(token=TOKEN) as (_, _, client):
        status, text, headers = client.ask("/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Cache-Control"] == "no-store"
        named = re.findall(r'(?:src|href)="(page/[^"]+)"', text)
        assert len(named) == 6
        for path in named:
            status, _, headers = client.ask(f"/{path}")
            assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert client.ask("/page/app.js", "HEAD")[:2] == (200, "")
        for other in (
            "/page/",
            "/page/../routes.py",
            "/page/%2e%2e/routes.py",
            "/page/vendor/VENDOR.md",
            "/page/x\x00.js",
        ):
            assert client.ask(other.replace("\x00", "%00"))[0] == 404
        assert client.ask("/page/app.js", "POST")[0] == 405


def test_o21_no_file_of_the_page_has_a_script_or_a_style_in_another_file_and_all_are_small():
    files = page_files()
    page = files["/"].body.decode()
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert sum(len(answer.body) for answer in files.values()) < 160_000
    own = [answer.body.decode() for path, answer in files.items() if "vendor" not in path]
    assert not any(re.search(r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|\beval\b", text) for text in own)


def test_o21_vendored_files_are_those_of_the_table():
    vendor = DIRECTORY / "vendor"
    rows = re.findall(
        r"^\| `(\S+)` \| (.+?) \| (.+?) \| (.+?) \| `(\w{64})` \|$", (vendor / "VENDOR.md").read_text(), re.MULTILINE
    )
    assert {name for name, *_ in rows} == {path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")}
    for name, _, _, licence, digest in rows:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest
        for file in re.findall(r"`(LICENSE-\w+)`", licence):
            assert (vendor / file).read_text()


# --- changes of the status ---

LEAVES = st.sampled_from([None, 0, 1, "x", [], [1]])
INNER = st.dictionaries(st.sampled_from("ab"), LEAVES, max_size=2)
MEMBERS = st.dictionaries(st.sampled_from("abc"), LEAVES | INNER | st.fixed_dictionaries({"a": INNER}), max_size=3)


def merged(value, change):
    """RFC 7396, as it is written there."""
    if not isinstance(change, dict):
        return change
    value = dict(value) if isinstance(value, dict) else {}
    for name, one in change.items():
        if one is None:
            value.pop(name, None)
        else:
            value[name] = merged(value.get(name), one)
    return value


def without_none(value):
    if not isinstance(value, dict):
        return value
    return {name: without_none(one) for name, one in value.items() if one is not None}


@given(before=MEMBERS, now=MEMBERS)
def test_a_patch_makes_of_the_status_before_the_present_one(before, now):
    assert without_none(merged(without_none(before), patch(before, now))) == without_none(now)
    assert patch(now, now) == {}


class Stream:
    """Reads `/events?status`."""

    def __init__(self, client):
        self._connection = http.client.HTTPConnection(client.host, client.port, timeout=PATIENCE_S)
        self._connection.request("GET", "/events?status", headers=BEARER)
        self._answer = self._connection.getresponse()

    def until(self, name):
        lines = {}
        while lines.get("event") != name:
            lines = {}
            while line := self._answer.readline().decode().strip():
                key, _, value = line.partition(": ")
                lines[key] = value
        return json.loads(lines["data"])

    def close(self):
        self._answer.close()
        self._connection.close()


def test_a_stream_has_the_status_and_then_what_changes(url):
    with shop(url) as (engine, broker, client):
        stream = Stream(client)
        seen = stream.until("full")
        assert set(seen) == set(engine.status().to_dict())
        broker.publish("queue:in", [message('{"id": 1}', "1")])
        while seen["receivers"]["in"]["received"] == 0:
            change = stream.until("changed")
            assert "connections" not in change  # they have not changed
            seen = merged(seen, change)
        stream.close()
        assert client.ask("/events?other", **BEARER)[0] == 400


# --- dead letters ---


def test_dead_letters_are_listed_shown_and_discarded(url):
    with shop(url) as (engine, broker, client):
        broker.publish("queue:in", [message(f"no JSON {n}", f"{n}") for n in range(1, 6)])
        wait_until(lambda: len(client.json("/letters", **BEARER)["letters"]) == 5)
        shown = client.json("/letters?limit=2", **BEARER)
        assert shown["counts"] == [{"kind": "mapping", "origin": "in", "count": 5}]
        assert [one["number"] for one in shown["letters"]] == [5, 4]
        assert shown["letters"][0]["reason"].startswith("E5101 ")
        assert "body" not in shown["letters"][0]
        assert [one["number"] for one in client.json("/letters?below=3", **BEARER)["letters"]] == [2, 1]
        assert client.json("/letters?origin=other", **BEARER)["letters"] == []
        whole = client.json("/letter?number=3", **BEARER)
        assert (whole["body"], whole["body_bytes"], whole["cut"]) == ("no JSON 3", 9, False)
        assert posted(client, {"command": "discard", "numbers": [2, 4]}) == (200, {"result": {"numbers": [2, 4]}})
        assert posted(client, {"command": "discard", "numbers": [2]})[0] == 200  # it is gone already
        broker.publish("queue:in", [message("no JSON 6", "6")])
        wait_until(lambda: len(client.json("/letters", **BEARER)["letters"]) == 4)
        assert [one["number"] for one in client.json("/letters", **BEARER)["letters"]] == [6, 5, 3, 1]
        assert client.ask("/letter?number=2", **BEARER)[0] == 404
        told = [entry.values for entry in engine.timeline.read(None, 1000).entries if entry.name == "discarded"]
        assert [one["count"] for one in told] == [2, 1]
    assert [row.number for row in inspect.dead_letters(url)] == [1, 3, 5, 6]


def test_a_long_body_is_cut_and_one_that_is_no_text_is_base64(url):
    with shop(url) as (_, broker, client):
        broker.publish("queue:in", [message("ü" * 50_000, "1"), Message(b"\xff\x00", {"uniqueMessageId": "2"})])
        wait_until(lambda: len(client.json("/letters", **BEARER)["letters"]) == 2)
        whole = client.json("/letter?number=1", **BEARER)
        assert (whole["body"], whole["cut"], whole["body_bytes"]) == ("ü" * 32_768, True, 100_000)
        assert client.json("/letter?number=2", **BEARER)["body_base64"] == "/wA="


@pytest.mark.parametrize(
    "path",
    [
        "/letters?limit=0",
        "/letters?limit=101",
        "/letters?limit=1e9",
        "/letters?below=-1",
        "/letters?below=99999999999999999999",
        "/letters?kind=other",
        "/letters?other=1",
        "/letters?limit=1&limit=2",
        "/letters?origin=%ff",
        "/letter",
        "/letter?number=",
        "/letter?number=1'%20OR%201=1",
        "/state?owner=x&after=-1",
    ],
)
def test_bad_parameters_are_refused(refusing, path):
    assert refusing.ask(path, **BEARER)[0] == 400


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """A client for tests that change nothing."""
    with shop(f"sqlite:///{tmp_path_factory.mktemp('refusing')}/store.db") as (_, _, client):
        yield client


# --- state and paths ---


def test_state_is_shown_by_owner_and_key(url):
    with shop(url) as (engine, broker, client):
        broker.publish("queue:in", [message('{"id": 1}', "1")])
        wait_until(lambda: engine.checkpoint() and client.json("/state", **BEARER)["owners"])
        (owner,) = [
            one["owner"] for one in client.json("/state", **BEARER)["owners"] if one["owner"].startswith("monitor:")
        ]
        shown = client.json(f"/state?owner={owner}", **BEARER)
        assert shown["keys"] == len(shown["rows"]) == 1
        assert shown["rows"][0]["value"]["type"].endswith(":Keeps")
        assert client.json(f"/state?owner={owner}&find=nosuchkey", **BEARER)["rows"] == []
        assert client.ask("/state?owner=other", **BEARER)[0] == 404


def test_the_last_checkpoints_are_listed(url):
    with served(
        receiver("in", EXACTLY_ONCE),
        sender("out", EXACTLY_ONCE),
        monitors=[Forwards],
        store=url,
        token=TOKEN,
        checkpoint=CheckpointSettings(interval=3600.0),
    ) as (engine, broker, client):
        assert client.json("/checkpoints", **BEARER) == {"checkpoints": []}
        assert client.ask("/checkpoints")[0] == 401
        assert client.ask("/checkpoints?limit=1", **BEARER)[0] == 400
        for number in range(3):
            broker.publish("queue:in", [message(f"{number}", f"{number}")])
            wait_until(lambda: engine.status().senders["out"][2] == 1)
            assert engine.checkpoint()
            wait_until(lambda number=number: engine.status().senders["out"][1].sent == number + 1)
        listed = client.json("/checkpoints", **BEARER)["checkpoints"]
        numbers = [one["number"] for one in listed]
        assert numbers == list(range(numbers[-1] + 2, numbers[-1] - 1, -1))
        for one in listed:
            assert one["cause"] == "order"
            assert one["sends"] == 1
            assert one["dead_letters"] == 0
            assert one["duration_s"] == pytest.approx(one["cut_s"] + one["commit_s"] + one["release_s"])
            assert engine.status().started <= one["time"] <= engine.status().time


def test_paths_say_what_they_promise(refusing):
    (path,) = refusing.json("/paths?part=in", **BEARER)["paths"]
    assert (path["receiver"], path["through"], path["sender"]) == ("in", "context main", "out")
    assert path["grade"] == "REPEATS_WITH_ID"
    assert refusing.json("/paths?part=out", **BEARER)["paths"] == [path]
    assert refusing.ask("/paths?part=inn", **BEARER)[:2] == (
        404,
        "no receiver or sender has this id. Did you mean in?\n",
    )


# --- settings ---


def test_settings_are_shown_only_with_a_token_and_versions_always(url, monkeypatch):
    with shop(url) as (_, _, client):
        assert client.ask("/settings")[0] == 401
        assert client.ask("/settings?part=in", **BEARER)[0] == 400
        shown = client.json("/settings", **BEARER)
        assert shown["versions"]["Python"] == platform.python_version()
        assert {"correlator", "SQLite", "msgspec", "uvicorn"} <= set(shown["versions"])
        assert "pytest" not in shown["versions"]
        rows = {(one["part"], one["name"]): (one["value"], one["source"]) for one in shown["settings"]}
        assert rows["receiver in", "event"] == (ORDERS, "code")
        assert rows["engine", "http.token"] == ("***", "code")
        assert rows["sender out", "max_outstanding"] == ("200000", "default")
        assert TOKEN not in json.dumps(shown)
    monkeypatch.delattr(effective, "effective_settings")  # what is not shown is not computed
    with shop(url, token=None) as (_, _, client):
        hidden = client.json("/settings")
        assert (set(hidden), hidden["settings"]) == (set(shown), None)
        assert hidden["versions"] == shown["versions"]


def test_the_level_of_the_log_is_shown_and_changed_and_its_change_is_an_event(url):
    level = {"command": "loglevel", "level": "WARNING"}
    with shop(url) as (engine, _, client):
        assert client.json("/settings", **BEARER)["log_level"] is None
        assert posted(client, level)[1]["problem"]["code"] == "E2048"  # the program has its own log
        engine_logs.configure(level="INFO")
        assert client.json("/settings", **BEARER)["log_level"] == "INFO"
        assert posted(client, level)[1]["result"]["before"] == "INFO"
        assert client.json("/settings", **BEARER)["log_level"] == "WARNING"
        (told,) = [entry.values for entry in engine.timeline.read(None, 1000).entries if entry.name == "log_level"]
        assert told == {"logger": None, "before": "INFO", "level": "WARNING"}


# --- control ---


def test_control_does_what_the_socket_does(url):
    with shop(url) as (engine, _, client):
        assert client.json("/control", **BEARER)["commands"] == list(routes.ORDERS)
        status, told = posted(client, {"command": "pause", "kind": "receiver", "part": "in"})
        assert (status, told["result"]["paused"], engine.status().paused) == (200, True, {"in"})
        assert posted(client, {"command": "pause", "kind": "receiver", "part": "in"})[0] == 200
        assert posted(client, {"command": "resume", "kind": "receiver", "part": "in"})[0] == 200
        assert posted(client, {"command": "drain", "kind": "receiver", "part": "in", "timeout": 60})[0] == 200
        assert posted(client, {"command": "checkpoint", "timeout": 60})[1]["result"]["taken"] >= 1
        status, told = posted(client, {"command": "pause", "kind": "receiver", "part": "x"})
        assert (status, told["problem"]["code"]) == (404, "E8307")
        posted(client, {"command": "pause", "kind": "sender", "part": "out"})
        status, told = posted(client, {"command": "drain", "kind": "sender", "part": "out", "timeout": 60})
        assert (status, told["problem"]["code"]) == (409, "E8308")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"command":"status"}', 400),
        (b'{"command":"events","wait":86400}', 400),
        (b'{"command":"pause"}', 400),
        (b'{"command":"pause","kind":"receiver","part":"in","more":1}', 400),
        (b'{"command":"pause","kind":"context","part":"in"}', 400),
        (b'{"command":"discard","numbers":[]}', 400),
        (b'{"command":"discard","numbers":[-1]}', 400),
        (b'{"command":"discard","numbers":["1"]}', 400),
        (b'{"command":"pause","kind":"receiver","part":"../x"}', 404),
        (b'{"command":"pause","kind":"receiver","part":"<b>"}', 404),
        (b'{"command":"pause","kind":"sender","part":"in"}', 404),
        (b"\xff", 400),
        (b"[" * 5000, 400),
        (b" " * 10_000, 413),
    ],
)
def test_o8_bad_orders_change_nothing(refusing, body, status):
    before = refusing.json("/status", **BEARER)["paused"]
    assert posted(refusing, body)[0] == status
    assert refusing.json("/status", **BEARER)["paused"] == before == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "text/json", ""])
def test_o8_a_form_is_no_order(refusing, kind):
    assert posted(refusing, {"command": "checkpoint", "timeout": 1}, Content_Type=kind)[0] == 415


def test_o8_without_the_token_nobody_changes_anything_and_without_one_configured_neither(url):
    with shop(url) as (_, _, client):
        pause = json.dumps({"command": "pause", "kind": "receiver", "part": "in"})
        for headers in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Cookie": f"token={TOKEN}"},
        ):
            assert client.ask("/control", "POST", body=pause, Content_Type="application/json", **headers)[0] == 401
        assert client.ask(f"/control?token={TOKEN}", "POST", body=pause, Content_Type="application/json")[0] == 401
        assert client.json("/status", **BEARER)["paused"] == []
    with shop(url, token=None) as (engine, broker, client):
        assert client.json("/control")["commands"] == []
        assert posted(client, {"command": "pause", "kind": "receiver", "part": "in"})[0] == 403
        broker.publish("queue:in", [message("no JSON", "9")])
        wait_until(lambda: client.json("/letters")["letters"])
        for private in ("/letter?number=1", "/state"):
            assert client.ask(private)[0] == 403
        assert not engine.status().paused


def test_o8_after_ten_wrong_tokens_in_a_minute_further_ones_are_429_and_the_right_one_still_works(url, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(routes, "monotonic", lambda: now[0])
    with shop(url) as (_, _, client):
        answers = [client.ask("/status", Authorization="Bearer wrong")[0] for _ in range(12)]
        assert answers == [401] * 10 + [429] * 2
        assert client.ask("/status")[0] == 401  # no token at all
        assert client.ask("/status", **BEARER)[0] == 200
        now[0] += 61
        assert client.ask("/status", Authorization="Bearer wrong")[0] == 401


def test_half_a_body_is_not_waited_for(url, monkeypatch):
    monkeypatch.setattr(routes, "READ_S", 0.05)
    with shop(url) as (_, _, client), socket.create_connection((client.host, client.port), PATIENCE_S) as half:
        head = f"POST /control HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        half.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert half.recv(1000).split()[1] == b"408"


def test_so_many_orders_at_a_time_and_a_client_that_hangs_up_ends_its_own(url, gate, script):
    script.message = lambda *_: gate.wait(PATIENCE_S)
    waiting = receiver("in", AT_LEAST_ONCE)
    with served(waiting, monitors=[Hears], store=url, token=TOKEN) as (_, broker, client):
        broker.publish("queue:in", [message("a")])
        wait_until(lambda: script.of("Hears"))
        drain = json.dumps({"command": "drain", "kind": "receiver", "part": "in", "timeout": 3600}).encode()
        head = f"POST /control HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        asking = []
        for _ in range(routes.MOST_ORDERS):
            asking.append(socket.create_connection((client.host, client.port)))
            asking[-1].sendall(f"{head}Content-Length: {len(drain)}\r\n\r\n".encode() + drain)
        wait_until(lambda: posted(client, {"command": "checkpoint", "timeout": 0})[0] == 503)
        for one in asking:
            one.close()
        wait_until(lambda: posted(client, {"command": "resume", "kind": "receiver", "part": "in"})[0] == 200)
        gate.set()


def test_a_failed_order_of_ours_is_an_incident_and_ends_nothing(url, monkeypatch, logs):
    with shop(url) as (engine, _, client):
        monkeypatch.setattr(engine, "pause", lambda _: 1 // 0)
        status, told = posted(client, {"command": "pause", "kind": "receiver", "part": "in"})
        assert (status, told["problem"]["code"]) == (500, "E2070")
        assert client.ask("/ping")[0] == 200
    assert [one for one in logs if one["event"] == "internal error of a command"]


def test_an_engine_without_a_store_has_nothing_stored():
    with served(receiver("in", BEST_EFFORT), monitors=[Hears], token=TOKEN) as (_, _, client):
        for path in ("/letters", "/letter?number=1", "/state"):
            assert client.ask(path, **BEARER)[:2] == (404, "the engine has no store\n")
        assert posted(client, {"command": "discard", "numbers": [1]})[1]["problem"]["code"] == "E2011"
