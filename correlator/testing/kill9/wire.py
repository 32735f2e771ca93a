"""What a child and the oracle send each other over their socket: frames of MessagePack, each after its length.

The child sends under one lock and the oracle reads in one thread, so messages have a total order. The kernel keeps what
was sent before a death, so the oracle reads it after the death.
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
"""Largest size of a frame in bytes; a batch of a receiver is far smaller."""
_READ = 256 * 1024
_LENGTH = struct.Struct("!I")
_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_WRITES: dict[str, type[Write]] = {
    one.__name__: one for one in (ReceiveCommit, CheckpointCommit, RegistryCommit, SuspectCommit, DiscardCommit)
}
Error = tuple[str, str, str]
"""Code, place and cause of an error."""
T = TypeVar("T")


class Kill(msgspec.Struct, frozen=True, array_like=True):
    """How a life ends, unless it ends before. At most one of the three ways is set.

    Attributes:
        point: fault point at whose `hit`-th passing the child kills itself. With "" the `hit`-th passing of any point
            counts.
        hit: which passing; 0 for no kill at a fault point.
        syscall: kill before the n-th call that changes a file of the run; 0 for no such kill.
        after_ms: kill from outside this many milliseconds after the fork; 0 for no such kill.
    """

    point: str = ""
    hit: int = 0
    syscall: int = 0
    after_ms: int = 0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """An order to run one life.

    Attributes:
        life: number of the life, counted from 1.
        directory: directory of the run.
        settings: settings of the engine, with the store of the run; connections without their options, which may be
            secret.
        pipelines: path of the configuration file if it has pipelines, else "".
        brokers: features of the broker of each connection.
        kill: how the life ends; `None` if nothing kills it.
        slice: most events between two looks of a context at other work.
        awaits_timers: whether an engine with a timer that fires once does not count as quiet.
        told: whether monitors report all that they do. Otherwise the child observes the calls that invariants need, and
            no message is set aside because processes died.
        prepare: import paths of functions that are called with the `child.ChildLife` before its engine is made.
        disk: directory that loses power with the life: only calls that change its files count; "" for none.
        trace: file that records these calls; "" for none.
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
    """The child has made a source. From now on `part` identifies it."""

    part: int
    receiver: ReceiverSettings


class NewSink(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The child has made a sink. From now on `part` identifies it."""

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
    """Acknowledges chunks, or gives them back; the answer is `None`."""

    call: int
    part: int
    tokens: list[int]
    acknowledged: bool


class Send(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Sends a batch; the answer is a list of `Error | None`."""

    call: int
    part: int
    batch: list[Outgoing]


class First(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Asks whether no life has asked this before; the answer is a boolean."""

    call: int
    what: str


class Close(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The child has closed a source or sink; there is no answer."""

    part: int


class Intent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A transaction is about to be committed. `Done`, or a look into the store, tells whether it was committed."""

    epoch: int
    number: int
    writes: list[tuple[str, msgspec.Raw]]


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The transaction with this number is durable."""

    number: int


class Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A record for the history."""

    kind: str
    who: str
    data: Any


class Dying(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The process is about to kill itself.

    Attributes:
        where: a fault point, or the reason that the application gave.
        hit: which passing of the point it is; 0 for a reason of the application.
        points: how often each fault point was passed in this life.
    """

    where: str
    hit: int = 0
    points: dict[str, int] = {}


class Quiet(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine has nothing left to do, as far as it can know."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine could not start, or it stopped because of an error.

    Attributes:
        text: the text of the error.
        by_application: whether a handler failed, or a mapping with `on_mapping_error: stop`.
        unreachable: whether it could not start because it lost the connection to its store.
    """

    text: str
    by_application: bool
    unreachable: bool = False


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine has stopped in an orderly way.

    Attributes:
        points: how often each fault point was passed in this life.
        known: for each duplicate detection domain, the ids in its windows.
    """

    points: dict[str, int]
    known: dict[str, tuple[str, ...]]


Said = (
    NewSource | NewSink | Connect | Receive | Settle | Send | First | Close
    | Intent | Done | Told | Dying | Quiet | Failed | Ended
)  # fmt: skip
"""A message of a child to the oracle."""


class CallResult(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer to a call; `lost` tells that the connection to the broker is lost."""

    call: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    lost: Error | None = None


class OracleCommand(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A command of the oracle: `rest` (report when you are quiet) or `stop`."""

    what: str


Heard = CallResult | OracleCommand
"""A message of the oracle to a child."""


def frame(message: Any) -> bytes:
    """Encode a message as a frame; values of unknown types in it become text."""
    content = _encode(message)
    return _LENGTH.pack(len(content)) + content


def raw(value: Any) -> msgspec.Raw:
    """Encode a value that is to be a part of another message."""
    return msgspec.Raw(_encode(value))


def packed(writes: list[Write]) -> list[tuple[str, msgspec.Raw]]:
    """Encode the changes of a transaction for an `Intent`, each with the name of its class; `unpacked` reverses it."""
    return [(type(write).__name__, raw(write)) for write in writes]


def unpacked(writes: list[tuple[str, msgspec.Raw]]) -> list[Write]:
    """Decode the changes of a transaction from an `Intent`."""
    return [msgspec.msgpack.decode(content, type=_WRITES[name]) for name, content in writes]


class Reader:
    """Splits a stream of bytes into frames.

    Args:
        line: the socket to read from.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._bytes = bytearray()

    def read(self) -> Iterator[bytes]:
        """Read once, and yield every complete frame; raises `EOFError` when the other side is gone."""
        self._receive()
        while (content := self._taken()) is not None:
            yield content

    def one(self) -> bytes:
        """Return the next frame, which an earlier read may have brought already; raises `EOFError` when the other side
        is gone.
        """
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
        """Take the first frame out of the bytes; return `None` if it is not complete."""
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
