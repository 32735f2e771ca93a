"""Cuts the text of a selector into tokens, and makes the errors that show a position in the text."""

import re
from typing import NamedTuple

from correlator.errors import ConfigError, printable, quoted

MAX_BYTES = 4096
"""The largest number of bytes of UTF-8 in a selector; a longer text raises E6006."""
MAX_TOKENS = 1000
"""The largest number of names, literals and signs in a selector; more raise E6006."""


def too_large(where: str, what: str) -> ConfigError:
    """The refusal of a selector that is too large (E6006)."""
    todo = "Shorten it: name IN ('a', 'b') says the same as name = 'a' OR name = 'b'"
    return ConfigError("E6006", where, what, "", todo)


class SelectorText(NamedTuple):
    """The text of a selector, and the name of the selector in messages."""

    text: str
    where: str

    def error(self, at: int, what: str, code: str = "E6003") -> ConfigError:
        """The error for the character at `at`: its message shows the line, with a mark below the character."""
        begin = self.text.rfind("\n", 0, at) + 1
        end = (self.text + "\n").find("\n", at)
        line = self.text.count("\n", 0, at) + 1
        column = f"column {at - begin + 1}" if line == 1 else f"line {line} column {at - begin + 1}"
        first, last = max(begin, at - 50), min(end, at + 25)
        before = ("…" if first > begin else "") + printable(self.text[first:at])
        after = printable(self.text[at:last]) + ("…" if last < end else "")
        return ConfigError(code, self.where, f"{column}: {what}\n  {before}{after}\n  {' ' * len(before)}^")


NAME, NUMBER, TEXT, END = "name", "number", "text", "end"
RESERVED = frozenset(("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"))
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
_HINTS = {
    **dict.fromkeys('"`\u2018\u201c', ". Text stands in single quotes"),
    ".": ". Names are those of properties and headers; a selector cannot use the body",
}


class Token(NamedTuple):
    """A token. Its kind is `NAME`, `NUMBER`, `TEXT`, `END`, or the reserved word or sign itself."""

    kind: str
    source: str
    at: int

    def shown(self) -> str:
        """The token in the form for a message."""
        return quoted(self.source[1:-1] if self.kind == TEXT else self.source)


def tokenize(source: SelectorText) -> list[Token]:
    """All tokens, and `END`; raises `ConfigError` E6003, E6004, E6006."""
    text = source.text
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        token = _token(source, at)
        at += len(token.source)
        if token.kind == "space":
            continue
        if len(tokens) == MAX_TOKENS:
            raise too_large(source.where, f"more than {MAX_TOKENS} names, values and signs")
        tokens.append(token)
    return [*tokens, Token(END, "", len(text.rstrip("\r\n")))]


def _token(source: SelectorText, at: int) -> Token:
    found = _LEXEME.match(source.text, at)
    if found is None:
        return _word(source, at)
    kind, lexeme = found.lastgroup or "", found.group()
    if kind == "foreign":
        raise source.error(at, f"'{lexeme}' is not an operator. Use {_INSTEAD[lexeme]}", "E6004")
    return Token(lexeme if kind == "sign" else kind, lexeme, at)


def _word(source: SelectorText, at: int) -> Token:
    text, end = source.text, at
    while end < len(text) and (text[end] == "$" or (text[end] if end == at else "a" + text[end]).isidentifier()):
        end += 1
    word = text[at:end]
    if word.isascii() and word.upper() in RESERVED:  # the upper case of some other letters is ASCII
        return Token(word.upper(), word, at)
    if word:
        return Token(NAME, word, at)
    if text[at] == "'":
        raise source.error(at, "the text that begins here has no closing quote")
    hint = _HINTS.get(text[at], "")
    raise source.error(at, f"{quoted(text[at])} has no meaning here{hint}")
