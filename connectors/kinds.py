"""Makes and reads messages of the kinds of JMS: text, bytes, map, stream, and data in place of objects.

The property `jms_message_type` of a message names its kind, so that clients of JMS behind RabbitMQ and Pulsar see the
same kind, as far as the connector carries it; a message without it is of the kind bytes. Serialized objects of Java or
Python are never read: classes that a message names are never loaded. `data_message` carries any plain data instead.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from connectors.jms import MESSAGE_KIND, TEXT
from connectors.jms_bodies import Value, read_map, read_stream, write_map, write_stream
from correlator.errors import UsageError, quoted
from correlator.events import Headers, Message, PropertyValue

_MAP = "map"
_STREAM = "stream"
T = TypeVar("T")


def text_message(
    text: str,
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """A message whose body is a text, as UTF-8.

    Args:
        text: the body.
        properties: properties by name.
        group: messages of one group keep their order; the `key` of the message.
        group_sequence: number of the message within its group.
        headers: further headers.

    Raises:
        UsageError: E7549 for a text that cannot be UTF-8. The other functions raise it for a body that their kind
            cannot hold.
    """
    try:
        body = text.encode()
    except UnicodeEncodeError as error:
        raise _unfit(TEXT, error) from error
    return _message(TEXT, body, properties, group, group_sequence, headers)


def bytes_message(
    body: bytes,
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """A message whose body is any bytes; otherwise as `text_message`."""
    return _message(None, body, properties, group, group_sequence, headers)


def map_message(
    entries: Mapping[str, Value],
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """A message whose body has values by name; otherwise as `text_message`. `connectors.jms_bodies` has more types."""
    try:
        if not all(isinstance(name, str) for name in entries):
            raise TypeError("a name is no text")  # noqa: TRY301
        body = write_map(entries)
    except (TypeError, ValueError, OverflowError) as error:
        raise _unfit(_MAP, error) from error
    return _message(_MAP, body, properties, group, group_sequence, headers)


def stream_message(
    values: Iterable[Value],
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """A message whose body is a sequence of values; otherwise as `text_message`."""
    try:
        body = write_stream(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise _unfit(_STREAM, error) from error
    return _message(_STREAM, body, properties, group, group_sequence, headers)


def data_message(
    data: Any,
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """A text message whose body is data as JSON, such as a dict, a dataclass or an event; as `text_message`."""
    try:
        body = msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise _unfit("data", error) from error
    return _message(TEXT, body, properties, group, group_sequence, headers)


def kind_of(message: Message) -> str:
    """The kind of a message: `text`, `bytes`, `map`, `stream`, or another one that its sender names."""
    kind = message.properties.get(MESSAGE_KIND)
    return kind if isinstance(kind, str) else "bytes"


def text_of(message: Message) -> str:
    """The text of a message of the kind text or bytes.

    Raises:
        UsageError: E7549 for a message of another kind, and for a body that is no text. The other functions raise it
            for a body that is not of their kind.
    """
    if kind_of(message) not in (TEXT, "bytes"):
        raise _other(message, TEXT)
    try:
        return message.body.decode()
    except UnicodeDecodeError as error:
        raise _unfit(TEXT, error) from error


def map_of(message: Message) -> dict[str, Value]:
    """The entries of a message of the kind map."""
    if kind_of(message) != _MAP:
        raise _other(message, _MAP)
    try:
        return read_map(message.body) if message.body else {}
    except ValueError as error:
        raise _unfit(_MAP, error) from error


def stream_of(message: Message) -> list[Value]:
    """The values of a message of the kind stream."""
    if kind_of(message) != _STREAM:
        raise _other(message, _STREAM)
    try:
        return read_stream(message.body)
    except ValueError as error:
        raise _unfit(_STREAM, error) from error


def data_of(message: Message, type_: type[T]) -> T:
    """The data of a message whose body is JSON, as an object of a type; the message cannot choose another type."""
    if kind_of(message) not in (TEXT, "bytes"):
        raise _other(message, "data")
    try:
        return msgspec.json.decode(message.body, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unfit("data", error) from error


def _message(
    kind: str | None,
    body: bytes,
    properties: Mapping[str, PropertyValue],
    group: str | None,
    group_sequence: int | None,
    headers: Headers | None,
) -> Message:
    if group_sequence is not None:
        headers = msgspec.structs.replace(headers or Headers(), group_sequence=group_sequence)
    own = dict(properties) if kind is None else {**properties, MESSAGE_KIND: kind}
    return Message(body, own, group, None, headers)


def _unfit(kind: str, error: Exception) -> UsageError:
    return UsageError("E7549", f"{kind} message", f"the body cannot be of this kind: {error}")


def _other(message: Message, wanted: str) -> UsageError:
    what = f"the message is of the kind {quoted(kind_of(message))}"
    return UsageError("E7549", f"{wanted} message", what, "", "Read the kind first, by kind_of")
