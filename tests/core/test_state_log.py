"""The state log: every living entry is found, cleaning keeps the store below about twice the living state."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from correlator.core import statelog
from correlator.core.commit import StateEntry, StateSegment
from correlator.core.statelog import SEGMENT_ENTRIES, StateLog


class Store:
    """The segments that a store holds, and the log above them."""

    def __init__(self) -> None:
        self.log = StateLog()
        self.segments: dict[int, StateSegment] = {}

    def write(self, changes: list[StateEntry]) -> None:
        cleaned = [self.segments[number] for number in self.log.to_clean(len(changes))]
        plan = self.log.plan(changes, cleaned)
        for segment in plan.segments:
            self.segments[segment.number] = segment
        for number in plan.dropped:
            del self.segments[number]
        self.log.apply(plan)

    def restored(self) -> tuple[StateLog, dict[str, dict[bytes, bytes]]]:
        log = StateLog()
        return log, log.restore([self.segments[number] for number in sorted(self.segments)])

    @property
    def entries(self) -> int:
        return sum(len(segment.entries) for segment in self.segments.values())


def change(key: str, value: str | None, owner: str = "monitor:M") -> StateEntry:
    return StateEntry(owner, key.encode(), None if value is None else value.encode())


def test_a_later_entry_replaces_an_earlier_one_and_a_deletion_removes_it():
    store = Store()
    store.write([change("a", "1"), change("b", "1")])
    store.write([change("a", "2"), change("b", None)])
    assert store.restored()[1] == {"monitor:M": {b"a": b"2"}}
    assert (store.log.living, store.log.stored) == (1, 4)


def test_owners_do_not_affect_one_another():
    store = Store()
    store.write([change("a", "1", "x"), change("a", "2", "y")])
    store.write([change("a", None, "x")])
    assert store.restored()[1] == {"x": {}, "y": {b"a": b"2"}}


def test_a_large_change_is_cut_into_segments():
    store = Store()
    store.write([change(str(number), "v") for number in range(2 * SEGMENT_ENTRIES + 1)])
    assert [len(segment.entries) for segment in store.segments.values()] == [SEGMENT_ENTRIES, SEGMENT_ENTRIES, 1]


def test_a_large_change_is_cut_by_bytes_too(monkeypatch):
    monkeypatch.setattr("correlator.core.pieces.MOST_BYTES", 10)
    store = Store()
    store.write([change("a", "12345"), change("b", "123"), change("c", "1"), change("d", "larger alone than a piece")])
    assert [[entry.key for entry in one.entries] for one in store.segments.values()] == [[b"a", b"b"], [b"c"], [b"d"]]
    assert len(store.restored()[1]["monitor:M"]) == 4


def test_a_small_store_is_not_cleaned():
    store = Store()
    for number in range(100):
        store.write([change("a", str(number))])
    assert len(store.segments) == 100


def test_a_hot_key_does_not_let_the_store_grow():
    store = Store()
    store.write([change(str(number), "cold") for number in range(500)])
    for number in range(5000):
        store.write([change("hot", str(number))])
        assert store.entries <= 2 * 501 + 2 * SEGMENT_ENTRIES
    assert store.restored()[1]["monitor:M"] == {**{str(n).encode(): b"cold" for n in range(500)}, b"hot": b"4999"}


def test_a_deleted_key_stays_deleted_when_its_deletion_is_cleaned_away():
    store = Store()
    store.write([change("gone", "1")])
    store.write([change("gone", None)])
    for number in range(5000):
        store.write([change("hot", str(number))])
    assert store.restored()[1]["monitor:M"] == {b"hot": b"4999"}
    assert store.entries <= 3 * SEGMENT_ENTRIES


def test_a_key_written_while_its_segment_is_cleaned_keeps_the_new_value():
    store = Store()
    store.write([change("a", "old"), change("b", "kept")])
    plan = store.log.plan([change("a", "new")], [store.segments[1]])
    assert [entry for segment in plan.segments for entry in segment.entries] == [
        change("a", "new"),
        change("b", "kept"),
    ]
    assert plan.dropped == [1]


class Log(RuleBasedStateMachine):
    """Random writes with tiny segments: nothing living is ever dropped, what is stored stays bounded."""

    @initialize()
    def begin(self):
        self.small = 4
        statelog.SEGMENT_ENTRIES = self.small
        self.store = Store()
        self.model: dict[bytes, bytes] = {}
        self.largest = 0

    def teardown(self):
        statelog.SEGMENT_ENTRIES = SEGMENT_ENTRIES

    @rule(changes=st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.none() | st.sampled_from("12"), min_size=1))
    def write(self, changes):
        self.largest = max(self.largest, len(changes))
        self.store.write([change(key, value) for key, value in changes.items()])
        for key, value in changes.items():
            self.model.pop(key.encode(), None)
            if value is not None:
                self.model[key.encode()] = value.encode()

    @rule()
    def restart(self):
        self.store.log, _ = self.store.restored()

    @invariant()
    def nothing_is_lost(self):
        log, values = self.store.restored()
        assert values.get("monitor:M", {}) == self.model
        assert (log.living, log.stored) == (self.store.log.living, self.store.log.stored)
        assert (log.living, log.stored) == (len(self.model), self.store.entries)

    @invariant()
    def storage_is_bounded(self):
        assert self.store.entries <= 2 * len(self.model) + 3 * (self.small + self.largest)


TestLog = Log.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=40)
