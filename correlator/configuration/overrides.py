"""`KEY.PATH=VALUE` from the command line in place of what the file says (FEATURES A9.18); the later one wins.

The value takes the place of a scalar in the tree, so that it is read, checked and redacted as if it stood in the file;
text that looks like something else is quoted, as there: `name="017"`.
"""

import re
from collections.abc import Sequence

from correlator.configuration.document import Listing, Node, Scalar, Table
from correlator.configuration.problems import OVERRIDDEN, Findings
from correlator.errors import ConfigError, quoted

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_ALLOWED = "Write KEY.PATH=VALUE, as in checkpoint.interval=1s or receivers[0].destination=queue:q"


def override(tree: Table, assignments: Sequence[str], findings: Findings) -> Table:
    """The tree with other values; reports E2030 for what cannot be put in."""
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        steps = _steps(path)
        if not equals or not steps:
            findings.error("E2030", path, f"{quoted(assignment)} is no setting", _ALLOWED, at=OVERRIDDEN)
            continue
        try:
            changed = _with(tree, steps, _scalar(value))
            assert isinstance(changed, Table)
            tree = changed
        except ConfigError as error:
            findings.error(error.code, path, error.what, _ALLOWED, at=OVERRIDDEN)
    return tree


def _steps(path: str) -> list[str | int]:
    """Keys and indices of a path; empty when it is not understood."""
    found = list(_STEP.finditer(path))
    if "".join(match[0] for match in found) != path or path.startswith((".", "[")):
        return []
    return [match[1] if match[1] is not None else int(match[2]) for match in found]


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
