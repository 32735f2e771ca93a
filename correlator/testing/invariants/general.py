"""Invariants of every mode: recovery, numbers, order of lives, rest, and the books that the test application keeps."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.reference import NAP_S, TICK_S

_SLACK_S = 1e-6
_STEPS_S = 2.0
"""Most seconds by which a scheduler that steps another part may move the clock."""
LONGEST_UNSTORED_S = 10.0
"""See docs/guarantees.md. The number is repeated here because it is the promise that the engine is checked against."""


@invariant("G1", "recovery reaches the last committed checkpoint, and contexts hold what they held then")
def recovered_state_is_committed(facts: Facts) -> Iterator[str]:
    """Compare number and digest as the engine reports them, and monitors, listeners, timers and queues
    as they were parked.
    """
    places = [at for at, _, _ in facts.checkpoints]
    for at, record in facts.history.of("began"):
        _, number, digest, _ = record.data
        done = facts.before(places, at)
        expected = facts.checkpoints[done - 1][2] if done else None
        last = (expected.number, expected.digest) if expected else (0, b"")
        if (number, digest) != last:
            yield f"life {record.life} recovered checkpoint {number}, committed was {last[0]} (or another digest)"
    yield from _contexts_as_parked(facts)


def _contexts_as_parked(facts: Facts) -> Iterator[str]:
    parked: dict[tuple[int, int], Any] = {}
    committed: dict[int, Any] = {}
    events = [*facts.history.of("snapshot"), *facts.history.of("checkpoint"), *facts.history.of("restored")]
    for _, record in sorted(events, key=lambda event: event[0]):
        if record.kind == "snapshot":
            parked[record.life, record.data[0]] = record.data[1]
        elif record.kind == "checkpoint":
            committed[record.data.number] = parked.get((record.life, record.data.number))
        else:
            number, contexts = record.data
            before = committed.get(number)
            if before is not None:
                yield from _compare(number, dict(_by_name(before)), dict(_by_name(contexts)))


def _by_name(contexts: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name, monitors, waiting in contexts:
        yield name, (monitors, waiting)


def _compare(number: int, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name, (monitors, waiting) in before.items():
        if name not in after:
            continue
        monitors_after, waiting_after = after[name]
        if monitors != monitors_after:
            lost = [one for one in monitors if one not in monitors_after]
            new = [one for one in monitors_after if one not in monitors]
            yield f"checkpoint {number}, context {name}: monitors were {lost}, are {new}"
        if waiting_after[: len(waiting)] != waiting:
            yield f"checkpoint {number}, context {name}: {list(waiting)} waited, now {list(waiting_after)}"


@invariant(
    "G2", "if a process dies during recovery, the next recovery restores the same checkpoint and the same contexts"
)
def recovery_is_idempotent(facts: Facts) -> Iterator[str]:
    """Check that two restores of one checkpoint are equal if no commit of state is between them."""
    last: tuple[int, Any] | None = None
    for _, record in sorted([*facts.history.of("restored"), *facts.history.of("received")], key=lambda event: event[0]):
        if record.kind == "received":
            last = None  # the receive log has grown
        elif last is not None and last[0] == record.data[0] and last[1] != record.data[1]:
            yield f"checkpoint {last[0]} was restored in two ways"
        else:
            last = record.data


@invariant("G3", "checkpoint numbers grow by exactly 1 in the lineage")
def checkpoints_are_numbered(facts: Facts) -> Iterator[str]:
    """Check that the checkpoints of all lives together have the numbers 1, 2, 3 and so on; report the first that has
    not.
    """
    for expected, (_, life, checkpoint) in enumerate(facts.checkpoints, 1):
        if checkpoint.number != expected:
            yield f"life {life} committed checkpoint {checkpoint.number} after {expected - 1}"
            return


@invariant("G4", "once a later engine has taken over, no transaction of an earlier one is committed")
def one_writer(facts: Facts) -> Iterator[str]:
    """Check that epochs never fall and that transaction numbers grow by 1."""
    last_epoch, last_number = 0, 0
    for _, record in facts.history.of("commit"):
        epoch, number = record.data
        if epoch < last_epoch:
            yield f"epoch {epoch} committed transaction {number} after epoch {last_epoch}"
        if number != last_number + 1:
            yield f"transaction {number} follows {last_number}"
        last_epoch, last_number = epoch, number


@invariant("G5", "each handled id was published, and each output was caused by a handled input or a timer")
def nothing_is_invented(facts: Facts) -> Iterator[str]:
    """By ids in state, and bodies of outputs."""
    known = {one.id for one in facts.published.values()}
    for _, record in facts.history.of("handled"):
        if record.data not in known:
            yield f"{record.who} handled '{record.data}', which nobody published"
    said = {body for _, record in facts.history.of("sent") for body in [record.data[1]]}
    for sender, sends in facts.accepted.items():
        for _, _, one in sends:
            invented = (
                (sender, one.sequence) not in facts.released
                if facts.setup.senders.get(sender) is not Reliability.BEST_EFFORT
                else facts.setup.told and one.body not in said
            )
            if invented:
                yield f"sender {sender} sent {one.body!r}, which nobody asked for"
    for name, attribute in (("Ledger", "handled"), ("Ledger", "readings"), ("Audit", "orders")):
        for one_id in _list(facts, name, attribute):
            if one_id not in known:
                yield f"{name}.{attribute} holds '{one_id}', which nobody published"


@invariant("G6", "every message that is given up has a record: a dead letter, with the part that gave it up")
def nothing_is_silent(facts: Facts) -> Iterator[str]:
    """Each flawed message has its dead letter; a failed handler of EXACTLY_ONCE input exactly one."""
    if facts.rest is None or not facts.rest.reached:
        return
    dead_pids = {pid for _, record in facts.history.of("received") for pid in record.data.dead}
    for receiver in facts.setup.receivers:
        domain = facts.setup.receivers[receiver].domain
        stored = receiver in facts.streams or domain
        for one in facts.published_to.get(facts.setup.receivers[receiver].destination, []):
            repeats = one.uid and (domain, one.uid) in facts.accepted_ids
            if stored and one.given_up_by(receiver) and one.pid not in dead_pids and not repeats:
                yield f"{one.pid} cannot be mapped and has no dead letter"
    if facts.setup.on_error == "dead_letter":
        yield from _handler_failures(facts)


def _handler_failures(facts: Facts) -> Iterator[str]:
    letters = Counter(
        body for _, _, checkpoint in facts.checkpoints for kind, _, _, body in checkpoint.dead if kind == "handler"
    )
    expected = Counter(
        facts.published[pid].id
        for stream in facts.streams.values()
        for pid in stream.pids
        if pid in facts.published and facts.published[pid].flaw == "handler"
    )
    for one_id, count in expected.items():
        found = sum(number for body, number in letters.items() if f'"{one_id}"'.encode() in body)
        found += facts.condemned("main")[one_id]
        if found != count:
            yield f"order {one_id} failed {count} times in its handler, {found} dead letters"


@invariant("G7", "at rest nothing is left: unacknowledged 0, outbox 0, receive log 0, ids within the bound")
def it_comes_to_rest(facts: Facts) -> Iterator[str]:
    """Check what is left after all faults have ended, within bounded virtual time."""
    rest = facts.rest
    if rest is None:
        yield "the run did not come to its end"
        return
    if not rest.reached or rest.unacknowledged or rest.outbox_rows or rest.receive_rows:
        yield (
            f"after {rest.seconds:.0f} s: at the broker {dict(rest.unacknowledged)}, {rest.outbox_rows} rows of the "
            f"outbox, {rest.receive_rows} of the receive log"
        )


@invariant("G11", "engine time goes on from the last checkpoint or stored batch, and never goes back")
def engine_time_grows(facts: Facts) -> Iterator[str]:
    """Check the beginning of each life, and each pair of successive checkpoints."""
    places = [at for at, _, _ in facts.checkpoints]
    for at, record in facts.history.of("began"):
        done = facts.before(places, at)
        before = facts.checkpoints[done - 1][2].engine_time if done else 0.0
        received = max(
            (segment.data.time for place, segment in facts.history.of("received") if place < at), default=0.0
        )
        if not before - _SLACK_S <= record.data[3] <= max(before, received) + _SLACK_S:
            yield f"life {record.life} began at {record.data[3]}, the checkpoint was at {before}"
    for (_, _, one), (_, _, other) in zip(facts.checkpoints, facts.checkpoints[1:], strict=False):
        if other.engine_time < one.engine_time - _SLACK_S:
            yield f"checkpoint {other.number} at {other.engine_time} follows one at {one.engine_time}"


@invariant(
    "G12",
    "while a persistent monitor has a timer, a crash sets engine time back by at most 10 s and one checkpoint interval",
)
def time_is_kept(facts: Facts) -> Iterator[str]:
    """Check only lives without other faults: a store that accepts nothing for a long time cannot keep the time."""
    faulty = {record.life for _, record in facts.history.of("fault")}
    longest = LONGEST_UNSTORED_S + facts.setup.checkpoint_interval + _STEPS_S
    began = [(at, record.data[3]) for at, record in facts.history.of("began")]
    for at, record in facts.history.of("died"):
        death = record.data
        if death is None or death.engine_time is None or not death.awaits_time or record.life in faulty:
            continue
        after = next((time for place, time in began if place > at), death.engine_time)
        if death.engine_time - after > longest:
            yield f"life {record.life} died at {death.engine_time:.2f}, the next one began at {after:.2f}"


@invariant("G13", "stored batches and checkpoints carry the engine time that an independent clock counts")
def engine_time_is_one_clock(facts: Facts) -> Iterator[str]:
    """Check commits of received batches, and the moments at which contexts are parked for a cut."""
    for _, record in facts.history.of("received"):
        received = record.data
        if received.clocked is not None and abs(received.time - received.clocked) > _SLACK_S:
            yield f"life {record.life}: {record.who} received at {received.clocked}, its ids say {received.time}"
    parked: dict[tuple[int, int], float] = {}
    for _, record in sorted([*facts.history.of("snapshot"), *facts.history.of("checkpoint")], key=lambda one: one[0]):
        if record.kind == "checkpoint":
            time = parked.get((record.life, record.data.number), record.data.engine_time)
            if abs(record.data.engine_time - time) > _SLACK_S:
                yield f"checkpoint {record.data.number} was taken at {time}, it says {record.data.engine_time}"
        elif len(record.data) > 2 and record.data[2] is not None:
            parked[record.life, record.data[0]] = record.data[2]


@invariant("G10", "all contexts are locked while a checkpoint takes their state")
def cuts_are_of_one_moment(facts: Facts) -> Iterator[str]:
    """Check at the beginning and at the end of each cut."""
    for _, record in facts.history.of("unlocked"):
        yield f"life {record.life}: {sorted(set(record.data))} could work"


@invariant("M9", "a timer or deadline is due when its time has passed by engine time, counted over all lives")
def sleepers_wake(facts: Facts) -> Iterator[str]:
    """By the times that the sleeper has noted: its expression is true when its timer fires for the first time."""
    sleeper: Any = facts.monitor("Sleeper")
    if sleeper is None:
        return
    if len(sleeper["over"]) != min(1, len(sleeper["rung"])):
        yield f"rang at {sleeper['rung']}, the expression was true at {sleeper['over']}"
    times = [0.0, *sleeper["rung"]]
    if any(later - earlier < NAP_S - _SLACK_S for earlier, later in itertools.pairwise(times)):
        yield f"rang at {sleeper['rung']}, which is too early"


@invariant("M1", "a timer that was set fires once, in the committed lineage")
def timers_fire_once(facts: Facts) -> Iterator[str]:
    """Set and fired are the same at rest, in the same order."""
    armed, fired = _list(facts, "Ledger", "armed"), _list(facts, "Ledger", "fired")
    if armed != fired:
        yield f"set {armed}, fired {fired}"


@invariant(
    "M2",
    "a listener that waits for one event is called exactly once, and the checks of the test application report no"
    " error",
)
def listeners_are_called_once(facts: Facts) -> Iterator[str]:
    """The ledger notes what it finds wrong."""
    yield from _list(facts, "Ledger", "wrong")
    ledger = facts.monitor("Ledger")
    if ledger is not None:
        waiting = sum(ledger["waiting_once"].values())  # type: ignore[attr-defined]
        listening = len(ledger["once listeners"])  # type: ignore[arg-type]
        if waiting != listening:
            yield f"{waiting} listeners should wait, {listening} do"


@invariant("M3", "a spawned monitor lives until it ends itself, and exists only once")
def spawned_live_once(facts: Facts) -> Iterator[str]:
    """Spawned = ended + alive."""
    ledger = facts.monitor("Ledger")
    if ledger is None or facts.rest is None:
        return
    alive = [str(one["born"]) for one in facts.rest.state.get("Follower", ())]
    spawned = Counter(_list(facts, "Ledger", "spawned"))
    found = Counter([*_list(facts, "Ledger", "ended"), *alive, *facts.condemned("main", "born").elements()])
    if spawned != found:
        yield f"spawned {sorted(spawned.elements())}, ended and alive {sorted(found.elements())}"
    for one in facts.rest.state.get("Follower", ()):
        if one["seen"] != len(one["log"]) or one["seen"] > 1:
            yield f"follower of {one['born']} saw {one['seen']}, its table holds {one['log']}"


@invariant("M4", "every event that a persistent monitor sends through a channel is handled exactly once, in order")
def channels_lose_nothing(facts: Facts) -> Iterator[str]:
    """Compare what the monitors `Ledger` and `Audit` sent to each other with what the other one handled, in both
    directions.

    Events that a poison message condemned may be missing.
    """
    for one, attribute, other, received, context in (
        ("Ledger", "notes", "Audit", "noted", "audit"),
        ("Audit", "replies", "Ledger", "summaries", "main"),
    ):
        sent, got = _list(facts, one, attribute), _list(facts, other, received)
        remaining = iter(sent)
        in_order = all(text in remaining for text in got)
        if not in_order or Counter(sent) - Counter(got) != facts.condemned(context, "text"):
            yield f"{one} sent {sent}, {other} got {got}"


@invariant("M5", "the stored tables and attributes of a monitor are of the same moment")
def state_is_of_one_moment(facts: Facts) -> Iterator[str]:
    """Counts in a table are the handled ids, so are lists in a table."""
    ledger: Any = facts.monitor("Ledger")
    if ledger is None:
        return
    handled = ledger["handled"]
    if sum(ledger["counts"].values()) != len(handled):
        yield f"{len(handled)} orders handled, the table counts {ledger['counts']}"
    kept = Counter(one for basket in ledger["baskets"].values() for one in basket)
    if kept != Counter(handled):
        yield f"handled {sorted(handled)}, the table holds {sorted(kept.elements())}"


@invariant("M6", "a repeating timer fires once for each period of engine time, over all lives")
def beats_are_regular(facts: Facts) -> Iterator[str]:
    """For lasting state from the state, for the rest within each life."""
    ledger: Any = facts.monitor("Ledger")
    if ledger is not None:
        expected = ledger["born"] + (ledger["ticks"] + 1) * TICK_S
        due = ledger["repeating timers"]
        if len(due) != 1 or abs(due[0] - expected) > 0.001:
            yield f"{ledger['ticks']} ticks since {ledger['born']:.2f}, the next are due at {due}"
        if ledger["ticks"] and ledger["last_tick"] < ledger["born"] + ledger["ticks"] * TICK_S - 0.001:
            yield f"{ledger['ticks']} ticks since {ledger['born']:.2f} by engine time {ledger['last_tick']:.2f}"
    began = {record.life: record.data[3] for _, record in facts.history.of("began")}
    beats: dict[int, list[float]] = {}
    for _, record in facts.history.of("ticked"):
        beats.setdefault(record.life, []).append(record.data[1])
    for life, times in beats.items():
        if len(times) > (times[-1] - began.get(life, 0.0)) / TICK_S + 1 + _SLACK_S:
            yield f"life {life}: {len(times)} ticks from {began.get(life, 0.0):.2f} to {times[-1]:.2f}"


@invariant("M7", "an expression calls its handler exactly once for the events that make it true")
def expressions_fire_once(facts: Facts) -> Iterator[str]:
    """As the account says that plain listeners of the same monitor keep."""
    for found, due in (("pairs", "pairs_due"), ("couples", "couples_due")):
        if sorted(_list(facts, "Matcher", found)) != sorted(_list(facts, "Matcher", due)):
            yield f"{found} {_list(facts, 'Matcher', found)}, due were {_list(facts, 'Matcher', due)}"


@invariant(
    "M8",
    "an expression with a deadline becomes true at the deadline or false by an earlier event, never both or neither",
)
def expressions_keep_time(facts: Facts) -> Iterator[str]:
    """Every order is answered or missing."""
    yield from _list(facts, "Matcher", "wrong")
    found = sorted([*_list(facts, "Matcher", "answered"), *_list(facts, "Matcher", "missing")])
    if facts.rest is not None and facts.rest.reached and sorted(_list(facts, "Matcher", "orders")) != found:
        yield f"orders {_list(facts, 'Matcher', 'orders')}, answered and missing {found}"


def _list(facts: Facts, monitor: str, attribute: str) -> list[str]:
    state: Any = facts.monitor(monitor)
    return list(state[attribute]) if state is not None else []
