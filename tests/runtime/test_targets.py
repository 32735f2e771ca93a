"""The contexts that a receiver delivers to."""

from correlator.core.queue import InputQueue, Run
from correlator.events import Message
from correlator.runtime.targets import Targets


def two_queues(most: int = 3, full: str | None = None) -> tuple[InputQueue, InputQueue, list[str], Targets]:
    one, other, woken = InputQueue(), InputQueue(), []
    queues = [("one", one, lambda: woken.append("one")), ("other", other, lambda: woken.append("other"))]
    return one, other, woken, Targets(queues, most, lambda: full, lambda: None)


def a_run(count: int) -> Run:
    messages = [Message(b"")] * count
    return Run("in", 1, messages, messages, stored=True)


def test_a_run_goes_to_each_context_and_wakes_it():
    one, other, woken, targets = two_queues()
    targets.deliver(lambda: a_run(3))
    assert (one.backlog("in"), other.backlog("in"), woken) == (3, 3, ["one", "other"])


def test_the_slowest_context_holds_the_receiver_back():
    one, _, _, targets = two_queues()
    assert targets.back_pressure("in") == ""
    one.deliver(a_run(3))
    assert targets.back_pressure("in") == "queue:one"
    assert targets.back_pressure("another") == ""


def test_a_full_outbox_holds_the_receiver_back():
    _, other, _, targets = two_queues(most=4, full="bills")
    other.deliver(a_run(3))
    assert targets.back_pressure("in") == "outbox:bills"
