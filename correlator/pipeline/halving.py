"""Divides a batch with a message that cannot be processed into halves until this message is alone. Pure.

The effects are the same as if one message was processed after the other: a half that fails has no effect, the second
half sees the state that the first half leaves, and each half counts once.
"""

from collections.abc import Callable, Iterator, Sequence

from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import StateEntry
from correlator.ports import StateView

Run = Callable[[Sequence[Delivered], StateView], Effects]


class Overlay:
    """A view of state with some entries changed."""

    def __init__(self, below: StateView, changes: Sequence[StateEntry]) -> None:
        self._below = below
        self._changes: dict[str, dict[bytes, bytes | None]] = {}
        for entry in changes:
            self._changes.setdefault(entry.owner, {})[entry.key] = entry.value

    def get(self, owner: str, key: bytes) -> bytes | None:
        """The value of one key."""
        changed = self._changes.get(owner, {})
        return changed[key] if key in changed else self._below.get(owner, key)

    def items(self, owner: str) -> Iterator[tuple[bytes, bytes]]:
        """All keys of an owner."""
        changed = self._changes.get(owner, {})
        yield from ((key, value) for key, value in self._below.items(owner) if key not in changed)
        yield from ((key, value) for key, value in changed.items() if value is not None)


def in_halves(
    batch: Sequence[Delivered],
    state: StateView,
    run: Run,
    refused: Callable[[Delivered, Exception], Effects],
    errors: tuple[type[Exception], ...],
) -> Effects:
    """The effects of a batch.

    Args:
        batch: at least one message.
        state: the state after the earlier batches.
        run: computes the effects of some messages; raises one of `errors` if one of them cannot be processed.
        refused: makes the effects of a message that cannot be processed.
        errors: the errors of messages that cannot be processed; any other error leaves the function.
    """
    try:
        return run(batch, state)
    except errors as error:
        if len(batch) == 1:
            return refused(batch[0], error)
    half = len(batch) // 2
    first = in_halves(batch[:half], state, run, refused, errors)
    return joined(first, in_halves(batch[half:], Overlay(state, first.state), run, refused, errors))


def joined(first: Effects, second: Effects) -> Effects:
    """The effects of both in this order; if both have a value of a key, the later value stays."""
    state = {(entry.owner, entry.key): entry for entry in (*first.state, *second.state)}
    return Effects(
        [*first.sends, *second.sends],
        [state[place] for place in sorted(state)],
        [*first.dead_letters, *second.dead_letters],
    )
