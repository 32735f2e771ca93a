"""Batches with messages that cannot be processed: whatever is cut, the effects are those of one message after the other."""

import json
import random
from collections.abc import Iterator

import pytest

from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import StateEntry
from correlator.events import DeadLetter, Message
from correlator.pipeline import halving
from correlator.pipeline.halving import Overlay, in_halves
from tests.harness.mutants.catalogue import patched

OWNER = "step:p/aggregate#0"


class Refused(Exception):
    """A value cannot be processed."""


class Sums:
    """Adds the values of each key, and forgets a key at 0; a sum that can be divided by 7 is refused."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, batch, state) -> Effects:
        self.runs += 1
        sums = {key.decode(): int(value) for key, value in state.items(OWNER)}
        changed, sends = {}, []
        for one in batch:
            key, value = json.loads(one.message.body)
            sums[key] = sums.get(key, 0) + value
            if sums[key] and sums[key] % 7 == 0:
                raise Refused(f"{key} is {sums[key]}")
            changed[key] = sums[key] or None
            sums = {name: total for name, total in sums.items() if total}
            sends.append(("out", Message(f"{key}={sums.get(key, 0)}".encode())))
        entries = [
            StateEntry(OWNER, key.encode(), str(value).encode() if value else None) for key, value in changed.items()
        ]
        return Effects(sends, sorted(entries, key=lambda entry: entry.key), [])

    def refused(self, cause, error) -> Effects:
        letter = DeadLetter(
            kind="step",
            origin="p",
            reason=str(error),
            message=cause.message,
            unique_id=None,
            time=0.0,
            receiver="in",
            number=cause.number,
        )
        return Effects(dead_letters=[letter])


class Store:
    """Keyed state in a dictionary."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get(self, owner, key):
        return self.values.get(key)

    def items(self, owner) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self.values.items()))

    def apply(self, entries) -> None:
        assert len({entry.key for entry in entries}) == len(entries), "two values for one key"
        for entry in entries:
            if entry.value is None:
                self.values.pop(entry.key, None)
            else:
                self.values[entry.key] = entry.value


def messages(seed: int) -> list[Delivered]:
    chance = random.Random(seed)
    bodies = [json.dumps([chance.choice("abc"), chance.choice((1, 2, 3, -1, -2, 5))]) for _ in range(60)]
    return [Delivered("in", number, Message(body.encode())) for number, body in enumerate(bodies, 1)]


def outcome(batches) -> tuple[list, list, dict]:
    """Sends, dead letters and final state, one batch after the other."""
    sums, store, sent, dead = Sums(), Store(), [], []
    for batch in batches:
        done = in_halves(batch, store, sums.run, sums.refused, (Refused,))
        store.apply(done.state)
        sent += [message.body for _, message in done.sends]
        dead += [(letter.number, letter.reason) for letter in done.dead_letters]
    return sent, dead, store.values


def differs(seed: int) -> bool:
    """Whether batches of any size cause something else than single messages."""
    given = messages(seed)
    alone = outcome([[one] for one in given])
    sizes = (2, 3, 7, 16, 60)
    return any(outcome([given[at : at + size] for at in range(0, len(given), size)]) != alone for size in sizes)


@pytest.mark.parametrize("seed", range(40))
def test_halves_cause_what_single_messages_cause(seed):
    assert not differs(seed)


def test_the_seeds_refuse_messages_and_forget_keys():
    outcomes = [outcome([messages(seed)]) for seed in range(40)]
    assert sum(len(dead) for _, dead, _ in outcomes) > 100
    assert sum(body.endswith(b"=0") for sent, _, _ in outcomes for body in sent) > 50


def test_other_errors_end_the_batch():
    with pytest.raises(ZeroDivisionError):
        in_halves(messages(1), Store(), lambda batch, state: 1 // 0, Sums().refused, (Refused,))


def the_second_half_sees_the_state_before_the_first(patches):
    patches.replace(Overlay, "__init__", lambda original: lambda self, below, changes: original(self, below, []))


def the_first_half_leaves_no_state(patches):
    patches.replace(
        halving, "joined", lambda original: lambda one, two: original(Effects(one.sends, (), one.dead_letters), two)
    )


def the_older_value_of_a_key_counts(patches):
    patches.replace(
        halving,
        "joined",
        lambda original: lambda one, two: original(one, two)._replace(state=original(two, one).state),
    )


def a_half_that_failed_leaves_state(patches):
    def make(original):
        def in_halves(batch, state, run, refused, errors):
            if len(batch) == 1:
                return original(batch, state, run, refused, errors)
            left = run(batch[:1], state).state if _fails(batch[:1], state, run, errors) is None else []
            return original(batch, Overlay(state, left), run, refused, errors)

        return in_halves

    patches.replace(halving, "in_halves", make)


def a_half_counts_twice(patches):
    def make(original):
        def in_halves(batch, state, run, refused, errors):
            done = original(batch, state, run, refused, errors)
            if len(batch) != 2 or done.dead_letters:
                return done
            return original(batch, Overlay(state, done.state), run, refused, errors)

        return in_halves

    patches.replace(halving, "in_halves", make)


def _fails(batch, state, run, errors):
    try:
        run(batch, state)
    except errors as error:
        return error
    return None


BUGS = [
    the_second_half_sees_the_state_before_the_first,
    the_first_half_leaves_no_state,
    the_older_value_of_a_key_counts,
    a_half_that_failed_leaves_state,
    a_half_counts_twice,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_bugs_with_the_state_of_halves_are_found(bug):
    with patched(bug):
        assert any(differs(seed) for seed in range(40))
