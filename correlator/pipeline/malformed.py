"""Why Spark could not decode a body, for its dead letter; Spark gives no reason. Pure."""

import csv
import re
from collections.abc import Mapping

import msgspec

from correlator.errors import ConfigError, quoted
from correlator.pipeline.ddl import columns_of
from correlator.pipeline.decode_options import canonical
from correlator.pipeline.spec import DecodeStep

_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_SHOWN = 100
"""Number of characters from the beginning of a body that go into a reason; `quoted` shows fewer of them."""
_LONGEST = 131_072
"""Length of the longest record whose values are counted: `csv` reads no longer value unless a program allows it."""
_LINE_ENDS = str.maketrans("\r\n", "  ")
_OTHER_TYPE = ": a value has another type than its column"
_UNFIT = ": the values do not fit the schema"


def why_malformed(step: DecodeStep, body: bytes) -> str:
    """The end of the reason of the dead letter: the cause with its position if it can be found, and the body."""
    try:
        content = body.decode()
    except UnicodeDecodeError as error:
        return f": byte {error.start} is not UTF-8"
    why = _not_json(body) if step.format == "json" else ""
    if step.format == "csv":
        why = _other_columns(step, content)
    return f"{why}: {quoted(content[:_SHOWN])}"


def _not_json(body: bytes) -> str:
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        return f": {_placed(str(error), body)}"
    return _OTHER_TYPE


def _placed(reason: str, body: bytes) -> str:
    """The reason with line and column instead of the number of a byte."""
    match = _AT_BYTE.search(reason)
    if match is None:
        return reason
    before = body[: int(match[1])].decode("utf-8", "replace")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f"line {line} column {column}: {reason[: match.start()].strip()}"


def _other_columns(step: DecodeStep, content: str) -> str:
    found, expected = _count(step.options, content), _columns(step.schema or "")
    if found is None or expected is None:
        return _UNFIT
    return _OTHER_TYPE if found == expected else f": {found} values, must be {expected}"


def _count(options: Mapping[str, str], content: str) -> int | None:
    """The number of values of a record; `None` if only Spark can divide the record."""
    given = canonical(options)
    delimiter = given.get("sep", ",").replace("\\t", "\t")
    quote, escape = given.get("quote", '"'), given.get("escape", "\\")
    if any(len(sign) != 1 for sign in (delimiter, quote, escape)) or len(content) > _LONGEST:
        return None
    line = content.translate(_LINE_ENDS)  # a line end belongs to its value even outside quotes
    try:
        return len(next(csv.reader([line], delimiter=delimiter, quotechar=quote, escapechar=escape), []))
    except (csv.Error, ValueError):
        return None


def _columns(ddl: str) -> int | None:
    try:
        columns = columns_of(ddl)
    except ConfigError:
        return None
    return None if columns is None else len(columns)
