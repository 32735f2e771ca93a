"""Random expressions and events against a naive evaluator, with restarts at random places."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from correlator.core.expressions import And, Expression, Or, Pattern, Reference, Then, Unless, Wait, Within, match, wait
from correlator.core.monitor import Monitor
from tests.core.listening import A, B, C, Listening

TYPES = (A, B, C)
EXAMPLES = 300


# --- the naive evaluator: every part is an object that looks at every event ---


class Part:
    def __init__(self, expression: Expression, now: float, seen: dict[int, Any]) -> None:
        self.expression, self.seen, self.truth = expression, seen, None
        names = {Then: ("first",), And: ("one", "other"), Or: ("one", "other"), Unless: ("part", "never")}
        below = names.get(type(expression), ("part",) if isinstance(expression, Within) else ())
        self.below = [Part(getattr(expression, name), now, seen) for name in below]
        self.due = None
        if isinstance(expression, Wait) or (isinstance(expression, Within) and not self.below[0].is_sequence()):
            self.due = now + expression.seconds

    def is_sequence(self) -> bool:
        one = self.expression
        return isinstance(one, Then) or (isinstance(one, Unless | Within) and self.below[0].is_sequence())

    def has_begun(self) -> bool:
        if isinstance(self.expression, Then):
            return len(self.below) == 2 or self.below[0].has_begun()
        return self.is_sequence() and self.below[0].has_begun()

    def dues(self) -> list[float]:
        if self.truth is not None:
            return []
        return [due for part in self.below for due in part.dues()] + ([] if self.due is None else [self.due])

    def feed(self, event: Any, upto: float, now: float) -> None:
        """An event, or (`None`) the clocks up to a time."""
        if self.truth is not None:
            return
        for part in self.below:
            part.feed(event, upto, now)
        one, truths = self.expression, [part.truth for part in self.below]
        elapsed = event is None and self.due is not None and self.due <= upto
        if isinstance(one, Pattern):
            wanted = [self.value(value) for value in one.values]
            if type(event) is one.event_type and [getattr(event, field) for field in one.fields] == wanted:
                self.truth, self.seen[id(one)] = True, event
        elif isinstance(one, Wait):
            self.truth = True if elapsed else None
        elif isinstance(one, Then):
            if len(truths) == 1 and truths[0]:
                self.below.append(Part(one.later, now, self.seen))
            else:
                self.truth = truths[-1]
        elif isinstance(one, And):
            self.truth = False if False in truths else (None if None in truths else True)
        elif isinstance(one, Or):
            self.truth = True if True in truths else (None if None in truths else False)
        elif isinstance(one, Unless):
            self.truth = False if truths[1] else truths[0]
        else:
            self.truth = False if truths[0] is None and elapsed else truths[0]
            if self.due is None and self.has_begun():
                self.due = now + one.seconds

    def value(self, value: Any) -> Any:
        return getattr(self.seen[id(value.pattern)], value.field) if isinstance(value, Reference) else value


def patterns(one: Expression) -> list[Pattern]:
    """The patterns whose events the handler gets."""
    if isinstance(one, Pattern):
        return [one]
    names = (
        [] if isinstance(one, Wait) else [name for name in one.__struct_fields__ if name not in ("never", "seconds")]
    )
    return [found for name in names for found in patterns(getattr(one, name))]


class Naive:
    def __init__(self, expression: Expression, *, once: bool) -> None:
        self.expression, self.once, self.arguments = expression, once, patterns(expression)
        self.attempts = [Part(expression, 0.0, {})]
        self.head: Part | None = self.attempts[0]
        self.fired: list[tuple[Any, ...]] = []

    def pass_to(self, now: float) -> None:
        while dues := [due for part in self.attempts for due in part.dues() if due <= now]:
            self.feed(None, min(dues), now)

    def feed(self, event: Any, upto: float, now: float) -> None:
        for part in list(self.attempts):
            part.feed(event, upto, now)
            if part.truth is not None:
                self.attempts.remove(part)
            if part.truth:
                self.fired.append(tuple(part.seen.get(id(one)) for one in self.arguments))
            if part is self.head and (part.truth is not None or part.has_begun()):
                again = not self.once and part.truth is not False
                self.head = Part(self.expression, now, {}) if again else None
                self.attempts += [self.head] if self.head else []


# --- the real one ---

WANTED: list[tuple[Expression, bool]] = []
FIRED: list[tuple[Any, ...]] = []


class Listens(Monitor, persistent=True):
    def onload(self) -> None:
        expression, once = WANTED[-1]
        (self.once if once else self.on_all)(expression, then=self.fired)

    def fired(self, *events: Any) -> None:
        FIRED.append(events)


@st.composite
def expressions(draw: Any, depth: int = 3, known: tuple[Pattern, ...] = ()) -> tuple[Expression, tuple[Pattern, ...]]:
    """An expression, and the patterns that have surely matched when it is true."""
    kind = draw(st.sampled_from(("match", "match", "wait", "then", "then", "and", "or", "unless", "within")))
    if kind == "wait":
        return wait(draw(st.integers(1, 3))), ()
    if kind == "match" or depth == 0:
        wanted = draw(st.sampled_from((None, 0, 1, *known)))
        fields = {} if wanted is None else {"n": wanted["n"] if isinstance(wanted, Pattern) else wanted}
        made = match(draw(st.sampled_from(TYPES)), **fields)
        return made, (made,)
    one, sure = draw(expressions(depth - 1, known))
    if kind == "within":
        return one.within(draw(st.integers(1, 4))), sure
    other, also = draw(expressions(depth - 1, (*known, *sure) if kind == "then" else known))
    if kind == "then":
        return one.then(other), (*sure, *also)
    if kind == "and":
        return one & other, (*sure, *also)
    return (one | other, ()) if kind == "or" else (one & ~other, sure)


HAPPENINGS = st.one_of(
    st.builds(lambda kind, n: kind(n=n), st.sampled_from(TYPES), st.integers(0, 1)),
    st.builds(lambda kind, n: kind(n=n), st.sampled_from(TYPES), st.integers(0, 1)),
    st.integers(1, 5),
    st.just("restart"),
)


@settings(max_examples=EXAMPLES)
@given(expressions(), st.booleans(), st.lists(HAPPENINGS, max_size=25))
def test_an_expression_fires_as_the_naive_evaluator_says(made, once, happenings):
    expression, _ = made
    WANTED.append((expression, once))
    FIRED.clear()
    naive, real = Naive(expression, once=once), Listening(Listens())
    for one in happenings:
        naive.fired.clear()
        FIRED.clear()
        if one == "restart":
            real.restart()
        elif isinstance(one, int):
            real.pass_time(one)
            naive.pass_to(real.now)
        else:
            real.hear(one)
            naive.feed(one, real.now, real.now)
        assert sorted(FIRED, key=repr) == sorted(naive.fired, key=repr), (one, naive.fired)
    if not isinstance(expression, Pattern):  # a single one needs no attempts
        assert len(real.waiting()) == len(naive.attempts) + bool(naive.attempts)
