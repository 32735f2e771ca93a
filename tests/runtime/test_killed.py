"""Engines killed by SIGKILL at named fault points, and started again (FEATURES A1.6, A2.1, A2.2, A2.14, A3.2, A3.13,
A4.5, A4.7).

The engine runs in a process of its own over a store and an embedded broker in a file; the test reads what came out. `Forwards` numbers its inputs: an output `n:body` says what the state was when it was made, so that a number
sent twice with different bodies, or left out, shows that state and output did not agree.
"""

import random
from collections import Counter

import msgspec
import pytest

from correlator.core.instances import StoredMonitor
from correlator.storage import inspect
from tests.runtime.flows import FAN_OUT
from tests.runtime.world import Queues, numbered

pytestmark = pytest.mark.kill9

COUNT = 40
POINTS = {
    "receive": ["rx.poll", "rx.map", "rx.submit", "rx.dedup.lookup", "rx.enqueue", "rx.ack.before", "rx.ack.after"],
    "receive transaction": [
        "rx.tx.begin",
        "rx.tx.fence",
        "rx.tx.insert",
        "rx.tx.dedup",
        "rx.tx.confirmed",
        "rx.tx.commit.before",
        "rx.tx.commit.after",
    ],
    "checkpoint": ["app.event", "ck.trigger", "ck.snapshot", "ck.release.before", "ck.release.after"],
    "checkpoint transaction": [
        "ck.tx.begin",
        "ck.tx.fence",
        "ck.tx.state",
        "ck.tx.outbox",
        "ck.tx.prune_outbox",
        "ck.tx.prune_rx",
        "ck.tx.consumed",
        "ck.tx.meta",
        "ck.tx.commit.before",
        "ck.tx.commit.after",
    ],
    "send": ["tx.reconnect", "tx.publish.before", "tx.publish.after", "tx.confirm"],
    "recovery": [
        "rec.lock",
        "rec.load.meta",
        "cfg.compare",
        "rec.epoch.commit.before",
        "rec.epoch.commit.after",
        "rec.load.state",
        "rec.load.outbox",
        "rec.load.dedup",
        "rec.replay",
        "rec.on_begin",
        "rec.tx.suspects.clear",
        "rec.tx.suspects",
        "rec.on_conclude",
        "rec.open_senders",
        "rec.open_receivers",
    ],
    "stop": ["stop.begin", "stop.drain", "stop.final_ck", "stop.close"],
    "first start": [
        "rec.migrate.begin",
        "rec.migrate.step",
        "cfg.register.commit",
        "cfg.tx.put",
        "cfg.tx.commit.after",
    ],
}
"""Fault points on the way of a message, by stage; one life ends at each."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request, tmp_path):
    """The address of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'engine.db'}"
    return request.getfixturevalue("postgres")()


def a_flow(tmp_path, **order):
    """A broker with inputs, and the order that runs an engine over it."""
    queues = Queues(tmp_path)
    flow = {"store": f"sqlite:///{tmp_path / 'engine.db'}", "broker": queues.url, "wanted": COUNT, "batch": 7, **order}
    return queues, flow


def numbers_and_bodies(queues: Queues) -> list[tuple[int, str]]:
    """What came out: the number that the state gave, and the input."""
    pairs = [body.partition(":") for body in queues.bodies()]
    return [(int(number), body) for number, _, body in pairs]


def inputs() -> list[str]:
    return [f"m{number}" for number in range(1, COUNT + 1)]


def assert_exactly_once(queues: Queues) -> None:
    outputs = numbers_and_bodies(queues)
    assert [number for number, _ in outputs] == list(range(1, COUNT + 1))
    assert [body for _, body in outputs] == inputs()


@pytest.mark.parametrize("stage", POINTS)
def test_a1_6_exactly_once_survives_a_kill_at_every_point(children, tmp_path, store, stage):
    """One life after the other ends at the next point of the stage; the last one goes on to the end."""
    queues, flow = a_flow(tmp_path, store=store)
    queues.publish(numbered(COUNT))
    for point in POINTS[stage]:
        ended = children.run(**flow, kill=point, patience=5 if stage in ("recovery", "first start") else 30)
        assert ended["killed"] or stage in ("recovery", "first start", "stop"), (point, ended)
    assert children.run(**flow)["exit"] == 0
    assert_exactly_once(queues)
    assert inspect.receive_log(flow["store"]) == []
    assert inspect.outbox(flow["store"]) == []
    assert {one.id for one in inspect.accepted_ids(flow["store"], "files:queue:in")} == set(inputs())
    assert queues.read("queue:in") == []


def test_a1_6_every_point_of_a_first_life_and_of_a_restart_is_in_the_list(children, tmp_path):
    """A point that is added to the engine must be added to the stages above, or named here with the reason."""
    queues, flow = a_flow(tmp_path)
    queues.publish(numbered(COUNT))
    passed = set(children.run(**flow, kill="ck.tx.commit.after", hit=2).get("points", ()))
    passed |= set(children.run(**flow)["points"])
    known = {point for points in POINTS.values() for point in points}
    sometimes = {
        "rx.reconnect",  # the same as rec.open_receivers here
        "rx.flow.wait",  # only when a queue or an outbox is full
        "rx.tx.expire",  # windows are larger than the flow
        "ck.tx.state.dropped",  # the state is smaller than a segment
        "cfg.tx.begin",
        "cfg.tx.fence",
        "cfg.tx.commit.before",
    }
    assert passed - known - sometimes == set()


@pytest.mark.parametrize("seed", range(6))
def test_a2_2_state_and_output_agree_after_kills_at_random_moments(children, tmp_path, store, seed):
    """No number is ever sent twice with different content, and none is left out."""
    chance = random.Random(seed)
    sizes = {"batch": chance.choice([1, 3, 20]), "interval": chance.choice([0.001, 0.01, 0.05])}
    queues, flow = a_flow(tmp_path, store=store, **sizes)
    queues.publish(numbered(COUNT))
    points = [point for stage in POINTS.values() for point in stage if not point.startswith(("cfg", "rec", "stop"))]
    for _ in range(6):
        children.run(**flow, kill=chance.choice(points), hit=chance.randint(1, 4))
    assert children.run(**flow)["exit"] == 0
    assert_exactly_once(queues)


@pytest.mark.parametrize("point", ["rx.ack.before", "tx.publish.after", "ck.tx.commit.before"])
def test_a3_2_a3_13_at_least_once_loses_nothing(children, tmp_path, store, point):
    queues, flow = a_flow(tmp_path, store=store, receive="AT_LEAST_ONCE", send="AT_LEAST_ONCE")
    queues.publish(numbered(COUNT))
    for hit in (1, 2):
        assert children.run(**flow, kill=point, hit=hit)["killed"]
    assert children.run(**flow)["exit"] == 0
    outputs = numbers_and_bodies(queues)
    assert {body for _, body in outputs} == set(inputs())
    of_number = dict(outputs)
    assert all(of_number[number] == body for number, body in outputs)
    assert sorted(of_number) == list(range(1, len(of_number) + 1))


def test_a3_2_between_commit_and_acknowledgement_at_least_once_handles_twice(children, tmp_path, store):
    queues, flow = a_flow(tmp_path, store=store, receive="AT_LEAST_ONCE")
    queues.publish(numbered(COUNT))
    assert children.run(**flow, kill="rx.ack.before", hit=2)["killed"]
    assert children.run(**flow)["exit"] == 0
    assert len(numbers_and_bodies(queues)) == COUNT + 7


def test_a2_14_best_effort_shows_the_inconsistency_that_reliable_modes_do_not(children, tmp_path):
    """Outputs of a life that was never committed have left; the next life counts from the last checkpoint again."""
    for mode in ("BEST_EFFORT", "EXACTLY_ONCE"):
        directory = tmp_path / mode
        directory.mkdir(mode=0o700)
        queues, flow = a_flow(directory, send=mode, interval=3600.0)
        queues.publish(numbered(COUNT))
        assert children.run(**flow, kill="rx.ack.after", hit=4)["killed"]
        assert children.run(**{**flow, "interval": 0.01})["exit"] == 0
        numbers = [number for number, _ in numbers_and_bodies(queues)]
        assert len(numbers) > len(set(numbers)) if mode == "BEST_EFFORT" else numbers == list(range(1, COUNT + 1))


APP_CONTROLLED_FLOW = {
    "store": "",
    "receive": "APP_CONTROLLED",
    "send": "BEST_EFFORT",
    "monitor": "tests.runtime.flows:FlushesThenAcknowledges",
}
"""Without persistence: an input is acknowledged when the broker has the output that was made of it."""


@pytest.mark.parametrize("hit", [1, 3])
@pytest.mark.parametrize(
    "point",
    [
        "rx.poll",
        "rx.map",
        "rx.enqueue",
        "app.event",
        "ac.suspend",
        "tx.publish.before",
        "tx.publish.after",
        "tx.confirm",
        "flush.notify",
        "ac.ack",
        "rx.ack.before",
        "rx.ack.after",
    ],
)
def test_a4_7_flushed_before_it_is_acknowledged_nothing_is_lost_wherever_the_process_dies(
    children, tmp_path, point, hit
):
    queues, flow = a_flow(tmp_path, **APP_CONTROLLED_FLOW)
    queues.publish(numbered(COUNT))
    assert children.run(**flow, kill=point, hit=hit)["killed"]
    left = {one.body.decode() for one in queues.read("queue:in")}
    out = {body for _, body in numbers_and_bodies(queues)}
    assert left | out == set(inputs()), "an input was acknowledged before its output was there"
    assert children.run(**flow)["exit"] == 0
    assert {body for _, body in numbers_and_bodies(queues)} == set(inputs())
    assert queues.read("queue:in") == []


def test_a4_5_a_batch_that_was_suspended_when_the_process_died_comes_again_whole(children, tmp_path):
    """Its outputs were there already, so that each of them shows how often its input came."""
    queues, flow = a_flow(tmp_path, **APP_CONTROLLED_FLOW)
    queues.publish(numbered(COUNT))
    assert children.run(**flow, kill="ac.ack", hit=3)["killed"]
    assert [one.body.decode() for one in queues.read("queue:in")] == inputs()[14:]
    assert children.run(**flow)["exit"] == 0
    came = Counter(body for _, body in numbers_and_bodies(queues))
    assert [body for body in inputs() if came[body] == 2] == inputs()[14:21]
    assert set(came.values()) == {1, 2}


def test_a2_5_b2_ids_after_a_kill(children, tmp_path):
    """A reliable sender goes on with its source and its numbers; BEST_EFFORT begins a new source."""
    for mode, sources in (("EXACTLY_ONCE", 1), ("BEST_EFFORT", 2)):
        directory = tmp_path / mode
        directory.mkdir(mode=0o700)
        queues, flow = a_flow(directory, send=mode)
        queues.publish(numbered(COUNT))
        assert children.run(**flow, kill="tx.confirm", hit=2)["killed"]
        assert children.run(**flow)["exit"] == 0
        ids = [one.properties["uniqueMessageId"] for one in queues.read()]
        assert len({unique_id.partition(":")[2] for unique_id in ids}) == sources
        assert len(set(ids)) == len(ids)


def test_c111_a_killed_engine_whose_messages_cause_many_events_starts_again(children, tmp_path):
    """Given 1,200 messages that wait and cause 110 events each, more than a channel takes, when it starts, then it does."""
    count, flow_of = 1200, {"monitor": "tests.runtime.flows:FansOut", "audit": "tests.runtime.flows:Tallies"}
    queues, flow = a_flow(tmp_path, batch=100, wanted=count, **flow_of)
    queues.publish(numbered(count))
    assert children.run(**{**flow, "interval": 3600.0}, kill="rx.ack.after", hit=count // 100)["killed"]
    assert sum(row.last - row.first + 1 for row in inspect.receive_log(flow["store"])) == count
    assert children.run(**flow)["exit"] == 0
    assert [number for number, _ in numbers_and_bodies(queues)] == list(range(1, count + 1))
    state = inspect.state(flow["store"])
    tally = msgspec.msgpack.decode(state["monitor:Tallies"][b"0"], type=StoredMonitor)
    assert msgspec.msgpack.decode(tally.attributes)["count"] == count * FAN_OUT


def test_a1_7_a_killed_engine_leaves_its_lock_to_the_next(children, tmp_path):
    queues, flow = a_flow(tmp_path)
    queues.publish(numbered(COUNT))
    assert children.run(**flow, kill="ck.tx.meta")["killed"]
    assert children.run(**flow)["exit"] == 0
