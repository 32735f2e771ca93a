"""Reads the columns of a schema in Spark's DDL, without Spark. Pure.

Spark's grammar is larger than this one. If a text has a part that this grammar does not know, the result is `None`: the
columns are unknown, and the text need not be wrong.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, quoted

_EXAMPLE = "Example: carrier STRING, delay INT"
_LEXEME = re.compile(
    r"(?P<space>\s+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[A-Za-z0-9_]+)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<sign>[<>(),:])",
    re.DOTALL,
)
_PLAIN = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
    "void": "void",
    "variant": "variant",
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_WITH_MORE_WORDS = ("timestamp", "string", "double", "time")
_TEXTS = {"char": "char", "character": "char", "varchar": "varchar"}
_TIME = "time"
_INTERVAL = "interval"
_UNITS = (("year", "month"), ("day", "hour", "minute", "second"))
"""The units of intervals; an interval has one unit, or a range of units of the same line."""
_OTHERS = ("geometry", "geography")
_MOST_DIGITS = 38
_MICROSECONDS = 6
_NANOSECONDS = range(7, 10)
"""Digits after the point in the seconds of a timestamp; a setting of Spark allows the digits of nanoseconds."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a column.

    Attributes:
        name: its name in Spark, such as `int` or `array<int>`.
        fields: the fields of a struct.
    """

    name: str
    fields: Mapping[str, "Kind"] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether it has neither fields nor elements."""
        return self.name.partition("<")[0] not in _NESTED


Columns = list[tuple[str, Kind]]


def struct_of(columns: Columns) -> Kind:
    """The type of a struct with these fields."""
    return Kind(f"struct<{','.join(f'{name}:{kind.name}' for name, kind in columns)}>", dict(columns))


def columns_of(ddl: str) -> Columns | None:
    """The columns of a schema in their order, `None` if the text has a part that this grammar does not know.

    Raises:
        ConfigError: E1511, the text is no schema for Spark either.
    """
    try:
        return _Parser(_tokens(ddl)).schema()
    except _Unknown:
        return None


class _Unknown(Exception):
    """The text has a part that the grammar does not know."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


_END = _Token("end", "")


def _tokens(ddl: str) -> list[_Token]:
    found, at = [], 0
    while at < len(ddl):
        match = _LEXEME.match(ddl, at)
        if match is None:
            raise _Unknown
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "quoted":
            found.append(_Token(kind, match[kind].replace("``", "`")))
        elif kind != "space":
            found.append(_Token(kind, match[kind]))
    return found


def _mistake(what: str, allowed: str = _EXAMPLE, todo: str = "") -> ConfigError:
    return ConfigError("E1511", "schema", f"schema: {what}", allowed, todo)


class _Parser:
    """Reads the tokens from left to right."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def schema(self) -> Columns:
        if not self._tokens:
            raise _Unknown
        if len(self._tokens) == 1 and self._tokens[0].kind in ("word", "quoted"):
            raise _mistake("needs names and types")
        columns = self._columns(colon=False)
        if self._next is not _END:
            raise _mistake(f"{quoted(self._next.text)} closes nothing")
        return columns

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _took(self, sign: str) -> bool:
        if self._next.kind == "sign" and self._next.text == sign:
            self._at += 1
            return True
        return False

    def _columns(self, *, colon: bool) -> Columns:
        columns = [self._column(colon=colon)]
        while self._took(","):
            if self._next is _END:
                raise _mistake("ends with ','")
            columns.append(self._column(colon=colon))
        return columns

    def _column(self, *, colon: bool) -> tuple[str, Kind]:
        name = self._take()
        if name.kind not in ("word", "quoted") or (name.kind == "word" and name.text.isdigit()):
            raise _Unknown
        if colon:
            self._took(":")
        if self._next is _END or (self._next.kind == "sign" and self._next.text == ","):
            raise _mistake(f"column {quoted(name.text)} has no type")
        kind = self._kind()
        self._options()
        return name.text, kind

    def _options(self) -> None:
        """`NOT NULL` and `COMMENT 'text'`."""
        if self._next.is_word("not"):
            self._at += 1
            if not self._take().is_word("null"):
                raise _Unknown
        if self._next.is_word("comment"):
            self._at += 1
            if self._take().kind != "text":
                raise _Unknown

    def _kind(self) -> Kind:
        token = self._take()
        if token.kind != "word":
            raise _Unknown
        word = token.text.lower()
        if (found := self._with_parameters(word)) is not None:
            return found
        if word in _PLAIN and self._took("("):
            self._precision(word)
        if word in _OTHERS or (self._next.kind == "sign" and self._next.text not in (",", ">")):
            raise _Unknown
        if word not in _PLAIN:
            known = (*_PLAIN, *_DECIMALS, *_NESTED)
            allowed = f"Types: {', '.join(dict.fromkeys(_PLAIN.values()))}, decimal, array, map, struct"
            raise _mistake(f"{quoted(token.text)} is not a type", allowed, did_you_mean(word, known))
        if self._next.kind in ("word", "quoted") and not self._next.is_word("not", "comment"):
            if word in _WITH_MORE_WORDS:
                raise _Unknown
            raise _mistake(f"there is no ',' before {quoted(self._next.text)}")
        return Kind(_PLAIN[word])

    def _with_parameters(self, word: str) -> Kind | None:
        """A type that may have parameters or further words; `None` for any other word."""
        if word in _NESTED:
            return self._nested(word)
        if word in _DECIMALS:
            return self._decimal()
        if word in _TEXTS:
            return Kind(f"{_TEXTS[word]}({self._length()})")
        if word == _INTERVAL:
            return self._interval()
        if word == _TIME:
            return self._time()
        return None

    def _length(self) -> int:
        """`(3)` after the type of a text of a certain length."""
        if not self._took("("):
            raise _Unknown
        length = self._number()
        if not self._took(")"):
            raise _Unknown
        return length

    def _time(self) -> Kind:
        digits = self._length() if self._next.text == "(" else _MICROSECONDS
        if digits > _MICROSECONDS or self._next.is_word("with", "without"):
            raise _Unknown
        return Kind(f"{_TIME}({digits})")

    def _interval(self) -> Kind:
        for units in _UNITS:
            if self._next.is_word(*units):
                first = self._take().text.lower()
                if not self._next.is_word("to"):
                    return Kind(f"{_INTERVAL} {first}")
                self._at += 1
                last = self._take()
                if not last.is_word(*units[units.index(first) + 1 :]):
                    raise _Unknown
                return Kind(f"{_INTERVAL} {first} to {last.text.lower()}")
        if self._next.kind == "word" and not self._next.is_word("not", "comment"):
            raise _Unknown
        return Kind(_INTERVAL)

    def _precision(self, word: str) -> None:
        """`(6)` after a timestamp; Spark knows no other number after a plain type."""
        number = self._number()
        is_timestamp = word.startswith("timestamp")
        if not self._took(")") or (is_timestamp and number in _NANOSECONDS):
            raise _Unknown
        if not is_timestamp or number != _MICROSECONDS:
            allowed = "Every timestamp has microseconds" if is_timestamp else ""
            raise _mistake(f"there is no {word.upper()}({number})", allowed, f"Write {word.upper()}")

    def _decimal(self) -> Kind:
        digits, scale = 10, 0
        if self._took("("):
            digits = self._number()
            scale = self._number() if self._took(",") else 0
            if not self._took(")"):
                raise _Unknown
        if digits > _MOST_DIGITS or scale > digits:
            allowed = f"At most {_MOST_DIGITS} digits, and no more digits after the point than digits"
            raise _mistake(f"there is no DECIMAL({digits},{scale})", allowed)
        return Kind(f"decimal({digits},{scale})")

    def _number(self) -> int:
        token = self._take()
        if token.kind != "word" or not token.text.isdigit():
            raise _Unknown
        return int(token.text)

    def _nested(self, word: str) -> Kind:
        if not self._took("<"):
            raise _Unknown
        if word == "struct":
            found = struct_of([] if self._next.text == ">" else self._columns(colon=True))
        elif word == "array":
            found = Kind(f"array<{self._kind().name}>")
        else:
            key = self._kind()
            if not self._took(","):
                raise _Unknown
            found = Kind(f"map<{key.name},{self._kind().name}>")
        if not self._took(">"):
            if self._next is _END:
                raise _mistake(f"a '>' is missing after {word.upper()}<")
            raise _Unknown
        return found
