"""Wakes consumers when another thread or another process has made messages available.

All threads of a process share one `Bells` for a store. A consumer reads how often the bell of its destination has rung,
looks for messages, and waits until the bell has rung more often. A sender rings after its commit. That wakes the
threads of its own process, and a `Channel` carries it to other processes: `bell_files` for SQLite, `notices` for
PostgreSQL.

One thread of a process listens to the channel, and only while a consumer waits or has just waited. When it begins to
listen to a bell, it rings the bell itself: consumers look once more, so they miss no message that came before.

Waking only shortens a wait. A wake-up is lost if a process ends between its commit and its ring, so every consumer also
looks from time to time.

Destinations share a fixed number of bells. A consumer that is woken for another destination finds nothing and waits
again.
"""

import logging
import math
import os
import select
import socket
import threading
import time
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from connectors.embedded.bell_files import BellFiles
from connectors.embedded.notices import Notices
from correlator.processes import keep, not_forking
from correlator.storage.database import location, parse

BELLS = 64
_LINGER_S = 0.2
"""Seconds for which the thread listens to a bell after its last consumer has stopped waiting: most soon wait again."""
_STAYS_S = 2.0
"""Seconds for which the thread stays when nobody waits."""
_RETRY_S = 5.0
"""Seconds of polling after which the thread tries again to listen."""
_TOO_LATE = "Consumers of other processes may get messages up to a second late: %s"
_POLLS = "The broker polls for messages of other processes, since it cannot be told about them: %s"

_log = logging.getLogger("connectors.embedded")


class Listener(Protocol):
    """Hears the rings of other processes. One thread uses it. Any method may raise, except `close`.

    Attributes:
        interval_s: seconds between two calls of `heard`; `None` if the descriptor becomes readable instead.
        settles_after_s: seconds after `listen` until no ring is missed any more; 0 if none is missed from the
            beginning.
    """

    interval_s: float | None
    settles_after_s: float

    def fileno(self) -> int:
        """Return the descriptor, if `interval_s` is `None`."""
        ...

    def listen(self, bells: set[int]) -> None:
        """Listen to these bells from now on, and to no others."""
        ...

    def heard(self) -> set[int]:
        """Return the bells that other processes have rung since the last call. Does not wait."""
        ...

    def close(self) -> None:
        """Stop listening, and free all resources. Never raises."""
        ...


class Channel(Protocol):
    """Carries rings to other processes."""

    def notify(self, bells: set[int], connection: Connection) -> None:
        """Ring these bells in other processes. May raise any exception; see `Bells.ring` for the connection."""
        ...

    def listener(self) -> Listener:
        """Begin to listen. May raise any exception."""
        ...

    def poller(self) -> Listener:
        """Make a listener that uses other means, which work where `listener` does not, but cost more."""
        ...


@dataclass(slots=True)
class _Bell:
    rung: int = 0
    waiting: list[threading.Condition] = field(default_factory=list)
    left_at: float = float("-inf")

    def is_wanted(self, now: float) -> bool:
        return bool(self.waiting) or now < self.left_at + _LINGER_S


class Bells:
    """The bells of a store, for all threads of the process that made the object."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._bells = [_Bell() for _ in range(BELLS)]
        self._listened: set[int] = set()
        self._nudge: socket.socket | None = None  # wakes the listening thread; None if there is no thread
        self._told: set[str] = set()

    def rung(self, *destinations: str) -> int:
        """Return how often the bells of these destinations have rung. Call this before looking for messages."""
        return sum(self._bells[number].rung for number in set(map(_bell_of, destinations)))

    def wait(self, destination: str, rung: int, timeout_s: float) -> bool:
        """Wait until the bell has rung more often than `rung`; return false if it does not within `timeout_s`.

        The bell may also ring when there is nothing new.
        """
        return self.wait_for_any((destination,), rung, timeout_s)

    def wait_for_any(self, destinations: Iterable[str], rung: int, timeout_s: float) -> bool:
        """Do the same as `wait`, for the sum of the rings of these destinations' bells."""
        numbers = set(map(_bell_of, destinations))
        own = [self._bells[number] for number in numbers]
        changed = threading.Condition(self._lock)
        with self._lock:
            for bell in own:
                bell.waiting.append(changed)
            try:
                if sum(bell.rung for bell in own) == rung and timeout_s > 0 and not numbers <= self._listened:
                    self._listen_anew()
                return changed.wait_for(lambda: sum(bell.rung for bell in own) != rung, timeout_s)
            finally:
                for bell in own:
                    bell.waiting.remove(changed)
                    bell.left_at = time.monotonic()

    def ring_here(self, destinations: Iterable[str]) -> None:
        """Wake all threads that wait for one of these destinations, in this process only. Never raises."""
        self._ring(set(map(_bell_of, destinations)))

    def ring(self, destinations: Iterable[str], connection: Connection) -> None:
        """Wake all threads that wait for one of these destinations, in all processes. Never raises.

        Called after the commit that made messages available, by any thread.

        Args:
            destinations: the destinations that have new messages.
            connection: connection of the sender, outside a transaction; PostgreSQL uses it. A failure leaves it as the
                failure of any statement would, so the next transaction notices a lost session.
        """
        bells = {_bell_of(destination) for destination in destinations}
        try:
            self._channel.notify(bells, connection)
        except Exception as error:  # noqa: BLE001  # the messages are stored: the sender must not treat this as a failure
            self._tell(_TOO_LATE, error)
        finally:
            # Last: listeners of this process ignore its own notices, even where these hide an earlier one of another
            # process.
            self._ring(bells)

    def _ring(self, bells: set[int]) -> None:
        if bells:
            with self._lock:
                for number in bells:
                    self._bells[number].rung += 1
                    for changed in self._bells[number].waiting:
                        changed.notify_all()

    def _tell(self, text: str, error: Exception) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning(text, str(error).partition("\n")[0] or type(error).__name__)

    def _listen_anew(self) -> None:
        """Let the thread find out to which bells to listen; start it if there is none. Called with the lock."""
        if self._nudge is None:
            try:
                self._start()
            except (OSError, RuntimeError) as error:  # the process has no free descriptor or thread
                self._tell(_TOO_LATE, error)
        else:
            with suppress(BlockingIOError):  # if it is full, the thread has already been woken
                self._nudge.send(b"\0")

    def _start(self) -> None:
        with not_forking():
            nudge, nudged = socket.socketpair()
            keep(nudge)
            keep(nudged)
        nudge.setblocking(False)
        nudged.setblocking(False)
        try:
            threading.Thread(target=self._run, args=(nudge, nudged), name="embedded-bells", daemon=True).start()
        except RuntimeError:
            nudge.close()
            nudged.close()
            raise
        self._nudge = nudge

    # --- the listening thread ---

    def _run(self, nudge: socket.socket, nudged: socket.socket) -> None:
        with nudge, nudged:
            ended = False
            while not ended:
                try:
                    with closing(self._channel.listener()) as listener:
                        ended = self._serve(listener, nudged, float("inf"))
                except Exception as error:  # noqa: BLE001  # after any error, polling still works
                    if self._somebody_waits():  # otherwise its users may have removed the store
                        self._tell(_POLLS, error)
                    with closing(self._channel.poller()) as poller:
                        ended = self._serve(poller, nudged, time.monotonic() + _RETRY_S)

    def _serve(self, listener: Listener, nudged: socket.socket, until: float) -> bool:
        """Ring the bells that the listener hears until some time. Return true earlier, when nobody has
        waited for long.
        """
        listened: set[int] = set()
        settling: list[tuple[float, set[int]]] = []
        events = select.poll()
        events.register(nudged, select.POLLIN)
        if listener.interval_s is None:
            events.register(listener, select.POLLIN)
        while time.monotonic() < until:
            wanted, pause_s = self._wanted()
            if not wanted and self._ends():
                return True
            if wanted != listened:
                listener.listen(wanted)
                fresh, listened = wanted - listened, wanted
                self._ring(fresh)
                if listener.settles_after_s:
                    settling.append((time.monotonic() + listener.settles_after_s, fresh))
            self._ring(listener.heard())
            while settling and (settles_in_s := settling[0][0] - time.monotonic()) <= 0:
                self._ring(settling.pop(0)[1])
            if settling:
                pause_s = min(pause_s, settles_in_s)
            if listened and listener.interval_s is not None:
                pause_s = min(pause_s, listener.interval_s)
            events.poll(math.ceil(pause_s * 1000))
            with suppress(BlockingIOError):
                nudged.recv(4096)
        return False

    def _wanted(self) -> tuple[set[int], float]:
        """Return the bells that somebody waits for or may soon wait for again, and the seconds until the next check."""
        now = time.monotonic()
        with self._lock:
            wanted = {number for number, bell in enumerate(self._bells) if bell.is_wanted(now)}
            lingers = any(not self._bells[number].waiting for number in wanted)
            self._listened = wanted
        return wanted, _LINGER_S if lingers else _STAYS_S

    def _somebody_waits(self) -> bool:
        with self._lock:
            return any(bell.waiting for bell in self._bells)

    def _ends(self) -> bool:
        """Return whether nobody has waited for long. Then the next thread that waits starts another thread."""
        now = time.monotonic()
        with self._lock:
            ends = all(not bell.waiting and now >= bell.left_at + _STAYS_S for bell in self._bells)
            if ends:
                self._nudge = None
            return ends


_bells: "WeakValueDictionary[tuple[int, str], Bells]" = WeakValueDictionary()
_bells_lock = threading.Lock()


def bells(store: str) -> Bells:
    """Return the bells of a store in this process. A forked child has its own, since its parent's may be locked.

    Raises:
        ConfigError: E1301, `store` is not the address of a database.
    """
    key = os.getpid(), store
    with not_forking(), _bells_lock:
        found = _bells.get(key)
        if found is None:
            is_sqlite = parse(store).get_backend_name() == "sqlite"
            found = _bells[key] = Bells(BellFiles(location(store)) if is_sqlite else Notices(store, BELLS))
        return found


@lru_cache(maxsize=1024)
def _bell_of(destination: str) -> int:
    return zlib.crc32(destination.encode()) % BELLS
