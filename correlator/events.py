"""Values that travel: what application code sees (events) and what brokers carry (messages)."""

from typing import Any, TypeVar, dataclass_transform

import msgspec

PropertyValue = None | bool | int | float | str | bytes


class Headers(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The standard headers of a message (FEATURES A9.19). `None` means: the broker's default, or not present.

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
        destination: on receive where it came from; on send an override of the sender's destination.
        headers: the standard headers, `None` for all defaults.
    """

    body: bytes
    properties: dict[str, PropertyValue] = {}
    key: str | None = None
    destination: str | None = None
    headers: Headers | None = None


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
    """A message that could not be mapped, handled or sent, with the reason (FEATURES Z7, Z8).

    Attributes:
        kind: `mapping`, `handler`, `step` or `send`.
        origin: the id of the receiver, monitor, pipeline or sender where it failed.
        reason: the error text, beginning with its code.
        message: the message as it was.
        unique_id: its unique id if it has one.
        time: engine time in seconds.
    """

    kind: str
    origin: str
    reason: str
    message: Message
    unique_id: str | None = None
    time: float = 0.0


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all event types; made by `@event`, never subclassed by hand."""


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def event(cls: type[T]) -> type[T]:
    """Make a class of annotated fields an event type: immutable, typed, comparable, made by keyword.

    Field types are those that state may have (RELIABILITY T46). Methods and properties of the class are kept.
    """
    namespace: dict[str, Any] = {
        name: value
        for name, value in vars(cls).items()
        if name not in ("__dict__", "__weakref__", "__annotations__") and name not in vars(cls).get("__annotations__", {})
    }
    fields: list[Any] = []
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if name in vars(cls):
            fields.append((name, annotation, vars(cls)[name]))
        else:
            fields.append((name, annotation))
    made = msgspec.defstruct(
        cls.__name__, fields, bases=(Event,), module=cls.__module__, namespace=namespace, frozen=True, kw_only=True
    )
    return made  # type: ignore[return-value]
