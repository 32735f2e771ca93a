"""Functions that say whether a condition is true, false or unknown for a message."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from correlator.events import Message
from correlator.selector.values import NUMERIC, TYPES, Value

Condition = Callable[[Message], bool | None]
"""Returns true, false or `None` (unknown) for a message."""

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def joined(conditions: Sequence[Condition], *, decisive: bool) -> Condition:
    """AND, or OR if `decisive`: one condition with the value `decisive` decides the result."""

    def condition(message: Message) -> bool | None:
        truth: bool | None = not decisive
        for one in conditions:
            found = one(message)
            if found is decisive:
                return found
            if found is None:
                truth = None
        return truth

    return condition


def opposite(condition: Condition) -> Condition:
    """Return the condition NOT `condition`; where `condition` is unknown (`None`), its opposite is unknown, too."""

    def opposite(message: Message) -> bool | None:
        truth = condition(message)
        return None if truth is None else not truth

    return opposite


def is_true(value: Value) -> Condition:
    """Whether a value is the truth value TRUE; unknown for NULL."""

    def condition(message: Message) -> bool | None:
        found = value(message)
        return None if found is None else found is True

    return condition


def missing(value: Value) -> Condition:
    """IS NULL: true if the message has no such value, never unknown."""
    return lambda message: value(message) is None


def compared(sign: str, left: Value, right: Value) -> Condition:
    """A comparison; unknown if a value is NULL, false for values of types that do not compare."""
    compare = COMPARE[sign]
    types = frozenset(TYPES.values()) if sign in ("=", "<>") else frozenset((NUMERIC,))

    def condition(message: Message) -> bool | None:
        one, other = left(message), right(message)
        if one is None or other is None:
            return None
        kind = TYPES.get(type(one))
        return kind in types and kind == TYPES.get(type(other)) and compare(one, other)

    return condition


def is_text(value: Value, test: Callable[[str], bool]) -> Condition:
    """Whether a value is a text for which `test` returns `True`; unknown for NULL."""

    def condition(message: Message) -> bool | None:
        found = value(message)
        return None if found is None else type(found) is str and test(found)

    return condition
