"""Values that travel: what application code sees (events) and what brokers carry (messages)."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import msgspec

from correlator.errors import UsageError

if TYPE_CHECKING:
    PropertyValue = None | bool | int | float | str | bytes
else:
    PropertyValue = Any  # msgspec refuses a union of str and bytes; MessagePack itself keeps them apart


CUT_FROM = "cut_from_bytes"
"""Property by which a source tells the size of a message that is too large to be taken whole: the body begins it."""


UNREADABLE = "correlator_unreadable"
"""Property by which a source says what it could not read of a message, which comes as it was sent."""


LONGEST_LIFE_MS = 2**53
"""Most of a `time_to_live_ms`, some 285,000 years: the moment at which it ends has still a number of 64 bits."""


class Headers(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The standard headers of a message (docs/mapping.md). `None` means: the broker's default, or not present.

    Times are milliseconds since the epoch. `delivery_count`, `redelivered`, `timestamp`, `message_id` and
    `expiration` are set by brokers; a sender that sets them is ignored.
    """

    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    priority: int | None = None
    persistent: bool | None = None
    time_to_live_ms: int | None = None
    expiration: int | None = None
    timestamp: int | None = None
    redelivered: bool = False
    delivery_count: int = 1


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a broker carries.

    Attributes:
        body: the bytes of the message.
        properties: application properties by name.
        key: what keeps messages of one group in order; `None` for no group.
        destination: where it goes instead of the sender's own destination; `None` on receive, so that a message may
            be sent on as it came.
        headers: the standard headers, `None` for all defaults.
        receiver: the id of the receiver that took it in, as a handler sees it; `None` in what is sent or stored.
    """

    body: bytes
    properties: dict[str, PropertyValue] = {}
    key: str | None = None
    destination: str | None = None
    headers: Headers | None = None
    receiver: str | None = None


def expired(message: Message, wall_ms: float) -> bool:
    """Whether nobody wants the message any more: its sender said until when, by the wall clock."""
    headers = message.headers
    return headers is not None and headers.expiration is not None and 0 < headers.expiration <= wall_ms


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One message on its way out of a sender.

    Attributes:
        sequence: number within the sender, contiguous from 1, the same at every repeat.
        source: the sender's `messageSourceId`.
        destination: where the sink puts it.
        message: body and properties; for EXACTLY_ONCE and BEST_EFFORT the properties hold the unique id.
    """

    sequence: int
    source: str
    destination: str
    message: Message


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that could not be mapped, handled or sent, with the reason (docs/dead-letters.md).

    Attributes:
        kind: `mapping`, `handler`, `step`, `send`, `poison` (it ended the process), or `unhandled`.
        origin: the id of the receiver, monitor, pipeline or sender where it failed.
        reason: the error text, beginning with its code.
        message: the message as it was.
        unique_id: its unique id if it has one.
        time: engine time in seconds.
        receiver: the id of the receiver that took the message in; "" for a send, and for what came from inside.
        number: its number in the receiver's stream, the same in all letters about it; 0 when it never got one.
    """

    kind: str
    origin: str
    reason: str
    message: Message
    unique_id: str | None = None
    time: float = 0.0
    receiver: str = ""
    number: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all event types; made by `@event`, never subclassed by hand."""


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def event(cls: type[T]) -> type[T]:
    """Make a class of annotated fields an event type: immutable, typed, comparable, made by keyword.

    Field types are those that state may have (trap T46). Methods and properties of the class are kept.
    Raises `UsageError` E4123 for a subclass of an event.
    """
    if issubclass(cls, msgspec.Struct):
        raise UsageError(
            "E4123",
            f"event {cls.__qualname__}",
            "is a subclass of an event, or of another struct",
            "An event class has no base class: listeners are told of exactly the type that they name",
            "Write all of its fields into it, or let it have the other event as a field",
        )
    namespace: dict[str, Any] = {
        name: value
        for name, value in vars(cls).items()
        if name not in ("__dict__", "__weakref__", "__annotations__")
        and name not in vars(cls).get("__annotations__", {})
    }
    fields: list[Any] = []
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if name in vars(cls):
            fields.append((name, annotation, vars(cls)[name]))
        else:
            fields.append((name, annotation))
    made = msgspec.defstruct(
        cls.__name__,
        fields,
        bases=(Event,),
        module=cls.__module__,
        namespace=namespace,
        frozen=True,
        kw_only=True,
        gc=False,
    )
    made.__qualname__ = cls.__qualname__  # so that the store finds a nested class again
    return made  # type: ignore[return-value]


@event
class SenderFlushed:
    """All sends before `request_flush` returned `request_id` are confirmed, or `failed` of them are dead letters."""

    sender: str
    request_id: int
    failed: int = 0


@event
class ReceivingSuspended:
    """An APP_CONTROLLED receiver has delivered a batch and waits for `acknowledge_and_resume`."""

    receiver: str


class PartStatus(StrEnum):
    """How a connection, sender or receiver is (docs/status.md)."""

    CONNECTING = "CONNECTING"
    OK = "OK"
    ERROR = "ERROR"
    """The connection is lost or was never made; the engine goes on trying."""
    FATAL_ERROR = "FATAL_ERROR"
    """The part failed and the engine stops."""
    DESTINATION_NOT_FOUND = "DESTINATION_NOT_FOUND"
    """The broker has no such destination yet; the engine goes on trying."""
    BLOCKED = "BLOCKED"
    """The broker takes no messages at present; the sender waits."""
    REMOVED = "REMOVED"


@event
class ConnectionStatus:
    """A connection is in another status than before: `CONNECTING`, `OK`, or `ERROR` while one of its parts is."""

    connection: str
    status: PartStatus
    error: str = ""


@event
class SenderStatus:
    """A sender is in another status than before; `error` says why when it is `ERROR` or `FATAL_ERROR`."""

    sender: str
    status: PartStatus
    error: str = ""


@event
class ReceiverStatus:
    """A receiver is in another status than before; `error` says why when it is neither `OK` nor on its way."""

    receiver: str
    status: PartStatus
    error: str = ""


@event
class FlowControlMarker:
    """Everything up to message `number` of a receiver with `flow_control` lies before this in the queue.

    Answer with `update_flow_control_window`. Numbers count what the receiver has delivered; they go on after a restart
    where messages are stored.
    """

    receiver: str
    number: int
