"""Cleans up the broker in the background: a thread in one of the processes that have it open, elected by a lock.

It ends expired messages, removes what dead processes have left, forgets the outcomes of old transactions, and deletes
unused destinations that were made by their first use. No promise depends on the thread: consumers never get an expired
message, senders make room by themselves, and a consumer that registers finds dead consumers. So the thread works in
small transactions, and pauses after each of them for three times as long as it took.

Only processes with clients of the service have the thread. Engines do not need it: their sources and sinks are often
the only users of a file, and a thread would only compete with them for its lock. They find dead consumers and expired
messages by themselves.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from connectors.embedded import destinations, expiring, orphans, starting, transactions, unused
from connectors.embedded.destinations import DEAD_MESSAGES
from connectors.embedded.link import DatabaseLink, is_sqlite, open_link, sqlite_path
from connectors.embedded.sql import Sql
from connectors.embedded.waking import bells
from correlator.processes import Maker, not_forking

INTERVAL_S = 10.0
"""Seconds between two rounds."""
MOST_DEAD = 1000
"""The number of dead messages at which a process logs a warning, once."""
_LONGEST_S = 0.01
"""Seconds that a transaction that ends expired messages should take; a checkpoint of SQLite may add to this."""
_REST = 3
_FIRST_SLICE = 100
_CLOSES_WITHIN_S = 5.0
_LOCK = "sweeper"
_DEAD_MESSAGES = Sql(
    "SELECT sum(t.messages) FROM broker_tally t JOIN broker_destination n ON n.id = t.destination WHERE n.name = :name"
)
_log = logging.getLogger("connectors.embedded")


class Round:
    """One round through the broker, by the elected sweeper.

    Args:
        link: the link of the sweeper.
        pause: waits for a number of seconds; returns true if the round is to end.
    """

    def __init__(self, link: DatabaseLink, pause: Callable[[float], bool]) -> None:
        self._link = link
        self._pause = pause

    def run(self) -> None:
        """Do all tasks, or end early. Raises errors of the database."""
        self.reap()
        if self.expire() and self._remove_orphans():
            self._forget()
            unused.delete(self._link, self._pause)

    def reap(self) -> None:
        """Remove dead consumers and clients, temporary destinations, and subscriptions that are not durable."""
        with self._link.reading() as connection:
            found = starting.finds_dead(connection, self._link)
        if found:
            with self._link.transaction() as connection:
                destinations.lock_registry(connection)
                starting.reap(connection, self._link)

    def expire(self) -> bool:
        """End all expired messages, some at a time; return false if the round is to end."""
        size = _FIRST_SLICE
        while True:
            with self._link.transaction(synced=False) as connection:
                began = time.monotonic()  # waiting for the turn does not count as work
                ended = expiring.end(connection, size)
            took_s = time.monotonic() - began
            if took_s > _LONGEST_S:
                size = max(1, size // 2)
            elif took_s < _LONGEST_S / 2:
                size = min(expiring.MOST, size * 2)
            if self._pause(_REST * took_s if ended else 0.0):
                return False
            if not ended:
                return True

    def _remove_orphans(self) -> bool:
        """Remove the messages of deleted subscriptions, some at a time; return false if the round is to end."""
        with self._link.reading() as connection:
            more = orphans.exist(connection)
        while more:
            with self._link.transaction(synced=False) as connection:
                began = time.monotonic()
                more = orphans.sweep(connection)
            if self._pause(_REST * (time.monotonic() - began)):
                return False
        return True

    def _forget(self) -> None:
        with self._link.transaction(synced=False) as connection:
            transactions.forget(connection)


class Sweeper:
    """The thread of this process for a store, while sessions have the store open."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._maker = Maker()
        self._turn = threading.Lock()
        self._users = 0
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._told: set[str] = set()

    def join(self) -> None:
        """Count a user; the first one starts the thread."""
        with self._turn:
            self._users += 1
            if self._thread is None:
                self._end = end = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(end,), name="embedded-sweeper", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """Remove a user; the last one ends the thread, and waits until it has closed the store."""
        if self._maker.is_another_process:
            return
        with self._turn:
            self._users -= 1
            if self._users or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._end.set()
        thread.join(_CLOSES_WITHIN_S)

    def _run(self, end: threading.Event) -> None:
        while not end.wait(INTERVAL_S):
            try:
                self._sweep(end)
            except Exception as error:  # noqa: BLE001  # after any error there is another round
                self._tell(f"The embedded broker cannot be tidied up: {str(error).partition(chr(10))[0]}")

    def _sweep(self, end: threading.Event) -> None:
        if is_sqlite(self._store) and not sqlite_path(self._store).exists():
            return  # it was removed while it was open: there is nothing to tell anew in each round
        link = open_link(self._store, make=False)
        try:
            if elected(link):
                Round(link, end.wait).run()
                with link.reading() as connection:
                    self._warn(connection)
                bells(self._store).ring((DEAD_MESSAGES,), link.connection)
        finally:
            link.close()

    def _warn(self, connection: Connection) -> None:
        dead = int(_DEAD_MESSAGES.one(connection, name=DEAD_MESSAGES) or 0)
        if dead >= MOST_DEAD:
            self._tell(f"There are {MOST_DEAD} dead messages in {DEAD_MESSAGES}: consume them, or limit the queue")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning(text)


def elected(link: DatabaseLink) -> bool:
    """Return whether the process of this link is the only sweeper until it closes the link."""
    with link.transaction(synced=False) as connection:
        destinations.lock_registry(connection)
        if not link.is_dead(_LOCK):
            return False
        link.live(_LOCK)
        return True


_sweepers: "WeakValueDictionary[tuple[int, str], Sweeper]" = WeakValueDictionary()
_sweepers_lock = threading.Lock()


def sweeper(store: str) -> Sweeper:
    """Return the sweeper of this process for a store. A forked child has its own."""
    key = os.getpid(), store
    with not_forking(), _sweepers_lock:
        found = _sweepers.get(key)
        if found is None:
            found = _sweepers[key] = Sweeper(store)
        return found
