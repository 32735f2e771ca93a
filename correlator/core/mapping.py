"""Maps received messages to events, and makes their unique ids and source ids (rules A8.2 and A9.19).

A message that cannot be mapped becomes a dead letter and never stops its batch (rule Z8).
"""

import re
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from inspect import getattr_static
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from correlator.core.fields import FieldMapping, told
from correlator.errors import ConfigError, MappingError, quoted, storable
from correlator.events import CUT_FROM, DeadLetter, Headers, Message

MAX_ID_BYTES = 512
"""The largest number of bytes of a unique id or source id (trap T20)."""

_PART = re.compile(r"\$\{(?:(property|header|body|row)\.([^}]+)|(body|key))\}")
_NO_PART = re.compile(r"\$(?:\{|[^\W\d])")
PARTS = "Parts are ${property.NAME}, ${header.NAME}, ${body.NAME}, ${row.NAME}, ${body} and ${key}"
T = TypeVar("T")
Extract = Callable[[Message, Any], str]


class Mapped(msgspec.Struct, frozen=True, gc=False):
    """A batch after mapping.

    Attributes:
        messages: the messages that could be mapped, in the order of receipt.
        events: their events, in the same order.
        ids: unique ids of all messages of the batch in the order of receipt, "" for none; empty in modes that do not
            deduplicate.
        sources: their source ids, in the order of `ids`.
        digests: digests of their bodies, in the order of `ids`.
        dead_letters: dead letters of the messages that could not be mapped, in the order of receipt.
        failed: the positions of these messages in the batch, in the order of `dead_letters`.
    """

    messages: Sequence[Message] = []
    events: Sequence[Any] = []
    ids: Sequence[str] = []
    sources: Sequence[str] = []
    digests: Sequence[int] = []
    dead_letters: Sequence[DeadLetter] = []
    failed: Sequence[int] = []

    def without_failed(self) -> "Mapped":
        """Return the batch without the messages that could not be mapped."""
        failed = set(self.failed)
        ids, sources = _without(self.ids, failed), _without(self.sources, failed)
        return Mapped(self.messages, self.events, ids, sources, _without(self.digests, failed))

    def without(self, places: Container[int]) -> tuple[list[Message], list[Any], list[DeadLetter]]:
        """Return messages, events and dead letters, without those at these positions of the batch."""
        failed = set(self.failed)
        mapped = [place for place in range(len(self.messages) + len(failed)) if place not in failed]
        kept = [at for at, place in enumerate(mapped) if place not in places]
        letters = [letter for place, letter in zip(self.failed, self.dead_letters, strict=True) if place not in places]
        return [self.messages[at] for at in kept], [self.events[at] for at in kept], letters


def _without(column: Sequence[T], places: Container[int]) -> list[T]:
    return [value for place, value in enumerate(column) if place not in places]


def joined(parts: Iterable[Mapped]) -> Mapped:
    """Return the whole batch of these parts, in their order."""
    messages: list[Message] = []
    events: list[Any] = []
    ids: list[str] = []
    sources: list[str] = []
    digests: list[int] = []
    dead_letters: list[DeadLetter] = []
    failed: list[int] = []
    for part in parts:
        before = len(messages) + len(dead_letters)
        failed.extend(before + place for place in part.failed)
        messages.extend(part.messages)
        events.extend(part.events)
        ids.extend(part.ids)
        sources.extend(part.sources)
        digests.extend(part.digests)
        dead_letters.extend(part.dead_letters)
    return Mapped(messages, events, ids, sources, digests, dead_letters, failed)


class ReceiveMapping:
    """Maps the messages of one receiver. Keeps nothing between two calls, so several threads may call it.

    Args:
        receiver: id of the receiver, for errors and for `Message.receiver`.
        event_type: class of the events, to which JSON bodies are decoded; `None` if the messages themselves are the
            events, with the id of the receiver.
        unique_id: template of the unique id.
        source: template of the source id.
        deduplicated: whether the mode of the receiver needs ids.
        max_message_bytes: a message with a larger body is not mapped.
        fields: makes the events of `event_type` from several parts of a message, not from the body alone.

    Raises `ConfigError` E1060 for a template that is wrong.
    """

    def __init__(
        self,
        receiver: str,
        event_type: type[Any] | None,
        unique_id: str,
        source: str,
        *,
        deduplicated: bool,
        max_message_bytes: int,
        fields: FieldMapping | None = None,
    ) -> None:
        self._receiver = receiver
        self._fields = fields
        self._decoder = None if event_type is None else msgspec.json.Decoder(event_type)
        self._event_type = event_type
        self._unique_id = Template(
            unique_id, f"receiver {receiver}.unique_message_id", event_type, constant=not deduplicated
        )
        self._source = Template(source, f"receiver {receiver}.message_source_id", event_type)
        self._deduplicated = deduplicated
        self._max_message_bytes = max_message_bytes

    def map(self, messages: Sequence[Message], engine_time: float) -> Mapped:
        """Map messages. Any error, also one in code of the application, makes a dead letter of its message alone."""
        try:
            return self._map_all(messages)
        except MappingError:
            return self._map_each(messages, engine_time)

    def remap(self, messages: Sequence[Message], first: int, engine_time: float) -> tuple[list[Any], list[DeadLetter]]:
        """Return the events of stored messages, in the same order. A message that cannot be mapped any more has `None`
        and a dead letter.

        Args:
            messages: the messages, in the order of their numbers.
            first: number of the first message.
            engine_time: the time that dead letters get.
        """
        mapped = self.map(messages, engine_time)
        events = list(mapped.events)
        for place in mapped.failed:
            events.insert(place, None)
        letters = [
            msgspec.structs.replace(letter, number=first + place)
            for place, letter in zip(mapped.failed, mapped.dead_letters, strict=True)
        ]
        return events, letters

    def name_of(self, message: Message) -> str:
        """The name of a message for a log line: its unique id, or else the id that the broker gave it."""
        name = self._filled(self._unique_id, message, _PartialEvent(message, self._event_type, self._fields))
        return name or (message.headers.message_id if message.headers is not None else None) or ""

    def _map_all(self, messages: Sequence[Message]) -> Mapped:
        limit = self._max_message_bytes
        for message in messages:
            if len(message.body) > limit:
                raise self._too_large(message)
        decoder, fields = self._decoder, self._fields
        if fields is not None:
            events: list[Any] = [fields.event(message) for message in messages]
        elif decoder is None:
            name = self._receiver
            events = [
                Message(one.body, one.properties, one.key, one.destination, one.headers, name) for one in messages
            ]
        else:
            decode = decoder.decode
            try:
                events = [decode(message.body) for message in messages]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
                raise MappingError("E5101", f"receiver {self._receiver}", str(error)) from error
            except Exception as error:
                what = f"making the event raised {told(error)}"
                raise MappingError("E5102", f"receiver {self._receiver}", what) from error
        if not self._deduplicated:
            return Mapped(list(messages), events)
        crc = zlib.crc32
        return Mapped(
            list(messages),
            events,
            self._unique_id.column(messages, events),
            self._source.column(messages, events),
            [crc(message.body) for message in messages],
        )

    def _map_each(self, messages: Sequence[Message], engine_time: float) -> Mapped:
        return joined(self._map_one(message, engine_time) for message in messages)

    def _map_one(self, message: Message, engine_time: float) -> Mapped:
        try:
            return self._map_all([message])
        except MappingError as error:
            return self._failed(message, self._explain(message, error), engine_time)

    def _failed(self, message: Message, error: MappingError, engine_time: float) -> Mapped:
        """Make the dead letter of a message that cannot be mapped.

        It has the unique id of the message, so that a duplicate does not become another dead letter.
        """
        parts = _PartialEvent(message, self._event_type, self._fields)
        unique_id = self._filled(self._unique_id, message, parts)
        letter = DeadLetter(
            kind="mapping",
            origin=self._receiver,
            reason=storable(str(error)),
            message=message,
            unique_id=unique_id or None,
            time=engine_time,
            receiver=self._receiver,
        )
        if not self._deduplicated:
            return Mapped(dead_letters=[letter], failed=[0])
        source = self._filled(self._source, message, parts)
        return Mapped([], [], [unique_id], [source], [zlib.crc32(message.body)], [letter], [0])

    @staticmethod
    def _filled(template: "Template", message: Message, event: Any) -> str:
        try:
            return template.fill(message, event)
        except MappingError:
            return ""

    def _explain(self, message: Message, error: MappingError) -> MappingError:
        if error.code != "E5101":
            return error
        where = f"receiver {self._receiver}"
        if isinstance(error.__cause__, msgspec.ValidationError):
            return MappingError("E5102", where, f"body does not fit the event type: {error.__cause__}")
        position = re.search(r"\(byte (\d+)\)", error.what)
        if position:
            before = message.body[: int(position.group(1))]
            line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
            return MappingError("E5101", where, f"body is not JSON: line {line} column {column}: {error.what}")
        return MappingError("E5101", where, f"body is not JSON: {error.what}")

    def _too_large(self, message: Message) -> MappingError:
        cut_from, limit = message.properties.get(CUT_FROM), self._max_message_bytes
        size = cut_from if isinstance(cut_from, int) else len(message.body)
        return MappingError("E5001", f"receiver {self._receiver}", f"message of {size} bytes, the limit is {limit}")


class Template:
    """Text with placeholders that are filled in from a message.

    The placeholders are `${property.NAME}`, `${header.NAME}`, `${body.NAME}` (a field of the event or of a JSON body),
    `${row.NAME}` (a column of a file's row), `${body}` (the body as text) and `${key}`. Raises `ConfigError` E1060 for
    any other placeholder, for a name after a `$` without braces, for a field or header that does not exist, and for a
    template without a placeholder if `constant` is false.

    Args:
        template: the text.
        where: names the setting in errors.
        event_type: class of the event whose fields `${body.NAME}` reads; `None` for a JSON body, whose fields are not
            known.
        constant: whether the text may be the same for all messages.
    """

    def __init__(
        self, template: str, where: str, event_type: type[Any] | None = None, *, constant: bool = True
    ) -> None:
        if _NO_PART.search(_PART.sub(" ", template)):
            raise ConfigError("E1060", where, f"{quoted(template)} is not understood", PARTS)
        if not constant and not _PART.search(template):
            what = f"{quoted(template)} is the same for every message: the receiver would drop all but one as repeats"
            raise ConfigError("E1060", where, what, PARTS)
        for found in _PART.finditer(template):
            _check_name(found.group(1), found.group(2), event_type, where)
        self._where = where
        whole = _PART.fullmatch(template)
        self._property = _property_name(whole.group(1), whole.group(2)) if whole and whole.group(2) else None
        self._parts: list[str | Extract] = []
        at = 0
        for found in _PART.finditer(template):
            self._parts.append(template[at : found.start()])
            self._parts.append(_WHOLE[found.group(3)] if found.group(3) else _part(found.group(1), found.group(2)))
            at = found.end()
        self._parts.append(template[at:])
        self._several = _several_properties(template)

    def column(self, messages: Sequence[Message], events: Sequence[Any]) -> list[str]:
        """Return the filled-in text of each message; "" if a value is missing. Raises `MappingError` as `fill`."""
        if self._property is not None:
            name = self._property
            values = [message.properties.get(name, "") for message in messages]
            if {type(value) for value in values} == {str} and len(max(values, key=len)) <= MAX_ID_BYTES // 4:  # type: ignore[arg-type]
                return values  # type: ignore[return-value]
        if self._several is not None:
            pattern, values_of = self._several
            try:
                rows = [values_of(message.properties) for message in messages]
            except KeyError:
                rows = []
            texts = dict.fromkeys(chain.from_iterable(rows))
            if set(map(type, texts)) == {str} and "" not in texts:
                whole = [pattern % row for row in rows]
                if len(max(whole, key=len)) <= MAX_ID_BYTES // 4:
                    return whole
        return [self.fill(message, event) for message, event in zip(messages, events, strict=True)]

    def fill(self, message: Message, event: Any) -> str:
        """Return the filled-in text of one message; "" if a value is missing.

        Raises `MappingError` E5403 for bytes, E5404 for a text that is too long, E5103 if reading a value raised.
        """
        try:
            filled = [part if isinstance(part, str) else part(message, event) for part in self._parts]
            missing = any(not text for text, part in zip(filled, self._parts, strict=True) if not isinstance(part, str))
            return "" if missing else _short("".join(filled), self._where)
        except MappingError:
            raise
        except Exception as error:
            raise MappingError("E5103", self._where, f"filling it in raised {told(error)}") from error


def _check_name(kind: str | None, name: str, event_type: type[Any] | None, where: str) -> None:
    """Refuse a header that does not exist, and a field or property that the event does not have."""
    if kind == "header" and name not in Headers.__struct_fields__:
        raise ConfigError("E1060", where, f"there is no header {quoted(name)}", _listed(Headers))
    if kind != "body" or event_type is None or event_type is Message or not hasattr(event_type, "__struct_fields__"):
        return
    if name not in event_type.__struct_fields__ and not isinstance(getattr_static(event_type, name, None), property):
        raise ConfigError("E1060", where, f"{event_type.__name__} has no field {quoted(name)}", _listed(event_type))


def _listed(type_: Any) -> str:
    return f"There are: {', '.join(type_.__struct_fields__) or 'none'}"


def _several_properties(template: str) -> tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] | None:
    """A pattern for `%`, and a function that reads its values, if all parts of the template are properties.

    `None` for any other template, and for one with a single part.
    """
    names = [_property_name(found.group(1) or "", found.group(2)) for found in _PART.finditer(template)]
    if len(names) < 2 or None in names:
        return None
    return _PART.sub("%s", template.replace("%", "%%")), itemgetter(*names)


def _property_name(kind: str, name: str) -> str | None:
    return {"property": name, "row": f"row.{name}"}.get(kind)


class _PartialEvent:
    """Takes the place of the event of a message that could not be mapped: it has the fields that can be read.

    Each field has the value that it would have in the event. So the id made of the fields stays the same if the message
    can be mapped later.

    Args:
        message: the message.
        event_type: class of the event; `None` if the message itself is the event.
        fields: makes the event, if it is not made from the body alone.
    """

    def __init__(self, message: Message, event_type: type[Any] | None, fields: FieldMapping | None) -> None:
        self._message = message
        self._event_type = event_type
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        """Return the value of a field; `None` if there is no such field. Raises the error that reading the value
        raises.
        """
        if self._fields is not None:
            return self._fields.value(self._message, name)
        return _field_of_body(self._message.body, self._event_type, name)


def _field_of_body(body: bytes, event_type: type[Any] | None, name: str) -> Any:
    content = msgspec.json.decode(body)
    if not isinstance(content, dict):
        return None
    if event_type is None or not issubclass(event_type, msgspec.Struct):
        return content.get(name)
    for field in msgspec.structs.fields(event_type):
        if field.name == name and field.encode_name in content:
            return msgspec.convert(content[field.encode_name], field.type)
    return None


_WHOLE: dict[str, Extract] = {
    "key": lambda message, _: _text(message.key, "key"),
    "body": lambda message, _: _body_text(message.body),
}


def _part(kind: str, name: str) -> Extract:
    if kind == "header":
        return lambda message, _: _text(getattr(message.headers, name, None), name)
    if kind == "body":
        return lambda message, event: _text(_field(message, event, name), name)
    property_name = _property_name(kind, name) or name
    return lambda message, _: _text(message.properties.get(property_name), property_name)


def _field(message: Message, event: Any, name: str) -> Any:
    if type(event) is Message:
        try:
            body = msgspec.json.decode(message.body)
        except msgspec.DecodeError:
            return None
        return body.get(name) if isinstance(body, dict) else None
    return getattr(event, name, None)


def _body_text(body: bytes) -> str:
    if len(body) > MAX_ID_BYTES:
        raise MappingError("E5404", "body", f"a unique id of {len(body)} bytes", f"At most {MAX_ID_BYTES} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise MappingError("E5403", "body", "a unique id must be text, this body is not UTF-8") from error


def _text(value: Any, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        raise MappingError("E5403", name, "a unique id must be text, this one is bytes")
    return _short(str(value), name)


def _short(text: str, where: str) -> str:
    if len(text.encode()) > MAX_ID_BYTES:
        raise MappingError("E5404", where, f"a unique id of {len(text)} characters", f"At most {MAX_ID_BYTES} bytes")
    return text
