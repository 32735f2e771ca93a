"""The feed of Pulsar: messages as the client returns them, properties of any bytes, schemas that do not fit."""

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pulsar

from connectors.pulsar import PulsarConnection, source
from correlator.settings import ConnectionSettings
from tests.connectors.fuzz import mutations
from tests.connectors.fuzz.mutations import LARGEST, NAMES, damaged, maybe, text

_TYPES = ("boolean", "byte", "short", "int", "long", "float", "double", "bytes", "integer", "string", "?", "")
_RECORD = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": "string"},
        {"name": "b", "type": ["null", "long"]},
        {"name": "c", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}},
        {"name": "d", "type": {"type": "array", "items": "double"}},
        {"name": "e", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
_FITS = b"\x02a\x02\x08\x04\x01\x02\x02" + bytes(8) + b"\x00\x10"
_KINDS = pulsar._pulsar.SchemaType  # the public module does not name it
_REGISTRY = (
    (_KINDS.AVRO, json.dumps(_RECORD)),
    (_KINDS.JSON, "{}"),
    (_KINDS.STRING, ""),
    (_KINDS.BYTES, ""),
    (_KINDS.AVRO, "["),
    (_KINDS.PROTOBUF, ""),
)


class Sent:
    """A message as Pulsar's client holds it: properties and key are bytes, which the client shows as text or fails."""

    def __init__(
        self, entry: int, body: bytes | None, properties: dict[bytes, bytes], key: bytes, version: int
    ) -> None:
        self._entry = entry
        self._body = body
        self._properties = properties
        self._key = key
        self._version = version
        self.times = (0, 1_700_000_000_000)
        self.redeliveries = 0
        self._message = SimpleNamespace(int_schema_version=lambda: version)

    def message_id(self) -> Any:
        entry = self._entry
        return SimpleNamespace(
            ledger_id=lambda: 1, entry_id=lambda: entry, batch_index=lambda: -1, partition=lambda: -1, entry=entry
        )

    def has_null_value(self) -> bool:
        return self._body is None

    def data(self) -> bytes:
        return self._body or b""

    def properties(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self._properties.items()}

    def partition_key(self) -> str:
        return self._key.decode()

    def event_timestamp(self) -> int:
        return self.times[0]

    def publish_timestamp(self) -> int:
        return self.times[1]

    def redelivery_count(self) -> int:
        return self.redeliveries

    def topic_name(self) -> str:
        return "persistent://public/default/fuzz"


class PulsarFeed:
    """A topic with hostile messages, in memory.

    Attributes:
        left: number of messages that are not acknowledged.
    """

    destination = "topic:fuzz"
    options: dict[str, Any] = {"use_schema": True}
    patched = source, "PulsarLink"

    def __init__(self, random: Random, _: Path) -> None:
        self.connection = PulsarConnection("c", ConnectionSettings(type="pulsar"))
        self._random = random
        self._entries = 0
        self.waiting: deque[Sent] = deque()
        self.left = 0

    def feed(self, hostile: int, last: bytes) -> int:
        """Send `hostile` hostile messages and the last message."""
        self.waiting.extend(self._hostile() for _ in range(hostile))
        self.waiting.append(self._sent(last, {b"last": b"true", b"last_jsmtype": b"boolean"}, b"", -1))
        self.left += hostile + 1
        return hostile + 1

    def link(self, *_: Any) -> "FedLink":
        """A link in the place of the connector's own link."""
        return FedLink(self)

    def _sent(self, *arguments: Any) -> Sent:
        self._entries += 1
        return Sent(self._entries, *arguments)

    def _hostile(self) -> Sent:
        random = self._random
        properties = {}
        for _ in range(random.randrange(8)):
            name = random.choice(NAMES).encode()
            properties[name] = text(random).encode()
            if random.random() < 0.4:
                properties[name + random.choice((b"_jsmtype", b"_jmstype"))] = random.choice(_TYPES).encode()
        if properties and random.random() < 0.3:
            name = random.choice(list(properties))
            properties[damaged(random, name)] = damaged(random, properties[name])
        version = random.choice((-1, -1, *range(len(_REGISTRY) + 1)))
        body = maybe(random, 0.9, mutations.body) if version else damaged(random, _FITS)
        key = (maybe(random, 0.3, text) or "").encode()
        made = self._sent(body, properties, damaged(random, key) if random.random() < 0.05 else key, version)
        made.times = (random.choice((0, 1, LARGEST, 2**63)), random.choice((0, 1, LARGEST)))
        made.redeliveries = random.choice((0, 1, 2**31 - 1))
        return made


class FedLink:
    """The part of Pulsar's client and consumer that the source uses, over the messages in memory."""

    def __init__(self, feed: PulsarFeed) -> None:
        self._feed = feed
        self._held: dict[int, Sent] = {}

    def open(self) -> None:
        """Do nothing: there is no connection."""

    def subscribe(self, *_: Any) -> "FedLink":
        """Return itself: it is its own consumer."""
        return self

    def schema(self, _: str, version: int) -> Any:
        """The schema of a version, as the registry would return it."""
        if version >= len(_REGISTRY):
            return None
        kind, definition = _REGISTRY[version]
        return SimpleNamespace(schema_type=lambda: kind, schema=lambda: definition)

    def call(self, _: str, function: Callable[[], Any]) -> Any:
        """Call the function at once."""
        return function()

    def is_connected(self) -> bool:
        """Always `True`."""
        return True

    def receive(self, _: int) -> Sent:
        """Take the next message."""
        if not self._feed.waiting:
            raise pulsar.exceptions.Timeout
        sent = self._feed.waiting.popleft()
        self._held[sent.message_id().entry] = sent
        return sent

    def acknowledge(self, name: Any) -> None:
        """Acknowledge a message."""
        del self._held[name.entry]
        self._feed.left -= 1

    def close(self) -> None:
        """Give back all messages that are not acknowledged."""
        self._feed.waiting.extendleft(reversed(self._held.values()))
        self._held = {}
