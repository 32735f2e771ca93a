"""The options of a `decode` step: the options of Spark's readers that have a good effect on a single body. Pure.

Spark ignores unknown options, so it would also ignore a misspelt one. It does not distinguish upper and lower case in
their names.
"""

import re
from collections.abc import Mapping

from correlator.configuration.problems import member
from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, quoted

_BOOLEAN = re.compile("true|false", re.IGNORECASE), "true or false"
_NUMBER = re.compile(r"[1-9]\d{0,8}"), "a whole number above 0"
_SIGN_OR_NONE = re.compile(r".?", re.DOTALL), "one character or empty"
_NOT_EMPTY = re.compile(r".+", re.DOTALL), "not empty"
_ANY = re.compile(r".*", re.DOTALL), "any text"
_LOCALE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*"), "a language tag such as en-US"
_QUOTES = re.compile("STOP_AT_CLOSING_QUOTE|STOP_AT_DELIMITER|BACK_TO_DELIMITER", re.IGNORECASE)

FORMATS = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeFormat")
"""Options that are patterns of dates and times, which only Spark can check."""
_OF_TIMES = {
    **dict.fromkeys(FORMATS, _NOT_EMPTY),
    "enableDateTimeParsingFallback": _BOOLEAN,
    "locale": _LOCALE,
    "timeZone": _NOT_EMPTY,
}
ALLOWED = {
    "json": {
        "allowBackslashEscapingAnyCharacter": _BOOLEAN,
        "allowComments": _BOOLEAN,
        "allowNonNumericNumbers": _BOOLEAN,
        "allowNumericLeadingZeros": _BOOLEAN,
        "allowSingleQuotes": _BOOLEAN,
        "allowUnquotedControlChars": _BOOLEAN,
        "allowUnquotedFieldNames": _BOOLEAN,
        "maxNumLen": _NUMBER,
        "maxStringLen": _NUMBER,
        **_OF_TIMES,
    },
    "csv": {
        "sep": _NOT_EMPTY,
        "delimiter": _NOT_EMPTY,
        "quote": _SIGN_OR_NONE,
        "escape": _SIGN_OR_NONE,
        "charToEscapeQuoteEscaping": _SIGN_OR_NONE,
        "unescapedQuoteHandling": (_QUOTES, "STOP_AT_CLOSING_QUOTE, STOP_AT_DELIMITER or BACK_TO_DELIMITER"),
        "ignoreLeadingWhiteSpace": _BOOLEAN,
        "ignoreTrailingWhiteSpace": _BOOLEAN,
        "nullValue": _ANY,
        "emptyValue": _ANY,
        "nanValue": _ANY,
        "positiveInf": _ANY,
        "negativeInf": _ANY,
        "maxColumns": _NUMBER,
        "maxCharsPerColumn": _NUMBER,
        **_OF_TIMES,
    },
}
"""The names of the options of each format, and their allowed values."""
HARMFUL = {
    "mode": "would stop the engine or lose messages: a malformed body always becomes a dead letter",
    "columnNameOfCorruptRecord": "would make rows of malformed bodies, which become dead letters",
    "comment": "would make a row of NULLs of a body that is a comment",
}
"""Options with an effect that a pipeline must not have."""
WITHOUT_EFFECT = (
    *("charset", "codec", "columnPruning", "compression", "dropFieldIfAllNull", "encoding", "enforceSchema"),
    *("escapeQuotes", "explodeEmbeddedArray", "extension", "header", "ignoreNullFields", "inferSchema"),
    *("inferTimestamp", "inputBufferSize", "lineSep", "multiLine", "prefersDecimal", "preferDate", "pretty"),
    *("primitivesAsString", "quoteAll", "samplingRatio", "singleVariantColumn", "sortKeys", "useUnsafeRow"),
    "writeNonAsciiCharacterAsCodePoint",
)
"""Options of Spark that concern files, the search for a schema, or writing."""
_ONE = {"delimiter": "sep"}
"""Options with the same meaning as another option."""


def canonical(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case; `delimiter` is `sep`."""
    return {_ONE.get(name.lower(), name.lower()): value for name, value in options.items()}


def check_options(format_: str, options: Mapping[str, str]) -> None:
    """Raises `ConfigError` E1527 for an option that is unknown, harmful or without effect, occurs twice, or has a wrong
    value.
    """
    taken: set[str] = set()
    for name, value in options.items():
        _check(format_, name, value)
        (key,) = canonical({name: value})
        if key in taken:
            raise _refused(name, "is there twice", "", "Remove one")
        taken.add(key)


def _check(format_: str, name: str, value: str) -> None:
    known = {one.lower(): (one, *rule) for one, rule in ALLOWED[format_].items()}
    if name.lower() not in known:
        raise _unknown(format_, name)
    _, pattern, allowed = known[name.lower()]
    if not pattern.fullmatch(value):
        raise _refused(name, f"is {quoted(value)}, must be {allowed}")


def _unknown(format_: str, name: str) -> ConfigError:
    lower = name.lower()
    harmful = {one.lower(): why for one, why in HARMFUL.items()}
    if lower in harmful:
        return _refused(name, harmful[lower], "", "Remove it")
    allowed = f"Options of {format_}: {', '.join(sorted(ALLOWED[format_]))}"
    other = next((one for one, names in ALLOWED.items() if lower in map(str.lower, names)), "")
    if other:
        return _refused(name, f"is an option of {other}, the format is {format_}", allowed)
    if lower in map(str.lower, WITHOUT_EFFECT):
        return _refused(name, "has no effect on a single body", allowed, "Remove it")
    return _refused(name, "is not an option", allowed, did_you_mean(name, ALLOWED[format_]))


def _refused(name: str, what: str, allowed: str = "", todo: str = "") -> ConfigError:
    return ConfigError("E1527", member("options", name), f"{quoted(name)} {what}", allowed, todo)
