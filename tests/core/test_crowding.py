"""A context that sends more than another one handles lets that one catch up."""

import pytest

from correlator.core import crowding
from correlator.core.crowding import Crowding
from correlator.core.queue import InputQueue, Run


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "CROWDED", 3)


def fill(queue: InputQueue, count: int) -> None:
    for number in range(count):
        queue.deliver(Run("", 0, (), (number,), stored=True))


def handle(queue: InputQueue, count: int) -> None:
    for _ in range(count):
        run = queue.head()
        assert run is not None
        queue.advance(run, 1)


def a_crowding(own: int, other: int) -> tuple[Crowding, InputQueue]:
    """After a send to another queue, with so many runs in each."""
    mine, queue = InputQueue(), InputQueue()
    fill(mine, own)
    fill(queue, other)
    crowding = Crowding(mine)
    crowding.sends_to(queue)
    return crowding, queue


@pytest.mark.parametrize(("own", "other", "crowds"), [(0, 2, False), (0, 3, True), (5, 5, False), (5, 6, True)])
def test_a_queue_is_waited_for_when_it_is_crowded_and_the_fuller_one(own: int, other: int, crowds: bool) -> None:
    assert a_crowding(own, other)[0].crowds() is crowds


def test_a_queue_that_has_room_again_is_waited_for_no_longer() -> None:
    crowding, queue = a_crowding(0, 4)
    assert crowding.crowds()
    handle(queue, 2)
    assert not crowding.crowds()
    fill(queue, 9)
    assert not crowding.crowds()  # others have filled it: this context has not sent to it since


def test_a_queue_that_others_keep_full_is_waited_for_until_what_was_there_is_handled() -> None:
    crowding, queue = a_crowding(0, 4)
    for _ in range(4):
        assert crowding.crowds()
        handle(queue, 1)
        fill(queue, 1)
    assert not crowding.crowds()


def test_two_contexts_never_wait_for_each_other() -> None:
    one, other = InputQueue(), InputQueue()
    fill(one, 4)
    fill(other, 4)
    first, second = Crowding(one), Crowding(other)
    first.sends_to(other)
    second.sends_to(one)
    assert (first.crowds(), second.crowds()) == (False, False)
    fill(other, 1)
    first.sends_to(other)
    second.sends_to(one)
    assert (first.crowds(), second.crowds()) == (True, False)
