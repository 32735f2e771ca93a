"""Overrides settings of a file by `KEY.PATH=VALUE` of the command line; the later one counts (rule A9.18).

The value replaces a scalar in the tree, so that it is read, checked and redacted like a value of the file. Text that
YAML would read as another type must be quoted as in a file: `name="017"`.
"""

import re
from collections.abc import Sequence

from correlator.configuration.document import MappingNode, Node, ScalarNode, SequenceNode
from correlator.configuration.problems import OVERRIDDEN, Findings, Overridden, item, member
from correlator.errors import ConfigError, quoted

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_ALLOWED = "Write KEY.PATH=VALUE, as in checkpoint.interval=1s, receivers.NAME.destination=queue:q or receivers[0].id=r"
_NAMES = ("id", "name")
"""The keys whose value names an item of a list."""


def override(tree: MappingNode, assignments: Sequence[str], findings: Findings) -> MappingNode:
    """Return the tree with the values replaced. Reports E2030 for an assignment that does not fit, and records the
    others in `findings`.
    """
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        steps = _steps(path)
        if not equals or not steps:
            findings.error("E2030", path, f"{quoted(assignment)} is no setting", _ALLOWED, at=OVERRIDDEN)
            continue
        try:
            steps = _indexed(tree, steps)
            before = _at(tree, steps)
            changed = _with(tree, steps, _scalar(value))
            assert isinstance(changed, MappingNode)
            tree = changed
            findings.overridden.append(Overridden(_path(steps), before, value))
        except ConfigError as error:
            findings.error(error.code, path, error.what, _ALLOWED, at=OVERRIDDEN)
    return tree


def _steps(path: str) -> list[str | int]:
    """Split a path into keys and indices; empty if it cannot be understood."""
    found = list(_STEP.finditer(path))
    if "".join(match[0] for match in found) != path or path.startswith((".", "[")):
        return []
    return [match[1] if match[1] is not None else int(match[2]) for match in found]


def _indexed(tree: Node, steps: Sequence[str | int]) -> list[str | int]:
    """Replace the names of items of lists by their indices.

    Raises:
        ConfigError: E2030, no item has this name.
    """
    found: list[str | int] = []
    node: Node | None = tree
    for step in steps:
        if isinstance(node, SequenceNode) and isinstance(step, str):
            names = [_name_of(item) for item in node.items]
            if step not in names:
                known = f"there are {', '.join(name for name in names if name)}" if any(names) else "they have no names"
                raise ConfigError("E2030", "", f"there is no item {quoted(step)}; {known}")
            step = names.index(step)  # noqa: PLW2901  # the same item, by its index
        found.append(step)
        node = _below(node, step)
    return found


def _name_of(item: Node) -> str:
    entries = {key.text: below for key, below in item.entries} if isinstance(item, MappingNode) else {}
    named = next((entries[key] for key in _NAMES if key in entries), None)
    return named.text if isinstance(named, ScalarNode) else ""


def _below(node: Node | None, step: str | int) -> Node | None:
    if isinstance(node, MappingNode):
        return next((below for key, below in node.entries if key.text == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.items):
        return node.items[step]
    return None


def _at(tree: Node, steps: Sequence[str | int]) -> str | None:
    """Return the text at a place, or the kind of collection that stands there; `None` for an empty place."""
    node: Node | None = tree
    for step in steps:
        node = _below(node, step)
    if isinstance(node, ScalarNode):
        return node.text
    return None if node is None else "a list" if isinstance(node, SequenceNode) else "a mapping"


def _path(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        path = item(path, step) if isinstance(step, int) else member(path, step)
    return path


def _scalar(value: str) -> ScalarNode:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return ScalarNode(position=OVERRIDDEN, text=value[1:-1], plain=False)
    return ScalarNode(position=OVERRIDDEN, text=value, plain=True)


def _with(node: Node | None, steps: Sequence[str | int], value: ScalarNode) -> Node:
    """Return the node with the value at the place to which the steps lead; makes missing mappings.

    Raises:
        ConfigError: E2030, there is no such place.
    """
    if not steps:
        return value
    step, *rest = steps
    if isinstance(step, int):
        return _with_item(node, step, rest, value)
    if node is not None and not isinstance(node, MappingNode):
        raise ConfigError("E2030", "", f"there is no mapping that could hold {quoted(step)}")
    entries = {key.text: (key, below) for key, below in node.entries} if node else {}
    if step in entries:
        key, below = entries[step]
        entries[step] = (key, _with(below, rest, value))
    else:
        entries[step] = (ScalarNode(position=OVERRIDDEN, text=step, plain=True), _with(None, rest, value))
    return MappingNode(position=node.position if node else OVERRIDDEN, entries=tuple(entries.values()))


def _with_item(node: Node | None, index: int, rest: Sequence[str | int], value: ScalarNode) -> SequenceNode:
    if not isinstance(node, SequenceNode) or index >= len(node.items):
        raise ConfigError("E2030", "", f"there is no item [{index}]")
    items = list(node.items)
    items[index] = _with(items[index], rest, value)
    return SequenceNode(position=node.position, items=tuple(items))
