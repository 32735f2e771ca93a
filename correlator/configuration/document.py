"""Safe YAML with positions: turns a text into a tree of nodes that know their place, or raises `ConfigError`.

The tree is built from the parser's events, and every limit is checked on the way. `yaml.load` is never used: no object
is constructed, there are no aliases, and no input can make the tree deep, large or slow (trap T49). This module does
not decide what a scalar means: the type of its setting does (`scalars`, `reader`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import yaml
from yaml.reader import Reader

from correlator.configuration.problems import Findings, InvalidConfiguration, Position, member
from correlator.configuration.syntax import explained
from correlator.errors import ConfigError, quoted

MOST_BYTES = 1024 * 1024
_DEEPEST = 50
_MOST_NODES = 10_000
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarNode:
    """A single value. `plain` is false for a quoted or block scalar, which is always text."""

    position: Position
    text: str
    plain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceNode:
    """A YAML list: its nodes in order, and the position of its beginning in the file."""

    position: Position
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingNode:
    """A mapping: keys and values in the order of the file, each key once."""

    position: Position
    entries: tuple[tuple[ScalarNode, "Node"], ...]


Node = ScalarNode | SequenceNode | MappingNode


def decode(content: bytes, file: str) -> str:
    """Decode a configuration file: UTF-8, at most 1 MiB, any line ends, with or without a byte order mark."""
    if len(content) > MOST_BYTES:
        raise _unreadable("E1011", file, f"is larger than {MOST_BYTES // 1024} KiB", "Split it into several engines")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable("E1003", file, "byte 0: not UTF-8 but UTF-16", "Save it as UTF-8")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise _unreadable("E1003", file, f"byte {exc.start}: not UTF-8", "Save it as UTF-8") from exc


def compose(text: str, findings: Findings) -> MappingNode:
    """Build the tree of a text. Repeated keys and tags are reported and left out; any other mistake ends the reading.

    Raises:
        InvalidConfiguration: the text is not one YAML mapping within the limits.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    _refuse_control_characters(text, findings)
    return _Composer(text, findings).document()


def _unreadable(code: str, file: str, what: str, todo: str) -> InvalidConfiguration:
    return InvalidConfiguration([ConfigError(code, file, what, "", todo)])


def _refuse_control_characters(text: str, findings: Findings) -> None:
    found = Reader.NON_PRINTABLE.search(text)
    if found is None:
        return
    lines = text[: found.start()].split("\n")
    place = Position(len(lines), len(lines[-1]) + 1)
    findings.error("E1003", "", f"the character {quoted(found.group())} is not allowed in YAML", at=place)
    findings.raise_errors()


class _Composer:
    """Builds the tree of one text; recursion is bounded by `_DEEPEST`."""

    def __init__(self, text: str, findings: Findings) -> None:
        self._loader = yaml.SafeLoader(text)
        self._lines = text.splitlines()
        self._findings = findings
        self._events = self._parse()
        self._nodes = 0

    def document(self) -> MappingNode:
        next(self._events)  # the begin of the stream
        first = next(self._events)
        if isinstance(first, yaml.StreamEndEvent):
            self._empty()
        root = self._node(next(self._events), "", 0)
        next(self._events)  # the end of the document
        self._refuse_second_document(next(self._events))
        return self._mapping(root)

    def _mapping(self, root: Node) -> MappingNode:
        if isinstance(root, ScalarNode) and root.plain and not root.text:
            self._empty()
        if not isinstance(root, MappingNode):
            shape = "list" if isinstance(root, SequenceNode) else "single value"
            self._fail("E1005", root.position, f"top level is a {shape}, must be a mapping", "Begin with 'name: …'")
        return root

    def _empty(self) -> NoReturn:
        needs = "It needs at least 'name:' and one of 'receivers:', 'senders:'"
        raise _unreadable("E1004", self._findings.file, "is empty", needs)

    def _refuse_second_document(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            line = _place(event).line
            self._fail("E1007", _place(event), f"second document starts at line {line}", "Only one is allowed")

    def _node(self, event: yaml.Event, path: str, depth: int) -> Node:
        self._check(event, path, depth)
        match event:
            case yaml.ScalarEvent():
                return self._scalar(event)
            case yaml.SequenceStartEvent():
                return SequenceNode(position=_place(event), items=tuple(self._items(path, depth + 1)))
            case _:
                return MappingNode(position=_place(event), entries=tuple(self._entries(path, depth + 1)))

    def _check(self, event: yaml.Event, path: str, depth: int) -> None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            self._fail("E1011", _place(event), f"more than {_MOST_NODES} values", "Split it into several engines")
        if depth > _DEEPEST:
            self._fail("E1011", _place(event), f"nested deeper than {_DEEPEST} levels")
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            sort = f"aliases (*{anchor})" if isinstance(event, yaml.AliasEvent) else f"anchors (&{anchor})"
            self._fail("E1009", _place(event), f"{sort} are not supported", "Repeat the value")
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = quoted(tag.replace("tag:yaml.org,2002:", "!!"))
            self._findings.error("E1010", path, f"tag {shown} is not allowed", "", "Remove it", at=_place(event))

    def _scalar(self, event: yaml.ScalarEvent) -> ScalarNode:
        if any("\ud800" <= c <= "\udfff" for c in event.value):
            self._fail("E1003", _place(event), "contains half of a surrogate pair, which is no character")
        return ScalarNode(position=_place(event), text=event.value, plain=event.style is None)

    def _items(self, path: str, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, path, depth)

    def _entries(self, path: str, depth: int) -> Iterator[tuple[ScalarNode, Node]]:
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path, depth)
            inner = member(path, key.text)
            value = self._node(next(self._events), inner, depth)
            if key.text in lines:
                what = f"key {quoted(key.text)} is given twice (first at line {lines[key.text]})"
                self._findings.error("E1008", inner, what, "", "Remove one", at=key.position)
                continue
            lines[key.text] = key.position.line
            yield key, value

    def _key(self, event: yaml.Event, path: str, depth: int) -> ScalarNode:
        key = self._node(event, path, depth)
        if not isinstance(key, ScalarNode):
            self._fail("E1006", key.position, "a key must be a single word, not a list or mapping")
        if key.plain and key.text == "<<":
            self._fail("E1009", key.position, "merge keys (<<) are not supported", "Repeat the values")
        return key

    def _parse(self) -> Iterator[yaml.Event]:
        """Return the parser's events, with errors of the parser as findings."""
        try:
            while (event := _next_event(self._loader)) is not None:
                yield event
        except yaml.MarkedYAMLError as exc:
            self._syntax_error(exc)
        except (ValueError, OverflowError):  # a number in an escape or a directive that Python refuses
            place = Position(self._loader.line + 1, self._loader.column + 1)
            what = "a number in an escape such as '\\U0001F600', or in a directive, is impossible"
            self._fail("E1006", place, f"YAML syntax: {what}")

    def _syntax_error(self, exc: yaml.MarkedYAMLError) -> NoReturn:
        mark = exc.problem_mark or exc.context_mark
        place = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        problem = exc.problem or "not YAML"
        if "tag" in problem or "tag" in (exc.context or ""):
            self._fail("E1010", place, "tags are not allowed", "Quote a text that begins with '!'")
        begin = exc.context_mark
        what, todo = explained(problem, Position(begin.line + 1, begin.column + 1) if begin else None)
        line = self._lines[place.line - 1] if place.line <= len(self._lines) else ""
        if line[: place.column].endswith("${"):
            todo = "Between { } quote a placeholder: '${NAME}'"
        self._fail("E1006", place, f"YAML syntax: {what}", todo)

    def _fail(self, code: str, place: Position, what: str, todo: str = "") -> NoReturn:
        self._findings.error(code, "", what, "", todo, at=place)
        self._findings.raise_errors()
        raise AssertionError("an error was reported")  # pragma: no cover


def _next_event(loader: yaml.SafeLoader) -> yaml.Event | None:
    event: yaml.Event | None = loader.get_event()  # type: ignore[no-untyped-call]
    return event


def _place(event: yaml.Event) -> Position:
    assert event.start_mark is not None
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)
