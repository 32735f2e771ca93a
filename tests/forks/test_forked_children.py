"""A process forks a child and is killed; the child lives on. Whoever comes next must not wait for the child."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from correlator.events import Message
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.storage.store import SqlStore
from correlator.testing.contract import PATIENCE_S, outgoing
from tests.connectors.web import post, serving
from tests.forks.parent import connection_of
from tests.kafka_server import KafkaServer
from tests.rabbit_server import RabbitServer
from tests.servers import free_port
from tests.storage.values import opened

pytestmark = pytest.mark.kill9
ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "docs" / "examples" / "spool"
REFUSED = "E2050"


@contextlib.contextmanager
def orphan(*arguments: str) -> Iterator[list[str]]:
    """A child of a process that opened something and was killed; gives what the child met."""
    command = [sys.executable, "-m", "tests.forks.parent", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TEMPLATE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as parent:
        assert parent.stdout is not None
        word, pid, *met = parent.stdout.readline().split()
        assert word == "child"
        parent.kill()
        parent.wait()
        try:
            os.kill(int(pid), 0)  # it lives
            yield met
        finally:
            os.kill(int(pid), signal.SIGKILL)


def publish(kind: str, destination: str, options: list[str]) -> None:
    sink = connection_of(kind, options).sink(SenderSettings(id="p", connection="c", destination=destination))
    sink.connect()
    assert not any(sink.send(outgoing(destination, [Message(b"1"), Message(b"2")])))
    sink.close()


def take(kind: str, destination: str, options: list[str], timeout_s: float) -> list[bytes]:
    """What a receiver gets that comes after the killed one."""
    source = connection_of(kind, options).source(ReceiverSettings(id="r", connection="c", destination=destination))
    source.connect()
    chunk = source.receive(10, timeout_s)
    source.acknowledge(chunk.tokens)
    source.close()
    return [message.body for message in chunk.messages]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    made: Callable[[], str] = request.getfixturevalue("postgres")
    return made()


def test_a_store(url: str) -> None:
    with orphan("store", url) as met:
        assert met == ["E3107", "nothing"]
        store = SqlStore(url, "forking")
        opened(store)
        store.close()


def test_an_engine(url: str) -> None:
    with orphan("engine", url) as met:
        assert met == [*[REFUSED] * 6, "nothing", "nothing"]
        store = SqlStore(url, "forking")
        opened(store)
        store.close()


def test_a_source_of_the_embedded_broker(url: str) -> None:
    options = [f"store={url}"]
    publish("embedded", "queue:in", options)
    with orphan("source", "embedded", "queue:in", *options) as met:
        assert met == [REFUSED, REFUSED, REFUSED, "nothing"]
        assert take("embedded", "queue:in", options, 0.0) == [b"1", b"2"]


def test_a_sink_of_the_embedded_broker(url: str) -> None:
    options = [f"store={url}"]
    with orphan("sink", "embedded", "queue:out", *options) as met:
        assert met == [REFUSED, "nothing"]
        publish("embedded", "queue:out", options)
        assert take("embedded", "queue:out", options, 0.0) == [b"1", b"2"]


def test_a_session_of_the_embedded_broker(url: str) -> None:
    options = [f"store={url}"]
    publish("embedded", "queue:in", options)
    with orphan("session", "embedded", "queue:in", *options) as met:
        assert met == [REFUSED, REFUSED, "nothing", "nothing"]
        assert take("embedded", "queue:in", options, 0.0) == [b"1", b"2"]


def test_a_source_of_files(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"1\n2\n")
    options = [f"path={tmp_path}"]
    with orphan("source", "file", "queue:in.jsonl", *options) as met:
        assert met == [REFUSED, REFUSED, REFUSED, "nothing", REFUSED, "nothing"]
        assert take("file", "queue:in.jsonl", options, 0.0) == [b"1", b"2"]


def test_a_sink_of_files(tmp_path: Path) -> None:
    options = [f"path={tmp_path}"]
    with orphan("sink", "file", "queue:out.jsonl", *options) as met:
        assert met == [REFUSED, "nothing", REFUSED, "nothing"]
        publish("file", "queue:out.jsonl", options)
    assert (tmp_path / "out.jsonl").read_bytes() == b"1\n2\n"


def test_a_source_of_requests() -> None:
    """Its client learns at once that nobody will answer, and the port is free."""
    port, ended = free_port(), threading.Event()

    def ask() -> None:
        while not ended.wait(0.05):
            try:
                post(("127.0.0.1", port), "/in", b"1")
            except ConnectionRefusedError:
                continue
            except (ConnectionResetError, http.client.RemoteDisconnected):
                ended.set()

    threading.Thread(target=ask, daemon=True).start()
    with orphan("source", "http", "queue:in", f"port={port}") as met:
        assert met == [REFUSED, REFUSED, REFUSED, "nothing", REFUSED, "nothing"]
        assert ended.wait(PATIENCE_S)
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_sink_of_requests() -> None:
    with serving() as service:
        options = [f"url={service.url}"]
        with orphan("sink", "http", "queue:out", *options) as met:
            assert met == [REFUSED, "nothing", REFUSED, "nothing"]
            publish("http", "queue:out", options)
        assert [call.body for call in service.stored] == [b"1", b"2"]


def test_a_source_of_the_template(tmp_path: Path) -> None:
    options = [f"path={tmp_path}"]
    publish("spool", "queue:in", options)
    with orphan("source", "spool", "queue:in", *options) as met:
        assert met == [REFUSED, REFUSED, REFUSED, "nothing", REFUSED, "nothing"]
        assert take("spool", "queue:in", options, 0.0) == [b"1", b"2"]


def test_a_sink_of_the_template(tmp_path: Path) -> None:
    options = [f"path={tmp_path}"]
    with orphan("sink", "spool", "queue:out", *options) as met:
        assert met == [REFUSED, "nothing", REFUSED, "nothing"]
        publish("spool", "queue:out", options)
        assert take("spool", "queue:out", options, 0.0) == [b"1", b"2"]


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["rabbitmq", "rabbitmq_stream"])
def test_a_session_of_a_server(rabbit: RabbitServer, kind: str) -> None:
    """The server sees the end of the connection at once; by its heartbeats it would notice nothing for hours."""
    streams = kind == "rabbitmq_stream"
    destination = f"queue:{rabbit.queue()}"
    given = {**rabbit.options, "port": rabbit.stream_port if streams else rabbit.port, "heartbeat_s": 3600}
    options = [f"{name}={value}" for name, value in given.items()]
    publish(kind, destination, options)

    def connections() -> str:
        return rabbit.streams("list_stream_connections", "-q") if streams else rabbit.control("list_connections", "-q")

    with orphan("session", kind, destination, *options) as met:
        assert met == [REFUSED, REFUSED, "nothing", "nothing"]
        deadline = time.monotonic() + PATIENCE_S
        while connections().strip():
            assert time.monotonic() < deadline


@pytest.mark.kafka
def test_a_source_and_a_sink_of_kafka(kafka: KafkaServer) -> None:
    """Threads of the client do not exist in the child: a call of the client, or its finalizer, would wait for ever."""
    options = [f"bootstrap_servers={kafka.servers}"]
    destination = f"topic:{kafka.topic()}"
    publish("kafka", destination, options)
    with orphan("source", "kafka", destination, *options) as met:
        assert met == [REFUSED, REFUSED, REFUSED, "nothing"]
    with orphan("sink", "kafka", destination, *options) as met:
        assert met == [REFUSED, "nothing"]


def handled(what: str, signals: str) -> list[str]:
    """What a child, which a handler forked, met or how it ended."""
    command = [sys.executable, "-c", f"from tests.forks.handling import main; main({what!r}, {signals!r})"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=PATIENCE_S, check=True)
    return [line.removeprefix("met ") for line in ended.stdout.splitlines() if line.startswith("met ")]


def test_a_child_of_a_handler_may_ask_its_monitor_for_nothing() -> None:
    assert handled("ask", "run") == [REFUSED, REFUSED]


@pytest.mark.parametrize("signals", ["run", "run_forever"])
def test_a_child_of_a_handler_can_be_terminated(signals: str) -> None:
    assert handled("terminate", signals) == [str(-signal.SIGTERM)]


@pytest.mark.parametrize("signals", ["run", "run_forever"])
def test_a_pool_of_children_ends_with_its_block(signals: str) -> None:
    assert handled("pool", signals) == ["3"]


def test_a_signal_that_comes_before_the_child_has_given_back_the_handlers_is_not_lost() -> None:
    script = """
import os, signal
os.register_at_fork(after_in_child=lambda: signal.raise_signal(signal.SIGTERM))  # runs before those of later imports
from correlator.runtime.signals import stop_signals
with stop_signals():
    child = os.fork()
    if not child:
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=PATIENCE_S, check=True)
    assert int(ended.stdout) == signal.SIGTERM
