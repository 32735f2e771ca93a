"""The journal of a run: the requests of processes to the broker, its answers, and the messages that they got.

An event is one `write` to a file that is opened for appending. So the events of a process survive when it is killed,
and the events of all processes have one order.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from correlator.errors import CorrelatorError

Copy = tuple[str, str]
"""A message in one place: `queue:NAME` or `topic:NAME/SUBSCRIPTION`, and the name of the message."""


class Sending(msgspec.Struct, frozen=True, array_like=True):
    """A message that a program sends; its body is `name`. A time is 0 if the message does not set it."""

    name: str
    destination: str
    persistent: bool = True
    priority: int = 4
    lives_ms: int = 0
    delay_ms: int = 0
    is_even: bool = True


class Born(msgspec.Struct, frozen=True, array_like=True, tag="born"):
    """A process begins to use the broker."""

    at: int
    life: int
    role: str


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A process has ended by itself, after it has closed everything."""

    at: int
    life: int


class Restarted(msgspec.Struct, frozen=True, array_like=True, tag="restarted"):
    """All processes are dead: the next process that opens the broker starts it."""

    at: int
    life: int = 0


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    """A process begins a call.

    Attributes:
        op: number of the call within the process.
        call: the kind of the call.
        sends: the messages that it sends.
        settles: the messages that it acknowledges.
        name: name of a transaction or consumer, or the place of a purge.
        commits: whether the call commits a prepared transaction, or rolls it back.
    """

    at: int
    life: int
    op: int
    call: str
    sends: list[Sending] = []
    settles: list[Copy] = []
    name: str = ""
    commits: bool = True


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    """A call has returned: `code` is the code of its error, "" if it succeeded; `ids` are the ids of the sent messages."""

    at: int
    life: int
    op: int
    code: str = ""
    ids: list[str] = []


class Got(msgspec.Struct, frozen=True, array_like=True, tag="got"):
    """A session hands a message to the program; in mode AUTO it acknowledges the message right after this.

    Attributes:
        op: number of the present call of `receive`.
        mode: the mode of the session.
        place: where the message was.
        name: the name of the message.
        message_id, redelivered, count: its headers.
        reason, origin: for a dead message: why it is dead, and where it was before.
        dead_count: for a dead message: how often it had been delivered.
    """

    at: int
    life: int
    op: int
    mode: str
    place: str
    name: str
    message_id: str
    redelivered: bool
    count: int
    reason: str = ""
    origin: str = ""
    dead_count: int = 0


Event = Born | Ended | Restarted | Asked | Answered | Got
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_SIZE = 4


def encoded(event: Event) -> bytes:
    """Encode an event for the journal."""
    return _encoder.encode(event)


def decoded(content: bytes) -> Event:
    """Decode an event of the journal."""
    return _decoder.decode(content)


class Journal:
    """The events that one process writes. Its threads may share the object.

    Args:
        write: stores an encoded event; a kill after its return cannot undo this.
        life: the number of the process.
    """

    def __init__(self, write: Callable[[bytes], object], life: int) -> None:
        self.life = life
        self._write = write
        self._ops = itertools.count(1)

    def add(self, event: Event) -> None:
        """Write an event."""
        self._write(encoded(event))

    def ask(
        self,
        call: str,
        sends: Sequence[Sending] = (),
        settles: Sequence[Copy] = (),
        name: str = "",
        *,
        commits: bool = True,
    ) -> int:
        """Note that a call begins; return its number."""
        op = next(self._ops)
        self.add(Asked(now(), self.life, op, call, list(sends), list(settles), name, commits))
        return op

    def answer(self, op: int, code: str = "", ids: Sequence[str] = ()) -> None:
        """Note that a call has returned."""
        self.add(Answered(now(), self.life, op, code, list(ids)))

    def do(self, op: int, call: Callable[[], object]) -> str:
        """Make a call that `ask` has noted, and note its answer; return the code of its error, "" if it succeeds."""
        try:
            result = call()
        except CorrelatorError as error:
            self.answer(op, error.code)
            return error.code
        self.answer(op, ids=[result] if isinstance(result, str) else [])
        return ""


def now() -> int:
    """Return the time in nanoseconds, by a clock that all processes share."""
    return time.monotonic_ns()


def appending(path: Path) -> Callable[[bytes], object]:
    """Return a function that writes encoded events to the journal file of a run."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return lambda content: os.write(descriptor, len(content).to_bytes(_SIZE, "big") + content)


def read(path: Path) -> list[Event]:
    """Return all events of a journal file, in the order of their times."""
    return sorted(_events(path.read_bytes()), key=lambda event: event.at) if path.exists() else []


def _events(content: bytes) -> Iterator[Event]:
    at = 0
    while at < len(content):
        begin = at + _SIZE
        at = begin + int.from_bytes(content[at:begin], "big")
        yield decoded(content[begin:at])
