"""What a child and the oracle say to each other over their socket: frames of MessagePack, each with its length before.

The child speaks under one lock and the oracle reads in one thread: the order in which things were said is total, and
what was said before a death is read after it, since the kernel keeps it.
"""

import socket
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from correlator.connector import Features
from correlator.core.commit import (
    CheckpointCommit,
    DiscardCommit,
    ReceiveCommit,
    RegistryCommit,
    SuspectCommit,
    Write,
)
from correlator.errors import UsageError
from correlator.events import Outgoing
from correlator.settings import EngineSettings, ReceiverSettings

LARGEST = 256 * 1024 * 1024
"""Bytes of a frame; a batch of a receiver is far smaller."""
_READ = 256 * 1024
_LENGTH = struct.Struct("!I")
_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_WRITES: dict[str, type[Write]] = {
    one.__name__: one for one in (ReceiveCommit, CheckpointCommit, RegistryCommit, SuspectCommit, DiscardCommit)
}
Error = tuple[str, str, str]
"""Code, where, what."""
T = TypeVar("T")


class Kill(msgspec.Struct, frozen=True, array_like=True):
    """How a life ends, if it comes so far; at most one of the three.

    Attributes:
        point: at the `hit`-th passing of this fault point; with `hit` alone at the `hit`-th passing of any.
        hit: 0 for not at a point.
        syscall: before the n-th call that changes a file of the run; 0 for not so.
        after_ms: from outside, so many milliseconds after the fork; 0 for not so.
    """

    point: str = ""
    hit: int = 0
    syscall: int = 0
    after_ms: int = 0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A life that is asked for.

    Attributes:
        life: counted from 1.
        directory: of the run.
        settings: of the engine, with the store of the run; connections without their options, which may be secret.
        pipelines: the configuration file when it has pipelines, else "".
        brokers: what the broker behind each connection can do.
        kill: how it ends.
        slice: most events between two looks of a context.
        awaits_timers: whether a timer that fires once keeps the engine from being quiet.
        told: whether monitors tell all that they do. Otherwise calls that invariants ask about are observed, and no
            message is set aside for the deaths of processes.
        prepare: import paths of functions that are called with the `child.ChildLife` before its engine is made.
        disk: directory that loses power with the life: only calls that change its files count; "" for none.
        trace: file to which these are recorded; "" for none.
    """

    life: int
    directory: str
    settings: EngineSettings
    pipelines: str
    brokers: dict[str, Features]
    kill: Kill | None
    slice: int
    awaits_timers: bool
    told: bool
    prepare: list[str]
    disk: str = ""
    trace: str = ""


class NewSource(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A source was made; `part` stands for it from now on."""

    part: int
    receiver: ReceiverSettings


class NewSink(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A sink was made; `part` stands for it from now on."""

    part: int
    connection: str
    sender: str


class Connect(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The child asks the oracle to connect the source or sink `part`; the oracle answers call `call` with `None`."""

    call: int
    part: int


class Receive(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The child asks the oracle for messages of the source `part`; the oracle answers call `call` with a `Chunk`.

    Attributes:
        call: number of the call, which the answer repeats.
        part: number of the source.
        most: largest number of messages.
        timeout_s: how many seconds to wait for the first message.
    """

    call: int
    part: int
    most: int
    timeout_s: float


class Settle(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Acknowledge chunks, or give them back; answered with `None`."""

    call: int
    part: int
    tokens: list[int]
    acknowledged: bool


class Send(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answered with a list of `Error | None`."""

    call: int
    part: int
    batch: list[Outgoing]


class First(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answered with whether nobody has asked this in any life before."""

    call: int
    what: str


class Close(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A source or sink was closed; not answered."""

    part: int


class Intent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A transaction is about to be committed: whether it takes place is not known before `Done`, or a look."""

    epoch: int
    number: int
    writes: list[tuple[str, msgspec.Raw]]


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The transaction with this number is durable."""

    number: int


class Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A record for the history, as the child saw it."""

    kind: str
    who: str
    data: Any


class Dying(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The process is about to kill itself.

    Attributes:
        where: a fault point, or the application's reason.
        hit: which passing of the point it is; 0 for the application's own reason.
        points: how often each fault point was passed in this life.
    """

    where: str
    hit: int = 0
    points: dict[str, int] = {}


class Quiet(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nothing is left to do in the engine, as far as it can know."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine could not start, or stopped by itself.

    Attributes:
        text: the error.
        by_application: whether a handler failed, or a message that `on_mapping_error: stop` is for.
        unreachable: whether it could not start since the connection to its store was lost.
    """

    text: str
    by_application: bool
    unreachable: bool = False


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine has stopped in order.

    Attributes:
        points: how often each fault point was passed in this life.
        known: for each duplicate detection domain the ids in its windows.
    """

    points: dict[str, int]
    known: dict[str, tuple[str, ...]]


Said = (
    NewSource | NewSink | Connect | Receive | Settle | Send | First | Close
    | Intent | Done | Told | Dying | Quiet | Failed | Ended
)  # fmt: skip
"""What a child says."""


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a call; `lost` says that the connection to the broker is lost."""

    call: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    lost: Error | None = None


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the oracle wants: `rest` (say when you are quiet) or `stop`."""

    what: str


Heard = Answer | Command
"""What a child hears."""


def frame(message: Any) -> bytes:
    """A message as it travels; values of unknown types in it become text."""
    content = _encode(message)
    return _LENGTH.pack(len(content)) + content


def raw(value: Any) -> msgspec.Raw:
    """A value inside another message."""
    return msgspec.Raw(_encode(value))


def packed(writes: list[Write]) -> list[tuple[str, msgspec.Raw]]:
    """Encode the changes of a transaction for an `Intent`, each with the name of its class; `unpacked` reverses it."""
    return [(type(write).__name__, raw(write)) for write in writes]


def unpacked(writes: list[tuple[str, msgspec.Raw]]) -> list[Write]:
    """Writes out of an `Intent`."""
    return [msgspec.msgpack.decode(content, type=_WRITES[name]) for name, content in writes]


class Reader:
    """Takes frames out of a stream of bytes.

    Args:
        line: where they come from.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._bytes = bytearray()

    def read(self) -> Iterator[bytes]:
        """Every complete frame after one read; raises `EOFError` when the other side is gone."""
        self._receive()
        while (content := self._taken()) is not None:
            yield content

    def one(self) -> bytes:
        """The next frame, which may have come together with the one before; raises `EOFError`."""
        while (content := self._taken()) is None:
            self._receive()
        return content

    def _receive(self) -> None:
        try:
            read = self._line.recv(_READ)
        except ConnectionError:
            read = b""
        if not read:
            raise EOFError
        self._bytes += read

    def _taken(self) -> bytes | None:
        """The first frame, out of the bytes; `None` when it is not complete."""
        if len(self._bytes) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._bytes)
        if size > LARGEST:
            raise UsageError("E2430", "socket of a child", f"a frame of {size} bytes", f"At most {LARGEST}")
        end = _LENGTH.size + size
        if len(self._bytes) < end:
            return None
        content = bytes(self._bytes[_LENGTH.size : end])
        del self._bytes[:end]
        return content
