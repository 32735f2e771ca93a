"""`KEY.PATH=VALUE` from the command line in place of what the file says (rule A9.18); the later one wins.

The value takes the place of a scalar in the tree, so that it is read, checked and redacted as if it stood in the file;
text that looks like something else is quoted, as there: `name="017"`.
"""

import re
from collections.abc import Sequence

from correlator.configuration.document import Listing, Node, Scalar, Table
from correlator.configuration.problems import OVERRIDDEN, Findings, Overridden, item, member
from correlator.errors import ConfigError, quoted

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_ALLOWED = "Write KEY.PATH=VALUE, as in checkpoint.interval=1s, receivers.NAME.destination=queue:q or receivers[0].id=r"
_NAMES = ("id", "name")
"""Keys by which the items of a list are named."""


def override(tree: Table, assignments: Sequence[str], findings: Findings) -> Table:
    """The tree with other values; reports E2030 for what cannot be put in, and notes what has been overridden."""
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
            assert isinstance(changed, Table)
            tree = changed
            findings.overridden.append(Overridden(_path(steps), before, value))
        except ConfigError as error:
            findings.error(error.code, path, error.what, _ALLOWED, at=OVERRIDDEN)
    return tree


def _steps(path: str) -> list[str | int]:
    """Keys and indices of a path; empty when it is not understood."""
    found = list(_STEP.finditer(path))
    if "".join(match[0] for match in found) != path or path.startswith((".", "[")):
        return []
    return [match[1] if match[1] is not None else int(match[2]) for match in found]


def _indexed(tree: Node, steps: Sequence[str | int]) -> list[str | int]:
    """The steps with an index in the place of the name of an item of a list.

    Raises:
        ConfigError: E2030, no item has this name.
    """
    found: list[str | int] = []
    node: Node | None = tree
    for step in steps:
        if isinstance(node, Listing) and isinstance(step, str):
            names = [_name_of(item) for item in node.items]
            if step not in names:
                known = f"there are {', '.join(name for name in names if name)}" if any(names) else "they have no names"
                raise ConfigError("E2030", "", f"there is no item {quoted(step)}; {known}")
            step = names.index(step)  # noqa: PLW2901  # the same place, written otherwise
        found.append(step)
        node = _below(node, step)
    return found


def _name_of(item: Node) -> str:
    entries = {key.text: below for key, below in item.entries} if isinstance(item, Table) else {}
    named = next((entries[key] for key in _NAMES if key in entries), None)
    return named.text if isinstance(named, Scalar) else ""


def _below(node: Node | None, step: str | int) -> Node | None:
    if isinstance(node, Table):
        return next((below for key, below in node.entries if key.text == step), None)
    if isinstance(node, Listing) and isinstance(step, int) and step < len(node.items):
        return node.items[step]
    return None


def _at(tree: Node, steps: Sequence[str | int]) -> str | None:
    """What stands at a place now; `None` for nothing."""
    node: Node | None = tree
    for step in steps:
        node = _below(node, step)
    if isinstance(node, Scalar):
        return node.text
    return None if node is None else "a list" if isinstance(node, Listing) else "a mapping"


def _path(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        path = item(path, step) if isinstance(step, int) else member(path, step)
    return path


def _scalar(value: str) -> Scalar:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return Scalar(position=OVERRIDDEN, text=value[1:-1], plain=False)
    return Scalar(position=OVERRIDDEN, text=value, plain=True)


def _with(node: Node | None, steps: Sequence[str | int], value: Scalar) -> Node:
    """The node with the value at the end of the steps; mappings that are missing are made.

    Raises:
        ConfigError: E2030, there is no such place.
    """
    if not steps:
        return value
    step, *rest = steps
    if isinstance(step, int):
        return _with_item(node, step, rest, value)
    if node is not None and not isinstance(node, Table):
        raise ConfigError("E2030", "", f"there is no mapping that could hold {quoted(step)}")
    entries = {key.text: (key, below) for key, below in node.entries} if node else {}
    if step in entries:
        key, below = entries[step]
        entries[step] = (key, _with(below, rest, value))
    else:
        entries[step] = (Scalar(position=OVERRIDDEN, text=step, plain=True), _with(None, rest, value))
    return Table(position=node.position if node else OVERRIDDEN, entries=tuple(entries.values()))


def _with_item(node: Node | None, index: int, rest: Sequence[str | int], value: Scalar) -> Listing:
    if not isinstance(node, Listing) or index >= len(node.items):
        raise ConfigError("E2030", "", f"there is no item [{index}]")
    items = list(node.items)
    items[index] = _with(items[index], rest, value)
    return Listing(position=node.position, items=tuple(items))
