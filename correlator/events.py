"""Events, which application code handles, and messages, which brokers carry.

The events that the engine itself sends to monitors, such as `SenderFlushed`, stand here, too.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import msgspec

from correlator.errors import UsageError

if TYPE_CHECKING:
    PropertyValue = None | bool | int | float | str | bytes
else:
    PropertyValue = Any  # msgspec refuses a union of str and bytes; MessagePack itself keeps them apart


CUT_FROM = "cut_from_bytes"
"""Property of a received message whose body was larger than `max_message_bytes`: the size in bytes. The body then holds
only its beginning."""


UNIQUE_ID, SOURCE_ID = "uniqueMessageId", "messageSourceId"
"""Properties that the default templates of receivers read: the unique id of a message, and its source."""


UNREADABLE = "correlator_unreadable"
"""Property of a received message that could not be read as a whole: the reason. The body is the one that was sent."""


LONGEST_LIFE_MS = 2**53
"""Largest `time_to_live_ms` and `delivery_delay_ms`, some 285,000 years: the resulting time must fit into 64 bits."""


class Headers(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The standard headers of a message (docs/mapping.md). `None` means the broker's default, or that there is none.

    Only brokers set `message_id`, `timestamp`, `expiration`, `redelivered`, `delivery_count` and `delivery_time`;
    senders ignore them.

    Attributes:
        message_id: the broker's id of the message.
        correlation_id: relates a reply to a request.
        reply_to: destination for replies.
        type: type of the message, as its sender names it.
        priority: priority of the message.
        persistent: whether the broker keeps the message on disk.
        time_to_live_ms: how long the broker may keep the message, in milliseconds.
        expiration: when the message expires, in milliseconds since the epoch; 0 for never.
        timestamp: when it was sent, in milliseconds since the epoch.
        redelivered: whether the broker delivers the message again.
        delivery_count: how often the broker has delivered it, including this delivery.
        group_sequence: number of the message within the group that `Message.key` names.
        delivery_delay_ms: how long the broker keeps the message from consumers after it was sent, in milliseconds.
        delivery_time: when consumers may get it at the earliest, in milliseconds since the epoch.
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
    group_sequence: int | None = None
    delivery_delay_ms: int | None = None
    delivery_time: int | None = None


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message as brokers carry it. It is immutable, so any thread may use it.

    If a receiver has no `event`, handlers get its messages as `Message`. Handlers, and producers of sessions, can send
    it.

    Attributes:
        body: content of the message.
        properties: application properties by name; values are `None`, bool, int, float, str or bytes.
        key: messages with the same key keep their order; `None` for no key.
        destination: `queue:NAME` or `topic:NAME` to send the message to, instead of the sender's own destination.
            `None` in a received message, so that a handler can forward it as it is.
        headers: the standard headers; `None` for all defaults.
        receiver: id of the receiver that received the message; `None` in a message that is sent or stored.
    """

    body: bytes
    properties: dict[str, PropertyValue] = {}
    key: str | None = None
    destination: str | None = None
    headers: Headers | None = None
    receiver: str | None = None


def expired(message: Message, wall_ms: float) -> bool:
    """Whether the message has expired at `wall_ms`, in milliseconds since the epoch."""
    headers = message.headers
    return headers is not None and headers.expiration is not None and 0 < headers.expiration <= wall_ms


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message that a sender gives to a sink. Only authors of connectors need it.

    Attributes:
        sequence: number of the message within the sender, contiguous from 1; a repeat has the same number.
        source: the source id of the sender (`messageSourceId`); "" for a producer of a session.
        destination: `queue:NAME` or `topic:NAME`.
        message: the message. In the modes EXACTLY_ONCE and BEST_EFFORT its properties hold the unique id.
        message_id: the header `message_id` for the consumer; "" lets the sink choose one.
        insists: whether the broker must refuse a message that is not persistent instead of silently dropping it.
    """

    sequence: int
    source: str
    destination: str
    message: Message
    message_id: str = ""
    insists: bool = False


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that could not be mapped, handled or sent, with the reason (docs/dead-letters.md).

    Attributes:
        kind: where it failed: `mapping`, `handler`, `step`, `send`, `poison` (it ended the process), or `unhandled`.
        origin: id of the receiver, monitor, pipeline or sender where it failed.
        reason: text of the error, beginning with its code.
        message: the message, unchanged.
        unique_id: its unique id, if it has one.
        time: engine time of the failure, in seconds.
        receiver: id of the receiver that received the message; "" for a send, and for an event that a monitor sent.
        number: number of the message within its receiver, the same in all dead letters about it; 0 if it has none.
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
    """Base class that `@event` gives to event classes. Do not subclass it yourself."""


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def event(cls: type[T]) -> type[T]:
    """Class decorator: make a class with annotated fields an event class.

    Its instances are immutable, compare by value, and are made with keyword arguments. The value that follows an
    annotation is the default of the field. A field may have any type that the state of a monitor may have. The class
    keeps its methods and properties.

    Raises:
        UsageError: E4123 for a subclass of an event or of another struct.
    """
    if issubclass(cls, msgspec.Struct):
        raise UsageError(
            "E4123",
            f"event {cls.__qualname__}",
            "is a subclass of an event, or of another struct",
            "An event class has no base class: a listener gets events of exactly the class that it names",
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
    made.__qualname__ = cls.__qualname__  # by this name the store finds a nested class
    return made  # type: ignore[return-value]


@event
class SenderFlushed:
    """The answer to `Monitor.request_flush`: each earlier send is confirmed or a dead letter.

    Attributes:
        sender: id of the sender.
        request_id: the number that `request_flush` returned.
        failed: how many of these sends became dead letters.
    """

    sender: str
    request_id: int
    failed: int = 0


@event
class ReceivingSuspended:
    """An `APP_CONTROLLED` receiver has delivered a batch and waits for `acknowledge_and_resume`.

    Attributes:
        receiver: id of the receiver.
    """

    receiver: str


class PartStatus(StrEnum):
    """The status of a connection, sender or receiver (docs/status.md)."""

    CONNECTING = "CONNECTING"
    OK = "OK"
    ERROR = "ERROR"
    """There is no connection to the broker. The engine goes on trying."""
    FATAL_ERROR = "FATAL_ERROR"
    """The connection, sender or receiver failed, and the engine stops."""
    DESTINATION_NOT_FOUND = "DESTINATION_NOT_FOUND"
    """The broker has no such destination. The engine goes on trying."""
    BLOCKED = "BLOCKED"
    """The broker accepts no messages at present. The sender waits."""
    REMOVED = "REMOVED"


@event
class ConnectionStatus:
    """The status of a connection has changed.

    Attributes:
        connection: name of the connection.
        status: `CONNECTING`, `OK`, or `ERROR` while one of its receivers or senders has an error.
        error: the reason of `ERROR`, else empty.
    """

    connection: str
    status: PartStatus
    error: str = ""


@event
class SenderStatus:
    """The status of a sender has changed.

    Attributes:
        sender: id of the sender.
        status: the new status.
        error: the reason of `ERROR` or `FATAL_ERROR`, else empty.
    """

    sender: str
    status: PartStatus
    error: str = ""


@event
class ReceiverStatus:
    """The status of a receiver has changed.

    Attributes:
        receiver: id of the receiver.
        status: the new status.
        error: the reason of `ERROR`, `FATAL_ERROR` or `DESTINATION_NOT_FOUND`, else empty.
    """

    receiver: str
    status: PartStatus
    error: str = ""


@event
class FlowControlMarker:
    """A mark in the queue of a context, after the messages that a receiver with `flow_control` has delivered.

    When a monitor handles the marker, its context has handled all messages up to `number`. The monitor then calls
    `update_flow_control_window` to let the receiver deliver more.

    Attributes:
        receiver: id of the receiver.
        number: number of the last message before the marker. Numbers count the messages that the receiver has
            delivered. If the receiver stores its messages, the numbers continue after a restart.
    """

    receiver: str
    number: int
