"""Turns the text of a selector into closures."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from correlator.errors import ConfigError, quoted
from correlator.events import Message
from correlator.selector.conditions import (
    COMPARE,
    Condition,
    compared,
    is_text,
    is_true,
    joined,
    missing,
    opposite,
)
from correlator.selector.like import is_like, segments_of
from correlator.selector.tokens import (
    END,
    MAX_BYTES,
    NAME,
    NUMBER,
    RESERVED,
    TEXT,
    SelectorText,
    Token,
    tokenize,
    too_large,
)
from correlator.selector.values import (
    HEADERS,
    OPERATIONS,
    PER_DELIVERY,
    Value,
    arithmetic,
    constant,
    number,
    property_of,
)

MAX_DEPTH = 64
"""The largest depth of nested parentheses, NOTs and signs; a deeper text raises E6005."""


class Selector:
    """A condition on the headers and properties of a message; immutable, safe for threads. Made by `parse`.

    Names are those of properties, and the headers JMSDeliveryMode, JMSPriority, JMSMessageID, JMSTimestamp,
    JMSCorrelationID, JMSType and JMSXGroupID (the key of the message). A missing value is NULL, and a condition on it
    is unknown. But a missing delivery mode is 'PERSISTENT' and a missing priority is 4, the defaults of JMS.

    Where JMS leaves a choice, or ActiveMQ differs:

    - Values of different types are neither equal nor unequal, greater nor less: each of these comparisons is false. So
      are `<`, `<=`, `>` and `>=` of texts and of truth values. TRUE is no number. Bytes compare with nothing, but they
      are not NULL. An exact and an approximate number are compared by their values, without rounding the exact one.
    - A name alone means `name = TRUE`. LIKE and IN are false if the property is no text. `NOT LIKE` and `NOT IN` are
      the opposites of LIKE and IN; `x NOT BETWEEN a AND b` is `x < a OR x > b`.
    - The quotient of two exact numbers is exact, rounded towards zero. The result is unknown for arithmetic with a
      value that is no number, a division by zero, an exact result of more than 64 bits, and an approximate result that
      is not finite.
    - Approximate numbers have double precision, whatever their suffix. Numbers such as 017 are refused, because in Java
      017 means 15.
    - `_` in LIKE stands for one Unicode character, `%` for any sequence of characters, including line ends. The ESCAPE
      character may stand only before `%`, `_` and itself.
    - NOT binds less than a comparison: `NOT a = 1` is `NOT (a = 1)`. Conditions cannot be compared: `(a = 1) = TRUE`.

    Attributes:
        text: the parsed text.
    """

    __slots__ = ("_condition", "text")

    def __init__(self, text: str, condition: Condition) -> None:
        self.text = text
        self._condition = condition

    @classmethod
    def parse(cls, text: str, where: str) -> "Selector":
        """Make a selector. A text of only spaces selects every message. `where` names the selector in errors.

        Raises:
            ConfigError: E6003, the text is not understood; E6004, an operator of another language; E6005, nested too
                deep; E6006, too long; E6007, a header on which a selector cannot depend.
        """
        if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
            raise too_large(where, f"longer than {MAX_BYTES} bytes")
        source = SelectorText(text, where)
        tokens = tokenize(source)
        return cls(text, _Parser(source, tokens).condition() if len(tokens) > 1 else _always)

    @classmethod
    def optional(cls, text: str | None, where: str) -> "Selector | None":
        """Make a selector like `parse`; `None` if it would select every message, because there is no text, or only
        spaces.
        """
        return cls.parse(text, where) if text and text.strip() else None

    def matches(self, message: Message) -> bool:
        """Whether the condition is true for a message; false and unknown are no match. Never raises."""
        return self._condition(message) is True


def _always(message: Message) -> bool:  # noqa: ARG001
    return True


_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)
_RANKS: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys((*COMPARE, "IS", "NOT", "IN", "LIKE", "BETWEEN"), _COMPARISON),
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
}
"""How strongly an operator binds the operand on its left; other tokens bind nothing."""


class _Expression(NamedTuple):
    """A parsed expression, and whether it may be used as a value, as a condition, or as both (names, truth values).

    `evaluate` returns its value if it may be a value; if not, whether it is true.
    """

    at: int
    evaluate: Value
    is_value: bool
    is_condition: bool
    is_name: bool = False


class _Parser:
    """Makes one condition of all tokens.

    A `rank` is the rank of the operator that waits for an operand; the operand includes all operators that bind more
    strongly. From `_COMPARISON` on only a value can follow, so the parser refuses conditions there at once, and nesting
    costs few frames of the stack.
    """

    def __init__(self, source: SelectorText, tokens: Sequence[Token]) -> None:
        self._source = source
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def condition(self) -> Condition:
        part = self._expression(0)
        self._expect(END, "AND, OR or the end")
        return self._as_condition(part)

    def _expression(self, rank: int) -> _Expression:
        left = self._operand(rank)
        while (found := _RANKS.get(self._next.kind, 0)) > rank:
            left = self._comparison(left) if found == _COMPARISON else self._row(left, found)
        return left

    # --- operands ---

    def _operand(self, rank: int) -> _Expression:
        token = self._next
        if token.kind == NUMBER:
            return self._number(token.at)
        if token.kind == NAME:
            return self._name()
        if token.kind == TEXT:
            return _Expression(token.at, constant(self._text("text")), is_value=True, is_condition=False)
        if token.kind in ("TRUE", "FALSE"):
            self._advance()
            return _Expression(token.at, constant(token.kind == "TRUE"), is_value=True, is_condition=True)
        if token.kind in ("(", "+", "-") or (token.kind == "NOT" and rank < _COMPARISON):
            return self._nested(rank)
        raise self._unexpected("a value")

    def _nested(self, rank: int) -> _Expression:
        token = self._advance()
        if token.kind in ("+", "-") and self._next.kind == NUMBER:
            return self._number(token.at, -1 if token.kind == "-" else 1)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._source.error(token.at, f"nested deeper than {MAX_DEPTH}", "E6005")
        if token.kind == "(":
            part = self._expression(_COMPARISON if rank >= _COMPARISON else 0)._replace(at=token.at)
            self._expect(")")
        elif token.kind == "NOT":
            part = _condition_at(token.at, opposite(self._as_condition(self._expression(_NOT))))
        else:
            signed = [(OPERATIONS[token.kind], self._as_value(self._operand(_SIGN)))]
            part = _value_at(token.at, arithmetic(constant(0), signed))
        self._depth -= 1
        return part

    def _number(self, at: int, sign: int = 1) -> _Expression:
        token = self._advance()
        try:
            return _value_at(at, constant(number(token.source, sign)))
        except ValueError as error:
            raise self._source.error(token.at, f"{quoted(token.source)} {error}") from error

    def _name(self) -> _Expression:
        token = self._advance()
        name = token.source
        if name.startswith("JMS") and not name.startswith("JMS_") and name not in HEADERS:
            why = ": it changes with each delivery" if name in PER_DELIVERY else ""
            what = f"{quoted(name)} cannot be selected by{why}. Headers that can: {', '.join(HEADERS)}"
            raise self._source.error(token.at, what, "E6007")
        found = HEADERS.get(name) or property_of(name)
        return _Expression(token.at, found, is_value=True, is_condition=True, is_name=True)

    # --- operators ---

    def _row(self, left: _Expression, rank: int) -> _Expression:
        """A sequence of operators of one rank, evaluated from left to right."""
        right: list[tuple[str, _Expression]] = []
        while _RANKS.get(self._next.kind) == rank:
            sign = self._advance().kind
            right.append((sign, self._expression(rank)))
        if rank in (_AND, _OR):
            conditions = [self._as_condition(part) for part in (left, *(part for _, part in right))]
            return _condition_at(left.at, joined(conditions, decisive=rank == _OR))
        operations = [(OPERATIONS[sign], self._as_value(part)) for sign, part in right]
        return _value_at(left.at, arithmetic(self._as_value(left), operations))

    def _comparison(self, left: _Expression) -> _Expression:
        sign = self._next.kind
        if sign in COMPARE:
            self._advance()
            right = self._as_value(self._expression(_COMPARISON))
            return _condition_at(left.at, compared(sign, self._as_value(left), right))
        if self._skip("IS"):
            negative = self._skip("NOT")
            self._expect("NULL", "NULL" if negative else "NULL or NOT NULL")
            condition = missing(self._as_named(left, "IS NULL"))
        else:
            negative = self._skip("NOT")
            if self._skip("BETWEEN"):
                return self._between(left, negative=negative)
            condition = self._text_test(left)
        return _condition_at(left.at, opposite(condition) if negative else condition)

    def _between(self, left: _Expression, *, negative: bool) -> _Expression:
        value = self._as_value(left)
        low = self._as_value(self._expression(_COMPARISON))
        self._expect("AND", "AND and the upper bound")
        high = self._as_value(self._expression(_COMPARISON))
        if negative:
            outside = [compared("<", value, low), compared(">", value, high)]
            return _condition_at(left.at, joined(outside, decisive=True))
        inside = [compared(">=", value, low), compared("<=", value, high)]
        return _condition_at(left.at, joined(inside, decisive=False))

    def _text_test(self, left: _Expression) -> Condition:
        if self._skip("IN"):
            return is_text(self._as_named(left, "IN"), self._in())
        if self._skip("LIKE"):
            return is_text(self._as_named(left, "LIKE"), self._like())
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
            segments = segments_of(pattern, escape)
        except ValueError as error:
            raise self._source.error(at, f"the escape character {error}") from error
        return lambda text: is_like(text, segments)

    # --- what a part may be used as ---

    def _as_value(self, part: _Expression) -> Value:
        if not part.is_value:
            raise self._source.error(part.at, "expected a value, found a condition")
        return part.evaluate

    def _as_condition(self, part: _Expression) -> Condition:
        if not part.is_condition:
            raise self._source.error(part.at, "expected a condition, such as a comparison, found a value")
        return is_true(part.evaluate) if part.is_value else part.evaluate

    def _as_named(self, part: _Expression, before: str) -> Value:
        if not part.is_name:
            raise self._source.error(part.at, f"expected the name of a property before {before}")
        return part.evaluate

    # --- tokens ---

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _advance(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _skip(self, kind: str) -> bool:
        """Take the next token if it is of this kind; returns whether it was."""
        found = self._next.kind == kind
        self._at += found
        return found

    def _expect(self, kind: str, what: str = "") -> None:
        if not self._skip(kind):
            raise self._unexpected(what or f"'{kind}'")

    def _text(self, what: str = "text in single quotes") -> str:
        if self._next.kind != TEXT:
            raise self._unexpected(what)
        return self._advance().source[1:-1].replace("''", "'")

    def _unexpected(self, expected: str) -> ConfigError:
        token = self._next
        after = f" after {self._tokens[self._at - 1].shown()}" if self._at else ""
        reserved = "the reserved word " if token.kind in RESERVED else ""
        found = f", found {reserved}{token.shown()}" if token.kind != END else ""
        hint = ". Test for it with IS NULL" if token.kind == "NULL" and expected == "a value" else ""
        return self._source.error(token.at, f"expected {expected}{after}{found}{hint}")


def _condition_at(at: int, condition: Condition) -> _Expression:
    return _Expression(at, condition, is_value=False, is_condition=True)


def _value_at(at: int, value: Value) -> _Expression:
    return _Expression(at, value, is_value=True, is_condition=False)
