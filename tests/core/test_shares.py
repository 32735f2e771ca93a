"""Who runs which share: the fair parts, and a simulation of members whose clocks, processes and connections fail.

The simulation runs the product's `Assignment` over a model of the table. Each member has a monotonic clock of its own,
with any offset; only the clock of the table compares. A step is what one transaction or one look of a thread does.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from correlator.core.shares import Actions, Assignment, Fate, Lease, Seen, fair_parts, valid_for

LEASE_S = 9.0
COUNT = 8

held = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 20), min_size=1, max_size=8)


@given(st.integers(1, 60), held)
def test_parts_are_fair_and_give_away_everything(count: int, held: dict[str, int]) -> None:
    parts = fair_parts(count, held)
    assert sum(parts.values()) == count
    assert max(parts.values()) - min(parts.values()) <= 1
    assert parts == fair_parts(count, dict(reversed(held.items()))), "the order of members decides nothing"


@given(st.integers(1, 60), held)
def test_no_share_moves_without_need(count: int, held: dict[str, int]) -> None:
    """No other fair division lets members keep more of what they have."""
    total = sum(held.values())
    parts = fair_parts(count, held)
    kept = sum(min(parts[name], held[name]) for name in held)
    least, larger = divmod(count, len(held))
    ranked = sorted((min(least + 1, have) - min(least, have) for have in held.values()), reverse=True)
    best = sum(min(least, have) for have in held.values()) + sum(ranked[:larger])
    assert kept == best
    assert kept <= total


@given(st.integers(1, 60), held)
def test_a_fair_division_stays(count: int, held: dict[str, int]) -> None:
    parts = fair_parts(count, held)
    assert fair_parts(count, parts) == parts


def test_a_member_stops_before_its_lease_ends():
    assert 0 < valid_for(LEASE_S) < LEASE_S


# --- one member ---


def seen(*mine: Lease, others: dict[str, int] | None = None, free: int = 0, next_end: float | None = None) -> Seen:
    return Seen(COUNT, mine, others or {}, free, next_end)


def test_a_lone_member_takes_everything_and_looks_again_soon():
    assert Assignment("me", LEASE_S).look(seen(free=COUNT)) == Actions([], [], [], COUNT, 0.5)


def test_a_standby_has_nothing_to_do():
    others = dict.fromkeys("abcdefgh", 1)
    assert Assignment("z", LEASE_S).look(seen(others=others, next_end=8.0)) == Actions([], [], [], 0, LEASE_S / 3)


def test_a_standby_looks_again_when_the_next_lease_ends():
    others = dict.fromkeys("abcdefgh", 1)
    orders = Assignment("z", LEASE_S).look(seen(others=others, next_end=1.0))
    assert orders.wait == pytest.approx(1.05)


def test_a_lease_whose_taking_was_not_answered_is_started():
    assignment = Assignment("me", LEASE_S)
    assert assignment.look(seen(Lease(3, 7), others={"a": 7})).start == [Lease(3, 7)]
    assert assignment.look(seen(Lease(3, 7), others={"a": 7})).start == [], "once"


def test_a_share_with_another_epoch_is_dropped_and_starts_again_when_it_has_stopped():
    assignment = Assignment("me", LEASE_S)
    assignment.look(seen(Lease(3, 7), others={"a": 7}))
    orders = assignment.look(seen(Lease(3, 9), others={"a": 7}))
    assert (orders.start, orders.drop) == ([], [3])
    assert assignment.look(seen(Lease(3, 9), others={"a": 7})).drop == [], "told once"
    assert assignment.begin([Lease(3, 9)]) == [], "its engine has not stopped yet"
    assert assignment.ended(3) is None, "the lease of the earlier epoch is not given back"
    assert assignment.look(seen(Lease(3, 9), others={"a": 7})).start == [Lease(3, 9)]


def test_a_lost_share_is_dropped_even_while_it_leaves():
    assignment = Assignment("me", LEASE_S)
    mine = [Lease(number, 1) for number in range(COUNT)]
    assignment.look(seen(*mine))
    assert assignment.look(seen(*mine, others={"a": 0})).leave == [4, 5, 6, 7]
    assert assignment.look(seen(*mine[:7], others={"a": 1})).drop == [7]
    assert assignment.ended(7) is None
    assert assignment.ended(6) == Lease(6, 1)


def test_a_member_that_leaves_takes_nothing():
    assignment = Assignment("me", LEASE_S)
    mine = [Lease(number, 1) for number in range(COUNT)]
    assignment.look(seen(*mine))
    assignment.leaving = True
    orders = assignment.look(seen(*mine, Lease(9, 1), free=5))
    assert (orders.start, orders.take, orders.leave) == ([], 0, list(range(COUNT)))


# --- many members ---


@dataclass
class Row:
    owner: str | None = None
    epoch: int = 0
    until: float = -1.0


@dataclass
class Table:
    """The model of the tables of leases: one clock, atomic transactions."""

    clock: float = 0.0
    rows: list[Row] = field(default_factory=lambda: [Row() for _ in range(COUNT)])
    members: dict[str, float] = field(default_factory=dict)
    taken: Counter[tuple[int, int]] = field(default_factory=Counter)
    moves: int = 0

    def renew(self, me: str, *, leaving: bool = False) -> Seen:
        if leaving:
            self.members.pop(me, None)
        else:
            self.members[me] = self.clock + LEASE_S
        mine = []
        for number, row in enumerate(self.rows):
            if row.owner == me:
                row.until = self.clock + LEASE_S
                mine.append(Lease(number, row.epoch))
        others = {name: 0 for name, until in self.members.items() if until > self.clock and name != me}
        ends = [row.until - self.clock for row in self.rows if row.until > self.clock and row.owner != me]
        for row in self.rows:
            if row.until > self.clock and row.owner in others:
                others[row.owner] += 1
        free = sum(row.until < self.clock for row in self.rows)
        return Seen(COUNT, mine, others, free, min(ends, default=None))

    def take(self, me: str, most: int) -> list[Lease]:
        found = [n for n, row in enumerate(self.rows) if row.until < self.clock and row.owner != me][:most]
        for number in found:
            row = self.rows[number]
            row.owner, row.epoch, row.until = me, row.epoch + 1, self.clock + LEASE_S
            self.taken[number, row.epoch] += 1
            self.moves += 1
        return [Lease(number, self.rows[number].epoch) for number in found]

    def give_back(self, me: str, lease: Lease) -> None:
        row = self.rows[lease.number]
        if (row.owner, row.epoch) == (me, lease.epoch):
            row.owner, row.until = None, -1.0


class Simulated:
    """A member: its keeper and the threads of its shares, as the product's `Keeper` and `ShareThread` work together."""

    def __init__(self, name: str, table: Table, offset: float) -> None:
        self.name = name
        self.offset = offset
        self.assignment = Assignment(name, LEASE_S)
        self.valid_until: dict[int, float] = {}
        self.fates: dict[int, Fate] = {}
        self.frozen_until = 0.0
        self.cut_until = 0.0
        self.next_step = table.clock
        self.gone = False
        self._table = table

    def monotonic(self) -> float:
        return self._table.clock + self.offset

    def runs(self) -> list[Lease]:
        """The shares whose engines may take messages now; a frozen process runs nothing."""
        if self.gone or self.frozen_until > self._table.clock:
            return []
        now = self.monotonic()
        leases = self.assignment.leases.items()
        return [Lease(*one) for one in leases if self.fates[one[0]] is Fate.RUN and self.valid_until[one[0]] > now]

    def step(self) -> None:
        clock = self._table.clock
        if self.gone or max(self.frozen_until, self.next_step) > clock:
            return
        returns = [
            lease
            for number, fate in list(self.fates.items())
            if fate is not Fate.RUN and (lease := self._end(number)) is not None
        ]
        if self.cut_until > clock:
            self.next_step = clock + LEASE_S / 10
            return
        for lease in returns:
            self._table.give_back(self.name, lease)
        sent = self.monotonic()
        seen = self._table.renew(self.name, leaving=self.assignment.leaving)
        for lease in seen.mine:
            if self.assignment.leases.get(lease.number) == lease.epoch:
                self.valid_until[lease.number] = sent + valid_for(LEASE_S)
        orders = self.assignment.look(seen)
        self._start(orders.start, sent)
        self.fates.update(dict.fromkeys(orders.leave, Fate.LEAVE) | dict.fromkeys(orders.drop, Fate.DROP))
        if orders.take:
            self._start(self.assignment.begin(self._table.take(self.name, orders.take)), sent)
        self.next_step = clock + orders.wait
        self.gone = self.assignment.leaving and not self.assignment.leases

    def _start(self, leases: list[Lease], sent: float) -> None:
        for lease in leases:
            self.fates[lease.number] = Fate.RUN
            self.valid_until[lease.number] = sent + valid_for(LEASE_S)

    def _end(self, number: int) -> Lease | None:
        del self.fates[number], self.valid_until[number]
        return self.assignment.ended(number)


class Fleet:
    def __init__(self) -> None:
        self.table = Table()
        self.members: list[Simulated] = []
        self._names = itertools.count()

    def join(self, offset: float = 0.0) -> Simulated:
        self.members.append(Simulated(f"m{next(self._names)}", self.table, offset))
        return self.members[-1]

    def run(self, seconds: float, step: float = 0.25) -> None:
        for _ in range(round(seconds / step)):
            self.table.clock += step
            for member in self.members:
                member.step()
                self.check()

    def check(self) -> None:
        """No share has two owners in one epoch, and none is run by two members that can be sure of it."""
        assert all(count == 1 for count in self.table.taken.values())
        running = [lease.number for member in self.members for lease in member.runs()]
        assert len(running) == len(set(running)), running

    def living(self) -> list[Simulated]:
        clock = self.table.clock
        return [one for one in self.members if not one.gone and max(one.frozen_until, one.cut_until) <= clock]

    def settled(self) -> None:
        """Every share runs, and the parts of those that can work differ by at most one."""
        running = {member.name: len(member.runs()) for member in self.living()}
        assert sum(running.values()) == COUNT, running
        assert max(running.values()) - min(running.values()) <= 1, running


def test_members_that_come_get_their_part_with_as_few_moves_as_possible():
    fleet = Fleet()
    for expected in (8, 4, 2, 2, 1, 1, 1, 1):  # shares that move to the new member
        before = fleet.table.moves
        fleet.join()
        fleet.run(3 * LEASE_S)
        fleet.settled()
        assert fleet.table.moves - before == expected


def test_nothing_moves_in_a_day():
    fleet = Fleet()
    for _ in range(3):
        fleet.join()
    fleet.run(3 * LEASE_S)
    moves = fleet.table.moves
    fleet.run(24 * 3600, step=LEASE_S / 3)
    assert fleet.table.moves == moves
    fleet.settled()


def test_a_member_that_leaves_hands_over_within_a_look():
    fleet = Fleet()
    first, _ = fleet.join(), fleet.join()
    fleet.run(2 * LEASE_S)
    first.assignment.leaving = True
    fleet.run(LEASE_S / 3 + 2)
    assert first.gone
    fleet.settled()


def test_the_shares_of_a_dead_member_are_taken_within_the_lease_and_two_seconds():
    fleet = Fleet()
    first, second = fleet.join(), fleet.join()
    fleet.run(2 * LEASE_S)
    first.gone = True
    fleet.run(LEASE_S + 1)
    assert len(second.runs()) == COUNT


@pytest.mark.parametrize(("cut", "moved"), [(0.5, 0), (2.0, 4)])
def test_a_lost_connection(cut: float, moved: int):
    fleet = Fleet()
    first, _ = fleet.join(3600.0), fleet.join(-3600.0)
    fleet.run(2 * LEASE_S)
    before = fleet.table.moves
    first.cut_until = fleet.table.clock + cut * LEASE_S
    fleet.run(cut * LEASE_S + 0.5)
    assert fleet.table.moves - before == moved
    fleet.run(3 * LEASE_S)
    fleet.settled()


def test_a_frozen_member_loses_its_shares_and_joins_again():
    fleet = Fleet()
    first, second = fleet.join(), fleet.join()
    fleet.run(2 * LEASE_S)
    first.frozen_until = fleet.table.clock + 2 * LEASE_S
    fleet.run(2 * LEASE_S - 1)
    assert len(second.runs()) == COUNT
    fleet.run(2 * LEASE_S)
    assert len(first.runs()) == len(second.runs()) == COUNT // 2


events = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "kill", "freeze", "cut", "wait"]),
        st.integers(0, 5),
        st.floats(0.1, 2.5 * LEASE_S),
        st.floats(-3600, 3600),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(events)
def test_any_history_ends_with_every_share_at_one_member(history: list[tuple[str, int, float, float]]):
    fleet = Fleet()
    fleet.join()
    for what, which, seconds, offset in history:
        members = [one for one in fleet.members if not one.gone]
        chosen = members[which % len(members)] if members else None
        if what == "join" or chosen is None:
            fleet.join(offset)
        elif what == "leave":
            chosen.assignment.leaving = True
        elif what == "kill":
            chosen.gone = True
        elif what == "freeze":
            chosen.frozen_until = fleet.table.clock + seconds
        elif what == "cut":
            chosen.cut_until = fleet.table.clock + seconds
        fleet.run(seconds if what == "wait" else 0.5)
    fleet.join()
    fleet.run(8 * LEASE_S)
    fleet.settled()
    moves = fleet.table.moves
    fleet.run(5 * LEASE_S)
    assert fleet.table.moves == moves, "nothing moves once the parts are fair"
