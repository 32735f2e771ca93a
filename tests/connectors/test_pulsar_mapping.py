"""The partition of each priority, and the order in which messages leave the memory of a source (rule S4.5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.pulsar.priorities import LINEAR, MAPPINGS, NON_LINEAR, PriorityBuffer, partition_of

PRIORITIES = range(10)
SHARES = [share / 1000 for share in range(1000)]
LOW, DEFAULT, HIGH = 4, 1, 5
"""How many priorities there are of each."""


def classes(low, default, high):
    return [low] * LOW + [default] * DEFAULT + [high] * HIGH


def span(first, last):
    return set(range(first, last + 1))


STARLIGHT = {
    (LINEAR, 1): [{0}] * 10,
    (LINEAR, 2): classes({0}, {0}, {1}),
    (LINEAR, 3): classes({0}, {1}, {2}),
    (LINEAR, 4): [{0}, {0}, {0}, {1}, {1}, {2}, {2}, {2}, {3}, {3}],
    (LINEAR, 10): [{partition} for partition in range(10)],
    (LINEAR, 18): [span(first, first + 1) for first in (0, 1, 3, 5, 7, 9, 10, 12, 14, 16)],
    (LINEAR, 20): [span(2 * priority, 2 * priority + 1) for priority in PRIORITIES],
    (NON_LINEAR, 1): [{0}] * 10,
    (NON_LINEAR, 2): classes({0}, {0}, {1}),
    (NON_LINEAR, 3): classes({0}, {1}, {2}),
    (NON_LINEAR, 4): classes({0}, {1, 2}, {3}),
    (NON_LINEAR, 9): classes(span(0, 2), span(3, 7), span(7, 8)),
    (NON_LINEAR, 10): classes(span(0, 2), span(3, 7), span(8, 9)),
    (NON_LINEAR, 18): classes(span(0, 4), span(5, 13), span(14, 17)),
    (NON_LINEAR, 20): classes(span(0, 4), span(5, 14), span(15, 19)),
}
"""Partitions of the priorities 0 to 9, as the tests of Starlight for JMS have them."""


@pytest.mark.parametrize(("mapping", "partitions"), STARLIGHT)
def test_s4_5_a_priority_has_the_partitions_that_starlight_gives_it(mapping, partitions):
    reached = [{partition_of(one, share, partitions, mapping) for share in SHARES} for one in PRIORITIES]
    assert reached == STARLIGHT[mapping, partitions]


anything = (st.integers(-5, 2**31), st.floats(0, 1, exclude_max=True), st.integers(1, 1000), st.sampled_from(MAPPINGS))


@given(*anything)
def test_s4_5_every_priority_has_a_partition_that_is_there(priority, share, partitions, mapping):
    partition = partition_of(priority, share, partitions, mapping)
    assert partition in range(partitions)
    assert partition == partition_of(min(max(priority, 0), 9), share, partitions, mapping)


@given(*anything)
def test_s4_5_a_higher_priority_has_no_lower_partition(priority, share, partitions, mapping):
    assert partition_of(priority, share, partitions, mapping) <= partition_of(priority + 1, share, partitions, mapping)


# --- what waits ---


def waiting(priorities, most):
    made = PriorityBuffer(most)
    for number, priority in enumerate(priorities):
        made.add((priority, number), priority, 1)
    return made


@given(st.lists(st.integers(0, 9), max_size=50))
def test_s4_5_of_what_may_wait_the_higher_goes_first_and_of_one_priority_the_earlier(priorities):
    among = waiting(priorities, max(1, len(priorities)))
    left = list(among.take(100, 100))
    assert left == sorted(left, key=lambda one: (-one[0], one[1]))
    assert len(left) == len(priorities)
    assert (len(among), among.size) == (0, 0)


@given(st.lists(st.integers(-1, 11), max_size=300), st.integers(1, 20))
def test_s4_5_nothing_waits_for_ever(priorities, most):
    """For each message that comes one leaves, however high the priorities of the others are."""
    among, left = PriorityBuffer(most), []
    for number, priority in enumerate(priorities):
        among.add((priority, number), priority, 1)
        if among.room == 0:
            left += among.take(1, 100)
    left += among.take(len(priorities), len(priorities))
    assert sorted(number for _, number in left) == list(range(len(priorities)))
    for at, (_, number) in enumerate(left):
        assert sum(other > number for _, other in left[:at]) <= 9 * most


def test_s4_5_what_leaves_together_is_bounded_by_number_and_bytes():
    among = PriorityBuffer(4)
    for name, size in (("a", 5), ("b", 6), ("c", 1)):
        among.add(name, 4, size)
    assert (len(among), among.room, among.size) == (3, 1, 12)
    assert list(among.take(0, 100)) == []
    assert list(among.take(3, 6)) == ["a", "b"]
    assert (len(among), among.room, among.size) == (1, 3, 1)
    assert list(among.take(1, 1)) == ["c"]
