"""How long the oldest waiting message has waited: found out from counts, never too large, soon exact."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.core.ages import MOST_MARKS, Ages
from correlator.core.outbox import FlushRequest
from correlator.reliability import Reliability
from tests.core.test_outbox import an_outbox, checkpoint, refused, sends


class Queue:
    """A queue that knows when each of its messages came."""

    def __init__(self) -> None:
        self.ages = Ages(contextlib.nullcontext())
        self.now = 0.0
        self.came: list[float] = []
        self.gone = 0

    def put(self, count: int = 1) -> None:
        self.came += [self.now] * count

    def take(self, count: int = 1) -> None:
        self.gone = min(len(self.came), self.gone + count)

    def look(self) -> float:
        return self.ages.look(self.now, {"q": (self.gone, len(self.came))})["q"]

    @property
    def true_age(self) -> float:
        return self.now - self.came[self.gone] if self.gone < len(self.came) else 0.0


def test_a_message_is_as_old_as_the_look_that_has_first_counted_it():
    queue = Queue()
    assert queue.look() == 0
    queue.put()
    queue.now = 2.0
    assert queue.look() == 0
    queue.now = 5.0
    queue.put()
    assert queue.look() == 3
    queue.take()
    queue.now = 9.0
    assert queue.look() == 4
    queue.take()
    assert queue.look() == 0


def test_a_queue_that_is_never_empty_and_moves_on_is_young():
    queue = Queue()
    for _ in range(1000):
        queue.now += 1
        queue.put(10)
        assert queue.look() <= 2
        queue.take(10 if queue.gone else 5)
    assert queue.true_age <= 2


def test_a_queue_that_stands_still_for_a_week_keeps_few_marks():
    queue = Queue()
    for _ in range(7 * 24 * 60):
        queue.put()
        queue.look()
        queue.now += 60
    assert queue.look() == queue.true_age == 7 * 24 * 3600
    assert len(queue.ages._ages["q"]._marks) <= MOST_MARKS
    queue.take(3 * 24 * 60)
    assert 0 < queue.look() <= queue.true_age


def test_a_part_that_comes_back_begins_anew():
    ages = Ages(contextlib.nullcontext())
    ages.look(0.0, {"a": (0, 1), "b": (0, 1)})
    assert ages.look(10.0, {"b": (0, 1)}) == {"b": 10.0}
    assert ages.look(20.0, {"a": (0, 1), "b": (0, 1)}) == {"a": 0.0, "b": 20.0}


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "look"]), st.integers(0, 5), st.floats(0, 3))))
def test_the_age_is_never_too_large_and_too_small_by_one_look_at_most(steps):
    queue, last, between = Queue(), 0.0, 0.0
    for what, count, passed in steps:
        queue.now += passed
        if what == "look":
            between = max(between, queue.now - last)
            last = queue.now
            age = queue.look()
            assert age <= queue.true_age
            assert age >= queue.true_age - between - 1e-9
        else:
            getattr(queue, what)(count)


@pytest.mark.parametrize("reliability", [Reliability.EXACTLY_ONCE, Reliability.AT_LEAST_ONCE])
def test_a_send_that_is_tried_again_is_the_oldest_one_although_later_ones_are_confirmed(reliability):
    outbox = an_outbox(reliability)
    assert outbox.numbers == (0, 0)
    checkpoint(outbox, "a", "b", "c")
    assert outbox.numbers == (0, 3)
    batch = outbox.take(3)
    outbox.settle(batch, [], [batch[1]])
    assert outbox.numbers == (1, 3)
    outbox.settle_refused([batch[1]], [refused(2)])
    assert outbox.numbers == (3, 3)


def test_sends_of_best_effort_count_before_they_leave_and_flush_requests_do_no_harm():
    outbox = an_outbox(Reliability.BEST_EFFORT)
    for item in (*sends("a", "b"), FlushRequest(1, "main")):
        outbox.enqueue(item)
    assert outbox.numbers[0] == 0
    outbox.settle(outbox.take(10), [])
    assert outbox.take_flush() is not None
    assert outbox.numbers == (2, 2)
