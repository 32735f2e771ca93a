"""The template of a connector (docs/examples/spool): it is short, correct, and found when it is installed."""

import ast
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import spool
from correlator_spool import SpoolConnection
from test_spool import SpoolWorld

from correlator.errors import ConfigError, ConnectionLost
from correlator.events import CUT_FROM, UNREADABLE, Headers, Message
from correlator.options import parse_destination
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.testing.contract import checks_for, outgoing, receiver, sender

TEMPLATE = Path(__file__).parents[2] / "docs" / "examples" / "spool"
MOST_LINES = 150
PORT = {
    f"correlator.{name}" for name in ("connector", "options", "durable", "processes", "errors", "events", "settings")
}
QUEUE = "queue:orders"


@pytest.mark.parametrize("check", checks_for(SpoolWorld), ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_contract(check, tmp_path):
    check(SpoolWorld(tmp_path))


def test_the_connector_has_at_most_150_lines():
    assert len((TEMPLATE / "correlator_spool.py").read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", ["correlator_spool.py", "spool.py"])
def test_it_sees_the_port_and_nothing_else_of_the_product(name):
    ours = {module for module in imported(TEMPLATE / name) if module.split(".")[0] in ("correlator", "connectors")}
    assert ours <= PORT


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = node.module == "correlator"
            yield from (f"correlator.{alias.name}" for alias in node.names) if whole else [node.module or ""]


# --- what is wrong in the configuration ---


def make(**options):
    return SpoolConnection("c", ConnectionSettings(type="spool", options=options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "E1021 connections.c: 'path' is missing."),
        ({"path": 7}, "E1022 connections.c.path: '7' is not a text. A text, not empty."),
        ({"path": "x", "pth": "x"}, "E1020 connections.c.pth: unknown key. Known: path. Did you mean 'path'?"),
    ],
)
def test_options_of_the_connection(options, said):
    with pytest.raises(ConfigError) as raised:
        make(**options)
    assert str(raised.value) == said


def test_receivers_and_senders_have_no_options():
    with pytest.raises(ConfigError) as raised:
        make(path="x").source(receiver(QUEUE, "r", options={"follow": True}))
    assert str(raised.value) == "E1020 receivers.r.follow: unknown key. There are no options here."
    with pytest.raises(ConfigError) as raised:
        make(path="x").sink(SenderSettings(id="s", connection="c", destination=QUEUE, options={"mode": "0640"}))
    assert str(raised.value) == "E1020 senders.s.mode: unknown key. There are no options here."


HOSTILE = [
    *(
        "orders",
        "topic:orders",
        "queue:",
        "queue:.",
        "queue:..",
        "queue:../x",
        "queue:a/b",
        "queue:/etc",
        "queue:a/../b",
    ),
    *(
        "queue:.hidden",
        "queue:-a",
        "queue:a b",
        "queue:a\n",
        "queue:a\0",
        "queue:ä",
        "queue:%2e%2e",
        "queue:" + 101 * "a",
    ),
]


@pytest.mark.parametrize("destination", HOSTILE)
def test_no_destination_leads_out_of_the_directory(destination, tmp_path):
    connection = make(path=str(tmp_path))
    with pytest.raises(ConfigError) as raised:
        connection.source(receiver(destination, "r"))
    code = "E1216" if parse_destination(destination) else "E1215"
    assert str(raised.value).startswith(f"{code} receivers.r.destination: ")
    with pytest.raises(ConfigError) as raised:
        connection.sink(sender(destination, "s"))
    assert str(raised.value).startswith(f"{code} senders.s.destination: ")
    (refused,) = connected_sink(connection).send(outgoing(destination, [b"x"]))
    assert refused is not None
    assert (refused.code, refused.where) == ("E8104", "senders.giver message 1")
    assert list(tmp_path.iterdir()) == []


# --- files ---


@pytest.fixture
def connection(tmp_path):
    (tmp_path / "spool").mkdir()
    return make(path=str(tmp_path / "spool"))


@pytest.fixture
def queue(tmp_path):
    return tmp_path / "spool" / "orders"


def connected_sink(connection):
    sink = connection.sink(sender(None))
    sink.connect()
    return sink


def connected_source(connection, **settings):
    source = connection.source(receiver(QUEUE, **settings))
    source.connect()
    return source


def send(connection, *contents):
    results = connected_sink(connection).send(outgoing(QUEUE, contents))
    assert not any(results), results


def waiting(connection):
    """All messages of the queue; they stay in the queue."""
    source = connected_source(connection)
    messages = source.receive(1000, 0.0).messages
    source.close()
    return list(messages)


def test_directories_and_files_are_private(connection, queue):
    send(connection, b"1")
    waiting(connection)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (queue, *queue.iterdir())}
    assert modes == {"orders": 0o700, "1": 0o600, ".producer": 0o600, ".consumer": 0o600}


def test_what_is_no_file_is_no_message_and_stops_nobody(connection, queue, tmp_path):
    send(connection, b"1")
    (tmp_path / "secret").write_bytes(b"of others")
    (queue / "2").mkdir()
    (queue / "3").symlink_to(tmp_path / "secret")
    os.mkfifo(queue / "4")
    for name in ("05", "x", "6.part", "-7", "８"):  # noqa: RUF001 - a digit that is none in ASCII
        (queue / name).write_bytes(b"")
    send(connection, b"2")
    assert [message.body for message in waiting(connection)] == [b"1", b"2"]
    assert (tmp_path / "secret").read_bytes() == b"of others"


def test_a_queue_that_is_a_link_is_refused(connection, queue, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    queue.symlink_to(tmp_path / "elsewhere")
    for use in (lambda: connected_source(connection), lambda: send(connection, b"1")):
        with pytest.raises(ConnectionLost) as raised:
            use()
        assert raised.value.code == "E7003"
        assert "a link, which may lead anywhere" in str(raised.value)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_lock_that_is_a_link_is_refused(connection, queue, tmp_path):
    queue.mkdir()
    (queue / ".consumer").symlink_to(tmp_path / "made")
    with pytest.raises(ConnectionLost):
        connected_source(connection)
    assert not (tmp_path / "made").exists()


def test_a_directory_that_is_not_there_may_come(connection, queue):
    queue.parent.rmdir()
    source, sink = connection.source(receiver(QUEUE)), connection.sink(sender(QUEUE))
    for end in (source, sink):
        with pytest.raises(ConnectionLost) as raised:
            end.connect()
        assert raised.value.code == "E7003"
    queue.parent.mkdir()
    source.connect()
    sink.connect()


def test_there_is_one_consumer_at_a_time(connection):
    first, second = connected_source(connection), connection.source(receiver(QUEUE, "second"))
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ConnectionLost) as raised:
        second.connect()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
    assert raised.value.code == "E7012"
    assert str(raised.value).startswith("E7012 receivers.second: ")
    assert "in use by another consumer" in str(raised.value)
    first.close()
    second.connect()


def test_a_sink_that_was_closed_is_not_connected(connection):
    sink = connected_sink(connection)
    sink.close()
    with pytest.raises(ConnectionLost):
        sink.send(outgoing(QUEUE, [b"1"]))


def test_a_producer_waits_for_another_one_and_not_for_ever(connection, queue, monkeypatch):
    monkeypatch.setattr(spool, "PRODUCER_WAITS_S", 0.0)
    lock = spool.Queue(queue.parent, queue.name).lock("producer")
    with pytest.raises(ConnectionLost) as raised:
        send(connection, b"1")
    assert raised.value.code == "E7012"
    lock.close()
    send(connection, b"1")


def test_a_listing_beside_a_producer_loses_no_order(connection, monkeypatch):
    """A listing of a directory while files appear may have the second new file and not the first."""
    send(connection, b"1", b"2", b"3")
    listed = spool.Queue._messages
    partial = iter([[2], [1, 2, 3]])
    monkeypatch.setattr(spool.Queue, "_messages", lambda queue: next(partial, None) or listed(queue))
    assert [message.body for message in waiting(connection)] == [b"1", b"2"]


# --- messages ---


def test_what_others_put_there_comes_as_it_is_and_marked(connection, queue):
    send(connection, b"1")
    nested = msgspec.msgpack.encode([b"body", {"a": [1]}, None, None, None, None])
    deep = b"\x92\xc4\x01a\x81\xa1k" + b"\x91" * 100_000 + b"\xc0"
    for number, content in enumerate((b"", b"plain text", nested, deep), 2):
        (queue / str(number)).write_bytes(content)
    first, *others = waiting(connection)
    assert (first.body, UNREADABLE in first.properties) == (b"1", False)
    assert [message.body for message in others] == [b"", b"plain text", nested, deep]
    assert all(list(message.properties) == [UNREADABLE] for message in others)


def test_of_what_is_too_large_comes_the_beginning(connection, queue):
    send(connection, b"x" * 20, bytes(range(256)) * 8192)
    source = connected_source(connection, max_message_bytes=1000)
    small, large = source.receive(10, 0.0).messages
    assert (small.body, small.properties) == (b"x" * 20, {})
    assert len(large.body) == 1001
    assert large.properties == {CUT_FROM: (queue / "2").stat().st_size}


def test_a_chunk_has_its_place_in_memory(connection):
    send(connection, *[b"x" * 1000] * 5)
    source = connected_source(connection, max_batch_bytes=2500)
    assert [len(source.receive(10, 0.0).messages) for _ in range(4)] == [2, 2, 1, 0]
    source.close()
    source = connected_source(connection, max_batch_bytes=10)
    assert len(source.receive(10, 0.0).messages) == 1


def test_a_source_that_finds_nothing_keeps_nothing(connection):
    source = connected_source(connection)
    for _ in range(3):
        assert source.receive(10, 0.0).messages == []
    assert not source._held


def test_headers_that_a_broker_sets_are_new(connection):
    foreign = {"message_id": "x", "timestamp": 1, "expiration": 2, "redelivered": True, "delivery_count": 7}
    send(connection, Message(b"", {}, None, None, Headers(time_to_live_ms=1000, type="order", **foreign)))
    (message,) = waiting(connection)
    headers = message.headers
    assert headers is not None
    assert headers.timestamp is not None
    assert headers.timestamp > 1_700_000_000_000
    wanted = Headers(
        timestamp=headers.timestamp, expiration=headers.timestamp + 1000, time_to_live_ms=1000, type="order"
    )
    assert headers == wanted


@pytest.mark.parametrize("value", [2**70, "\ud800", object()])
def test_what_no_file_can_hold_is_refused_alone(connection, value):
    batch = outgoing(QUEUE, [b"1", Message(b"2", {"a": value}), b"3"])
    results = connected_sink(connection).send(batch)
    assert [result and result.code for result in results] == [None, "E8110", None]
    assert [message.body for message in waiting(connection)] == [b"1", b"3"]


# --- crashes ---


class Died(BaseException):
    """Stands for the end of the process."""


@contextmanager
def dying(monkeypatch, at: int) -> Iterator[list[str]]:
    """Raise `Died` instead of call number `at` of the file system; yields the names of the calls before."""
    made: list[str] = []

    def replaced(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def one(*arguments, **named):
            if len(made) + 1 == at:
                raise Died
            made.append(name)
            return call(*arguments, **named)

        return one

    with monkeypatch.context() as patches:
        for name in ("open", "write", "fsync", "replace", "unlink", "mkdir"):
            patches.setattr(os, name, replaced(name, getattr(os, name)))
        yield made


def test_a_sink_that_dies_anywhere_leaves_whole_messages_in_order(monkeypatch, tmp_path):
    for at in itertools.count(1):
        connection = make(path=str(tmp_path / str(at)))
        (tmp_path / str(at)).mkdir()
        send(connection, b"1", b"2")
        batch = outgoing(QUEUE, [b"3", b"4", b"5"])
        sink = connected_sink(connection)
        try:
            with dying(monkeypatch, at):
                sink.send(batch)
        except Died:
            there = [message.body for message in waiting(connection)]
            assert there == [b"1", b"2", b"3", b"4", b"5"][: len(there)]
            assert len(there) >= 2
            send(connection, b"3", b"4", b"5")
            assert [message.body for message in waiting(connection)] == [*there, b"3", b"4", b"5"]
            assert not list((tmp_path / str(at) / "orders").glob("*.part"))
        else:
            break
    assert at > 15


def test_a_source_that_dies_anywhere_gets_what_it_did_not_acknowledge(monkeypatch, tmp_path):
    for at in itertools.count(1):
        connection = make(path=str(tmp_path / str(at)))
        (tmp_path / str(at)).mkdir()
        send(connection, b"1", b"2", b"3", b"4")
        source = connected_source(connection)
        chunk = source.receive(3, 0.0)
        try:
            with dying(monkeypatch, at):
                source.acknowledge(chunk.tokens)
        except Died:
            source.close()
            left = [message.body for message in waiting(connection)]
            assert left == [b"1", b"2", b"3", b"4"][-len(left) :]
        else:
            break
    assert at > 3
    source.close()
    assert [message.body for message in waiting(connection)] == [b"4"]


def test_what_is_confirmed_or_acknowledged_is_on_disk(connection, monkeypatch):
    """Contents are synced before names, and names before the call returns."""
    send(connection, b"0")
    sink, source = connected_sink(connection), connected_source(connection)
    with dying(monkeypatch, at=0) as made:
        sink.send(outgoing(QUEUE, [b"1", b"2"]))
    ordered = [name for name in made if name in ("fsync", "replace")]
    assert ordered == ["fsync", "fsync", "replace", "fsync", "replace", "fsync"]
    chunk = source.receive(10, 0.0)
    with dying(monkeypatch, at=0) as made:
        source.acknowledge(chunk.tokens)
    assert [name for name in made if name != "open"] == ["unlink", "unlink", "unlink", "fsync"]
