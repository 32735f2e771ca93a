"""The catalogue of deliberate bugs, and how a bug is put into the code for the duration of a block."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Make = Callable[[Any], Any]


class Patches:
    """Replacements of attributes that can be undone."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Make) -> None:
        """Replace an attribute of a class or module by `make(original)`."""
        original = owner.__dict__[name]
        self._undo.append((owner, name, original))
        setattr(owner, name, make(original))

    def undo(self) -> None:
        """Restore all originals, the last replacement first."""
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)


class Mutant(NamedTuple):
    """A deliberate bug.

    Attributes:
        name: a name that never changes.
        sentence: what the bug does wrong.
        expected: ids of invariants; the bug must violate at least one of them.
        patch: puts the bug into the code.
        budget: how many seeds may run until the bug is caught.
        seed: the first seed of the hunt: 2, which catches most bugs in one run, or another one that has caught the bug.
    """

    name: str
    sentence: str
    expected: frozenset[str]
    patch: Callable[[Patches], None]
    budget: int
    seed: int


CATALOGUE: dict[str, Mutant] = {}


def mutant(name: str, sentence: str, *expected: str, budget: int = 120, seed: int = 2) -> Callable[[Any], Any]:
    """Add a function that patches the code to the catalogue."""

    def enter(patch: Callable[[Patches], None]) -> Callable[[Patches], None]:
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Mutant(name, sentence, frozenset(expected), patch, budget, seed)
        return patch

    return enter


@contextlib.contextmanager
def patched(patch: Callable[[Patches], None]) -> Iterator[None]:
    """Within the block, the code has what the function puts into it."""
    patches = Patches()
    try:
        patch(patches)
        yield
    finally:
        patches.undo()


def applied(name: str) -> contextlib.AbstractContextManager[None]:
    """Within the block, the code has the bug."""
    return patched(CATALOGUE[name].patch)
