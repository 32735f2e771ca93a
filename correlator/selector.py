"""Message selectors: conditions on headers and properties, in the SQL of JMS 2.0 (section 3.8). Pure.

Theory of operation. The text becomes tokens, and a Pratt parser makes closures of them: a *value* gives a number, text,
truth value or `None` (NULL) for a message, a *condition* gives true, false or `None` (unknown). The text is not looked
at again when messages are tested. Three things keep each step small: a text has few bytes and tokens, it nests so
little that neither parser nor closures come near the recursion limit, and operators of one rank in a row, such as 300
ORs, are one closure with a loop.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from correlator.errors import ConfigError, quoted
from correlator.events import Message

MAX_BYTES = 4096
"""Bytes of UTF-8 that a selector may have; beyond it E6006."""
MAX_TOKENS = 1000
"""Names, literals and signs that a selector may have; beyond it E6006."""
MAX_DEPTH = 64
"""Parentheses, NOTs and signs within each other; beyond it E6005."""

_Value = Callable[[Message], Any]
_Condition = Callable[[Message], bool | None]


class Selector:
    """A condition on the headers and properties of a message; immutable, safe for threads. Made by `parse`.

    Names are those of properties, and the headers JMSDeliveryMode, JMSPriority, JMSMessageID, JMSTimestamp,
    JMSCorrelationID, JMSType and JMSXGroupID (the key of the message). What is not there is NULL, and what is made of
    it unknown; a missing delivery mode is 'PERSISTENT' and a missing priority 4, the defaults of JMS.

    Where JMS leaves a choice, or ActiveMQ differs:

    - Values of different types are neither equal nor unequal, greater nor less: each of these comparisons is false. So
      are `<`, `<=`, `>` and `>=` of texts and of truth values. TRUE is no number. Bytes compare with nothing, but they
      are not NULL. Exact and approximate numbers are compared by what they are, without rounding the exact one.
    - A name alone means `name = TRUE`. LIKE and IN are false where the property is no text. `NOT LIKE` and `NOT IN`
      are the opposites of LIKE and IN; `x NOT BETWEEN a AND b` is `x < a OR x > b`.
    - Exact numbers divided by each other give an exact one, rounded towards zero. Unknown are: arithmetic with what is
      no number, division by zero, an exact result of more than 64 bits, an approximate one that is not finite.
    - Approximate numbers have double precision, whatever their suffix. Numbers such as 017 are refused: Java means 15.
    - `_` in LIKE stands for one Unicode character, `%` for any run of them, line ends too. ESCAPE may stand before `%`,
      `_` and itself only.
    - NOT binds less than a comparison: `NOT a = 1` is `NOT (a = 1)`. Conditions cannot be compared: `(a = 1) = TRUE`.

    Attributes:
        text: what was parsed.
    """

    __slots__ = ("_condition", "text")

    def __init__(self, text: str, condition: _Condition) -> None:
        self.text = text
        self._condition = condition

    @classmethod
    def parse(cls, text: str, where: str) -> "Selector":
        """The selector; a text of nothing but spaces selects every message. `where` names it in errors.

        Raises `ConfigError` E6003 for what is not understood, E6004 for an operator of another language, E6005, E6006
        for what is nested too deep or too long, E6007 for a header that cannot be selected by.
        """
        if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
            raise _too_large(where, f"longer than {MAX_BYTES} bytes")
        source = _Source(text, where)
        tokens = _tokens(source)
        return cls(text, _Parser(source, tokens).condition() if len(tokens) > 1 else _always)

    def matches(self, message: Message) -> bool:
        """Whether the condition is true for a message; false and unknown are no match. Never raises."""
        return self._condition(message) is True


def _always(message: Message) -> bool:  # noqa: ARG001
    return True


def _too_large(where: str, what: str) -> ConfigError:
    todo = "Shorten it: name IN ('a', 'b') says the same as name = 'a' OR name = 'b'"
    return ConfigError("E6006", where, what, "", todo)


class _Source(NamedTuple):
    """A text, and how an error in it is told."""

    text: str
    where: str

    def error(self, at: int, what: str, code: str = "E6003") -> ConfigError:
        """The error, with the line around the place and a mark below it."""
        begin = self.text.rfind("\n", 0, at) + 1
        end = (self.text + "\n").find("\n", at)
        line = self.text.count("\n", 0, at) + 1
        column = f"column {at - begin + 1}" if line == 1 else f"line {line} column {at - begin + 1}"
        first, last = max(begin, at - 50), min(end, at + 25)
        before = ("…" if first > begin else "") + _printable(self.text[first:at])
        after = _printable(self.text[at:last]) + ("…" if last < end else "")
        return ConfigError(code, self.where, f"{column}: {what}\n  {before}{after}\n  {' ' * len(before)}^")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# --- tokens ---

_NAME, _NUMBER, _TEXT, _END = "name", "number", "text", "end"
_RESERVED = frozenset(("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"))
_LEXEME = re.compile(  # possessive, so that nothing is tried twice
    r"""
    (?P<space>[ \t\f\r\n]++)
    | (?P<text>'(?:[^']++|'')*+')
    | (?P<number>0[xX][\w$]*+|\.?[0-9](?:[eE][+-](?=[0-9])|[\w.$])*+)
    | (?P<foreign>==|=>|=<|!=|&&?|\|\|?|!|%)
    | (?P<sign><>|<=|>=|[=<>+*/(),-])
    """,
    re.VERBOSE,
)
_INSTEAD = {
    "==": "'='",
    "=>": "'>='",
    "=<": "'<='",
    "!=": "'<>'",
    "&&": "AND",
    "&": "AND",
    "||": "OR",
    "|": "OR",
    "!": "NOT",
    "%": "'+', '-', '*' or '/'",
}


class _Token(NamedTuple):
    """Kind: `_NAME`, `_NUMBER`, `_TEXT`, `_END`, or a reserved word or sign itself."""

    kind: str
    source: str
    at: int

    def shown(self) -> str:
        """As it appears in a message."""
        return quoted(self.source[1:-1] if self.kind == _TEXT else self.source)


def _tokens(source: _Source) -> list[_Token]:
    """All tokens, and the end."""
    text = source.text
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        token = _token(source, at)
        at += len(token.source)
        if token.kind == "space":
            continue
        if len(tokens) == MAX_TOKENS:
            raise _too_large(source.where, f"more than {MAX_TOKENS} names, values and signs")
        tokens.append(token)
    return [*tokens, _Token(_END, "", len(text.rstrip("\r\n")))]


def _token(source: _Source, at: int) -> _Token:
    found = _LEXEME.match(source.text, at)
    if found is None:
        return _word(source, at)
    kind, lexeme = found.lastgroup or "", found.group()
    if kind == "foreign":
        raise source.error(at, f"'{lexeme}' is not an operator. Use {_INSTEAD[lexeme]}", "E6004")
    return _Token(lexeme if kind == "sign" else kind, lexeme, at)


def _word(source: _Source, at: int) -> _Token:
    text, end = source.text, at
    while end < len(text) and (text[end] == "$" or (text[end] if end == at else "a" + text[end]).isidentifier()):
        end += 1
    word = text[at:end]
    if word.isascii() and word.upper() in _RESERVED:  # the upper case of some other letters is ASCII
        return _Token(word.upper(), word, at)
    if word:
        return _Token(_NAME, word, at)
    if text[at] == "'":
        raise source.error(at, "the text that begins here has no closing quote")
    hint = ". Text stands in single quotes" if text[at] in '"`\u2018\u201c' else ""
    raise source.error(at, f"{quoted(text[at])} has no meaning here{hint}")


# --- the parser ---

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)
_RANKS: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys((*_COMPARE, "IS", "NOT", "IN", "LIKE", "BETWEEN"), _COMPARISON),
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
}
"""How strongly a token binds what stands on its left; nothing else does."""


class _Part(NamedTuple):
    """What has been parsed, and as what it may be used: names and truth values are values and conditions.

    `evaluate` gives the value, where it may be one, else the truth.
    """

    at: int
    evaluate: _Value
    is_value: bool
    is_condition: bool
    is_name: bool = False


class _Parser:
    """Makes one condition of all tokens.

    A `rank` is that of the operator that waits for what is parsed: stronger ones are taken along. From `_COMPARISON` on
    only a value can follow, so conditions are refused there at once and nesting costs few frames of the stack.
    """

    def __init__(self, source: _Source, tokens: Sequence[_Token]) -> None:
        self._source = source
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def condition(self) -> _Condition:
        part = self._expression(0)
        self._expect(_END, "AND, OR or the end")
        return self._as_condition(part)

    def _expression(self, rank: int) -> _Part:
        left = self._operand(rank)
        while (found := _RANKS.get(self._next.kind, 0)) > rank:
            left = self._comparison(left) if found == _COMPARISON else self._row(left, found)
        return left

    # --- operands ---

    def _operand(self, rank: int) -> _Part:
        token = self._next
        if token.kind == _NUMBER:
            return self._number(token.at)
        if token.kind == _NAME:
            return self._name()
        if token.kind == _TEXT:
            return _Part(token.at, _constant(self._text("text")), is_value=True, is_condition=False)
        if token.kind in ("TRUE", "FALSE"):
            self._advance()
            return _Part(token.at, _constant(token.kind == "TRUE"), is_value=True, is_condition=True)
        if token.kind in ("(", "+", "-") or (token.kind == "NOT" and rank < _COMPARISON):
            return self._nested(rank)
        raise self._unexpected("a value")

    def _nested(self, rank: int) -> _Part:
        token = self._advance()
        if token.kind in ("+", "-") and self._next.kind == _NUMBER:
            return self._number(token.at, -1 if token.kind == "-" else 1)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._source.error(token.at, f"nested deeper than {MAX_DEPTH}", "E6005")
        if token.kind == "(":
            part = self._expression(_COMPARISON if rank >= _COMPARISON else 0)._replace(at=token.at)
            self._expect(")")
        elif token.kind == "NOT":
            part = _condition_at(token.at, _opposite(self._as_condition(self._expression(_NOT))))
        else:
            signed = [(_OPERATIONS[token.kind], self._as_value(self._operand(_SIGN)))]
            part = _value_at(token.at, _arithmetic(_constant(0), signed))
        self._depth -= 1
        return part

    def _number(self, at: int, sign: int = 1) -> _Part:
        token = self._advance()
        try:
            return _value_at(at, _constant(_number(token.source, sign)))
        except ValueError as error:
            raise self._source.error(token.at, f"{quoted(token.source)} {error}") from error

    def _name(self) -> _Part:
        token = self._advance()
        name = token.source
        if name.startswith("JMS") and not name.startswith("JMS_") and name not in _HEADERS:
            why = ": it changes with each delivery" if name in _PER_DELIVERY else ""
            what = f"{quoted(name)} cannot be selected by{why}. Headers that can: {', '.join(_HEADERS)}"
            raise self._source.error(token.at, what, "E6007")
        found = _HEADERS.get(name) or _property(name)
        return _Part(token.at, found, is_value=True, is_condition=True, is_name=True)

    # --- operators ---

    def _row(self, left: _Part, rank: int) -> _Part:
        """Operators of one rank: all that follow each other, from left to right."""
        right: list[tuple[str, _Part]] = []
        while _RANKS.get(self._next.kind) == rank:
            sign = self._advance().kind
            right.append((sign, self._expression(rank)))
        if rank in (_AND, _OR):
            conditions = [self._as_condition(part) for part in (left, *(part for _, part in right))]
            return _condition_at(left.at, _joined(conditions, decisive=rank == _OR))
        operations = [(_OPERATIONS[sign], self._as_value(part)) for sign, part in right]
        return _value_at(left.at, _arithmetic(self._as_value(left), operations))

    def _comparison(self, left: _Part) -> _Part:
        sign = self._next.kind
        if sign in _COMPARE:
            self._advance()
            right = self._as_value(self._expression(_COMPARISON))
            return _condition_at(left.at, _compared(sign, self._as_value(left), right))
        if self._skip("IS"):
            negative = self._skip("NOT")
            self._expect("NULL", "NULL" if negative else "NULL or NOT NULL")
            condition = _missing(self._as_named(left, "IS NULL"))
        else:
            negative = self._skip("NOT")
            if self._skip("BETWEEN"):
                return self._between(left, negative=negative)
            condition = self._text_test(left)
        return _condition_at(left.at, _opposite(condition) if negative else condition)

    def _between(self, left: _Part, *, negative: bool) -> _Part:
        value = self._as_value(left)
        low = self._as_value(self._expression(_COMPARISON))
        self._expect("AND", "AND and the upper bound")
        high = self._as_value(self._expression(_COMPARISON))
        if negative:
            outside = [_compared("<", value, low), _compared(">", value, high)]
            return _condition_at(left.at, _joined(outside, decisive=True))
        inside = [_compared(">=", value, low), _compared("<=", value, high)]
        return _condition_at(left.at, _joined(inside, decisive=False))

    def _text_test(self, left: _Part) -> _Condition:
        if self._skip("IN"):
            return _is_text(self._as_named(left, "IN"), self._in())
        if self._skip("LIKE"):
            return _is_text(self._as_named(left, "LIKE"), self._like())
        raise self._unexpected("BETWEEN, IN or LIKE")

    def _in(self) -> Callable[[str], bool]:
        self._expect("(")
        texts = [self._text()]
        while self._skip(","):
            texts.append(self._text())
        self._expect(")", "',' or ')'")
        return frozenset(texts).__contains__

    def _like(self) -> Callable[[str], bool]:
        at = self._next.at
        pattern, escape = self._text(), ""
        if self._skip("ESCAPE"):
            at = self._next.at
            escape = self._text("one character in single quotes")
            if len(escape) != 1:
                raise self._source.error(at, f"ESCAPE needs one character, found {len(escape)}")
        try:
            segments = _segments(pattern, escape)
        except ValueError as error:
            raise self._source.error(at, f"the escape character {error}") from error
        return lambda text: _is_like(text, segments)

    # --- what a part may be used as ---

    def _as_value(self, part: _Part) -> _Value:
        if not part.is_value:
            raise self._source.error(part.at, "expected a value, found a condition")
        return part.evaluate

    def _as_condition(self, part: _Part) -> _Condition:
        if not part.is_condition:
            raise self._source.error(part.at, "expected a condition, such as a comparison, found a value")
        return _is_true(part.evaluate) if part.is_value else part.evaluate

    def _as_named(self, part: _Part, before: str) -> _Value:
        if not part.is_name:
            raise self._source.error(part.at, f"expected the name of a property before {before}")
        return part.evaluate

    # --- tokens ---

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _advance(self) -> _Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _skip(self, kind: str) -> bool:
        """Go on if the next token is of this kind."""
        found = self._next.kind == kind
        self._at += found
        return found

    def _expect(self, kind: str, what: str = "") -> None:
        if not self._skip(kind):
            raise self._unexpected(what or f"'{kind}'")

    def _text(self, what: str = "text in single quotes") -> str:
        if self._next.kind != _TEXT:
            raise self._unexpected(what)
        return self._advance().source[1:-1].replace("''", "'")

    def _unexpected(self, expected: str) -> ConfigError:
        token = self._next
        after = f" after {self._tokens[self._at - 1].shown()}" if self._at else ""
        reserved = "the reserved word " if token.kind in _RESERVED else ""
        found = f", found {reserved}{token.shown()}" if token.kind != _END else ""
        hint = ". Test for it with IS NULL" if token.kind == "NULL" and expected == "a value" else ""
        return self._source.error(token.at, f"expected {expected}{after}{found}{hint}")


def _condition_at(at: int, condition: _Condition) -> _Part:
    return _Part(at, condition, is_value=False, is_condition=True)


def _value_at(at: int, value: _Value) -> _Part:
    return _Part(at, value, is_value=True, is_condition=False)


# --- numbers ---

_LONGEST_EXACT = 19
_EXACT = re.compile(r"(?:0|[1-9][0-9]*+|0[xX][0-9a-fA-F]++)[lL]?")
_APPROXIMATE = re.compile(r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[dDfF]?")
_OCTAL = re.compile(r"0[0-9]++[lL]?")


def _number(lexeme: str, sign: int) -> int | float:
    """The value of a literal; raises `ValueError` with what is wrong."""
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


# --- what values are ---

_NUMERIC, _TEXTUAL, _LOGICAL = "numeric", "textual", "logical"
_TYPES: dict[type[Any], str] = {int: _NUMERIC, float: _NUMERIC, str: _TEXTUAL, bool: _LOGICAL}
"""The types that compare with each other; a subclass is not the same, so that a truth value is no number."""


def _constant(value: Any) -> _Value:
    return lambda message: value  # noqa: ARG005


def _property(name: str) -> _Value:
    return lambda message: message.properties.get(name)


def _header(name: str) -> _Value:
    return lambda message: getattr(message.headers, name, None)


def _delivery_mode(message: Message) -> str:
    return "NON_PERSISTENT" if message.headers and message.headers.persistent is False else "PERSISTENT"


def _priority(message: Message) -> int:
    priority = message.headers.priority if message.headers else None
    return 4 if priority is None else priority


_HEADERS: Final[dict[str, _Value]] = {
    "JMSDeliveryMode": _delivery_mode,
    "JMSPriority": _priority,
    "JMSMessageID": _header("message_id"),
    "JMSTimestamp": _header("timestamp"),
    "JMSCorrelationID": _header("correlation_id"),
    "JMSType": _header("type"),
    "JMSXGroupID": lambda message: message.key,
}
_PER_DELIVERY = ("JMSXDeliveryCount", "JMSRedelivered")


def _arithmetic(first: _Value, operations: Sequence[tuple[Callable[[Any, Any], Any], _Value]]) -> _Value:
    def value(message: Message) -> Any:
        result = first(message)
        for operation, operand in operations:
            result = _computed(operation, result, operand(message))
        return result

    return value


def _computed(operation: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """The result, or `None` where there is none."""
    if _TYPES.get(type(one)) != _NUMERIC or _TYPES.get(type(other)) != _NUMERIC:
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


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
}


# --- what conditions are ---


def _joined(conditions: Sequence[_Condition], *, decisive: bool) -> _Condition:
    """AND, which one false condition decides, or OR, which a true one does."""

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


def _opposite(condition: _Condition) -> _Condition:
    def opposite(message: Message) -> bool | None:
        truth = condition(message)
        return None if truth is None else not truth

    return opposite


def _is_true(value: _Value) -> _Condition:
    def condition(message: Message) -> bool | None:
        found = value(message)
        return None if found is None else found is True

    return condition


def _missing(value: _Value) -> _Condition:
    return lambda message: value(message) is None


def _compared(sign: str, left: _Value, right: _Value) -> _Condition:
    compare = _COMPARE[sign]
    types = frozenset(_TYPES.values()) if sign in ("=", "<>") else frozenset((_NUMERIC,))

    def condition(message: Message) -> bool | None:
        one, other = left(message), right(message)
        if one is None or other is None:
            return None
        kind = _TYPES.get(type(one))
        return kind in types and kind == _TYPES.get(type(other)) and compare(one, other)

    return condition


def _is_text(value: _Value, test: Callable[[str], bool]) -> _Condition:
    def condition(message: Message) -> bool | None:
        found = value(message)
        return None if found is None else type(found) is str and test(found)

    return condition


# --- LIKE ---


class _Segment(NamedTuple):
    """What stands between two `%`: how many characters, and those that are not `_`, each run with its place."""

    length: int
    runs: tuple[tuple[int, str], ...]

    def stands_at(self, at: int, text: str) -> bool:
        return all(text.startswith(run, at + offset) for offset, run in self.runs)

    def find(self, text: str, begin: int, end: int) -> int:
        """The first place between `begin` and `end`, or -1."""
        if begin + self.length > end:
            return -1
        if not self.runs:
            return begin
        offset, run = self.runs[0]
        last = end - self.length + offset + len(run)
        found = text.find(run, begin + offset, last)
        while found >= 0 and not self.stands_at(found - offset, text):
            found = text.find(run, found + 1, last)
        return found - offset if found >= 0 else -1


def _is_like(text: str, segments: Sequence[_Segment]) -> bool:
    """Each segment at the first place after the one before, the outer ones at the ends; no place is looked at again."""
    head, tail = segments[0], segments[-1]
    if len(segments) == 1:
        return len(text) == head.length and head.stands_at(0, text)
    at, end = head.length, len(text) - tail.length
    if at > end or not head.stands_at(0, text) or not tail.stands_at(end, text):
        return False
    for segment in segments[1:-1]:
        found = segment.find(text, at, end)
        if found < 0:
            return False
        at = found + segment.length
    return True


def _segments(pattern: str, escape: str) -> list[_Segment]:
    """The pattern cut at each `%`; raises `ValueError` with what is wrong with the escape character."""
    segments: list[list[str]] = [[]]
    escaped = False
    for c in pattern:
        if escaped:
            if c not in ("%", "_", escape):
                raise ValueError(f"stands before {quoted(c)}, not before '%', '_' or itself")
            segments[-1].append(c)
            escaped = False
        elif c == escape:
            escaped = True
        elif c == "%":
            segments.append([])
        else:
            segments[-1].append("" if c == "_" else c)
    if escaped:
        raise ValueError("stands at the end of the pattern")
    return [_segment(segment) for segment in segments]


def _segment(characters: Sequence[str]) -> _Segment:
    """Of characters, with "" for any."""
    runs: list[tuple[int, str]] = []
    for is_run, places in groupby(range(len(characters)), key=lambda at: characters[at] != ""):
        if is_run:
            at, *more = places
            runs.append((at, "".join(characters[at : at + 1 + len(more)])))
    return _Segment(len(characters), tuple(runs))
