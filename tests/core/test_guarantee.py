"""The promise of a path, for every pair of modes and every feature of a broker (docs/guarantees.md; rule Z9)."""

import itertools
from dataclasses import replace

import pytest

from correlator.connector import Features
from correlator.core.guarantee import Grade, PathEnd, PathMiddle, guarantee, needs
from correlator.reliability import Reliability

BEST_EFFORT, AT_LEAST_ONCE, EXACTLY_ONCE, APP_CONTROLLED = Reliability
LOSES, REPEATS, WITH_ID, ONCE = Grade
GOOD = Features(acknowledges_surely=True, deduplicates_sends=True)
PLAIN = Features()
MIDDLE = PathMiddle("context main")

# Receiver, sender: the grade with a broker that deduplicates sends, and with one that does not.
GRADES = {
    (BEST_EFFORT, BEST_EFFORT): (LOSES, LOSES),
    (BEST_EFFORT, AT_LEAST_ONCE): (LOSES, LOSES),
    (BEST_EFFORT, EXACTLY_ONCE): (LOSES, LOSES),
    (AT_LEAST_ONCE, BEST_EFFORT): (LOSES, LOSES),
    (AT_LEAST_ONCE, AT_LEAST_ONCE): (REPEATS, REPEATS),
    (AT_LEAST_ONCE, EXACTLY_ONCE): (REPEATS, REPEATS),
    (EXACTLY_ONCE, BEST_EFFORT): (LOSES, LOSES),
    (EXACTLY_ONCE, AT_LEAST_ONCE): (REPEATS, REPEATS),
    (EXACTLY_ONCE, EXACTLY_ONCE): (ONCE, WITH_ID),
    (APP_CONTROLLED, BEST_EFFORT): (REPEATS, REPEATS),
    (APP_CONTROLLED, AT_LEAST_ONCE): (LOSES, LOSES),
    (APP_CONTROLLED, EXACTLY_ONCE): (LOSES, LOSES),
}
ALONE = {BEST_EFFORT: LOSES, AT_LEAST_ONCE: REPEATS, EXACTLY_ONCE: ONCE, APP_CONTROLLED: REPEATS}


def path(receive, send, source=GOOD, sink=GOOD, middle=MIDDLE):
    sender = PathEnd("out", send, "sink", sink) if send else None
    return PathEnd("in", receive, "source", source), middle, sender


def test_every_pair_of_modes_is_in_the_table():
    senders = [mode for mode in Reliability if mode is not APP_CONTROLLED]
    assert set(GRADES) == set(itertools.product(Reliability, senders))


@pytest.mark.parametrize(("pair", "grades"), GRADES.items())
def test_z9_a_path_promises_what_its_weakest_link_does(pair, grades):
    found = [guarantee(*path(*pair, sink=sink)).grade for sink in (GOOD, PLAIN)]
    assert found == list(grades)


@pytest.mark.parametrize(("mode", "grade"), ALONE.items())
def test_a_path_that_sends_nothing(mode, grade):
    promise = guarantee(*path(mode, None))
    assert promise.grade is grade
    assert promise.weakest.part == "receiver 'in'"


@pytest.mark.parametrize("pair", GRADES)
@pytest.mark.parametrize("feature", ["durable", "redelivers"])
def test_a_broker_that_forgets_is_the_weakest_link_of_reliable_receivers(pair, feature):
    promise = guarantee(*path(*pair, source=replace(GOOD, **{feature: False})))
    assert promise.grade is LOSES
    expected = "receiver 'in'" if pair[0] is BEST_EFFORT else "connection 'source'"
    assert promise.weakest.part == expected


@pytest.mark.parametrize("pair", GRADES)
def test_senders_that_wait_for_an_answer_lose_nothing_if_they_repeat(pair):
    answers = replace(GOOD, redelivers=False, answers=True)
    receiver, _, sender = path(*pair, source=answers)
    assert guarantee(*path(*pair, source=answers)).grade is guarantee(*path(*pair)).grade
    asks = "clients that repeat each request until it is answered" in needs(receiver, sender)
    assert asks is (pair[0] is not BEST_EFFORT)


@pytest.mark.parametrize("pair", GRADES)
def test_a_broker_that_forgets_what_it_was_sent(pair):
    promise = guarantee(*path(*pair, sink=replace(GOOD, durable=False)))
    assert promise.grade is (REPEATS if pair == (APP_CONTROLLED, BEST_EFFORT) else LOSES)
    if pair in ((EXACTLY_ONCE, EXACTLY_ONCE), (AT_LEAST_ONCE, EXACTLY_ONCE)):
        assert promise.weakest.part == "connection 'sink'"


@pytest.mark.parametrize(
    ("pair", "part", "why"),
    [
        ((EXACTLY_ONCE, BEST_EFFORT), "sender 'out'", "in memory only"),
        ((EXACTLY_ONCE, AT_LEAST_ONCE), "sender 'out'", "without an id"),
        ((AT_LEAST_ONCE, AT_LEAST_ONCE), "receiver 'in'", "does not recognise a repeat"),
        ((APP_CONTROLLED, EXACTLY_ONCE), "receiver 'in'", "before the checkpoint"),
    ],
)
def test_the_weakest_link_is_named(pair, part, why):
    weakest = guarantee(*path(*pair)).weakest
    assert weakest.part == part
    assert why in weakest.why


def test_a_repeat_that_arrives_must_be_dropped_by_its_id():
    ends = path(EXACTLY_ONCE, EXACTLY_ONCE, sink=PLAIN)
    assert "must deduplicate by the id" in guarantee(*ends).sentence
    assert "consumers that drop repeats by the id" in needs(ends[0], ends[2])
    assert "consumers that drop repeats by the id" not in needs(ends[0], path(EXACTLY_ONCE, EXACTLY_ONCE)[2])


@pytest.mark.parametrize(
    ("receive", "send", "expected"),
    [
        (BEST_EFFORT, BEST_EFFORT, []),
        (BEST_EFFORT, AT_LEAST_ONCE, ["a store"]),
        (AT_LEAST_ONCE, None, ["a store"]),
        (APP_CONTROLLED, None, ["an application that calls acknowledge_and_resume()"]),
    ],
)
def test_what_a_path_needs(receive, send, expected):
    receiver, _, sender = path(receive, send)
    assert needs(receiver, sender) == expected


def test_what_else_its_user_should_know():
    first, second, third = guarantee(
        *path(EXACTLY_ONCE, AT_LEAST_ONCE, source=PLAIN, middle=PathMiddle("context main", ["Counts"]))
    ).notes
    assert first.startswith("State of Counts is not part of checkpoints")
    assert "does not confirm acknowledgements" in second
    assert "leave after the checkpoint" in third
    assert guarantee(*path(BEST_EFFORT, BEST_EFFORT, source=PLAIN)).notes == []
