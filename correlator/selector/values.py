"""Functions that return a value for a message: literals, headers, properties, and arithmetic with them."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from correlator.events import Message

Value = Callable[[Message], Any]
"""Gives a number, text, truth value or `None` (NULL) for a message."""

_LONGEST_EXACT = 19
_EXACT = re.compile(r"(?:0|[1-9][0-9]*+|0[xX][0-9a-fA-F]++)[lL]?")
_APPROXIMATE = re.compile(r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[dDfF]?")
_OCTAL = re.compile(r"0[0-9]++[lL]?")


def number(lexeme: str, sign: int) -> int | float:
    """The value of a literal; raises `ValueError`, whose text says what is wrong."""
    if _OCTAL.fullmatch(lexeme):
        raise ValueError("is ambiguous: decimal or octal. Write it without the leading 0")
    if _EXACT.fullmatch(lexeme):
        digits = lexeme.rstrip("lL")
        if len(digits) > _LONGEST_EXACT or not _fits(sign * int(digits, 0)):
            raise ValueError(f"is too large: whole numbers have at most {_LONGEST_EXACT} digits and 64 bits")
        return sign * int(digits, 0)
    if not _APPROXIMATE.fullmatch(lexeme):
        raise ValueError("is not a number")
    value = sign * float(lexeme.rstrip("dDfF"))
    if not math.isfinite(value):
        raise ValueError("is too large")
    return value


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


NUMERIC, _TEXTUAL, _LOGICAL = "numeric", "textual", "logical"
TYPES: dict[type[Any], str] = {int: NUMERIC, float: NUMERIC, str: _TEXTUAL, bool: _LOGICAL}
"""The types of values; only values of one type compare. Subclasses do not count: a truth value is no number."""


def constant(value: Any) -> Value:
    """A function that gives the same value for every message."""
    return lambda message: value  # noqa: ARG005


def property_of(name: str) -> Value:
    """A function that gives an application property."""
    return lambda message: message.properties.get(name)


def _header(name: str) -> Value:
    return lambda message: getattr(message.headers, name, None)


def _delivery_mode(message: Message) -> str:
    return "NON_PERSISTENT" if message.headers and message.headers.persistent is False else "PERSISTENT"


def _priority(message: Message) -> int:
    priority = message.headers.priority if message.headers else None
    return 4 if priority is None else priority


HEADERS: Final[dict[str, Value]] = {
    "JMSDeliveryMode": _delivery_mode,
    "JMSPriority": _priority,
    "JMSMessageID": _header("message_id"),
    "JMSTimestamp": _header("timestamp"),
    "JMSCorrelationID": _header("correlation_id"),
    "JMSType": _header("type"),
    "JMSDeliveryTime": _header("delivery_time"),
    "JMSXGroupID": lambda message: message.key,
    "JMSXGroupSeq": _header("group_sequence"),
}
PER_DELIVERY = ("JMSXDeliveryCount", "JMSRedelivered")


def arithmetic(first: Value, operations: Sequence[tuple[Callable[[Any, Any], Any], Value]]) -> Value:
    """A function that applies operations of one rank from left to right."""

    def value(message: Message) -> Any:
        result = first(message)
        for operation, operand in operations:
            result = _computed(operation, result, operand(message))
        return result

    return value


def _computed(operation: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """The result of an operation, `None` if it has none."""
    if TYPES.get(type(one)) != NUMERIC or TYPES.get(type(other)) != NUMERIC:
        return None
    try:
        result = operation(one, other)
    except ArithmeticError:  # division by zero, and properties too large for an approximate number
        return None
    in_range = _fits(result) if isinstance(result, int) else math.isfinite(result)
    return result if in_range else None


def _quotient(one: Any, other: Any) -> Any:
    if isinstance(one, float) or isinstance(other, float):
        return one / other
    magnitude = abs(one) // abs(other)
    return magnitude if (one < 0) == (other < 0) else -magnitude


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
}
