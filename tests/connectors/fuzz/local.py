"""Feeds of the embedded broker and of files: both are real, with content that no sender would have written."""

from pathlib import Path
from random import Random
from typing import Any

import msgspec

from connectors.embedded import EmbeddedConnection, sending, storing
from connectors.embedded.link import open_link
from connectors.file import FileConnection
from correlator.events import Headers, Message
from correlator.settings import ConnectionSettings
from tests.connectors.fuzz import mutations
from tests.connectors.fuzz.mutations import LARGEST, NAMES, damaged, maybe, number, text

_encode = msgspec.msgpack.Encoder().encode


class EmbeddedFeed:
    """A queue of the embedded broker, into whose tables hostile rows are written."""

    destination = "queue:fuzz"
    options: dict[str, Any] = {}
    patched = None

    def __init__(self, random: Random, directory: Path) -> None:
        self._store = f"sqlite:///{directory}/broker.db"
        self.connection = EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": self._store}))
        self._random = random

    @property
    def left(self) -> int:
        """The number of messages that are not acknowledged."""
        return len(self.connection.browse(self.destination, 10))

    def feed(self, hostile: int, last: bytes) -> int:
        """Write the hostile rows and the last message."""
        contents = [*(self._hostile() for _ in range(hostile)), _encode(Message(last))]
        link = open_link(self._store)
        with link.transaction() as connection:
            entries = [storing.NewMessage("", 0, "ID:fuzz", content) for content in contents]
            sending.store(connection, self.destination, entries, sending.Terms(link, set()))
        link.close()
        return len(contents)

    def _hostile(self) -> bytes:
        random = self._random
        if random.random() < 0.05:
            return mutations.body(random)
        content = _encode(self._message())
        return damaged(random, content) if random.random() < 0.35 else content

    def _message(self) -> list[Any]:
        random = self._random
        headers = [maybe(random, 0.3, lambda one: one.choice((text, number, mutations.body))(one)) for _ in range(11)]
        fit = Headers(correlation_id=maybe(random, 0.5, text), priority=maybe(random, 0.5, number))
        fit = msgspec.structs.replace(
            fit, time_to_live_ms=random.choice((*[None, 0, 1, 2**53] * 5, 2**62, -1, LARGEST))
        )
        properties = {random.choice(NAMES): self._value(0) for _ in range(random.randrange(5))}
        key = maybe(random, 0.3, text)
        return [mutations.body(random), properties, key, None, random.choice((None, None, headers, fit, fit, fit, fit))]

    def _value(self, depth: int) -> Any:
        random = self._random
        kind = random.randrange(9) if depth < 4 and random.random() < 0.2 else random.randrange(6)
        if kind < 6:
            return (text(random), number(random), 1.5, None, b"\xff", LARGEST)[kind]
        if kind == 6:
            return msgspec.msgpack.Ext(random.choice((-1, 5)), random.randbytes(random.choice((4, 8, 12, 3))))
        return [self._value(depth + 1)] if kind == 7 else {random.choice((1, "a", None)): self._value(depth + 1)}


class FileFeed:
    """A file of JSON lines, which grows with each life of the engine."""

    options: dict[str, Any] = {"follow": True}
    patched = None
    ending = ".jsonl"
    header = b""

    def __init__(self, random: Random, directory: Path) -> None:
        self._file = directory / "files" / f"fuzz{self.ending}"
        self._file.parent.mkdir()
        self._file.write_bytes(self.header)
        self.destination = f"queue:{self._file.name}"
        self.connection = FileConnection("c", ConnectionSettings(type="file", options={"path": str(self._file.parent)}))
        self._random = random

    @property
    def left(self) -> int:
        """The number of bytes after the stored position."""
        (position,) = self._file.parent.rglob("*.position")
        return self._file.stat().st_size - int(msgspec.json.decode(position.read_bytes())["offset"])

    def feed(self, hostile: int, last: bytes) -> int:
        """Append hostile lines and the last message."""
        with self._file.open("ab") as file:
            for _ in range(hostile):
                file.write((self._line().translate(None, b'\r\n"' if self.header else b"\r\n") or b"-") + b"\n")
            file.write(last + b"\n")
        return hostile + 1

    def _line(self) -> bytes:
        random = self._random
        kind = random.randrange(4)
        if kind == 0:
            return mutations.body(random)
        if kind == 1:
            digits = str(number(random)) * random.choice((1, 1, 3, 300))
            return b'{"id": %b, "last": 1}' % digits.encode()
        value: Any = random.choice((text(random), number(random), None, [[text(random)]], {"id": number(random)}))
        return damaged(random, msgspec.json.encode({"id": value, random.choice(NAMES): text(random)}))


class CsvFeed(FileFeed):
    """A CSV file without quotes, since one quote would make one record of many lines."""

    ending = ".csv"
    header = b"id,last\n"

    def _line(self) -> bytes:
        random = self._random
        return damaged(random, f"{text(random)},{number(random)},{text(random)}".encode())
