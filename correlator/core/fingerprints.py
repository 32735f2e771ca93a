"""Fingerprints of keyed steps: named facts about how a step makes its state, and what a changed fact means for it.

The state of a step is a value for each key: sums of open windows, rows that wait, attributes of a monitor. A changed
fact has one of three consequences. The state may mean the same as before (a lower lateness). The new step may be able
to read the state, but only the author of the step knows whether it means the same (another expression of the key). Or
the new step cannot use the state (another function).
"""

import dataclasses
import enum
import hashlib
import types
import typing
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from correlator.core.differences import FieldChange

UNKNOWN = "00000000"
"""The fingerprint of state that was stored by a version without fingerprints."""
_WITHOUT_MEANING = ("unmatched", "within", "expires")
_FOR_ITS_AUTHOR = ("class", "key", "key type", "event time", "first", "second", "lateness")

Facts = Mapping[str, str]


class Fit(IntEnum):
    """The consequence of a changed fact for the state. If there are several changes, the largest value counts."""

    SAME_MEANING = 0
    READABLE = 1
    NONE = 2


def digest(facts: Facts | None) -> str:
    """The short form of a fingerprint, as settings name it."""
    if facts is None:
        return UNKNOWN
    return hashlib.blake2b(msgspec.json.encode(sorted(facts.items())), digest_size=4).hexdigest()


def changes_between(before: Facts, after: Facts) -> list[FieldChange]:
    """The facts that differ; a missing fact counts as empty."""
    return [
        FieldChange(name, before.get(name, ""), after.get(name, ""))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def fit_of(changes: Sequence[FieldChange]) -> Fit:
    """The consequence of all changes together."""
    return max((_fit(change, changes) for change in changes), default=Fit.SAME_MEANING)


def _fit(change: FieldChange, changes: Sequence[FieldChange]) -> Fit:
    field, before, after = change
    if field.startswith("value "):
        return _fit_of_value(field, changes)
    if field in _WITHOUT_MEANING or (field == "lateness" and _seconds(after) < _seconds(before)):
        return Fit.SAME_MEANING
    if field.startswith("row "):  # a column of a monitor's rows: a monitor works as before without a new column
        return Fit.READABLE if before else Fit.SAME_MEANING
    if field.startswith("column "):  # a column of waiting JSON rows: a new column is NULL, another type does not fit
        return Fit.NONE if before and after else Fit.READABLE
    return Fit.READABLE if field in _FOR_ITS_AUTHOR else Fit.NONE


def _fit_of_value(field: str, changes: Sequence[FieldChange]) -> Fit:
    """Values of a window are stored by position. So if both the name and the argument at a position differ, it is a
    different value.
    """
    value, _, fact = field.rpartition(" ")
    if fact not in ("name", "argument"):
        return Fit.NONE
    both = {f"{value} name", f"{value} argument"} <= {change.field for change in changes}
    if both:
        return Fit.NONE
    return Fit.READABLE if fact == "argument" else Fit.SAME_MEANING


def _seconds(fact: str) -> float:
    return float(fact.removesuffix(" s") or 0)


def described(annotation: Any) -> str:
    """The type of state as text. Types whose values are stored in different ways have different texts."""
    return _described(annotation, ())


def _described(annotation: Any, above: tuple[Any, ...]) -> str:
    origin = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _described(arguments[0], above)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(_described(one, above) for one in arguments))
    if origin is typing.Literal or not isinstance(origin, type):
        return str(annotation)
    inner = _inside(annotation, origin, above)
    return f"{origin.__qualname__}({', '.join(inner)})" if inner else origin.__qualname__


def _inside(annotation: Any, origin: type, above: tuple[Any, ...]) -> list[str]:
    """The values of an enumeration, the stored fields of a record, or the types in a container."""
    if issubclass(origin, enum.Enum):
        return [str(one.value) for one in origin]
    if issubclass(origin, msgspec.Struct) or dataclasses.is_dataclass(origin):
        hints = {} if annotation in above else typing.get_type_hints(origin, include_extras=True)
        inside, names = _encoding(origin) if issubclass(origin, msgspec.Struct) else ([], {})
        return inside + [
            f"{names.get(name, name)}: {_described(hint, (*above, annotation))}"
            for name, hint in hints.items()
            if _stored(hint)
        ]
    return ["..." if one is Ellipsis else _described(one, above) for one in typing.get_args(annotation)]


def _encoding(struct: type[msgspec.Struct]) -> tuple[list[str], dict[str, str]]:
    """How the storage of a class's records differs from the default, and the stored name of each field."""
    config = struct.__struct_config__
    how = ["array_like"] if config.array_like else []
    how += [f"{config.tag_field}={config.tag!r}"] if config.tag is not None else []
    return how, {one.name: one.encode_name for one in msgspec.structs.fields(struct)}


def _stored(hint: Any) -> bool:
    return typing.get_origin(hint) is not typing.ClassVar
