"""How long messages wait, from looks at their numbers."""

import threading
from contextlib import nullcontext
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.core import ages
from correlator.core.ages import Age, Ages


def test_the_first_that_has_not_left_counts():
    age = Age()
    assert age.look(0.0, 0, 0) == 0
    assert age.look(1.0, 0, 5) == 0  # they came just now, as far as anybody knows
    assert age.look(2.0, 0, 9) == 1.0
    assert age.look(3.0, 4, 9) == 2.0
    assert age.look(4.0, 5, 9) == 2.0  # 6 to 9 had come at the look at 2.0
    assert age.look(9.0, 9, 9) == 0


def test_a_number_that_was_read_too_large_makes_nobody_younger():
    age = Age()
    age.look(1.0, 0, 3)
    assert age.look(2.0, 0, 2) == 1.0
    assert age.look(3.0, 0, 3) == 2.0


def test_numbers_that_begin_anew_are_a_new_beginning():
    age = Age()
    age.look(1.0, 0, 100)
    assert age.look(5.0, 0, 0) == 0
    assert age.look(6.0, 0, 1) == 0
    assert age.look(7.0, 0, 1) == 1.0


def test_after_a_week_without_progress_the_age_is_still_right_within_two_hundredths():
    """One message comes at each look, and none leaves; then those of the first days leave."""
    age, week = Age(), 7 * 24 * 60
    for minute in range(week):
        assert age.look(minute * 60.0, 0, minute) >= 0
    for day in range(1, 7):
        left = day * 24 * 60
        true = (week - left) * 60.0
        assert true - 0.02 * week * 60 <= age.look(week * 60.0, left, week) <= true


STEPS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)


@pytest.mark.parametrize("most", [256, 4])
@given(steps=STEPS)
def test_the_age_is_the_true_one_or_less_by_at_most_the_time_between_two_looks(most, steps):
    """Messages come between two looks, at the worst moment: just after the look before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ages, "MOST_MARKS", most)
        age, came_at, left, now, looks = Age(), [], 0, 0.0, [0.0]
        for seconds, come, leave in steps:
            came_at += [now] * come
            now += seconds
            looks.append(now)
            left = min(len(came_at), left + leave)
            found = age.look(now, left, len(came_at))
            true = now - came_at[left] if left < len(came_at) else 0.0
            gap = max(later - earlier for earlier, later in pairwise(looks))
            assert found <= true
            assert len(age._marks) <= most + 1
            if most > len(steps):
                assert found >= true - gap


def test_names_that_are_gone_are_forgotten():
    both = Ages(nullcontext())
    both.look(0.0, {"a": (0, 1), "b": (0, 1)})
    assert both.look(1.0, {"a": (0, 1)}) == {"a": 1.0}
    assert both.look(2.0, {"a": (0, 1), "b": (0, 1)}) == {"a": 2.0, "b": 0.0}


def test_the_lock_is_held_during_a_look():
    lock = threading.Lock()

    class Asks(dict):
        def items(self):
            assert lock.locked()
            return super().items()

    Ages(lock).look(0.0, Asks(a=(0, 1)))
    assert not lock.locked()
