"""The meaning of unquoted scalars in the YAML 1.2 core schema, and the cases that YAML 1.1 reads in another way.

Many tools read YAML 1.1, where `on` is true, `017` is fifteen and `12:30:45` is a number of seconds. The reader never
guesses the meaning of a scalar that the two versions read differently: it refuses the scalar, and the error says to
quote it.
"""

import re

CoreValue = None | bool | int | float | str

_CONSTANTS: dict[str, CoreValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_LONGEST_SHOWN = 20
_LONGEST_NUMBER = 400  # Python itself refuses more than 4,300 digits; no setting is longer than this

_OTHER_BOOLEANS = re.compile(r"(?:on|On|ON|yes|Yes|YES|(off|Off|OFF|no|No|NO))")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?|[-+]?0[bx][0-9a-fA-F_]*_[0-9a-fA-F_]*")
_BINARY = re.compile(r"[-+]?0b[01_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?")


def core_value(text: str) -> CoreValue:
    """Return the value of an unquoted scalar in the YAML 1.2 core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    if _FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1) if text.lstrip("-+")[1:].isalpha() else text)
    return text


def other_boolean(text: str) -> bool | None:
    """Return the boolean that YAML 1.1 reads for `on`, `off`, `yes` and `no`; `None` for other words."""
    found = _OTHER_BOOLEANS.fullmatch(text)
    return None if found is None else found[1] is None


def other_reading(text: str) -> str | None:
    """Describe what YAML 1.1 reads if it differs from YAML 1.2; `None` if both agree."""
    if len(text) > _LONGEST_NUMBER:
        return None
    if _DATE.fullmatch(text):
        return "a date"
    if len(text) <= _LONGEST_SHOWN and _SEXAGESIMAL.fullmatch(text):
        return f"the number {_sexagesimal(text)}"
    if len(text) <= _LONGEST_SHOWN and _LEADING_ZERO.fullmatch(text):
        return _octal(text)
    if (
        _SEXAGESIMAL.fullmatch(text)
        or _LEADING_ZERO.fullmatch(text)
        or _UNDERSCORED.fullmatch(text)
        or _BINARY.fullmatch(text)
    ):
        return "a number"
    return None


def describe(text: str) -> str:
    """Describe an unquoted scalar in YAML 1.2: `the number 1.1`, `the boolean true`, `empty`, `text`."""
    match core_value(text):
        case None:
            return "empty"
        case bool() as value:
            return f"the boolean {str(value).lower()}"
        case int() | float() as value:
            return f"the number {str(value)[:_LONGEST_SHOWN]}"
        case _:
            return "text"


def _sexagesimal(text: str) -> str:
    sign = "-" if text.startswith("-") else ""
    value = 0.0
    for part in text.lstrip("-+").replace("_", "").split(":"):
        value = value * 60 + float(part)
    return f"{sign}{value:g}" if value != int(value) else f"{sign}{int(value)}"


def _octal(text: str) -> str:
    try:
        return f"the number {int(text.replace('_', ''), 8)}"
    except ValueError:  # 08 and 09 are no octal numbers, and YAML readers treat them in different ways
        return "a number"
