"""The catalogue of deliberate bugs, and how one is put into the code for the time of a block."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Make = Callable[[Any], Any]


class Patches:
    """Replacements of attributes that can be taken back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Make) -> None:
        """Put `make(original)` in the place of an attribute of a class or module."""
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
        name: stable.
        sentence: what it does wrong.
        expected: invariants, at least one of which must be violated.
        patch: puts it in.
        budget: seeds within which it must be caught.
        seed: the first seed of the hunt; for a mutant that few seeds find, one that has found it.
    """

    name: str
    sentence: str
    expected: frozenset[str]
    patch: Callable[[Patches], None]
    budget: int
    seed: int


CATALOGUE: dict[str, Mutant] = {}


def mutant(name: str, sentence: str, *expected: str, budget: int = 120, seed: int = 1) -> Callable[[Any], Any]:
    """Enter a patch function into the catalogue."""

    def enter(patch: Callable[[Patches], None]) -> Callable[[Patches], None]:
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Mutant(name, sentence, frozenset(expected), patch, budget, seed)
        return patch

    return enter


@contextlib.contextmanager
def applied(name: str) -> Iterator[None]:
    """The bug is in the code within the block."""
    patches = Patches()
    try:
        CATALOGUE[name].patch(patches)
        yield
    finally:
        patches.undo()
