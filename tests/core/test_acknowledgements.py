"""What a broker surely knows to be done, and what it may give again (trap T42)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.core.acknowledgements import Acknowledgements


def made(*, answered: bool = False, written_within_s: float = 0.0, sure_through: int = 10) -> Acknowledgements:
    return Acknowledgements(sure_through, sure_through, answered=answered, written_within_s=written_within_s)


def test_a_broker_that_answers_has_what_it_was_told():
    """Whatever else it is said to be: nothing stays in doubt behind the call."""
    one = made(answered=True, written_within_s=5.0)
    one.add(11, 3, 0.0, settles=True)
    assert (one.sure_through, one.lose(11)) == (11, 0)


def test_one_that_does_not_answer_has_it_with_the_next_two():
    one = made()
    sure = []
    for number in range(11, 15):
        one.add(number, 3, 0.0, settles=True)
        sure.append(one.sure_through)
    assert sure == [10, 10, 11, 12]
    assert one.lose(14) == 2 * 3


@pytest.mark.parametrize(
    ("follower", "last", "sure"), [(1.9, 9.0, 10), (2.0, 3.9, 10), (2.0, 4.0, 11), (2.0, 9.0, 11), (9.0, 9.0, 10)]
)
def test_one_that_takes_and_writes_late_needs_a_later_one_for_each(follower: float, last: float, sure: int):
    """The last one may itself be lost; the one before it proves something only when the broker has taken it."""
    one = made(written_within_s=2.0)
    one.add(11, 1, 100.0, settles=True)
    one.add(12, 1, 100.0 + follower, settles=True)
    assert one.sure_through == 10
    one.add(13, 1, 100.0 + last, settles=True)
    assert one.sure_through == sure


def test_a_connection_proves_nothing_of_another_one():
    one = made(written_within_s=2.0)
    for number, at in ((11, 0.0), (12, 10.0)):
        one.add(number, 1, at, settles=True)
    one.lose(12)
    one.add(13, 1, 20.0, settles=True)
    one.add(14, 1, 20.5, settles=True)
    assert one.sure_through == 10


def test_what_came_again_is_sure_when_its_repeat_is():
    """Given a loss, then batches with what was in doubt: their acknowledgements may be lost as well."""
    one = made()
    for number, settles in ((11, True), (12, True)):
        one.add(number, 4, 0.0, settles=settles)
    assert one.lose(12) == 8
    sure = []
    for number, settles in ((13, False), (14, True), (15, True), (16, True)):
        one.add(number, 4, 0.0, settles=settles)
        sure.append(one.sure_through)
    assert sure == [10, 10, 10, 14]


def test_what_is_sure_behind_a_doubt_is_told_apart_from_it():
    """Given batches 11 and 12 in doubt, when later ones are acknowledged, then those are sure and these are not."""
    one = made()
    one.lose(12)
    assert one.sure == (10, 12, 12)
    for number in (13, 14, 15):
        one.add(number, 1, 0.0, settles=False)
    assert one.sure == (10, 12, 13)
    one.lose(15)
    assert one.sure == (10, 15, 15)


@given(
    st.booleans(),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans(), st.booleans()), max_size=40),
)
def test_nothing_is_sure_without_what_makes_it_so(answered, within, steps):
    """A batch is sure behind two later ones of its connection, each so much younger than the one before it."""
    one = made(answered=answered, written_within_s=within, sure_through=0)
    now, connection, best = 0.0, [], 0
    for number, (size, pause, settles, loses) in enumerate(steps, 1):
        if loses:
            one.lose(number - 1)
            connection.clear()
        now += pause
        one.add(number, size, now, settles=settles)
        connection.append((number, now, settles))
        for at, (known, begun, good) in enumerate(connection):
            proven = any(then - begun >= within and then <= now - within for _, then, _ in connection[at + 1 : -1])
            if good and (answered or proven):
                best = max(best, known)
        assert one.sure_through == best
