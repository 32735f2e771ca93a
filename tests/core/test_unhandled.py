"""Unhandled messages are found once, however far contexts are from one another, and across restarts."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from correlator.core.context import Context
from correlator.core.expressions import match
from correlator.core.monitor import Monitor, on
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.core.unhandled import OWNER, Unhandled
from correlator.events import DeadLetter, Message, event
from correlator.runtime.names import resolve

BODY = Message(b"{}")
LAST = 8


@event
class Tick:
    number: int


@event
class Other:
    number: int = 0


def numbers(letters: Iterable[DeadLetter]) -> list[int]:
    return [letter.number for letter in letters]


class Listens(Monitor):
    @on(Tick, number=1)
    def one(self, tick: Tick) -> None: ...

    @on(match(Tick, number=2).then(match(Tick, number=3)))
    def two_and_three(self, _two: Tick, _three: Tick) -> None: ...


def a_ledger(
    *contexts: str,
    dead_letters: bool = True,
    stored: bool = True,
    told: Callable[[int, Any], None] = lambda _count, _event: None,
) -> Unhandled:
    return Unhandled("in", contexts, dead_letters=dead_letters, stored=stored, changing=nullcontext(), told=told)


def a_context(unhandled: Unhandled, *monitors: Monitor) -> Context:
    context = Context("main", Routes(), resolve, unhandled=lambda: {"in": unhandled})
    for monitor in monitors:
        context.load(monitor, "stop")
    return context


def test_what_no_listener_and_no_expression_waits_for() -> None:
    unhandled = a_ledger("main")
    context = a_context(unhandled, Listens())
    events = [Tick(number=1), Tick(number=3), Other(), None, Tick(number=2), Tick(number=3)]
    context.queue.deliver(Run("in", 11, [BODY] * 6, events, stored=True))
    context.work(10, 5.0)
    letters = context.staging.take_dead_letters()
    assert numbers(letters) == [12, 13]
    assert {(one.kind, one.origin, one.receiver, one.time) for one in letters} == {("unhandled", "in", "in", 5.0)}
    assert letters[1].reason.startswith("E5503 receiver in: no monitor listens for this Other.")
    assert unhandled.count == 2
    assert context.take_state() == []


def test_events_from_inside_are_no_messages() -> None:
    unhandled = a_ledger("main")
    context = a_context(unhandled, Listens())
    context.queue.deliver(Run("", 0, (), (Other(),), stored=True))
    context.work(10, 5.0)
    assert (context.staging.take_dead_letters(), unhandled.count) == ([], 0)


def test_it_is_told_first_and_when_the_count_has_doubled() -> None:
    told: list[tuple[int, Any]] = []
    unhandled = a_ledger("main", dead_letters=False, told=lambda count, event: told.append((count, event)))
    for number in range(1, 10):
        assert unhandled.passed("main", number, [(number, Tick(number=number), BODY)], 0.0) == []
    assert told == [(count, Tick(number=count)) for count in (1, 2, 4, 8)]
    unhandled.passed("main", 110, [(number, Tick(number=number), BODY) for number in range(11, 111)], 0.0)
    assert told[4:] == [(109, Tick(number=110))]


def test_what_one_of_two_contexts_handles_is_handled() -> None:
    unhandled = a_ledger("a", "b")
    assert unhandled.passed("a", 2, [(1, Tick(number=1), BODY), (2, Tick(number=2), BODY)], 0.0) == []
    (undecided,) = unhandled.take_changes()
    assert (undecided.owner, undecided.key, undecided.value is None) == (OWNER, b"in", False)
    assert unhandled.take_changes() == []
    assert numbers(unhandled.passed("b", 2, [(2, Tick(number=2), BODY)], 0.0)) == [2]
    (decided,) = unhandled.take_changes()
    assert decided.value is None


def test_what_only_counts_is_not_stored() -> None:
    for dead_letters, stored in ((False, True), (True, False)):
        unhandled = a_ledger("a", "b", dead_letters=dead_letters, stored=stored)
        unhandled.passed("a", 1, [(1, Tick(number=1), BODY)], 0.0)
        assert unhandled.take_changes() == []


@given(st.lists(st.sets(st.integers(1, 6)), min_size=2, max_size=2), st.permutations("aaaaaabbbbbb"))
def test_what_is_undecided_does_not_depend_on_which_context_passed_first(
    left: list[set[int]], order: list[str]
) -> None:
    """Between two checkpoints a replay knows the order of each context only, and comes to the same checkpoint."""
    last = {"a": 6, "b": order[:9].count("b")}
    life = [name for at, name in enumerate(order) if order[: at + 1].count(name) <= last[name]]
    assert undecided(left, life) == undecided(left, sorted(life)) == undecided(left, sorted(life, reverse=True))


def undecided(left: list[set[int]], order: list[str]) -> bytes | None:
    """What a checkpoint keeps when two contexts have passed one message after another in this order."""
    unhandled = a_ledger("a", "b")
    leaves, through = dict(zip("ab", left, strict=True)), {"a": 0, "b": 0}
    for name in order:
        number = through[name] = through[name] + 1
        unhandled.passed(name, number, [(number, None, BODY)] if number in leaves[name] else [], 0.0)
    return next((change.value for change in unhandled.take_changes()), None)


class Life:
    """Contexts that handle some of a few messages, checkpoints, crashes, and contexts that come and go between two lives.

    Attributes:
        given: for each context the stretches of numbers behind which it was given what came, and up to which.
    """

    def __init__(self, handles: dict[str, set[int]], first: str) -> None:
        self.handles = handles
        self.given = {name: [(0, LAST)] if name in first else [] for name in handles}
        self.names = list(first)
        self.received = 0
        self.through = dict.fromkeys(self.names, 0)
        self.letters: list[int] = []
        self.staged: list[int] = []
        self.stored: bytes | None = None
        self.cut_through = dict(self.through)
        self.ledger = self.made()

    def made(self) -> Unhandled:
        ledger = a_ledger(*self.names)
        ledger.restore(
            self.stored,
            through=self.through,
            entered=self.cut_through,
            given_after={name: self.given[name][-1][0] for name in self.names},
            after=0,
        )
        return ledger

    def advance(self, name: str, count: int) -> None:
        if name not in self.through:
            return
        first = self.through[name] + 1
        self.through[name] = min(LAST, first + count - 1)
        self.received = max(self.received, self.through[name])
        passed = range(first, self.through[name] + 1)
        left = [(number, None, BODY) for number in passed if number not in self.handles[name]]
        self.staged += numbers(self.ledger.passed(name, self.through[name], left, 0.0))

    def cut(self) -> None:
        self.letters += self.staged
        self.staged = []
        self.cut_through = dict(self.through)
        for change in self.ledger.take_changes():
            self.stored = change.value

    def crash(self, change: str = "") -> None:
        """The next start may find a context more or less; one that has not handled all cannot be left out."""
        self.staged = []
        handled = {name: self.cut_through.get(name, self.given[name][-1][0]) for name in self.names}
        if change in self.names and len(self.names) > 1 and handled[change] == self.received:
            self.names.remove(change)
            self.given[change][-1] = (self.given[change][-1][0], self.received)
        elif change and change not in self.names:
            self.names.append(change)
            self.given[change].append((self.received, LAST))
        self.through = {name: max(self.cut_through.get(name, 0), self.given[name][-1][0]) for name in self.names}
        self.ledger = self.made()

    def expected(self) -> list[int]:
        return [
            number
            for number in range(1, LAST + 1)
            if not any(
                number in self.handles[name] and after < number <= last
                for name, given in self.given.items()
                for after, last in given
            )
        ]


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4)),
        st.sampled_from(["cut", "crash", "stop", *(f"{end} {name}" for end in ("crash", "stop") for name in "abc")]),
    ),
    max_size=30,
)


@settings(max_examples=500)
@given(st.lists(st.sets(st.integers(1, LAST)), min_size=3, max_size=3), steps)
def test_every_such_message_is_one_letter(handles: list[set[int]], steps: list[object]) -> None:
    life = Life(dict(zip("abc", handles, strict=True)), "ab")
    for step in steps:
        if isinstance(step, tuple):
            life.advance(*step)
        else:
            what, _, change = str(step).partition(" ")
            if what != "crash":
                life.cut()
            if what != "cut":
                life.crash(change)
    for name in list(life.names):
        life.advance(name, LAST)
    life.cut()
    assert sorted(life.letters) == life.expected()
    assert life.stored is None


def test_what_a_context_handled_that_is_gone_is_handled() -> None:
    life = Life({"a": set(), "b": {1, 2, 3}}, "ab")
    life.advance("b", 3)
    life.cut()
    life.crash("b")
    life.advance("a", 2)
    life.cut()
    life.crash()
    life.advance("a", 3)
    life.cut()
    assert (life.letters, life.stored) == ([4, 5], None)
    assert not life.ledger.shared


def test_what_came_before_it_was_asked_for_becomes_no_letter() -> None:
    """A checkpoint from before the setting does not say which messages a context has left."""
    ledger = a_ledger("a", "b")
    ledger.restore(None, through={"a": 0, "b": 4}, entered={"a": 4, "b": 4, "c": 4}, given_after={}, after=4)
    left = [(number, Other(), BODY) for number in range(1, 7)]
    assert ledger.passed("a", 6, left, 0.0) == []
    assert numbers(ledger.passed("b", 6, left[4:], 0.0)) == [5, 6]
