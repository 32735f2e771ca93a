"""A process that opens something, forks a child as `multiprocessing` does, and waits to be killed; the child lives on.

    python -m tests.forks.parent WHAT ARGUMENT…

It prints the child's pid; the child prints a line with what it met when it used what its parent had opened.
"""

# ruff: noqa: T201 - what it prints is how it speaks to the test

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from correlator_spool import SpoolConnection

from connectors.embedded import EmbeddedConnection
from connectors.file import FileConnection
from connectors.http import HttpConnection
from connectors.kafka import KafkaConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.rabbitmq import RabbitConnection
from connectors.rabbitmq_stream import StreamConnection
from correlator import Engine
from correlator.errors import CorrelatorError
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, EngineSettings, ReceiverSettings, SenderSettings
from correlator.storage.store import SqlStore
from tests.storage.values import opened

Uses = Iterable[Callable[[], Any]]
KINDS: dict[str, Any] = {
    "embedded": EmbeddedConnection,
    "file": FileConnection,
    "http": HttpConnection,
    "kafka": KafkaConnection,
    "rabbitmq": RabbitConnection,
    "rabbitmq_stream": StreamConnection,
    "spool": SpoolConnection,
}


def connection_of(kind: str, options: list[str]) -> Any:
    settings = ConnectionSettings(type=kind, options=dict(option.split("=", 1) for option in options))
    return KINDS[kind]("c", settings)


def open_store(url: str) -> Uses:
    store = SqlStore(url, "forking")
    opened(store)
    return [lambda: store.commit(1, []), store.close]


def open_source(kind: str, destination: str, *options: str) -> Uses:
    receiver = ReceiverSettings(id="r", connection="c", destination=destination)
    source = connection_of(kind, list(options)).source(receiver)
    source.connect()
    chunk = source.receive(10, 5.0)
    assert chunk.messages
    return [
        lambda: source.receive(10, 0.0),
        lambda: source.acknowledge(chunk.tokens),
        lambda: source.reject(chunk.tokens),
        source.close,
        *([source.connect, source.close] if kind in ("file", "http", "spool") else []),
    ]


def open_sink(kind: str, destination: str, *options: str) -> Uses:
    sink = connection_of(kind, list(options)).sink(SenderSettings(id="s", connection="c", destination=destination))
    sink.connect()
    return [
        lambda: sink.send([Outgoing(1, "life", destination, Message(b"1"))]),
        sink.close,
        *([sink.connect, sink.close] if kind in ("file", "http", "spool") else []),
    ]


def open_session(kind: str, destination: str, *options: str) -> Uses:
    settings = ConnectionSettings(type=kind, options=dict(option.split("=", 1) for option in options))
    connection = ConnectionFactory(KINDS[kind], settings.options).create_connection()
    session = connection.create_session(AcknowledgeMode.CLIENT)
    subscription = "held" if kind == "rabbitmq_stream" else None
    consumer = session.create_consumer(destination, subscription=subscription)
    assert consumer.receive(5.0)
    return [lambda: consumer.receive(0.0), session.recover, session.close, connection.close]


def open_engine(url: str) -> Uses:
    engine = Engine(EngineSettings(name="forking", store=url))
    engine.start()
    hold_for_ever(engine._supervisor.changed)
    sender = SenderSettings(id="s", connection="c", destination="queue:x")
    return [
        lambda: engine.checkpoint(0.1),
        lambda: engine.add_sender(sender),
        engine.run_forever,
        engine.status,
        lambda: engine.removed("s"),
        engine.raise_failure,
        engine.request_stop,
        engine.stop,
    ]


def hold_for_ever(lock: AbstractContextManager[object]) -> None:
    """As a thread may do at the moment of the fork: in the child nobody gives it back."""
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()


OPEN: dict[str, Callable[..., Uses]] = {
    "store": open_store,
    "source": open_source,
    "sink": open_sink,
    "session": open_session,
    "engine": open_engine,
}


def live_on(uses: Uses) -> None:
    """What a worker process is: forked, and busy with something else for ever."""
    print("child", os.getpid(), *map(met_by, uses), flush=True)
    while True:
        signal.pause()


def met_by(use: Callable[[], Any]) -> str:
    try:
        use()
    except CorrelatorError as error:
        return error.code
    return "nothing"


if __name__ == "__main__":
    uses = OPEN[sys.argv[1]](*sys.argv[2:])
    multiprocessing.get_context("fork").Process(target=live_on, args=(uses,)).start()
    signal.pause()
