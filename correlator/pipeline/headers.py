"""Headers and properties of messages as values of Spark: the types of headers, the text of properties."""

import re
from typing import Any, NamedTuple

import msgspec

from correlator.errors import ConfigError, quoted

_TEXT = ("string", "varchar", "char")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NESTED = ("array", "map", "struct", "variant")
_DECIMAL = re.compile(r"decimal\((\d+),")
_EXACT_DIGITS = 15
"""A property that is a decimal becomes a number of 64 bits, which has at most this number of digits."""


class _Wanted(NamedTuple):
    kinds: tuple[str, ...]
    said: str
    cast: str


_STANDARD = {
    "correlation_id": _Wanted(_TEXT, "Text", "STRING"),
    "reply_to": _Wanted(_TEXT, "Text", "STRING"),
    "type": _Wanted(_TEXT, "Text", "STRING"),
    "priority": _Wanted(_WHOLE, "A whole number", "INT"),
    "persistent": _Wanted(("boolean",), "A boolean", "BOOLEAN"),
    "time_to_live_ms": _Wanted(_WHOLE, "A whole number", "BIGINT"),
}
STANDARD_HEADERS = tuple(_STANDARD)
"""The names that are headers of a message; all other names are application properties."""


def check_header(name: str, kind: str, where: str) -> None:
    """Check the type of a header, in Spark's notation. Raises `ConfigError` E1513 for a type that no message can
    carry.
    """
    plain = kind.partition("(")[0].partition("<")[0].partition(" ")[0]
    what = f"header {quoted(name)} is {kind}"
    wanted = _STANDARD.get(name)
    if wanted is None:
        if plain in _NESTED:
            allowed = "Numbers, booleans, text, times and bytes"
            raise ConfigError("E1513", where, what, allowed, "Write to_json(...), or name one field")
        decimal = _DECIMAL.match(kind)
        if decimal is not None and int(decimal[1]) > _EXACT_DIGITS:
            allowed = f"Decimals of at most {_EXACT_DIGITS} digits"
            raise ConfigError("E1513", where, what, allowed, "Write CAST(... AS STRING), or a shorter decimal")
    elif plain not in (*wanted.kinds, "void"):
        raise ConfigError("E1513", where, what, wanted.said, f"Write CAST(... AS {wanted.cast})")


def property_text(value: Any) -> str:
    """The text that rows show for a property that is not null."""
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else msgspec.json.encode(value).decode()
