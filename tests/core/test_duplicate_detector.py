"""The duplicate detector rule by rule (docs/rules.md, section A8), and against a model of plain lists."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from correlator.core import dedup
from correlator.core.dedup import DuplicateDetector, EntryPlace, window_contents
from tests.core.domain import Domain, Model, hash_of


def ids(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number}" for number in range(1, count + 1)]


# --- what is a duplicate ---


def test_a8_1_a_repeat_is_dropped_and_a_new_id_is_not():
    domain = Domain()
    assert domain.receive("a", "b") == ["a", "b"]
    assert domain.receive("b", "c") == ["c"]


def test_a8_12_messages_without_id_are_never_duplicates():
    domain = Domain()
    assert domain.receive("", "", "a") == ["", "", "a"]
    assert domain.receive("", "a") == [""]
    assert len(domain.detector) == 1


def test_a_batch_without_any_id_stores_nothing():
    domain = Domain()
    domain.receive("", "")
    assert domain.stored == {}


def test_95_a_repeat_inside_one_batch_is_dropped():
    domain = Domain()
    assert domain.receive("a", "b", "a", "a") == ["a", "b"]


def test_a8_13_the_same_id_of_another_source_is_a_duplicate():
    domain = Domain()
    domain.receive("a", source="one")
    assert domain.receive("a", source="two") == []


def test_94_a_repeat_with_another_body_is_told_apart():
    domain = Domain()
    domain.receive("a")
    candidates = dedup.Candidates("r", 2, ["a", "a"], ["s", "s"], [hash_of("a"), 4711])
    plan = domain.detector.plan(candidates, 0.0)
    assert (plan.duplicates, plan.conflicts) == ([0, 1], [1])


def test_a_conflict_does_not_change_the_body_that_repeats_are_compared_with():
    domain = Domain()
    domain.receive("a")
    other, same = ([body] for body in (4711, hash_of("a")))
    plans = []
    for digests in (other, same, other):
        plan = domain.detector.plan(dedup.Candidates("r", 2 + len(plans), ["a"], ["s"], digests), 0.0)
        domain.commit(plan)
        plans.append(plan)
    assert [plan.conflicts for plan in plans] == [[0], [], [0]]


def test_a8_20_two_plans_of_one_transaction_see_each_other():
    """Two receivers race with one id: exactly one of them delivers it, whoever comes first in the transaction."""
    domain = Domain()
    first = domain.plan([("a", "s"), ("b", "s")], receiver="r1")
    second = domain.plan([("b", "s"), ("c", "s")], receiver="r2", after=(first,))
    assert (first.duplicates, second.duplicates) == ([], [0])
    assert (first.segment.number, second.segment.number) == (1, 2)
    domain.commit(first)
    domain.commit(second)
    assert domain.receive("a", "b", "c") == []


def test_a_plan_changes_nothing_until_it_is_applied():
    """Invariant E6: a commit that failed leaves memory as the store is."""
    domain = Domain()
    domain.receive("a")
    before = window_contents(domain.detector)
    domain.plan([("a", "s"), ("b", "s")])
    assert window_contents(domain.detector) == before
    assert domain.receive("b") == ["b"]


@pytest.mark.parametrize("strange", ["0:", "-1:x", ":", "1", "no\x00body", "line\nbreak", "🐘", "‏ثلاثة", "x" * 512])
def test_92_96_ids_are_opaque(strange):
    domain = Domain()
    assert domain.receive(strange) == [strange]
    assert domain.receive(strange) == []


# --- windows ---


def test_a8_3_id_2001_of_a_source_pushes_the_first_to_the_time_queue():
    domain = Domain()
    domain.receive(*ids(2000))
    assert domain.detector.place("m1") is EntryPlace.WINDOW
    domain.receive("m2001")
    assert domain.detector.place("m1") is EntryPlace.TIME_QUEUE
    assert domain.detector.place("m2") is EntryPlace.WINDOW
    assert domain.receive("m1") == []


def test_a8_3_window_0_keeps_all_ids_in_the_time_queue():
    domain = Domain(window=0)
    domain.receive(*ids(3), at=5.0)
    assert window_contents(domain.detector) == {"windows": {}, "time_queue": {5.0: ["m1", "m2", "m3"]}}
    assert domain.receive("m2", at=6.0) == []


def test_a8_4_expiry_0_forgets_an_id_with_its_window():
    domain = Domain(window=3, expiry=0.0)
    domain.receive(*ids(4))
    assert domain.receive("m1") == ["m1"]
    assert domain.receive("m4") == []


def test_a8_4_expiry_0_bounds_the_stored_ids():
    domain = Domain(window=10, expiry=0.0)
    for number in range(1000):
        domain.receive(f"m{number}", at=float(number))
        assert domain.stored_ids <= 10 + 1 + 1  # what expired with this batch goes with the next transaction


def test_a8_5_ids_without_source_share_one_window():
    domain = Domain(window=4, expiry=0.0)
    domain.receive("x1", "x2", source="")
    domain.receive("y1", "y2", "y3", source="")
    assert domain.receive("x1", source="") == ["x1"]


def test_a8_6_a_busy_source_cannot_expire_the_ids_of_a_silent_one():
    domain = Domain()
    domain.receive("quiet", source="b", at=0.0)
    for minute in range(50):
        domain.receive(*[f"{minute}-{number}" for number in range(2000)], source="a", at=60.0 * minute)
    assert domain.receive("quiet", source="b", at=5 * 3600.0) == []


def test_a8_14_overflow_goes_to_one_time_queue_ordered_by_receipt():
    domain = Domain(window=1)
    domain.receive_pairs([("a1", "a"), ("b1", "b")], at=1.0)
    domain.receive_pairs([("b2", "b")], at=2.0)
    domain.receive_pairs([("a2", "a"), ("b3", "b")], at=3.0)
    assert window_contents(domain.detector) == {
        "windows": {"a": ["a2"], "b": ["b3"]},
        "time_queue": {1.0: ["a1", "b1"], 2.0: ["b2"]},
    }


def test_a8_15_a_repeat_moves_the_old_entry_and_enters_a_new_one_at_the_tail():
    domain = Domain(window=5)
    domain.receive(*ids(5), at=1.0)
    assert domain.receive("m2", at=2.0) == []
    assert window_contents(domain.detector) == {
        "windows": {"s": ["m1", "m3", "m4", "m5", "m2"]},
        "time_queue": {1.0: ["m2"]},
    }


def test_a8_15_a_repeat_arms_the_window_anew():
    domain = Domain(window=3, expiry=0.0)
    domain.receive("a", "b", "c")
    domain.receive("a")
    domain.receive("d", "e")
    assert domain.receive("a") == []
    assert domain.receive("b") == ["b"]


def test_a8_16_an_id_expires_relative_to_the_newest_in_the_time_queue():
    domain = Domain(window=0, expiry=120.0)
    domain.receive("old", at=0.0)
    domain.receive("edge", at=120.0)
    assert domain.detector.place("old") is EntryPlace.TIME_QUEUE
    domain.receive("newer", at=120.5)
    assert domain.detector.place("old") is EntryPlace.GONE
    assert domain.detector.place("edge") is EntryPlace.TIME_QUEUE


def test_a8_16_expired_ids_are_deleted_by_the_next_transaction():
    domain = Domain(window=0, expiry=10.0)
    domain.receive("a", "b", at=0.0)
    domain.receive("c", at=100.0)
    assert sorted(domain.stored) == [1, 2]
    domain.receive("d", at=100.0)
    assert sorted(domain.stored) == [2, 3]


def test_z5_an_idle_domain_forgets_nothing():
    domain = Domain(window=0, expiry=120.0)
    domain.receive("a", at=0.0)
    assert domain.receive("a", at=365 * 86400.0) == []


def test_a6_2_just_inside_the_windows_is_dropped_and_just_outside_is_delivered():
    inside, outside = Domain(window=2, expiry=10.0), Domain(window=2, expiry=10.0)
    for domain, later in ((inside, 10.0), (outside, 10.1)):
        domain.receive("a", at=0.0)
        domain.receive("b", "c", "d", at=later)  # pushes a and, newest in the queue, b
    assert inside.receive("a", at=10.0) == []
    assert outside.receive("a", at=10.1) == ["a"]


def test_t21_98_sources_beyond_the_bound_share_the_time_queue(monkeypatch):
    monkeypatch.setattr(dedup, "MAX_SOURCES", 3)
    domain = Domain(window=2)
    for number in range(5):
        domain.receive(f"m{number}", source=f"source{number}", at=float(number))
    assert list(window_contents(domain.detector)["windows"]) == ["source2", "source3", "source4"]
    assert domain.receive(*[f"m{number}" for number in range(5)], source="other", at=9.0) == []


# --- pins ---


def test_an_expired_id_is_held_until_the_broker_has_the_acknowledgement():
    """Trap T16: a redelivered batch is recognised however small the windows are."""
    domain = Domain(window=10, expiry=0.0)
    batch = ids(1000)
    domain.receive(*batch, confirm=False)
    assert domain.detector.place("m1") is EntryPlace.HELD
    assert domain.receive(*batch, confirm=False) == []
    domain.confirm()
    assert domain.detector.place("m1") is EntryPlace.GONE
    assert len(domain.detector) == 10


def test_a_confirmed_repeat_at_another_receiver_does_not_lift_the_pin():
    domain = Domain(window=1, expiry=0.0)
    domain.receive("a", receiver="r1", confirm=False)
    assert domain.receive("a", receiver="r2") == []
    domain.receive("b", "c", receiver="r2")
    assert domain.receive("a", receiver="r1", confirm=False) == []


def test_messages_that_come_again_at_each_connection_are_stored_only_so_often(monkeypatch):
    """As long as the broker never has their acknowledgement."""
    monkeypatch.setattr(dedup, "SLACK", 0)
    domain = Domain(window=0, expiry=0.0)
    most = 0
    for _ in range(100):
        assert domain.receive("a", "b", "c", confirm=False) in ([], ["a", "b", "c"])
        domain.lose()
        most = max(most, domain.stored_ids)
    assert most <= dedup.SPARSE * 6 + 3
    domain.detector.confirm("r", 99)
    assert "a" in domain.detector
    domain.detector.confirm("r", 100)
    assert "a" not in domain.detector


def test_a_loss_lets_nothing_go_that_another_receiver_may_be_given_again():
    domain = Domain(window=0, expiry=0.0)
    domain.receive("a", receiver="r1", confirm=False)
    domain.receive("a", receiver="r2", confirm=False)
    domain.lose("r1")
    domain.lose("r2")
    domain.detector.confirm("r2", 1)
    assert domain.receive("a", receiver="r1", confirm=False) == []


def test_a_loss_concerns_no_later_batches():
    """They are confirmed before what is in doubt."""
    domain = Domain(window=0, expiry=0.0)
    domain.receive("a", confirm=False)
    domain.lose()
    domain.receive("a", confirm=False)
    domain.detector.doubt("r", 1)
    domain.detector.confirm("r", 2, after=1)
    assert domain.receive("a") == []


def test_batches_are_confirmed_in_order_per_receiver():
    domain = Domain(window=0, expiry=0.0)
    domain.receive("a", receiver="r1", confirm=False)
    domain.receive("b", receiver="r2", confirm=False)
    domain.receive("c", receiver="r1", confirm=False)
    domain.detector.confirm("r1", 1)
    assert [domain.detector.place(one) for one in "abc"] == [EntryPlace.GONE, EntryPlace.HELD, EntryPlace.HELD]


# --- storage ---


def test_when_three_quarters_have_ended_segments_are_replaced_by_their_survivors(monkeypatch):
    monkeypatch.setattr(dedup, "SLACK", 0)
    domain = Domain(window=2, expiry=0.0)
    domain.receive_pairs([*[(one, "busy") for one in ids(8)], ("kept", "quiet")], at=0.0)
    domain.receive("m9", "m10", source="busy")
    domain.receive("m11", "m12", source="busy")
    assert domain.stored_ids == 13, "not worth it yet"
    domain.receive("m13", source="busy")
    assert {number: segment.runs[0].ids for number, segment in domain.stored.items()} == {
        1: ["kept"],
        3: ["m11", "m12"],
        4: ["m13"],
    }


def test_the_oldest_segments_are_deleted_as_soon_as_they_have_ended():
    domain = Domain(window=2, expiry=0.0)
    for number in range(1, 6):
        domain.receive(f"a{number}", f"b{number}")
    assert sorted(domain.stored) == [4, 5]


def test_what_is_held_is_held_again_after_a_restart(monkeypatch):
    """What pushed it out has ended and is deleted before it."""
    monkeypatch.setattr(dedup, "SLACK", 0)
    domain = Domain(window=1, expiry=0.0)
    domain.receive("a", receiver="doubtful", confirm=False)
    for number in range(8):
        domain.receive(f"b{number}")
    assert domain.detector.place("a") is domain.restored().place("a") is EntryPlace.HELD
    domain.confirm("doubtful")
    assert "a" not in domain.restored()


def test_a8_18_stored_ids_reach_a_plateau(monkeypatch):
    domain = Domain(window=50, expiry=100.0)
    peak_before = 0
    monkeypatch.setattr(dedup, "SLACK", 100)
    for number in range(4000):
        domain.receive_pairs([(f"{number}-{n}", f"source{n % 3}") for n in range(7)], at=float(number))
        if number == 1000:
            peak_before = domain.stored_ids
        if number > 1000:
            assert domain.stored_ids <= 1.2 * peak_before
    assert domain.stored_ids <= dedup.SPARSE * len(domain.detector) + dedup.SLACK + 7


def test_a3_5_a_restored_detector_knows_what_the_live_one_knew():
    domain = Domain(window=3, expiry=50.0)
    for number in range(100):
        domain.receive(f"a{number}", f"b{number}", source=f"s{number % 2}", at=3.0 * number)
    assert window_contents(domain.restored()) == window_contents(domain.detector)


@pytest.mark.parametrize(
    ("domains", "held"),
    [({"r": "d"}, True), ({}, False), ({"r": "another"}, False), ({"another": "d"}, False)],
    ids=["as before", "receiver gone", "receiver leads elsewhere", "domain of another receiver"],
)
def test_only_who_may_be_given_a_batch_again_holds_its_ids_over_a_restart(domains, held):
    """An id of a receiver that is gone would be held for ever: no acknowledgement of its batch comes any more."""
    domain = Domain(window=1, expiry=0.0)
    domain.receive("confirmed", "too")
    domain.receive("a", "b", confirm=False)
    restored = DuplicateDetector("d", 1, 0.0)
    for segment in domain.stored.values():
        restored.restore([segment], dedup.surely_acknowledged(segment, domain.confirmed, domains))
    assert ("a" in restored, "b" in restored, "confirmed" in restored) == (held, True, False)


def test_unconfirmed_batches_are_pinned_again_at_a_restart():
    domain = Domain(window=0, expiry=0.0)
    domain.receive("a")
    domain.receive("b", confirm=False)
    restored = domain.restored()
    assert restored.place("b") is EntryPlace.HELD
    assert "a" not in restored


# --- against the model ---

RECEIVERS = st.sampled_from(["r1", "r2"])
SOURCES = st.sampled_from(["", "x", "y"])
PAIRS = st.lists(st.tuples(st.sampled_from([*"abcdefghijkl", ""]), SOURCES), min_size=1, max_size=6)


class Against(RuleBasedStateMachine):
    """The detector beside the model: same duplicates, same windows; and a restart changes nothing."""

    @initialize(
        window=st.integers(0, 3),
        expiry=st.sampled_from([0.0, 2.0, 5.0]),
        slack=st.sampled_from([0, 5, 1000]),
        shared=st.booleans(),
    )
    def begin(self, window, expiry, slack, shared):
        self.domain = Domain(window, expiry)
        self.model = Model(window, expiry)
        self.shared = shared
        self.now = 0.0
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(dedup, "SLACK", slack)
        self.patches.setattr(dedup, "SPARSE", 2)

    def teardown(self):
        self.patches.undo()

    def ids_of(self, pairs, receiver):
        return [(one if self.shared or not one else f"{one}{receiver}", source) for one, source in pairs]

    @rule(pairs=PAIRS, later=st.sampled_from([0.0, 0.5, 1.0, 7.0]), receiver=RECEIVERS)
    def receive(self, pairs, later, receiver):
        self.now += later
        pairs = self.ids_of(pairs, receiver)
        living_before = len(self.model.entries())
        plan = self.domain.plan(pairs, at=self.now, receiver=receiver)
        expected = self.model.receive(pairs, self.now, receiver, self.domain.batches[receiver])
        assert plan.duplicates == expected
        self.domain.commit(plan)
        assert self.domain.stored_ids <= dedup.SPARSE * living_before + dedup.SLACK + len(pairs)

    @rule(pairs=PAIRS)
    def fail_to_commit(self, pairs):
        self.domain.plan(self.ids_of(pairs, "r1"), at=self.now)

    @rule(receiver=RECEIVERS)
    def confirm(self, receiver):
        self.domain.confirm(receiver)
        self.model.confirm(receiver, self.domain.confirmed[receiver])

    @rule(receiver=RECEIVERS)
    def lose(self, receiver):
        self.domain.lose(receiver)
        self.model.lose(receiver)

    @rule()
    def restart(self):
        self.domain.detector = self.domain.restored()
        for receiver in ("r1", "r2"):
            self.lose(receiver)

    @invariant()
    def the_same_is_remembered(self):
        known = {entry.id for entry in self.model.entries()}
        for detector in (self.domain.detector, self.domain.restored()):
            assert len(detector) == len(known)
            assert all(one in detector for one in known)
            self.compare(detector)

    def compare(self, detector):
        queue: dict[float, list[str]] = {}
        for entry in self.model.time_queue:
            queue.setdefault(entry.time, []).append(entry.id)
        contents = window_contents(detector)
        assert contents["windows"] == {
            source: [entry.id for entry in window] for source, window in self.model.windows.items() if window
        }
        assert contents["time_queue"] == {time: sorted(found) for time, found in queue.items()}


TestAgainstModel = Against.TestCase
TestAgainstModel.settings = settings(max_examples=150, stateful_step_count=25)
