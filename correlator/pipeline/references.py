"""Finds the columns that an expression in Spark SQL certainly names, without Spark. Pure.

Only Spark can parse every expression. So a name counts as a column only if its neighbors leave no other meaning: it is
no function, no type, no alias, no unit of time and no parameter of a lambda function. An expression with a part that
could give names another meaning (a subquery, a comment, a type with fields) does not certainly name any column.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Path = tuple[str, ...]

_LEXEME = re.compile(
    r"(?P<space>\s+)|(?P<comment>--|/\*)"
    r"|(?P<text>[rR]'[^']*'|[rR]\"[^\"]*\"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|`(?P<quoted>(?:[^`]|``)+)`"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYFDlsyfd])?(?!\w))"
    r"|(?P<word>[A-Za-z0-9_]+)"
    r"|(?P<sign><=>|->|=>|\|\||<<|>>>?|<>|!=|<=|>=|==|[-+*/%&|^~!=<>()\[\],.])",
    re.DOTALL,
)
_BEFORE = frozenset(
    (
        *("and", "or", "not", "when", "then", "else", "case", "between", "in", "like", "ilike", "rlike", "regexp"),
        *("div", "from"),
    )
)
"""Words that an operand follows."""
_AFTER = frozenset(
    (
        *("and", "or", "not", "when", "then", "else", "end", "between", "in", "like", "ilike", "rlike", "regexp"),
        *("is", "as", "div"),
    )
)
"""Words that may follow an operand."""
_VALUES = frozenset(
    (
        *("null", "true", "false", "default", "user", "session_user", "grouping__id", "localtime", "localtimestamp"),
        *("current_catalog", "current_database", "current_date", "current_path", "current_schema", "current_time"),
        *("current_timestamp", "current_timezone", "current_user"),
    )
)
"""Words that are values by themselves."""
_UNITS = frozenset(
    (
        *("year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second", "millisecond"),
        "microsecond",
    )
)
_UNCERTAIN = frozenset(("select", "collate", "lateral", "over", "window", "with", "values", "table"))
"""Words that may give the names around them another meaning."""
_NO_NAMES = _BEFORE | _AFTER | _VALUES | _UNITS | {"distinct", "all", "any", "some", "exists", "interval"}
_OTHER_QUERIES = frozenset(
    (
        *("distinct", "join", "union", "intersect", "except", "minus", "group", "having", "order", "limit", "sort"),
        *("cluster", "distribute", "offset", "tablesample", "pivot", "unpivot", "qualify"),
    )
)


@dataclass(frozen=True, slots=True)
class References:
    """The names in an expression.

    Attributes:
        paths: names of columns, each optionally followed by fields.
        complete: whether the expression is only a column or a constant, so that there is nothing more to check.
    """

    paths: tuple[Path, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of the list after SELECT.

    Attributes:
        expression: the text of the entry without its name.
        name: the name of the column; `*` for all columns, empty if Spark makes a name.
    """

    expression: str
    name: str


@dataclass(frozen=True, slots=True)
class Query:
    """`SELECT items FROM input WHERE condition`; the condition may be empty."""

    items: tuple[Item, ...]
    condition: str


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    begin: int
    end: int

    @property
    def word(self) -> str:
        """A word in lower case; empty for anything else."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def is_name(self) -> bool:
        return self.kind == "quoted" or (self.kind == "word" and not self.text[0].isdigit())

    @property
    def sign(self) -> str:
        return self.text if self.kind == "sign" else ""


def references(expression: str) -> References:
    """The columns that an expression certainly names, each as often as it occurs."""
    tokens = _tokens(expression)
    if tokens is None or _uncertain(tokens):
        return References()
    if path := _path(tokens):
        return References(() if len(path) == 1 and tokens[0].word in _VALUES else (path,), complete=True)
    if len(tokens) == 1:
        return References(complete=tokens[0].kind in ("text", "number"))
    bound = _bound(tokens)
    return References(tuple(path for path in _paths(tokens) if path[0].lower() not in bound))


def simple_query(query: str) -> Query | None:
    """The parts of a query that has only SELECT, FROM input and WHERE; `None` for every other query."""
    tokens = _tokens(query)
    if not tokens or tokens[0].word != "select" or any(token.word in _OTHER_QUERIES for token in tokens):
        return None
    if _uncertain(tokens[1:]):
        return None
    depths = list(_depths(tokens))
    at = next((at for at, one in enumerate(tokens) if one.word == "from" and depths[at] == 0), None)
    if at is None or len(tokens) < at + 2 or tokens[at + 1].text.lower() != "input":
        return None
    rest = tokens[at + 2 :]
    if rest and (rest[0].word != "where" or len(rest) == 1):
        return None
    entries: list[list[_Token]] = [[]]
    for token, depth in zip(tokens[1:at], depths[1:at], strict=True):
        if token.sign == "," and depth == 0:
            entries.append([])
        else:
            entries[-1].append(token)
    if not all(entries):
        return None
    items = tuple(_item(query, entry) for entry in entries)
    return Query(items, query[rest[1].begin :] if rest else "")


def _item(query: str, tokens: list[_Token]) -> Item:
    whole = query[tokens[0].begin : tokens[-1].end]
    if len(tokens) == 1 and tokens[0].sign == "*":
        return Item("", "*")
    if path := _path(tokens):
        return Item(whole, "" if tokens[0].word in _VALUES else path[-1])
    if len(tokens) > 2 and tokens[-2].word == "as" and tokens[-1].is_name:
        return Item(query[tokens[0].begin : tokens[-3].end], tokens[-1].text)
    return Item(whole, "")


def _tokens(text: str) -> list[_Token] | None:
    """The tokens of a text, `None` if it has a comment or a character that no token has."""
    found, at = [], 0
    while at < len(text):
        match = _LEXEME.match(text, at)
        if match is None or match.lastgroup == "comment":
            return None
        kind = str(match.lastgroup)
        if kind != "space":
            shown = match[kind].replace("``", "`") if kind == "quoted" else match[kind]
            found.append(_Token(kind, shown, at, match.end()))
        at = match.end()
    return found


def _depths(tokens: Sequence[_Token]) -> Iterator[int]:
    """How many brackets are open at each token."""
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token.sign, 0)
        yield depth


def _uncertain(tokens: Sequence[_Token]) -> bool:
    return any(token.word in _UNCERTAIN for token in tokens) or any(
        (one.word in ("struct", "map", "array") and after.sign in ("<", "<>"))
        or (one.word == "as" and after.sign == "(")
        for one, after in pairwise(tokens)
    )


def _path(tokens: Sequence[_Token]) -> Path:
    """The names of `a.b.c`; empty if the tokens are anything else."""
    names, dots = tokens[::2], tokens[1::2]
    if len(tokens) % 2 and all(one.is_name for one in names) and all(one.sign == "." for one in dots):
        return tuple(one.text for one in names)
    return ()


def _bound(tokens: Sequence[_Token]) -> set[str]:
    """The parameters of lambda functions, in lower case."""
    names: set[str] = set()
    for at, token in enumerate(tokens):
        if token.sign != "->" or at == 0:
            continue
        first = at - 1
        if tokens[first].sign == ")":
            while first > 0 and tokens[first].sign != "(":
                first -= 1
        names.update(one.text.lower() for one in tokens[first:at] if one.is_name)
    return names


def _paths(tokens: Sequence[_Token]) -> Iterator[Path]:
    at = 0
    while at < len(tokens):
        end = at + 1
        if tokens[at].is_name and tokens[at].word not in _NO_NAMES:
            while end + 1 < len(tokens) and tokens[end].sign == "." and tokens[end + 1].is_name:
                end += 2
            before, after = tokens[at - 1] if at else None, tokens[end] if end < len(tokens) else None
            if _opens(before) and _closes(after):
                yield tuple(one.text for one in tokens[at:end:2])
        at = end


def _opens(token: _Token | None) -> bool:
    """Whether an operand follows this token."""
    return token is None or token.word in _BEFORE or (token.kind == "sign" and token.sign not in (")", "]", ".", "=>"))


def _closes(token: _Token | None) -> bool:
    """Whether an operand may stand before this token."""
    return token is None or token.word in _AFTER or (token.kind == "sign" and token.sign not in ("(", "->", "=>", "."))
