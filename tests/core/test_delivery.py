"""Who is given what of a receiver's messages when the contexts of the configuration change."""

import pytest

from correlator.core.commit import ContextCut, QueueRun, ReceiveSegment
from correlator.core.delivery import Layout, Received, compare_deliveries, deliveries, layout_of, with_deliveries
from correlator.core.differences import Verdict
from correlator.core.recovery import ReceiveLog
from correlator.core.registry import endpoint_of
from correlator.errors import RecoveryRefused
from correlator.events import Message
from correlator.reliability import Reliability
from correlator.settings import MonitorSettings
from tests.core.test_reconcile import RECEIVER, SENDER, changed

R1 = endpoint_of(RECEIVER, dynamic=False)
LAYOUT = Layout(["main", "audit"], {"b": ["r1", "r2"], "c": ["r3"]})
HANDLED = ContextCut("b", {"r1": 30}, [])


def compared(before, layout=LAYOUT, received=None):
    found = compare_deliveries([with_deliveries(R1, before)], layout, received or Received())
    return found, deliveries(found).get("r1")


def test_a_receiver_delivers_to_the_pipelines_that_name_it_else_to_all_monitors():
    assert LAYOUT.targets("r1") == ["b"]
    assert LAYOUT.targets("r9") == ["main", "audit"]
    assert LAYOUT.contexts == ["main", "audit", "b", "c"]


@pytest.mark.parametrize(
    ("monitors", "pipelines", "names"),
    [((), {}, ["main"]), (("a", "b", "a"), {}, ["a", "b"]), ((), {"p": ["r"]}, []), (("a",), {"p": ["r"]}, ["a"])],
)
def test_an_engine_with_nothing_else_has_one_context(monitors, pipelines, names):
    made = layout_of([MonitorSettings(type="m:M", context=one) for one in monitors], pipelines)
    assert list(made.monitors) == names


@pytest.mark.parametrize(
    ("before", "received", "after", "verdicts"),
    [
        ({}, Received(), {"b": 0}, {"b": Verdict.NEW}),
        ({"b": 7}, Received(), {"b": 7}, {"b": Verdict.UNCHANGED}),
        ({"a": 0}, Received([ContextCut("a", {"r1": 30}, [])]), {"b": 30}, {"a": Verdict.CHANGED, "b": Verdict.NEW}),
        (
            {"b": 0, "a": 30},
            Received([HANDLED], {}, {"r1": 30}),
            {"b": 0},
            {"a": Verdict.CHANGED, "b": Verdict.UNCHANGED},
        ),
    ],
    ids=["new", "as it was", "renamed", "taken from one"],
)
def test_what_is_recorded(before, received, after, verdicts):
    found, contexts = compared(before, received=received)
    assert contexts == after
    assert {one.context: one.verdict for one in found} == verdicts
    assert not [refusal for one in found for refusal in one.refusals]


WAITING = ContextCut("a", {"r1": 30}, [QueueRun("r1", 21, 10), QueueRun("r2", 1, 4)])


@pytest.mark.parametrize(
    ("received", "count"),
    [
        (Received([WAITING]), 10),
        (Received([WAITING], {}, {"r1": 33}), 13),
        (Received((), {}, {"r1": 5}), 5),
        (Received([ContextCut("a", {}, [])], {"r1": 2}, {"r1": 5}), 3),
    ],
    ids=["waiting", "waiting and after the checkpoint", "before the first checkpoint", "never entered"],
)
@pytest.mark.parametrize(("monitors", "code"), [(["a"], "E4316"), ([], "E4315")])
def test_a_context_that_has_not_handled_all_keeps_the_receiver(received, count, monitors, code):
    found, contexts = compared({"a": 0, "b": 0}, LAYOUT._replace(monitors=monitors), received)
    (refusal,) = [refusal for one in found for refusal in one.refusals]
    assert refusal.code == code
    assert f"context 'a': has not handled {count} messages of receiver 'r1'" in str(refusal)
    assert contexts == {"b": 0}


def test_a_context_that_forgot_a_receiver_goes_on_behind_what_all_have_handled():
    """A removal that its engine did not survive: the checkpoint knows the receiver no more, the registry does."""
    received = Received([ContextCut("main", {"r2": 4}, [])], {"r1": 3}, {"r1": 5})
    assert received.entered("main", "r1", 0) == 3
    assert received.unhandled("main", "r1", 0) == 2
    assert received.entered("main", "r2", 7) == 7


def test_what_came_before_a_context_was_there_is_not_missed():
    _, contexts = compared({"b": 0, "a": 30}, received=Received([HANDLED], {}, {"r1": 30}))
    assert contexts == {"b": 0}


def test_a_store_from_before_this_was_recorded_goes_on_as_it_did():
    """Its contexts are given the whole receive log; one that has waiting messages keeps them."""
    _, contexts = compared({}, received=Received((), {"r1": 12}, {"r1": 20}))
    assert contexts == {"b": 12}
    found, _ = compared({}, received=Received([WAITING], {"r1": 12}, {"r1": 20}))
    assert [one.verdict for one in found] == [Verdict.NEW, Verdict.REFUSED]


@pytest.mark.parametrize(
    "endpoint",
    [
        endpoint_of(SENDER, dynamic=False),
        endpoint_of(changed(RECEIVER, reliability=Reliability.BEST_EFFORT), dynamic=False),
        endpoint_of(changed(RECEIVER, reliability=Reliability.APP_CONTROLLED), dynamic=False),
    ],
)
def test_only_receivers_whose_messages_are_stored_are_recorded(endpoint):
    assert compare_deliveries([endpoint], LAYOUT, Received()) == []


def a_log(*firsts: int) -> ReceiveLog:
    return ReceiveLog([ReceiveSegment("r1", first, [Message(b"")] * 2) for first in firsts])


def test_a_gap_in_the_receive_log_is_never_passed_over():
    assert [(first, len(ones)) for first, ones in a_log(3, 5).beyond("a", "r1", 3)] == [(4, 1), (5, 2)]
    for log, entered, expected, found in ((a_log(3, 7), 4, 4, 2), (a_log(3, 5), 1, 5, 4)):
        with pytest.raises(RecoveryRefused) as refused:
            list(log.beyond("a", "r1", entered))
        assert refused.value.code == "E4204"
        assert f"context 'a': {expected} messages of receiver 'r1'" in str(refused.value)
        assert f"holds {found} of them" in str(refused.value)
