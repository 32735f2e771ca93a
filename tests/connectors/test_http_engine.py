"""Engines with the connector `http`: repeats over lives, starts and stops, and what `explain` says of them."""

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from connectors.http import endpoint
from correlator import Engine, Message, Monitor, Reliability, event, on
from correlator.cli import main
from correlator.errors import ConfigError
from correlator.settings import ConnectionSettings, EngineSettings, MonitorSettings, ReceiverSettings
from correlator.storage import inspect
from tests.connectors.web import PATIENCE_S, Posting, post
from tests.waiting import wait_until

SEEN: list[bytes] = []


@event
class Order:
    """What a body becomes."""

    number: int


class Sees(Monitor):
    """Keeps the bodies of all messages."""

    @on(Message)
    def message(self, message: Message) -> None:
        """Keep one."""
        SEEN.append(message.body)


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine an engine may stand still for longer than a store may."""
    monkeypatch.setattr(endpoint, "STANDSTILL_S", PATIENCE_S)


def settings(directory: Path, port: int = 0, **fields) -> EngineSettings:
    receiver = {"reliability": Reliability.EXACTLY_ONCE, "max_batch_interval_ms": 0, **fields}
    return EngineSettings(
        name="shop",
        store=f"sqlite:///{directory}/store.db",
        connections={"web": ConnectionSettings(type="http", options={"port": port})},
        receivers=(ReceiverSettings(id="orders", connection="web", destination="queue:orders", **receiver),),
        monitors=(MonitorSettings(type=Sees),),
        status_interval=0.0,
    )


def send(engine: Engine, body: bytes, key: str, **headers: str):
    return post(address_of(engine), "/orders", body, {"Idempotency-Key": key, **headers})


def address_of(engine: Engine) -> tuple[str, int]:
    return engine._parts._connections["web"].address


def connected(engine: Engine) -> Engine:
    wait_until(lambda: engine.status().conditions["orders"].status.name == "OK")
    return engine


def test_h2_a_repeat_in_the_next_life_is_stored_once_and_another_body_is_told(tmp_path):
    with Engine(settings(tmp_path)) as engine:
        connected(engine)
        assert send(engine, b"one", "k").status == 202
        assert send(engine, b"one", "k")[:2] == (202, '{"id":"k"}')
        assert send(engine, b"two", "k").status == 422
    with Engine(settings(tmp_path)) as engine:
        connected(engine)
        assert send(engine, b"one", "k").status == 202
        assert send(engine, b"two", "k").status == 422
        assert send(engine, b"three", "l").status == 202
        wait_until(lambda: SEEN == [b"one", b"three"])
        counters = engine.status().receivers["orders"][1]
        assert (counters.duplicates, counters.conflicts) == (2, 1)


def test_h6_a_body_with_lines_is_one_commit(tmp_path):
    with Engine(settings(tmp_path, max_batch_size=50)) as engine:
        connected(engine)
        before = engine.status().receivers["orders"][1].batches
        body = b"".join(b"%d\n" % number for number in range(50))
        assert send(engine, body, "k", **{"Content-Type": "application/x-ndjson"}).status == 202
        assert engine.status().receivers["orders"][1].batches == before + 1
        assert send(engine, body, "k", **{"Content-Type": "application/x-ndjson"}).status == 202
        wait_until(lambda: len(SEEN) == 50)
        assert engine.status().receivers["orders"][1].duplicates == 50


def test_a_message_that_cannot_be_mapped_is_stored_as_a_dead_letter_and_answered(tmp_path):
    with Engine(settings(tmp_path, max_message_bytes=10, event=f"{__name__}:Order")) as engine:
        connected(engine)
        assert send(engine, b"no JSON", "k").status == 202
        assert send(engine, b'{"number": 12345}', "l").status == 413
    (letter,) = inspect.dead_letters(f"sqlite:///{tmp_path}/store.db")
    assert (letter.letter.message.body, letter.letter.unique_id) == (b"no JSON", "k")


def test_h4_a_stop_answers_what_it_has_not_stored(tmp_path):
    with Engine(settings(tmp_path)) as engine:
        connected(engine)
        address = address_of(engine)
        engine.pause("orders")
        wait_until(lambda: engine.status().waits == {"orders": "pause"})
        client = Posting(address, "/orders", b"", {"Idempotency-Key": "k"})
        wait_until(lambda: engine.status().receivers["orders"][1].backlog == (1, 0))
    got = client.got()
    assert (got.status, got.headers["retry-after"]) == (503, "5")
    assert SEEN == []


def test_h4_a_locked_store_is_told_and_the_repeats_are_stored_once(tmp_path, monkeypatch):
    with Engine(settings(tmp_path)) as engine:
        connected(engine)
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            monkeypatch.setattr(endpoint, "STANDSTILL_S", 0.05)
            monkeypatch.setattr(endpoint, "ANSWER_S", 10 * PATIENCE_S)
            for key in ("k", "k", "l"):
                got = send(engine, key.encode(), key)
                assert (got.status, got.headers["retry-after"]) == (503, "5")
            assert SEEN == []
            monkeypatch.setattr(endpoint, "STANDSTILL_S", PATIENCE_S)
        assert [send(engine, key.encode(), key).status for key in ("k", "l", "k")] == [202] * 3
        assert send(engine, b"another", "k").status == 422
        wait_until(lambda: SEEN == [b"k", b"l"])


def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path):
    with Engine(settings(tmp_path)):
        pass
    before = inspect.instance(f"sqlite:///{tmp_path}/store.db")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"E1604 connections.web.port: cannot listen at 127.0.0.1 port {port}"):
            Engine(settings(tmp_path, port)).start()
    assert inspect.instance(f"sqlite:///{tmp_path}/store.db") == before
    with Engine(settings(tmp_path)) as engine:
        connected(engine)


FILE = """
name: shop
store: sqlite:///shop.db
connections:
  web: {type: http, port: 8080, url: "https://example.com"%s}
receivers:
  - {id: orders, connection: web, destination: "queue:orders", reliability: EXACTLY_ONCE}
senders:
  - {id: calls, connection: web, destination: "queue:calls", reliability: EXACTLY_ONCE}
monitors:
  - {type: tests.connectors.test_http_engine:Sees}
"""


def explained(capsys):
    assert main.execute(["explain", "shop.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["paths"]
    assert main.execute(["lint", "shop.yaml"]) == 0
    shown = "".join(capsys.readouterr())
    assert ("W1410" in shown) is ("the header Idempotency-Key of a request" in shown)
    return next(path for path in found if path["sender"] == "calls"), "W1410" in shown


def test_explain_names_what_both_ends_must_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.yaml").write_text(FILE % "")
    path, warns = explained(capsys)
    assert (path["grade"], warns) == ("REPEATS_WITH_ID", True)
    assert "clients that repeat each request until it is answered" in path["needs"]
    assert "consumers that drop repeats by the id" in path["needs"]
    (tmp_path / "shop.yaml").write_text(FILE % ", deduplication: true")
    path, warns = explained(capsys)
    assert (path["grade"], warns) == ("ONCE", False)


def test_lint_finds_two_receivers_of_a_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    second = 'receivers:\n  - {id: second, connection: web, destination: "queue:orders", reliability: EXACTLY_ONCE}'
    (tmp_path / "shop.yaml").write_text((FILE % "").replace("receivers:", second))
    assert main.execute(["lint", "shop.yaml"]) == 2
    assert "E1225" in "".join(capsys.readouterr())
