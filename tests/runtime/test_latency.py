"""How long messages take from the handler that sends them to the confirm of the broker (docs/status.md)."""

import pytest

from correlator.core.commit import OutboundSegment
from correlator.errors import SendRejected
from correlator.events import Message, Outgoing
from correlator.runtime.latency import MOST_NOTES, SHARE, Latency, StagingTimes, numbered
from correlator.testing.clock import ManualClock
from tests.runtime.flows import Keeps
from tests.runtime.world import BEST_EFFORT, EXACTLY_ONCE, receiver, sender

STAGED = [Message(b"")] * 1000
REFUSED = SendRejected("E8001", "queue:out", "is full")


def sends(first, last):
    return [Outgoing(number, "s", "queue:out", Message(b"")) for number in range(first, last + 1)]


def confirm(latency, first, last, now, refused=(), *, again=False):
    results = [REFUSED if number in refused else None for number in range(first, last + 1)]
    latency.confirmed(sends(first, last), results, again=again, now=now)


def test_each_send_has_the_time_of_the_last_note_before_it():
    times = StagingTimes()
    times.note(5.0, {})
    times.note(5.005, {"a": STAGED[:1]})  # too soon after the first
    times.note(6.0, {"a": STAGED[:2]})
    times.note(7.0, {"a": STAGED[:2], "b": STAGED[:3]})
    taken = times.take(8.0, {"a": STAGED[:4], "b": STAGED[:3]})
    assert taken == {"a": [(2, 5.0), (2, 7.0)], "b": [(3, 6.0)]}
    assert times.take(9.0, {"a": STAGED[:2]}) == {"a": [(2, 9.0)]}


def test_a_context_has_few_notes_although_no_cut_comes():
    times = StagingTimes()
    for number in range(20 * MOST_NOTES):
        times.note(float(number), {"a": STAGED[: min(number, 1000)]})
    runs = times.take(1e6, {"a": STAGED})["a"]
    assert len(runs) <= MOST_NOTES
    assert sum(count for count, _ in runs) == 1000
    begin = 0
    for count, since in runs:  # never too late; each send n was staged after note n
        assert since <= begin
        begin += count


def test_the_runs_of_all_contexts_follow_each_other_as_in_the_cut():
    outbound = [OutboundSegment("a", 7, STAGED[:3], ""), OutboundSegment("a", 10, STAGED[:1], "")]
    taken = [{"a": [(1, 1.0)]}, {"b": [(5, 1.5)]}, {"a": [(2, 2.0), (1, 3.0)]}]
    assert list(numbered(taken, outbound)) == [("a", 7, [(1, 1.0), (2, 2.0), (1, 3.0)])]


def test_confirmed_sends_are_counted_by_their_times():
    latency = Latency()
    latency.add(1, [(2, 10.0), (3, 10.5)])
    confirm(latency, 1, 3, 10.6)
    found = latency.counters()
    assert (found.confirmed, found.within["0.05"], found.within["0.5"], found.within["1"]) == (3, 0, 1, 3)
    assert found.within["0.25"] == 1
    assert found.total_s == pytest.approx(0.6 + 0.6 + 0.1)
    confirm(latency, 4, 5, 100.0)
    assert latency.counters().confirmed == 5
    assert latency.counters().within["30"] == 3


def test_a_refused_send_counts_when_it_is_confirmed_and_those_after_it_do_not_wait():
    latency = Latency()
    latency.add(1, [(4, 0.0)])
    confirm(latency, 1, 4, 1.0, refused=(2, 3))
    assert (latency.counters().confirmed, latency.counters().total_s) == (2, 2.0)
    confirm(latency, 2, 3, 5.0, refused=(3,), again=True)
    assert (latency.counters().confirmed, latency.counters().total_s) == (3, 7.0)
    latency.forget(sends(3, 3))
    confirm(latency, 3, 3, 9.0, again=True)
    assert latency.counters().confirmed == 3


def test_what_the_start_found_in_the_store_is_not_counted():
    latency = Latency()
    confirm(latency, 1, 5, 1.0)
    latency.add(8, [(2, 1.0)])
    confirm(latency, 6, 8, 2.0)
    assert (latency.counters().confirmed, latency.counters().total_s) == (1, 1.0)


def test_a_long_outage_leaves_few_runs_and_small_errors():
    latency = Latency()
    for number in range(100_000):
        latency.add(number + 1, [(1, number * 0.2)])
    assert len(latency._runs) < 15_000
    now = 100_000 * 0.2
    confirm(latency, 1, 100_000, now)
    exact = sum(now - number * 0.2 for number in range(100_000))
    assert exact <= latency.counters().total_s <= exact + 100_000 * SHARE * now


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, BEST_EFFORT])
def test_the_status_says_how_long_messages_took(world, script, reliability):
    clock = ManualClock()
    script.message = lambda one, message: one.send(message.body, to="out")
    parts = receiver("in", BEST_EFFORT), sender("out", reliability)
    with world.engine(*parts, monitors=[Keeps], clock=clock, interval=3600.0, status_interval=0.0) as engine:
        world.publish("a", "b")
        world.wait(lambda: engine.status().senders["out"][2] + engine.status().senders["out"][1].sent == 2)
        clock.advance(0.3)
        assert engine.checkpoint()
        world.wait(lambda: engine.status().senders["out"][1].sent == 2)
        if reliability is BEST_EFFORT:
            assert engine.status().to_dict()["senders"]["out"]["latency"] is None
        else:
            world.wait(lambda: engine.status().latencies["out"].confirmed == 2)
            shown = engine.status().to_dict()["senders"]["out"]["latency"]
            assert (shown["within"]["0.25"], shown["within"]["0.5"]) == (0, 2)
            assert shown["total_s"] == pytest.approx(0.6)
