"""The template of a connector (docs/connectors.md): its broker, `spool`, is a directory and needs no server."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from spool import NAME, Queue

from correlator.connector import Chunk, Features, Held, Order, readable
from correlator.errors import ConfigError, ConnectionLost, SendRejected, quoted
from correlator.events import CUT_FROM, Headers, Message, Outgoing
from correlator.options import check_destination, check_options, text_option
from correlator.processes import LockFile, Maker
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


class SpoolConnection:
    features = Features(order=Order.POSITION, acknowledges_surely=True)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        where = f"connections.{name}"
        check_options(where, settings.options, ["path"])
        self._spool = Path(text_option(where, settings.options, "path")).absolute()

    def source(self, receiver: ReceiverSettings) -> "SpoolSource":
        where = f"receivers.{receiver.id}"
        check_options(where, receiver.options)
        return SpoolSource(where, Queue(self._spool, _name(where, receiver.destination)), receiver)

    def sink(self, sender: SenderSettings) -> "SpoolSink":
        where = f"senders.{sender.id}"
        check_options(where, sender.options)
        if sender.destination is not None:
            _name(where, sender.destination)
        return SpoolSink(where, self._spool)

    def close(self) -> None:
        """Sources and sinks share nothing."""


class SpoolSource:
    def __init__(self, where: str, queue: Queue, receiver: ReceiverSettings) -> None:
        self._where, self._queue, self._receiver, self._maker = where, queue, receiver, Maker()
        self._lock: LockFile | None = None
        self._held: Held[int] = Held()  # the numbers of the messages that are not settled

    def connect(self) -> None:
        self.close()
        with _using(self._where, self._maker):
            self._lock = self._queue.lock("consumer")

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        with _using(self._where, self._maker, connected=self._lock):
            room = min(max_messages, self._receiver.max_batch_size - len(self._held))
            numbers = self._queue.oldest(room, self._receiver.max_batch_bytes, set(self._held), timeout_s)
            messages = [_read(self._queue, number, self._receiver.max_message_bytes) for number in numbers]
            return Chunk(messages, self._held.hold(numbers))

    def acknowledge(self, tokens: Sequence[int]) -> None:
        with _using(self._where, self._maker, connected=self._lock):
            self._queue.delete(self._held.release(tokens))

    def reject(self, tokens: Sequence[int]) -> None:
        with _using(self._where, self._maker, connected=self._lock):
            self._held.release(tokens)

    def close(self) -> None:
        self._held.clear()
        if self._lock is not None:
            self._lock.close()
        self._lock = None


class SpoolSink:
    def __init__(self, where: str, spool: Path) -> None:
        self._where, self._spool, self._maker = where, spool, Maker()
        self._connected: object = None

    def connect(self) -> None:
        with _using(self._where, self._maker):
            self._connected = self._spool.stat()

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        contents: dict[str, list[bytes]] = {}
        results = [self._prepare(out, contents) for out in batch]
        with _using(self._where, self._maker, connected=self._connected):
            for name, its in contents.items():
                Queue(self._spool, name).put(its)
        return results

    def close(self) -> None:
        self._connected = None

    def _prepare(self, out: Outgoing, contents: dict[str, list[bytes]]) -> SendRejected | None:
        where = f"{self._where} message {out.sequence}"
        try:
            contents.setdefault(_name(where, out.destination), []).append(_encode(out.message))
        except ConfigError as error:
            return SendRejected("E8104", where, error.what, error.allowed)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return SendRejected("E8110", where, f"the message cannot be stored: {error}")
        return None


@contextmanager
def _using(where: str, maker: Maker, *, connected: object = True) -> Iterator[None]:
    maker.check(where)
    if connected is None:
        raise ConnectionLost("E7003", where, "not connected")
    try:
        yield
    except OSError as error:  # a full disk, another consumer, a directory that is not mounted: all of them may pass
        code = "E7012" if isinstance(error, BlockingIOError) else "E7003"
        raise ConnectionLost(code, where, f"the spool cannot be used: {error}") from error


def _name(where: str, destination: str) -> str:
    kind, name = check_destination(where, destination)
    if kind != "queue" or not NAME.fullmatch(name):
        what = f"{quoted(destination)} is not a queue of a spool"
        raise ConfigError("E1216", f"{where}.destination", what, "Use queue:NAME with letters, digits, '.', '_', '-'")
    return name


def _encode(message: Message) -> bytes:
    sent, now_ms = message.headers or Headers(), time.time_ns() // 1_000_000
    ours = {"message_id": None, "timestamp": now_ms, "redelivered": False, "delivery_count": 1}
    headers = msgspec.structs.replace(sent, expiration=sent.time_to_live_ms and now_ms + sent.time_to_live_ms, **ours)
    return msgspec.msgpack.encode(Message(message.body, message.properties, message.key, None, headers))


def _read(queue: Queue, number: int, max_message_bytes: int) -> Message:
    content, size = queue.get(number, max_message_bytes + 2**20)  # with properties and headers beside the body
    if size > len(content):
        return Message(content[: max_message_bytes + 1], {CUT_FROM: size})
    return readable(lambda: msgspec.msgpack.decode(content, type=Message), lambda: Message(content, {}), "file")
