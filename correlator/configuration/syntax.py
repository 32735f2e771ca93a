"""Says in plain words what a YAML parser has found wrong in a file, and what was expected there."""

import re

from correlator.configuration.problems import Position

_TOKENS = {
    "<block end>": "the end of the block",
    "<block mapping start>": "a key",
    "<block sequence start>": "a list item",
    "<document end>": "'...'",
    "<document start>": "'---'",
    "<scalar>": "a value",
    "<stream end>": "the end of the file",
    "?": "a key",
    "-": "a list item",
}
"""What the parser calls the parts of a file."""
_INDENTED = "Begin the line with as many spaces as the lines that it belongs to"
_QUOTE = "Put the value in quotes"
_WORDS: tuple[tuple[str, str, str], ...] = (
    (r"found character '\\t'", "found a tab where spaces are needed", "Replace it by spaces"),
    (
        "mapping values are not allowed",
        "a ':' cannot stand here",
        "Put a value that contains ': ' in quotes; begin a key in the same column as the keys beside it",
    ),
    ("sequence entries are not allowed", "a list item cannot stand here", "Begin the list on a line of its own"),
    ("could not find expected ':'", "expected ':' after the key at {begin}", "Write 'key: value'"),
    ("found unexpected end of stream", "the quote that begins at {begin} has no end", "Close it"),
    (
        r"expected ',' or '(?P<char>[\]}])', but got '(?P<found>.+)'",
        "expected ',' or '{char}' in the list or mapping that begins at {begin}, found {found}",
        "",
    ),
    (r"expected <block end>, but found '(?P<char>[\]}])'", "'{char}' closes nothing", "Remove it"),
    (r"expected <block end>, but found '<scalar>'", "text follows a value that has ended", f"{_QUOTE}, as a whole"),
    (
        r"expected <block end>, but found '(?P<found>.+)'",
        "{found} that does not fit the indentation of the lines that begin at {begin}",
        _INDENTED,
    ),
    (
        "expected '<document start>', but found '(?P<found>.+)'",
        "expected '---' after lines that begin with '%', found {found}",
        "Remove these lines",
    ),
    (r"expected the node content, but found '(?P<found>.+)'", "expected a value, found {found}", _QUOTE),
    (r"found character '(?P<char>.)' that", "a value cannot begin with '{char}'", _QUOTE),
    ("expected alphabetic or numeric", "a value cannot begin with '*' or '&'", _QUOTE),
    (
        r"found unknown escape character '(?P<char>.)'",
        r"'\{char}' means nothing within double quotes",
        r"Use single quotes, or write '\\'",
    ),
    ("expected chomping or indentation", "after '|' or '>' the text begins on the next line", ""),
)
"""For each problem of the parser, as a pattern: what is wrong, and what to do."""


def explained(problem: str, begin: Position | None) -> tuple[str, str]:
    """Return what is wrong, and what to do.

    Args:
        problem: what the parser says.
        begin: where the part begins in which the parser has found the problem, if it says so.
    """
    shown = f"line {begin.line}, column {begin.column}" if begin is not None else "the line above"
    for pattern, what, todo in _WORDS:
        if found := re.match(pattern, problem):
            parts = {"char": "", "found": "", **found.groupdict()}
            named = _TOKENS.get(parts["found"], f"'{parts['found']}'")
            return what.format(begin=shown, char=parts["char"], found=named), todo
    return problem, ""
