"""The facts that were visible outside the engine before a moment, from marks in the trace."""

from collections import defaultdict

import msgspec

from correlator.events import Message


class Published(msgspec.Struct, frozen=True, tag="published"):
    """Messages were put into the broker. Each has its own `pid`, and an `id`, which its repeats share."""

    destination: str
    messages: list[Message]


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The store was opened with this checkpoint as its last one: from now on it must exist."""

    checkpoint: int
    digest: bytes


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    """The broker received an acknowledgement of messages, each given as (`pid`, `id`)."""

    messages: list[tuple[str, str]]


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """The broker received a message of a sender that is not BEST_EFFORT."""

    sender: str
    source: str
    sequence: int
    body: bytes


class Announced(msgspec.Struct, frozen=True, tag="announced"):
    """The engine begins to commit a checkpoint with this digest."""

    checkpoint: int
    digest: bytes


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """The store has reported that this checkpoint is committed, so its sends are released."""

    checkpoint: int


Mark = Published | Opened | Acknowledged | Sent | Announced | Reported

encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder[Mark](Mark)


class PowerFacts:
    """The facts from all marks before a moment.

    Attributes:
        opened: whether there is a store.
        published: destination and message, by `pid`.
        acknowledged: the `pid`s of acknowledged messages.
        owed: the `id`s of acknowledged messages, whose effect must never be lost.
        sent: for each sender and source, the body of each number.
        digests: the digests of each announced checkpoint; several lives may announce one number.
        reported: the last reported checkpoint.
    """

    def __init__(self) -> None:
        self.opened = False
        self.published: dict[str, tuple[str, Message]] = {}
        self.acknowledged: set[str] = set()
        self.owed: set[str] = set()
        self.sent: dict[str, dict[str, dict[int, bytes]]] = defaultdict(lambda: defaultdict(dict))
        self.digests: dict[int, set[bytes]] = defaultdict(set)
        self.reported = 0

    def add(self, content: bytes) -> None:
        """Add the mark with this content. Raises `msgspec.DecodeError` for any other content."""
        mark = _decoder.decode(content)
        if isinstance(mark, Published):
            for message in mark.messages:
                self.published[str(message.properties["pid"])] = mark.destination, message
        elif isinstance(mark, Opened):
            self.opened = True
        elif isinstance(mark, Acknowledged):
            self.acknowledged.update(pid for pid, _ in mark.messages)
            self.owed.update(name for _, name in mark.messages)
        elif isinstance(mark, Sent):
            self.sent[mark.sender][mark.source].setdefault(mark.sequence, mark.body)
        elif isinstance(mark, Announced):
            self.digests[mark.checkpoint].add(mark.digest)
        else:
            self.reported = mark.checkpoint

    @property
    def waiting(self) -> dict[str, list[Message]]:
        """Return the messages that the broker still has to deliver, in order, by destination."""
        left: dict[str, list[Message]] = defaultdict(list)
        for pid, (destination, message) in self.published.items():
            if pid not in self.acknowledged:
                left[destination].append(message)
        return left
