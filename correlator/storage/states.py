"""State in the form that commands and Spark programs show: values, decoded without the classes of the application.

The encoding of state names attributes but no types: a `Decimal` is text, a set is a list, a dataclass is an object. The
fingerprint that the store holds for each keyed step says what the numbers of a window mean. If this version cannot
decode a state, for example one of a newer version, the output has its size and the reason.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

import msgspec

from correlator.core.instances import StoredMonitor
from correlator.core.keyed import KeyedState, keyed_state
from correlator.core.steps import RECORDS, clock_of_step, owner_of, stored_steps
from correlator.errors import CorrelatorError, printable

State = Mapping[str, Mapping[bytes, bytes]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = clock_of_step("")
_STEP, _MONITOR, _TABLE, _WAITING = owner_of(""), "monitor:", "table:", "waiting:"
_monitors = msgspec.msgpack.Decoder(StoredMonitor)
_UNREADABLE = (CorrelatorError, msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


class ShownState(NamedTuple):
    """The state of one key.

    Attributes:
        owner: the owner of the state: `step:PIPELINE/STEP`, `monitor:NAME`, `table:NAME#INSTANCE.ATTRIBUTE` and others.
        key: the key as text.
        size: the size of the stored bytes.
        value: the decoded value, of the types that JSON has; `None` if it cannot be decoded.
        problem: the reason why it cannot be decoded; empty if it can.
    """

    owner: str
    key: str
    size: int
    value: Any
    problem: str


def shown_state(state: State) -> list[ShownState]:
    """Every key of a store, in order."""
    facts = facts_of(state)
    return [
        shown_key(owner, key, values[key], facts) for owner, values in sorted(state.items()) for key in sorted(values)
    ]


def facts_of(state: State) -> dict[str, Mapping[str, str]]:
    """The fingerprints of the keyed steps by owner; empty if one of them cannot be read."""
    try:
        return {owner_of(name): one.facts or {} for name, one in stored_steps(state).items()}
    except _UNREADABLE:
        return {}


def shown_key(owner: str, key: bytes, data: bytes, facts: Mapping[str, Mapping[str, str]]) -> ShownState:
    """The state of one key, with the fingerprints of `facts_of`."""
    try:
        value = plain(_decoded(owner, data, facts.get(owner, {})))
    except _UNREADABLE as error:
        return ShownState(owner, _text(key), len(data), None, printable(f"cannot be read: {_reason(error)}"))
    return ShownState(owner, key_text(owner, key), len(data), value, "")


def _decoded(owner: str, data: bytes, facts: Mapping[str, str]) -> Any:
    if owner == RECORDS:
        return msgspec.json.decode(data)
    if owner.startswith(_CLOCK):
        latest, horizon = msgspec.msgpack.decode(data)
        return {"event_time": _moment(latest), "horizon": _moment(horizon)}
    if owner.startswith(_STEP):
        return _step(keyed_state(data), facts)
    if owner.startswith(_MONITOR):
        return _monitor(_monitors.decode(data))
    if owner.startswith((_TABLE, _WAITING)):
        return msgspec.msgpack.decode(data)
    raise ValueError("this version of correlator has no owner of this kind; a newer version may have stored it")


def key_text(owner: str, key: bytes) -> str:
    """The key as text; the keys of tables are encoded like values."""
    return _name(msgspec.msgpack.decode(key)) if owner.startswith(_TABLE) else _text(key)


def _text(key: bytes) -> str:
    return printable(key.decode("utf-8", "backslashreplace"))


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, CorrelatorError) else str(error)


def _monitor(stored: StoredMonitor) -> dict[str, Any]:
    return {
        "type": stored.type,
        "context": stored.context,
        "attributes": msgspec.msgpack.decode(stored.attributes),
        "listeners": len(stored.listeners),
        "timers": [{"due": timer.due, "handler": timer.handler} for timer in stored.timers],
    }


def _step(stored: KeyedState, facts: Mapping[str, str]) -> dict[str, Any]:
    timers = [{"time": due, "name": name} for due, name in stored.timers]
    return {"event_time": stored.time, **_kept(stored.attributes, facts), "timers": timers}


def _kept(attributes: Mapping[str, Any], facts: Mapping[str, str]) -> dict[str, Any]:
    """The state that a step keeps for a key, shown by the kind of step; the bare attributes if they do not fit this
    kind.
    """
    try:
        match facts.get("kind"):
            case "aggregate" if "session" in facts:
                return {"sessions": list(_sessions(attributes["open"], facts))}
            case "aggregate":
                return {"windows": list(_windows(attributes["open"], facts))}
            case "correlate":
                return {"waiting": {side: list(_rows(attributes[side])) for side in ("first", "second")}}
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        pass
    return {"attributes": attributes}


def _windows(opened: Mapping[int, Sequence[Any]], facts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    length = timedelta(seconds=float(facts["window"].removesuffix(" s")))
    for start, folded in sorted(opened.items()):
        begin = _moment(start)
        yield {"start": begin, "end": begin + length, "values": _values(folded, facts, _folded)}


def _sessions(opened: Mapping[int, Sequence[Any]], facts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for start, (last, folded) in sorted(opened.items()):
        values = _values(folded, facts, _folded_in_session)
        yield {"start": _moment(start), "last": _moment(last), "values": values}


def _values(folded: Sequence[Any], facts: Mapping[str, str], result: Callable[[str, Any], Any]) -> dict[str, Any]:
    names = [facts[f"value {at} name"] for at in range(1, len(folded) + 1)]
    functions = [facts[f"value {at} function"] for at in range(1, len(folded) + 1)]
    return dict(zip(names, map(result, functions, folded), strict=True))


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _folded_in_session(function: str, value: Any) -> Any:
    """The result of an aggregate function of a session; a first or last value is stored with the number of its row."""
    return value[1] if function in ("first", "last") and value is not None else _folded(function, value)


def _folded(function: str, value: Any) -> Any:
    """The result of an aggregate function so far; a mean is stored as the number and the sum of its values."""
    if function == "count":
        return value or 0
    return dict(zip(("count", "sum"), value, strict=True)) if function == "avg" and value is not None else value


def _rows(waiting: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for moment, row in waiting:
        yield {"time": moment, "row": msgspec.json.decode(row)}


def plain(value: Any) -> Any:
    """The value in types that JSON has, without loss: bytes as text with escapes, times in ISO 8601, keys as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case Mapping():
            return {_name(key): plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
    raise ValueError(f"a value of the unknown type {type(value).__name__}")


def _name(key: Any) -> str:
    name = plain(key)
    return name if isinstance(name, str) else msgspec.json.encode(name).decode()
