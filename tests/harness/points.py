"""The registry of fault points: every name that the engine's source passes to `point`, and the place of that text.

`points` reads the source of the package `correlator`, so the registry is always up to date. A name is either a text in the
call of `point`, or it reaches the call by a parameter or by a field of a value, as the points around a transaction do.
In this case the registry looks for the text where the parameter or the field is set. A name that cannot be traced to a
text raises an error; none is left out.
"""

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import correlator

_PACKAGE = Path(correlator.__file__).parent
_CALLED = "point"
"""The function of `correlator.core.faults`; all modules import it by this name."""


class Point(NamedTuple):
    """A fault point.

    Attributes:
        name: the name that a handler of `faults.install` gets.
        file: the module, relative to the directory of the package.
        line: the line of the name.
    """

    name: str
    file: str
    line: int


@functools.cache
def points() -> tuple[Point, ...]:
    """Every fault point of the product, by name.

    Raises:
        ValueError: the source builds a name in a way that cannot be traced to a text.
    """
    directories = sorted({path.parent for path in _PACKAGE.rglob("*.py")} - _of_the_test_tools())
    return tuple(sorted(itertools.chain.from_iterable(points_of(one, _PACKAGE.parent) for one in directories)))


def _of_the_test_tools() -> set[Path]:
    testing = _PACKAGE / "testing"
    return {testing, *(path for path in testing.rglob("*") if path.is_dir())}


def points_of(directory: Path, root: Path) -> set[Point]:
    """The fault points of the modules in one directory, with file names relative to `root`. Raises as `points`."""
    return set(_Package(directory, root).points())


class _Package:
    """The modules of one directory, with their classes, functions and calls."""

    def __init__(self, directory: Path, root: Path) -> None:
        self._file: dict[ast.AST, str] = {}
        self._parent: dict[ast.AST, ast.AST] = {}
        self._calls: list[ast.Call] = []
        self._fields: dict[str, list[str]] = {}
        for path in sorted(directory.glob("*.py")):
            self._take(ast.parse(path.read_text(encoding="utf-8")), path.relative_to(root).as_posix())

    def _take(self, tree: ast.Module, file: str) -> None:
        for node in ast.walk(tree):
            self._file[node] = file
            self._parent.update((child, node) for child in ast.iter_child_nodes(node))
            if isinstance(node, ast.Call):
                self._calls.append(node)
            elif isinstance(node, ast.ClassDef):
                annotated = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
                self._fields[node.name] = [target.id for target in annotated if isinstance(target, ast.Name)]

    def points(self) -> Iterator[Point]:
        for call in self._calls:
            if isinstance(call.func, ast.Name) and call.func.id == _CALLED:
                yield from self._written(call.args[0])

    def _written(self, value: ast.expr) -> Iterator[Point]:
        """The places of all texts that this expression may have as its value."""
        sources: list[ast.expr] = []
        match value:
            case ast.Constant(value=str(name)):
                yield Point(name, self._file[value], value.lineno)
                return
            case ast.IfExp(body=one, orelse=other):
                sources = [one, other]
            case ast.Attribute(attr=field):
                sources = self._given_to_field(field)
            case ast.Name(id=parameter):
                sources = self._given_to_parameter(value, parameter)
        if not sources:
            where = f"{self._file[value]}:{value.lineno}"
            raise ValueError(f"{where}: the name of this fault point cannot be traced to a text in the same package")
        for source in sources:
            yield from self._written(source)

    def _given_to_field(self, field: str) -> list[ast.expr]:
        """The expressions with which the values of this field are made, in every class that has such a field."""
        return [
            given
            for call in self._calls
            if isinstance(call.func, ast.Name) and field in (fields := self._fields.get(call.func.id, []))
            for given in _argument(call, field, fields.index(field))
        ]

    def _given_to_parameter(self, value: ast.expr, parameter: str) -> list[ast.expr]:
        """The arguments with which callers of the function around `value` set this parameter."""
        function = self._function_around(value)
        if function is None or parameter not in (names := [one.arg for one in function.args.args]):
            return []
        at = names.index(parameter) - (names[0] == "self")
        return [
            given for call in self._calls if _called(call) == function.name for given in _argument(call, parameter, at)
        ]

    def _function_around(self, node: ast.AST) -> ast.FunctionDef | None:
        while node in self._parent and not isinstance(node, ast.FunctionDef):
            node = self._parent[node]
        return node if isinstance(node, ast.FunctionDef) else None


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _argument(call: ast.Call, name: str, at: int) -> list[ast.expr]:
    return [one.value for one in call.keywords if one.arg == name] or call.args[at : at + 1]
