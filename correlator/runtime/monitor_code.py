"""What the code of monitors does: for which events it waits, and which methods it calls. This module reads the code and
never runs it.

The declarations of a class are known exactly. The source of its methods shows what they do. Where this module cannot
tell which class, name or argument the source means, it assumes that the code may do anything: so correct code never
causes a warning.
"""

import ast
import builtins
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from correlator.core.expressions import Expression, Pattern, match
from correlator.core.monitor import Monitor

_UNKNOWN: Any = object()
_LISTENING = ("once", "on_all")
_TELLING = (*_LISTENING, "spawn", "acknowledge_and_resume", "subscribe", "update_flow_control_window")
"""Methods whose calls show what a monitor does. If such a method is passed on as a value, its arguments are unknown."""


@dataclass(slots=True)
class SendCall:
    """A call of `send` with a literal sender.

    Attributes:
        to: the sender, or `channel:NAME`.
        event_type: class of the event if the call makes the event; `None` if it does not.
        where: file and line.
    """

    to: str
    event_type: type[Any] | None
    where: str


@dataclass(slots=True)
class Application:
    """What the code of all monitors does.

    Attributes:
        monitors: the classes, and the classes that they spawn.
        hears: the event types for which they wait.
        acknowledges: the receivers that they acknowledge; `None` among them stands for an unknown receiver.
        updates_windows: whether they update a window of flow control.
        subscriptions: the channels to which they subscribe; `None` among them stands for an unknown channel.
        sends: the calls of `send` with a literal sender.
        changes: for (class, attribute) the file and line where a method of the class changes the attribute.
        told_all: whether all their code could be read; if not, they may do anything.
    """

    monitors: list[type[Monitor]] = field(default_factory=list)
    hears: set[type[Any]] = field(default_factory=set)
    acknowledges: set[str | None] = field(default_factory=set)
    updates_windows: bool = False
    subscriptions: set[str | None] = field(default_factory=set)
    sends: list[SendCall] = field(default_factory=list)
    changes: dict[tuple[type, str], str] = field(default_factory=dict)
    told_all: bool = True


@lru_cache(maxsize=100)
def application_of(classes: tuple[type[Monitor], ...]) -> Application:
    """Read the code of monitors, and of the monitors that they spawn. The caller must not change the result."""
    found = Application()
    waiting = list(classes)
    while waiting:
        cls = waiting.pop(0)
        if cls not in found.monitors:
            found.monitors.append(cls)
            waiting.extend(_read(cls, found))
    return found


def _read(cls: type[Monitor], found: Application) -> Iterator[type[Monitor]]:
    """Read one class; returns the classes that it spawns."""
    for spec in cls.listeners:
        found.hears.update(_event_types(spec.expression))
    for base in cls.__mro__:
        if base in Monitor.__mro__:
            continue
        try:
            yield from _read_source(base, found)
        except Exception:  # noqa: BLE001  # made by a program, changed since, too deep: that is no reason not to start
            found.told_all = False


def _read_source(cls: type[Monitor], found: Application) -> list[type[Monitor]]:
    module = sys.modules[cls.__module__]
    (definition,) = _definitions(inspect.getsource(module))[cls.__qualname__]
    names = {**vars(builtins), **vars(module), **vars(cls)}
    code = _Code(found, cls, names, f"{inspect.getsourcefile(module)}:")
    code.visit(definition)
    return code.spawns


@lru_cache(maxsize=10)
def _definitions(source: str) -> Mapping[str, Sequence[ast.ClassDef]]:
    """The classes of a module by their qualified names; a name that is defined twice has two."""
    found: dict[str, list[ast.ClassDef]] = {}
    waiting: list[tuple[ast.AST, str]] = [(ast.parse(source), "")]
    while waiting:
        node, path = waiting.pop()
        if isinstance(node, ast.ClassDef):
            found.setdefault(f"{path}{node.name}", []).append(node)
            path = f"{path}{node.name}."
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            path = f"{path}{node.name}.<locals>."
        waiting.extend((inner, path) for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.expr))
    return found


def _event_types(expression: Expression) -> Iterator[type[Any]]:
    if isinstance(expression, Pattern):
        yield expression.event_type
    for name in expression.__struct_fields__:
        if isinstance(part := getattr(expression, name), Expression):
            yield from _event_types(part)


class _Code(ast.NodeVisitor):
    """Reads the calls of one class."""

    def __init__(self, found: Application, cls: type, names: Mapping[str, Any], file: str) -> None:
        self.spawns: list[type[Monitor]] = []
        self._found = found
        self._cls = cls
        self._names = names
        self._file = file
        self._called: set[ast.expr] = set()
        self._selves: set[str] = set()

    def visit_ClassDef(self, cls: ast.ClassDef) -> None:  # a name that `ast` gives
        """Note for each method that its first parameter stands for the monitor, then read the method."""
        methods = [one for one in cls.body if isinstance(one, ast.FunctionDef) and not self._is_static(one)]
        first = [(*one.args.posonlyargs, *one.args.args)[:1] for one in methods]
        self._selves.update(one.arg for parameters in first for one in parameters)
        self.generic_visit(cls)

    def visit_Name(self, name: ast.Name) -> None:  # a name that `ast` gives
        """Handle the monitor itself as a value, without an attribute: code elsewhere may get it and call any method."""
        self._found.told_all &= name.id not in self._selves

    def visit_Attribute(self, attribute: ast.Attribute) -> None:  # a name that `ast` gives
        """Handle a method that is passed on as a value, or an attribute that is changed."""
        if attribute.attr in _TELLING and attribute not in self._called:
            self._found.told_all = False
        if not isinstance(attribute.value, ast.Name):
            self.visit(attribute.value)
        elif attribute.value.id in self._selves and not isinstance(attribute.ctx, ast.Load):
            self._found.changes.setdefault((self._cls, attribute.attr), f"{self._file}{attribute.lineno}")

    def visit_Call(self, call: ast.Call) -> None:  # a name that `ast` gives
        """Handle a call of a method that shows what a monitor does."""
        self._called.add(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if self._resolved(call.func) is match:
            self._hear(call)
        elif method in _LISTENING:
            self._listen(call)
        elif method == "send":
            self._send(call)
        elif method == "spawn":
            self._spawn(call)
        elif method == "acknowledge_and_resume":
            self._found.acknowledges.add(_text(_argument(call, 0, "receiver")))
        elif method == "subscribe":
            self._found.subscriptions.add(_text(_argument(call, 0, "channel")))
        elif method == "update_flow_control_window":
            self._found.updates_windows = True
        if self._resolved(call.func) is not super:
            self.generic_visit(call)

    def _is_static(self, function: ast.FunctionDef) -> bool:
        return any(self._resolved(decorator) is staticmethod for decorator in function.decorator_list)

    def _hear(self, call: ast.Call) -> None:
        event_type = self._resolved(call.args[0]) if call.args else _UNKNOWN
        if isinstance(event_type, type):
            self._found.hears.add(event_type)
        else:
            self._found.told_all = False

    def _listen(self, call: ast.Call) -> None:
        """Note the events of a listener: the call makes its expression with `match`, or names it. In any other case the
        listener may wait for any event.
        """
        expression = _argument(call, 0, "expression")
        parts = list(ast.walk(expression)) if expression is not None else []
        made = any(isinstance(part, ast.Call) and self._resolved(part.func) is match for part in parts)
        named = [found for part in parts if isinstance(found := self._resolved(part), Expression)]
        for one in named:
            self._found.hears.update(_event_types(one))
        self._found.told_all &= made or bool(named)

    def _send(self, call: ast.Call) -> None:
        to, event = _text(_argument(call, 1, "to")), _argument(call, 0, "event")
        if to is not None:
            event_type = self._resolved(event.func) if isinstance(event, ast.Call) else _UNKNOWN
            where = f"{self._file}{call.lineno}"
            self._found.sends.append(SendCall(to, event_type if isinstance(event_type, type) else None, where))

    def _spawn(self, call: ast.Call) -> None:
        cls = self._resolved(_argument(call, 0, "cls"))
        if isinstance(cls, type) and issubclass(cls, Monitor):
            self.spawns.append(cls)
        else:
            self._found.told_all = False

    def _resolved(self, node: ast.AST | None) -> Any:
        """The object for which a name stands in the module of the class; `_UNKNOWN` if the source does not show it."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute) and (owner := self._resolved(node.value)) is not _UNKNOWN:
            return inspect.getattr_static(owner, node.attr, _UNKNOWN)
        return _UNKNOWN


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    if len(call.args) > position:
        return call.args[position]
    return next((one.value for one in call.keywords if one.arg == name), None)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
