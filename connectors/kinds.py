"""Makes and reads messages of the kinds of JMS: text, bytes, map, stream, and data in place of objects.

The property `jms_message_type` of a message names its kind, so that clients of JMS that use RabbitMQ and Pulsar see the
same kind, as far as the connector carries it; a message without it is of the kind bytes. Serialized objects of Java or
Python are never read: classes that a message names are never loaded. `data_message` carries any plain data instead.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from connectors.jms import MESSAGE_KIND, TEXT
from connectors.jms_bodies import Value, read_map, read_stream, write_map, write_stream
from correlator.errors import UsageError, quoted
from correlator.events import Headers, Message, PropertyValue

_BYTES = "bytes"
_MAP = "map"
_STREAM = "stream"
_DATA = "data"
"""This is not a kind of JMS: the body is a text in JSON."""
T = TypeVar("T")


def text_message(
    text: str,
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """Make a message whose body is a text, as UTF-8.

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
    with _fitting(TEXT):
        if not isinstance(text, str):
            raise TypeError(f"a {type(text).__name__} is not a text")
        body = text.encode()
    return _message(TEXT, body, properties, group, group_sequence, headers)


def bytes_message(
    body: bytes,
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """Make a message whose body is any bytes, whatever kind the properties name; otherwise as `text_message`."""
    return _message(_BYTES, body, properties, group, group_sequence, headers)


def map_message(
    entries: Mapping[str, Value],
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """Make a message whose body has values by name; otherwise as `text_message`.
    `connectors.jms_bodies` has more types.
    """
    with _fitting(_MAP):
        body = write_map(entries)
    return _message(_MAP, body, properties, group, group_sequence, headers)


def stream_message(
    values: Iterable[Value],
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """Make a message whose body is a sequence of values; otherwise as `text_message`."""
    with _fitting(_STREAM):
        body = write_stream(values)
    return _message(_STREAM, body, properties, group, group_sequence, headers)


def data_message(
    data: Any,
    properties: Mapping[str, PropertyValue] = {},
    *,
    group: str | None = None,
    group_sequence: int | None = None,
    headers: Headers | None = None,
) -> Message:
    """Make a text message whose body is data as JSON, such as a dict, a dataclass or an event; as `text_message`."""
    with _fitting(_DATA):
        body = msgspec.json.encode(data)
    return _message(TEXT, body, properties, group, group_sequence, headers)


def kind_of(message: Message) -> str:
    """Return the kind of a message: `text`, `bytes`, `map`, `stream`, or another one that its sender names."""
    kind = message.properties.get(MESSAGE_KIND)
    return kind if isinstance(kind, str) else _BYTES


def text_of(message: Message) -> str:
    """Return the text of a message of the kind text or bytes.

    Raises:
        UsageError: E7549 for a message of another kind, and for a body that is not text. The other functions raise it
            for a body that is not of their kind.
    """
    _check_kind(message, TEXT, (TEXT, _BYTES))
    with _fitting(TEXT):
        return message.body.decode()


def map_of(message: Message) -> dict[str, Value]:
    """Return the entries of a message of the kind map. Raises as `text_of`."""
    _check_kind(message, _MAP, (_MAP,))
    with _fitting(_MAP):
        return read_map(message.body)


def stream_of(message: Message) -> list[Value]:
    """Return the values of a message of the kind stream. Raises as `text_of`."""
    _check_kind(message, _STREAM, (_STREAM,))
    with _fitting(_STREAM):
        return read_stream(message.body)


def data_of(message: Message, type_: type[T]) -> T:
    """Return the data of a message whose body is JSON, as an object of a type, which the message cannot choose."""
    _check_kind(message, _DATA, (TEXT, _BYTES))
    with _fitting(_DATA):
        return msgspec.json.decode(message.body, type=type_)


def _message(
    kind: str,
    body: bytes,
    properties: Mapping[str, PropertyValue],
    group: str | None,
    group_sequence: int | None,
    headers: Headers | None,
) -> Message:
    if group_sequence is not None:
        headers = msgspec.structs.replace(headers or Headers(), group_sequence=group_sequence)
    own = {name: value for name, value in properties.items() if name != MESSAGE_KIND}
    if kind != _BYTES:
        own[MESSAGE_KIND] = kind
    return Message(body, own, group, None, headers)


@contextmanager
def _fitting(kind: str) -> Iterator[None]:
    """Within the block, turn errors in writing or reading a body of this kind into `UsageError` E7549."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError("E7549", f"{kind} message", f"the body cannot be of this kind: {error}") from error


def _check_kind(message: Message, wanted: str, allowed: Sequence[str]) -> None:
    if kind_of(message) not in allowed:
        what = f"the message is of the kind {quoted(kind_of(message))}"
        raise UsageError("E7549", f"{wanted} message", what, "", "Read the kind first, by kind_of")
