"""Invariants of every mode: recovery, numbers, order of lives, rest, and the books that the test application keeps."""

from collections.abc import Iterator
from typing import Any

from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import Facts

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
    """Check that each output of a reliable sender is in a checkpoint."""
    for sender, sends in facts.accepted.items():
        if facts.setup.senders.get(sender) is not Reliability.BEST_EFFORT:
            for _, _, one in sends:
                if (sender, one.sequence) not in facts.released:
                    yield f"sender {sender} sent {one.body!r}, which nobody asked for"


@invariant("G6", "every message that is given up has a record: a dead letter that names the part that gave it up")
def nothing_is_silent(facts: Facts) -> Iterator[str]:
    """Check that each message that cannot be mapped has a dead letter."""
    if not facts.at_rest:
        return
    dead_pids = {pid for _, record in facts.history.of("received") for pid in record.data.dead}
    for receiver in facts.setup.receivers:
        domain = facts.setup.receivers[receiver].domain
        stored = receiver in facts.streams or domain
        for one in facts.published_to.get(facts.setup.receivers[receiver].destination, []):
            repeats = one.uid and (domain, one.uid) in facts.accepted_ids
            if stored and one.given_up_by(receiver) and one.pid not in dead_pids and not repeats:
                yield f"{one.pid} cannot be mapped and has no dead letter"


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


@invariant(
    "K4", "a refused start leaves the store unchanged, and the engine still accepts the configuration of the last start"
)
def refusals_change_nothing(facts: Facts) -> Iterator[str]:
    """Check each refusal; the simulated world restores the configuration afterwards."""
    for _, record in facts.history.of("declined"):
        if not record.data.unchanged:
            yield f"life {record.life} was refused with {record.who} and changed the store"
        if record.data.again:
            yield f"life {record.life} was refused with the configuration that was accepted before: {record.data.text}"
