"""Engines killed by SIGKILL at named fault points, and started again (rules A1.6, A2.1, A2.2, A2.14, A3.2, A3.13,
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
from correlator.storage.database import reading
from correlator.storage.tables import suspect
from tests.harness.points import points
from tests.runtime.flows import FAN_OUT
from tests.runtime.world import Queues, numbered

pytestmark = pytest.mark.kill9

COUNT = 40
REGISTRY = ["cfg.tx.begin", "cfg.tx.fence", "cfg.tx.put", "cfg.tx.commit.before", "cfg.tx.commit.after"]
POINTS = {
    "receive": [
        "rx.reconnect",
        "rx.poll",
        "rx.map",
        "rx.submit",
        "rx.dedup.lookup",
        "rx.enqueue",
        "rx.ack.before",
        "rx.ack.after",
    ],
    "receive transaction": [
        "rx.tx.confirmed",
        "rx.tx.begin",
        "rx.tx.fence",
        "rx.tx.insert",
        "rx.tx.dedup",
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
    "first start": ["rec.migrate.begin", "rec.migrate.step", "cfg.register.commit", *REGISTRY],
    "recovery": [
        "rec.lock",
        "rec.load.meta",
        "cfg.compare",
        "rec.load.dedup",
        "rec.load.state",
        "rec.load.outbox",
        "rec.replay",
        "rec.epoch.commit.before",
        "rec.epoch.commit.after",
        "rec.on_begin",
        "cfg.tx.begin",
        "cfg.tx.fence",
        "rec.tx.suspects.clear",
        "rec.tx.suspects",
        "cfg.tx.commit.before",
        "cfg.tx.commit.after",
        "rec.on_conclude",
        "rec.open_senders",
        "rec.open_receivers",
    ],
    "stop": ["stop.begin", "stop.drain", "stop.final_ck", "stop.close"],
}
"""Fault points on the way of a message, by stage; one life ends at each.

Those of a recovery are in their order; its transaction (`cfg.tx`) takes back what the last start has noted.
`rx.tx.confirmed` comes first: after a life that stored a batch without its acknowledgement, all batches are in doubt
until the broker has noticed the loss of the connection, which may be later than the last one.
"""
ANY_MOMENT = [stage for stage in POINTS if stage not in ("recovery", "stop")]
"""Stages whose points a life comes to, whatever was before; the others need preparation."""
ELSEWHERE = {
    "rx.flow.wait": "only when a queue or an outbox is full; it changes nothing",
    "rx.flow.window": "only with flow control; it changes nothing",
    "rx.map.error": "only of a message that cannot be mapped",
    "rx.tx.dead_letter": "the same",
    "rx.tx.expire": "the windows are larger than the flow",
    "ck.tx.dead_letter": "no handler fails, no broker refuses",
    "ck.tx.absolve": "only of a message that the process died of three times (test_poison)",
    "ck.tx.state.dropped": "the state is smaller than a segment",
    "ck.resolve_ambiguous": "only when the answer to a commit is lost",
    "cfg.tx.forget": "only when a part is removed (test_removal)",
    "cfg.tx.forget.cuts": "the same",
    "tx.retry": "no broker refuses",
    "flush.notify": "BEST_EFFORT: below",
    "ac.suspend": "APP_CONTROLLED: below",
    "ac.ack": "the same",
    "app.batch": "pipelines: test_killed_pipelines",
    "dl.tx.discard": "only when somebody brings dead letters back, or discards them (test_returning)",
    "dl.tx.commit.before": "a command, not an engine",
    "dl.tx.commit.after": "the same",
}
"""Fault points that no stage here comes to, and why."""


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


def stored_ids(store: str) -> list[str]:
    """The unique ids that a store holds."""
    return [one.id for one in inspect.accepted_ids(store, "files:queue:in")]


def assert_all_went_through(queues: Queues, store: str) -> None:
    """Every input came out once, in order; its id is known; nothing else is left of it."""
    assert_exactly_once(queues)
    assert (inspect.receive_log(store), inspect.outbox(store), inspect.dead_letters(store)) == ([], [], [])
    assert set(stored_ids(store)) == set(inputs())
    assert queues.read("queue:in") == []


@pytest.mark.parametrize("stage", ANY_MOMENT)
def test_a1_6_exactly_once_survives_a_kill_at_every_point(children, tmp_path, store, stage):
    """One life after the other ends at the next point of the stage; the last one goes on to the end.

    Checkpoints are rare enough that few transactions hold one together with a batch: those have the points of both.
    """
    queues, flow = a_flow(tmp_path, store=store, drained=True, interval=0.05)
    queues.publish(numbered(COUNT))
    for point in POINTS[stage]:
        ended = children.run(**flow, kill=point)
        assert ended["killed"], (point, ended)
    assert children.run(**flow)["exit"] == 0
    assert_all_went_through(queues, store)


DIES_BUSY = {
    "kill": "rx.enqueue",
    "hit": 2,
    "hold": {"rx.submit:2": ["tx.publish.before"], "tx.publish.before:1": ["EVER"]},
}
"""A life whose first sends are in a checkpoint and do not leave; it dies with the next batch before its contexts."""
DIES_HANDLING = {"kill": "cfg.tx.commit.after"}
"""A start that dies when it has noted what it is about to handle."""


def in_flight(store: str) -> tuple[int, int, int]:
    """How many messages wait in the receive log and in the outbox, and how many notes a start has left."""
    rows = [sum(row.last - row.first + 1 for row in look(store)) for look in (inspect.receive_log, inspect.outbox)]
    with reading(store) as connection:
        return rows[0], rows[1], len(connection.execute(suspect.select()).all())


def test_a1_6_exactly_once_survives_a_kill_at_every_point_of_a_recovery(children, tmp_path, store):
    """Each start finds a checkpoint, messages to handle, sends that have not left, and a note of what it may die of.

    In the end all that was received before comes again: the ids must be known.
    """
    queues, flow = a_flow(tmp_path, store=store)
    queues.publish(numbered(COUNT - 1))
    assert children.run(**flow, **DIES_BUSY)["killed"]
    queues.publish([*numbered(14), *numbered(1, first=COUNT)])
    for point in POINTS["recovery"]:
        if not in_flight(store)[2]:
            assert children.run(**flow, **DIES_HANDLING)["killed"]
        assert min(in_flight(store)) > 0, (point, in_flight(store))
        before = inspect.checkpoints(store), stored_ids(store), queues.bodies()
        ended = children.run(**flow, kill=point)
        assert ended["killed"], (point, ended)
        assert (inspect.checkpoints(store), stored_ids(store), queues.bodies()) == before
    assert len(before[0]) == 1
    assert (len(before[1]), before[2]) == (14, [])
    assert children.run(**flow, drained=True)["exit"] == 0
    assert_all_went_through(queues, store)


def test_a1_6_t65_exactly_once_survives_a_kill_at_every_point_of_a_stop(children, tmp_path, store):
    """A stop that begins with a batch in hand: it is not stored, then stored, then handled, then sent."""
    queues, flow = a_flow(tmp_path, store=store)
    messages = numbered(COUNT)
    stops = {"wanted": 0, "interval": 3600.0, "hold": {"stop.begin:1": ["rx.submit"], "rx.submit:1": ["stop.begin"]}}
    seen = []
    for point, batches in zip(POINTS["stop"], (1, 0, 1, 1), strict=True):
        queues.publish([messages.pop(0) for _ in range(7 * batches)])  # no more, or it might take them before it stops
        ended = children.run(**{**flow, **stops}, kill=point)
        assert ended["killed"], (point, ended)
        seen.append((*in_flight(store)[:2], len(queues.bodies())))
    assert seen == [(0, 0, 0), (7, 0, 0), (14, 0, 0), (0, 0, 21)]
    queues.publish(messages)
    assert children.run(**flow, drained=True)["exit"] == 0
    assert_all_went_through(queues, store)


def test_a1_6_every_point_of_the_engine_is_in_the_list():
    """A point that is added to the engine must be added to a stage above, or named with the reason why not."""
    killed_at = {point for stage in POINTS.values() for point in stage}
    assert {point.name for point in points()} == killed_at | ELSEWHERE.keys()
    assert not killed_at & ELSEWHERE.keys()


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
    queues, flow = a_flow(tmp_path, store=store, receive="AT_LEAST_ONCE", send="AT_LEAST_ONCE", interval=0.001, batch=1)
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


@pytest.mark.parametrize("receive", ["AT_LEAST_ONCE", "EXACTLY_ONCE"])
def test_a3_16_what_waits_behind_a_slow_handler_is_part_of_the_checkpoint(children, tmp_path, store, receive):
    """Given 50 events behind the one in hand, a checkpoint and a kill -9, when it restarts, then they come before new ones."""
    slow = {"monitor": "tests.runtime.flows:ForwardsSlowly", "receive": receive, "batch": 100}
    queues, flow = a_flow(tmp_path, store=store, **slow)
    queues.publish(numbered(51))
    hold = {"ck.trigger:1": ["app.message"], "app.message:1": ["app.cut_requested"]}
    assert children.run(**flow, hold=hold, kill="ck.tx.commit.after")["killed"]
    (taken,) = inspect.checkpoints(store)
    assert taken.waiting == {"main": 50}
    assert in_flight(store) == (51, 1, 0)
    assert (queues.read("queue:in"), queues.read()) == ([], [])
    queues.publish(numbered(5, first=52))
    assert children.run(**{**flow, "wanted": 56})["exit"] == 0
    assert numbers_and_bodies(queues) == [(number, f"m{number}") for number in range(1, 57)]
    assert in_flight(store) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["BEST_EFFORT", "EXACTLY_ONCE"])
def test_a2_14_best_effort_shows_the_inconsistency_that_reliable_modes_do_not(children, tmp_path, store, mode):
    """Outputs of a life that was never committed have left; the next life counts from the last checkpoint again."""
    queues, flow = a_flow(tmp_path, store=store, send=mode, interval=3600.0)
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


@pytest.mark.parametrize(("mode", "sources"), [("EXACTLY_ONCE", 1), ("BEST_EFFORT", 2)])
def test_a2_5_b2_ids_after_a_kill(children, tmp_path, store, mode, sources):
    """A reliable sender goes on with its source and its numbers; BEST_EFFORT begins a new source."""
    queues, flow = a_flow(tmp_path, store=store, send=mode, interval=0.001, batch=1)
    queues.publish(numbered(COUNT))
    assert children.run(**flow, kill="tx.confirm", hit=2)["killed"]
    assert children.run(**flow)["exit"] == 0
    ids = [one.properties["uniqueMessageId"] for one in queues.read()]
    assert len({unique_id.partition(":")[2] for unique_id in ids}) == sources
    assert len(set(ids)) == len(ids)


def test_111_a_killed_engine_whose_messages_cause_many_events_starts_again(children, tmp_path):
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
