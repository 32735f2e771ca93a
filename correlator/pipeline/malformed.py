"""Why a body could not be decoded, for its dead letter; Spark gives no reason. Pure."""

import csv
import re

import msgspec

from correlator.errors import quoted
from correlator.pipeline.spec import DecodeStep

_AT_BYTE = re.compile(r"\(byte (\d+)\)")


def why_malformed(step: DecodeStep, body: bytes) -> str:
    """The end of the reason of the dead letter: the cause with its position if it can be found, and the body."""
    try:
        content = body.decode()
    except UnicodeDecodeError as error:
        return f": byte {error.start} is not UTF-8"
    why = _not_json(body) if step.format == "json" else ""
    if step.format == "csv":
        why = _other_columns(step, content)
    return f"{why}: {quoted(content)}"


def _not_json(body: bytes) -> str:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        return f": {_placed(str(error), body)}"
    return ": a value has another type than its column"


def _placed(reason: str, body: bytes) -> str:
    """The reason with line and column instead of the number of a byte."""
    match = _AT_BYTE.search(reason)
    if match is None:
        return reason
    before = body[: int(match[1])].decode("utf-8", "replace")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f"line {line} column {column}: {reason[: match.start()].strip()}"


def _other_columns(step: DecodeStep, content: str) -> str:
    fields = len(next(csv.reader([content], delimiter=step.options.get("delimiter", ",")), []))
    expected = _top_level_commas(step.schema or "") + 1
    if fields != expected:
        return f": {fields} values, must be {expected}"
    return ": a value has another type than its column"


def _top_level_commas(ddl: str) -> int:
    while (shorter := re.sub(r"[(<][^()<>]*[)>]", "", ddl)) != ddl:
        ddl = shorter
    return ddl.count(",")
