"""Compares the sends and the state of a life with those of its rerun.

Two sends are compared if they go to the same destination by the same sender with the same key, and have the same cause:
the same received message, or timers and events of the same kind in the same context. The comparison ignores unique ids,
their sources and sequence numbers, since one send more or less changes all following ones.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from correlator.core.differences import FieldChange
from correlator.events import Headers
from correlator.runtime.replay import Cause, Output
from correlator.settings import SenderSettings

_STAMPS = ("unique_message_id_property", "message_source_id_property")
_PLAIN_HEADERS = msgspec.structs.asdict(Headers())
_LONGEST_VALUE = 200
_encode = msgspec.json.Encoder(order="sorted").encode


class SentLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A send as a line of JSON.

    Attributes:
        checkpoint: number of the checkpoint that released it, or of the last one before a BEST_EFFORT send.
        sender: id of its sender.
        sequence: its number within the sender.
        destination: where it goes.
        key: its key.
        properties: its properties, with the unique id.
        headers: its headers that differ from the default.
        body: its body: text, or `{"base64": …}` if it is no text.
        cause: the received message, event or timer that its context handled.
    """

    checkpoint: int
    sender: str
    sequence: int
    destination: str
    key: str | None
    properties: dict[str, Any]
    headers: dict[str, Any]
    body: Any
    cause: Cause


class OrderedSends(NamedTuple):
    """The sends by one sender to one destination with one key."""

    sender: str
    destination: str
    key: str | None


class SendDifference(NamedTuple):
    """A send that is not the same in both.

    Attributes:
        kind: `missing` if only the life has sent it, `additional` if only the rerun does, otherwise `different`.
        group: where it goes.
        cause: the received message, event or timer that its context handled.
        fields: the fields that differ; empty unless the kind is `different`.
        before: the send of the life.
        now: the send of the rerun.
    """

    kind: str
    group: OrderedSends
    cause: Cause
    fields: list[FieldChange]
    before: SentLine | None
    now: SentLine | None


class StateDifference(NamedTuple):
    """A value of state that is not the same in both; `kind` has the same meaning as for sends."""

    kind: str
    owner: str
    key: str
    fields: list[FieldChange]


def line_of(output: Output) -> SentLine:
    """Return a send in the form of a line."""
    message = output.sent.message
    headers = {} if message.headers is None else msgspec.structs.asdict(message.headers)
    return SentLine(
        checkpoint=output.checkpoint,
        sender=output.sender,
        sequence=output.sent.sequence,
        destination=output.sent.destination,
        key=message.key,
        properties={name: _shown(value) for name, value in message.properties.items()},
        headers={name: value for name, value in headers.items() if value != _PLAIN_HEADERS[name]},
        body=_shown(message.body),
        cause=output.cause,
    )


def compare_sends(
    before: Iterable[SentLine], now: Iterable[SentLine], senders: Iterable[SenderSettings]
) -> tuple[Counter[OrderedSends], list[SendDifference]]:
    """Compare the sends of a life with those of a rerun.

    Args:
        before: the sends of the life.
        now: the sends of the rerun.
        senders: the senders; their settings name the properties that hold unique ids.

    Returns how many sends of each group are equal, and the differences in the order of the life.
    """
    stamps = {one.id: {getattr(one, name) for name in _STAMPS} for one in senders}
    default = {getattr(SenderSettings(id="-", connection="-"), name) for name in _STAMPS}
    places: dict[tuple[OrderedSends, Cause], tuple[list[SentLine], list[SentLine]]] = {}
    for side, lines in enumerate((before, now)):
        for line in lines:
            group = OrderedSends(line.sender, line.destination, line.key)
            places.setdefault((group, line.cause), ([], []))[side].append(line)
    equal: Counter[OrderedSends] = Counter()
    differences: list[SendDifference] = []
    for (group, cause), (old, new) in places.items():
        stamped = stamps.get(group.sender, default)
        left, right = _unequal(old, new, stamped), _unequal(new, old, stamped)
        equal[group] += len(old) - len(left)
        for one, other in zip_longest(left, right):
            kind = "missing" if other is None else "additional" if one is None else "different"
            fields = (
                [] if one is None or other is None else list(_changes(_fields(one, stamped), _fields(other, stamped)))
            )
            differences.append(SendDifference(kind, group, cause, fields, one, other))
    return equal, differences


def compare_states(before: Mapping[tuple[str, str], Any], now: Mapping[tuple[str, str], Any]) -> list[StateDifference]:
    """Compare two states, as values by owner and key."""
    differences = []
    for place in sorted({*before, *now}):
        if place not in now or place not in before:
            differences.append(StateDifference("missing" if place in before else "additional", *place, []))
        elif fields := list(_changes(before[place], now[place])):
            differences.append(StateDifference("different", *place, fields))
    return differences


def _unequal(lines: Sequence[SentLine], others: Sequence[SentLine], stamped: set[str]) -> list[SentLine]:
    """The lines for which there is no equal line among the others."""
    there = Counter(_encode(_fields(line, stamped)) for line in others)
    left = []
    for line in lines:
        content = _encode(_fields(line, stamped))
        if there[content]:
            there[content] -= 1
        else:
            left.append(line)
    return left


def _fields(line: SentLine, stamped: set[str]) -> dict[str, Any]:
    """The fields of a send that are compared; for a JSON body, the fields of the body."""
    properties = {name: value for name, value in sorted(line.properties.items()) if name not in stamped}
    return {"body": _parsed(line.body), "properties": properties, "headers": line.headers}


def _parsed(body: Any) -> Any:
    if isinstance(body, str):
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return body
    return body


def _changes(before: Any, now: Any, path: str = "") -> Iterator[FieldChange]:
    """The fields that differ, each by its path."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in [*before, *(name for name in now if name not in before)]:
            inner = f"{path}.{name}" if path else str(name)
            yield from _changes(before.get(name, _Absent), now.get(name, _Absent), inner)
    elif before != now or type(before) is not type(now):
        yield FieldChange(path, _text(before), _text(now))


class _Absent:
    """Stands for a missing field."""


def _text(value: Any) -> str:
    if value is _Absent:
        return "absent"
    text = _encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _shown(value: Any) -> Any:
    """Bytes as text, or as Base64 if they are no text."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
