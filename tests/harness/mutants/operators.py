"""Makes automatic mutants: every small mistake that a programmer could make in a module, by operators on its syntax
tree.

Pure: texts in, texts out. A mutant differs from the original in one place; the rest of the text stays as it is, so that
the diff shows the mistake alone. The operators leave out code without behaviour: documentation, annotations, default
values of parameters, assertions (they find bugs, but keep no promise), and fault points.
"""

import ast
import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

SILENT = ("point",)
"""Calls that can be left out without any effect."""

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPPOSITES = {
    one: other
    for pair in (("min", "max"), ("any", "all"), ("popleft", "pop"), ("append", "appendleft"))
    for one, other in (pair, pair[::-1])
}
_Simple = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete
_Removable = _Simple | ast.If | ast.For | ast.While | ast.Raise | ast.Break | ast.Continue


class SourceEdit(NamedTuple):
    """A new text for a node, or for the text from one node to the end of another."""

    kind: str
    first: ast.expr | ast.stmt
    text: str
    last: ast.expr | ast.stmt


class AutomaticMutant(NamedTuple):
    """A module with one mistake in it.

    Attributes:
        id: `module:function:kind:n`, the n-th mistake of its kind in the function; it is stable while the function is.
        edit: the mistake.
        original: the module without it.
    """

    id: str
    edit: SourceEdit
    original: "SourceText"

    @property
    def source(self) -> str:
        """Return the text of the module with the mistake in it."""
        return self.original.with_edit(self.edit)

    @property
    def diff(self) -> str:
        """Return the diff of the mistake, without a header."""
        before, after = self.original.text.splitlines(), self.source.splitlines()
        return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])

    @property
    def function(self) -> str:
        """`module:function`, as `telling` names the function."""
        return self.id.rsplit(":", 2)[0]


def mutants_of(module: str, source: str) -> list[AutomaticMutant]:
    """Return every mutant of a module, function by function."""
    text = SourceText(source)
    found = []
    counts: Counter[str] = Counter()
    for function, body in _scopes(text.tree):
        for edit in _edits(body, text, values_alone=not function):
            name = f"{module}:{function}:{edit.kind}"
            counts[name] += 1
            found.append(AutomaticMutant(f"{name}:{counts[name]}", edit, text))
    return found


def telling(module: str, source: str, recorder: str) -> str:
    """Return the text of the module whose functions add `module:function` to the set `called` of the
    module `recorder`.
    """
    tree = ast.parse(source)
    for function, body in _scopes(tree):
        if function:
            at = int(_is_documentation(body[0]))
            body[at:at] = ast.parse(f"_called.add({f'{module}:{function}'!r})").body
    tree.body[1:1] = ast.parse(f"from {recorder} import called as _called").body
    return ast.unparse(ast.fix_missing_locations(tree))


class SourceText:
    """A source text that is edited by the nodes of its syntax tree, whose columns count bytes."""

    def __init__(self, source: str) -> None:
        self.text = source
        self.tree = ast.parse(source)
        self._bytes = source.encode()
        self._line_at = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._line_at.append(self._line_at[-1] + len(line))

    def of(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        begin, end = self._span(node)
        return self._bytes[begin:end].decode()

    def between(self, one: ast.stmt, other: ast.stmt) -> str:
        """Return the text between two nodes."""
        return self._bytes[self._span(one)[1] : self._span(other)[0]].decode()

    def with_edit(self, edit: SourceEdit) -> str:
        """Return the whole text with the edit in it."""
        begin, end = self._span(edit.first)[0], self._span(edit.last)[1]
        return (self._bytes[:begin] + edit.text.encode() + self._bytes[end:]).decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._line_at[node.lineno - 1] + node.col_offset
        return begin, self._line_at[node.end_lineno - 1] + node.end_col_offset


def _scopes(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield the bodies of functions with their qualified names, and the values of the module."""
    yield "", [one for one in tree.body if isinstance(one, ast.Assign | ast.AnnAssign)]
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        prefix, node = todo.pop(0)
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{prefix}{child.name}."
                if isinstance(child, ast.FunctionDef):
                    yield inner[:-1], child.body
            todo.append((inner, child))


def _edits(body: list[ast.stmt], text: SourceText, *, values_alone: bool) -> Iterator[SourceEdit]:
    if not values_alone:
        yield from _early_return(body, text)
        for block in _blocks(body):
            yield from _of_block(block, text)
    for node in _expressions(body):
        for kind, changed in _changes(node):
            yield SourceEdit(kind, node, f"({ast.unparse(changed)})", node)


def _early_return(body: list[ast.stmt], text: SourceText) -> Iterator[SourceEdit]:
    """Let the function return before it does anything."""
    first = next((one for one in body if not _is_documentation(one)), None)
    if first is not None and not isinstance(first, ast.Return | ast.Raise):
        yield SourceEdit("empty", first, f"return None\n{' ' * first.col_offset}{text.of(first)}", first)


def _blocks(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Every list of statements, except those of inner functions and classes."""
    yield body
    for statement in body:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for _, value in ast.iter_fields(statement):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from _blocks(value)
                for handler in value if isinstance(value, list) else ():
                    if isinstance(handler, ast.ExceptHandler | ast.match_case):
                        yield from _blocks(handler.body)


def _of_block(block: list[ast.stmt], text: SourceText) -> Iterator[SourceEdit]:
    for statement in block:
        if isinstance(statement, _Removable) and not _is_silent(statement):
            yield SourceEdit("remove", statement, "pass", statement)
        if isinstance(statement, ast.Break | ast.Continue):
            instead = "continue" if isinstance(statement, ast.Break) else "break"
            yield SourceEdit("leave", statement, instead, statement)
        if isinstance(statement, ast.Return) and statement.value is not None and not _is_none(statement.value):
            yield SourceEdit("return", statement, "return None", statement)
    for one, other in itertools.pairwise(block):
        if _may_be_swapped(one, other):
            yield SourceEdit("swap", one, text.of(other) + text.between(one, other) + text.of(one), other)


def _may_be_swapped(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether the order of two statements may matter: one uses what the other sets, or both have
    effects outside.
    """
    if not isinstance(one, _Simple) or not isinstance(other, _Simple) or _is_silent(one) or _is_silent(other):
        return False
    if _set_by(one) & _names(other) or _set_by(other) & _names(one):
        return True
    return (_calls_a_method(one) or _calls_a_method(other)) and _is_seen(one) and _is_seen(other)


def _targets(statement: ast.stmt) -> Sequence[ast.expr]:
    match statement:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case _:
            return []


def _set_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement sets. For `a.b[c] = d` it is `b`."""
    stored = (one.value if isinstance(one, ast.Subscript) else one for one in _targets(statement))
    return {one.attr if isinstance(one, ast.Attribute) else name for one in stored for name in _names(one)}


def _names(node: ast.AST) -> set[str]:
    """Return the variables and attributes that a node uses."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - {"self"}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _calls_a_method(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) for one in ast.walk(node))


def _is_seen(statement: ast.stmt) -> bool:
    """Return whether a statement does more than set variables of its function."""
    return isinstance(statement, ast.Expr) or not all(isinstance(one, ast.Name) for one in _targets(statement))


def _expressions(body: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield every expression of these statements, except those of inner functions and those without behaviour."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assert | ast.JoinedStr) or _is_silent(node):
            continue  # nodes within an f-string have wrong positions
        if isinstance(node, ast.expr):
            yield node
        skipped = node.annotation if isinstance(node, ast.AnnAssign) else None
        yield from _expressions(child for child in ast.iter_child_nodes(node) if child is not skipped)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions that a programmer could have written by mistake in place of this one."""
    yield from _of_condition(node)
    yield from _of_value(node)


def _of_condition(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right):
            yield from (("compare", ast.Compare(left, [other()], right)) for other in _COMPARISONS[type(operator)])
        case ast.BoolOp(op=operator, values=[one, other]):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), [one, other])
            yield from (("operand", one), ("operand", other))
        case ast.BoolOp(op=operator, values=[first, *inner, last]):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), node.values)
            yield from (("operand", ast.BoolOp(operator, one)) for one in ([first, *inner], [*inner, last]))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", operand
        case ast.IfExp(test=test, body=one, orelse=other):
            yield "branch", ast.IfExp(test, other, one)


def _of_value(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Constant(value=bool(value)):
            yield "boolean", ast.Constant(not value)
        case ast.Constant(value=int(number) | float(number)):
            yield "number", ast.Constant(number + 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            yield "arithmetic", ast.BinOp(left, ast.Sub() if isinstance(operator, ast.Add) else ast.Add(), right)
            if isinstance(right, ast.Constant) and isinstance(right.value, int):
                yield "arithmetic", left
        case ast.Name(id=name, ctx=ast.Load()) if name in _OPPOSITES:
            yield "opposite", ast.Name(_OPPOSITES[name])
        case ast.Attribute(value=value, attr=name, ctx=ast.Load()) if name in _OPPOSITES:
            yield "opposite", ast.Attribute(value, _OPPOSITES[name])


def _is_silent(node: ast.AST) -> bool:
    """Return whether a node has no behaviour: documentation, fault points, variables whose names mark
    them as unused.
    """
    if _is_documentation(node) or (isinstance(node, ast.Delete) and isinstance(node.targets[0], ast.Name)):
        return True
    called = node.value if isinstance(node, ast.Expr) else node
    return isinstance(called, ast.Call) and getattr(called.func, "id", "") in SILENT


def _is_documentation(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
