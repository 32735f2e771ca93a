"""A client for `scale`; the argument is the URL of the store. MS says for how many milliseconds it goes on.

exchange MS QUEUE   send a message and receive one, by turns; answers how many, and nanoseconds of all sends, of all
                    receives, of the longest send and of the longest receive
send MS QUEUE       send singly; answers how many, and nanoseconds of the longest send
sweep MS            end expired messages as the sweeper does, with its pauses; answers whether none are left, how
                    many transactions that took, and nanoseconds of the longest one, from BEGIN to the end of COMMIT
sweep_aside MS      as `sweep`, by another thread; answers 0
swept               waits for that thread; answers as `sweep`
browse QUEUE        take a snapshot of a queue; answers how many messages it has
hold MS             read in one transaction; answers 0
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from statistics import median
from typing import cast

from sqlalchemy import Connection as DatabaseConnection

from connectors.embedded import EmbeddedConnection, sweeping
from connectors.embedded.link import DatabaseLink, open_link
from connectors.embedded.sweeping import Round, elected
from connectors.messaging import Connection, ConnectionFactory
from correlator.events import Headers, Message
from tests.benchmarks.service.clients import BODY, Answer, now, serve

_TIMEOUT_S = 60.0
_NEVER_S = 1e6
_MESSAGE = Message(BODY, headers=Headers(persistent=True))


class _TimedLink:
    """A link that knows how long its transactions took, without the wait for the turn to write."""

    def __init__(self, link: DatabaseLink) -> None:
        self._link = link
        self.took_ns: list[int] = []
        self.processor_ns: list[int] = []

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[DatabaseConnection]:
        with self._link.transaction(synced=synced) as connection:
            begin, processor = now(), time.thread_time_ns()
            yield connection
        self.took_ns.append(now() - begin)
        self.processor_ns.append(time.thread_time_ns() - processor)


class _Sweep:
    """Sweeps for this process."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._aside = ThreadPoolExecutor(1)
        self._sweeping: Future[Answer] | None = None

    def sweep(self, milliseconds: int) -> Answer:
        link = open_link(self._store)
        try:
            if not elected(link):
                raise RuntimeError("another process sweeps")
            timed = _TimedLink(link)
            end = now() + milliseconds * 1_000_000

            def pause(seconds: float) -> bool:
                time.sleep(seconds)
                return now() >= end

            none_left = Round(cast("DatabaseLink", timed), pause).expire()
            return (
                int(none_left),
                len(timed.took_ns),
                median(timed.took_ns),
                max(timed.took_ns),
                max(timed.processor_ns),
            )
        finally:
            link.close()

    def sweep_aside(self, milliseconds: int) -> Answer:
        self._sweeping = self._aside.submit(self.sweep, milliseconds)
        return (0,)

    def swept(self) -> Answer:
        assert self._sweeping is not None
        return self._sweeping.result(_TIMEOUT_S)


def exchange(connection: Connection, milliseconds: int, queue: str) -> Answer:
    """Each receive claims and acknowledges one message."""
    sends, receives = [], []
    with connection.create_session() as session:
        producer, consumer = session.create_producer(queue), session.create_consumer(queue, flow_limit=1)
        end = now() + milliseconds * 1_000_000
        while (begin := now()) < end:
            producer.send(_MESSAGE)
            sent = now()
            assert consumer.receive(_TIMEOUT_S) is not None, "no message came"
            sends.append(sent - begin)
            receives.append(now() - sent)
    return len(sends), sum(sends), sum(receives), max(sends), max(receives)


def send(connection: Connection, milliseconds: int, queue: str) -> Answer:
    """Persistent messages."""
    took = []
    with connection.create_session() as session:
        producer = session.create_producer(queue)
        begin = now()
        end = begin + milliseconds * 1_000_000
        while begin < end:
            producer.send(_MESSAGE)
            took.append(now() - begin)
            begin = now()
    return len(took), max(took)


def browse(connection: Connection, queue: str) -> Answer:
    """All messages are in memory at the end."""
    with connection.create_session() as session:
        return (sum(1 for _ in session.create_browser(queue).enumerate()),)


class _Reader:
    """Keeps a transaction open that reads: the log cannot begin anew."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._open = ExitStack()

    def hold(self) -> Answer:
        link = self._open.enter_context(closing(open_link(self._store)))
        connection = self._open.enter_context(link.reading())
        connection.exec_driver_sql("SELECT count(*) FROM broker_consumer").all()
        return (0,)

    def let_go(self) -> Answer:
        self._open.close()
        return (0,)


def main() -> None:
    """Serve one broker."""
    store = sys.argv[1]
    gc.freeze()  # else each full collection of what was imported would take about 50 ms, perhaps of a transaction
    sweeping.INTERVAL_S = _NEVER_S  # it sweeps only when it is told
    sweep, reader = _Sweep(store), _Reader(store)
    commands: list[Callable[..., Answer]] = [exchange, send, browse]
    with ConnectionFactory(EmbeddedConnection, {"store": store}).create_connection() as connection:
        served = {command.__name__: partial(command, connection) for command in commands}
        others = (sweep.sweep, sweep.sweep_aside, sweep.swept, reader.hold, reader.let_go)
        serve(served | {command.__name__: command for command in others})


if __name__ == "__main__":
    main()
