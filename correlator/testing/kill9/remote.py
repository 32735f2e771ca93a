"""The child's side of the socket: the link, connections to the brokers of the oracle, and a store that reports
commits.
"""

import itertools
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from correlator.connector import Chunk, Features
from correlator.core.commit import CheckpointCommit, ReceiveCommit, Recovered, Write
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Message, Outgoing
from correlator.ports import Store
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.kill9 import wire
from correlator.testing.store import StoreAround

ORPHANED = 75
"""Exit status of a child whose oracle is gone."""
_heard = msgspec.msgpack.Decoder(wire.Heard)
_chunk = msgspec.msgpack.Decoder(tuple[list[Message], list[int]])
_results = msgspec.msgpack.Decoder(list[wire.Error | None])
_boolean = msgspec.msgpack.Decoder(bool)


class OracleConnection:
    """The link to the oracle. Any thread may use it; a thread of its own reads from it.

    Args:
        line: the connected socket.

    Attributes:
        commands: commands for the main thread, from the oracle or from the engine.
    """

    def __init__(self, line: socket.socket) -> None:
        self.commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._line = line
        self._speaking = threading.Lock()
        self._calls = itertools.count(1)
        self._parts = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[wire.CallResult]] = {}
        threading.Thread(target=self._listen, name="link", daemon=True).start()

    def tell(self, message: wire.Said) -> None:
        """Send a message that needs no answer. Once this returns, the oracle will read it, whatever happens to this
        process.
        """
        try:
            with self._speaking:
                self._line.sendall(wire.frame(message))
        except OSError:
            os._exit(ORPHANED)

    def call(self, message: Callable[[int], wire.Said]) -> msgspec.Raw:
        """Send a call and wait for its answer; raises `ConnectionLost` if the oracle answers with it."""
        number, answers = next(self._calls), queue.SimpleQueue[wire.CallResult]()
        self._waiting[number] = answers
        self.tell(message(number))
        answer = answers.get()
        if answer.lost is not None:
            raise ConnectionLost(*answer.lost)
        return answer.value

    def record(self, kind: str, who: str = "", data: Any = None) -> None:
        """Add a record to the history that the oracle keeps; returns before the oracle has read it. Any thread may call
        it.

        Args:
            kind: what happened; see `invariants.history`.
            who: the part or the monitor that it concerns, or "".
            data: what the kind of record says about it; values of types that MessagePack lacks become text.
        """
        self.tell(wire.Told(kind, who, data))

    def first(self, what: str) -> bool:
        """Return whether no life has asked this before."""
        return _boolean.decode(self.call(lambda number: wire.First(number, what)))

    def new_part(self) -> int:
        """Return a new number for a source or sink."""
        return next(self._parts)

    def _listen(self) -> None:
        reader = wire.Reader(self._line)
        while True:
            try:
                for content in reader.read():
                    self._hear(_heard.decode(content))
            except (EOFError, OSError):
                os._exit(ORPHANED)

    def _hear(self, heard: wire.Heard) -> None:
        if isinstance(heard, wire.CallResult):
            self._waiting.pop(heard.call).put(heard)
        else:
            self.commands.put(heard.what)


class RemoteConnection:
    """A connection of the configuration, whose broker runs in the oracle.

    Args:
        link: the link to the oracle.
        name: name of the connection.
        features: features of the broker.
    """

    def __init__(self, link: OracleConnection, name: str, features: Features) -> None:
        self.features = features
        self._link = link
        self._name = name

    def source(self, receiver: ReceiverSettings) -> "RemoteSource":
        """Make a source for the receiver's destination, and tell the oracle about it. Does not connect."""
        part = self._link.new_part()
        self._link.tell(wire.NewSource(part, receiver))
        return RemoteSource(self._link, part)

    def sink(self, sender: SenderSettings) -> "RemoteSink":
        """Make a sink, and tell the oracle about it: the oracle makes the real one. Does not connect."""
        part = self._link.new_part()
        self._link.tell(wire.NewSink(part, self._name, sender.id))
        return RemoteSink(self._link, part)

    def close(self) -> None:
        """Do nothing: sources and sinks are closed one by one."""


class RemoteSource:
    """A consumer at the oracle's broker."""

    def __init__(self, link: OracleConnection, part: int) -> None:
        self._link = link
        self._part = part

    def connect(self) -> None:
        """Let the consumer at the oracle connect, as `connector.Source.connect`, and raise what it raises."""
        self._link.call(lambda call: wire.Connect(call, self._part))

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take a chunk of at most `max_messages` messages; the oracle waits for the first one."""
        answer = self._link.call(lambda call: wire.Receive(call, self._part, max_messages, timeout_s))
        return Chunk(*_chunk.decode(answer))

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Let the consumer at the oracle acknowledge these messages, and raise what it raises."""
        self._link.call(lambda call: wire.Settle(call, self._part, list(tokens), acknowledged=True))

    def reject(self, tokens: Sequence[Any]) -> None:
        """Let the consumer at the oracle give these messages back, and raise what it raises."""
        self._link.call(lambda call: wire.Settle(call, self._part, list(tokens), acknowledged=False))

    def close(self) -> None:
        """Tell the oracle to close the consumer; does not wait for that."""
        self._link.tell(wire.Close(self._part))


class RemoteSink:
    """A producer at the oracle's broker."""

    def __init__(self, link: OracleConnection, part: int) -> None:
        self._link = link
        self._part = part

    def connect(self) -> None:
        """Let the producer at the oracle connect, as `connector.Sink.connect`, and raise what it raises."""
        self._link.call(lambda call: wire.Connect(call, self._part))

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Let the producer at the oracle send the batch; return one result per message."""
        answer = self._link.call(lambda call: wire.Send(call, self._part, list(batch)))
        return [None if refused is None else SendRejected(*refused) for refused in _results.decode(answer)]

    def close(self) -> None:
        """Tell the oracle to close the producer; does not wait for that."""
        self._link.tell(wire.Close(self._part))


class ToldStore(StoreAround):
    """A store that reports each transaction to the oracle before and after its commit.

    Args:
        store: the real store.
        link: the link to the oracle.
    """

    def __init__(self, store: Store, link: OracleConnection) -> None:
        super().__init__(store)
        self.epoch = 0
        self._link = link

    def take_over(self, recovered: Recovered) -> None:
        """Take over the real store, as `ports.Store.take_over`, and keep the epoch for the reports to the oracle."""
        super().take_over(recovered)
        self.epoch = recovered.epoch

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """Commit as `ports.Store.commit`. A transaction that is reported twice before its commit was rolled back the
        first time.
        """
        self._link.tell(wire.Intent(self.epoch, number, wire.packed([_essence(write) for write in writes])))
        super().commit(number, writes)
        self._link.tell(wire.Done(number))

    def resolve(self, number: int) -> bool:
        """Ask the real store, as `ports.Store.resolve`; tell the oracle if the transaction was committed."""
        committed = super().resolve(number)
        if committed:
            self._link.tell(wire.Done(number))
        return committed


def _essence(write: Write) -> Write:
    """Return the write without the parts that the history does not need: state may be large."""
    if isinstance(write, CheckpointCommit):
        return msgspec.structs.replace(write, state=(), contexts=(), consumed={})
    if isinstance(write, ReceiveCommit):
        return msgspec.structs.replace(write, rewritten=(), forgotten=())
    return write
