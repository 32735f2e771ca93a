"""Invariants of what monitors keep in their state: handled ids, timers, listeners, expressions, channels."""

import itertools
from collections import Counter
from collections.abc import Iterator

from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import further, invariant
from correlator.testing.invariants.facts import Facts
from tests.harness.simulation.application import NAP_S, TICK_S
from tests.harness.simulation.invariants.told import condemned, listed, monitor

_SLACK_S = 1e-6


@further("G5")
def application_invents_nothing(facts: Facts) -> Iterator[str]:
    """Check what monitors handled and sent, and the ids in their state."""
    known = {one.id for one in facts.published.values()}
    for _, record in facts.history.of("handled"):
        if record.data not in known:
            yield f"{record.who} handled '{record.data}', which nobody published"
    said = {record.data[1] for _, record in facts.history.of("sent")}
    for sender, mode in facts.setup.senders.items() if facts.setup.told else ():
        for _, _, one in facts.accepted[sender] if mode is Reliability.BEST_EFFORT else ():
            if one.body not in said:
                yield f"sender {sender} sent {one.body!r}, which nobody asked for"
    for name, attribute in (("Ledger", "handled"), ("Ledger", "readings"), ("Audit", "orders")):
        for one_id in listed(facts, name, attribute):
            if one_id not in known:
                yield f"{name}.{attribute} holds '{one_id}', which nobody published"


@further("G6")
def failed_handlers_are_dead_letters(facts: Facts) -> Iterator[str]:
    """Check that each EXACTLY_ONCE input whose handler failed has exactly one dead letter."""
    if not facts.setup.told or not facts.at_rest or facts.setup.on_error != "dead_letter":
        return
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
        found += condemned(facts, "main")[one_id]
        if found != count:
            yield f"order {one_id} failed {count} times in its handler, {found} dead letters"


@invariant("M9", "a timer or deadline is due when its time has passed by engine time, counted over all lives")
def sleepers_wake(facts: Facts) -> Iterator[str]:
    """Check the times of the monitor `Sleeper`: its expression becomes true when its timer first fires."""
    sleeper = monitor(facts, "Sleeper")
    if sleeper is None:
        return
    if len(sleeper["over"]) != min(1, len(sleeper["rung"])):
        yield f"rang at {sleeper['rung']}, the expression was true at {sleeper['over']}"
    times = [0.0, *sleeper["rung"]]
    if any(later - earlier < NAP_S - _SLACK_S for earlier, later in itertools.pairwise(times)):
        yield f"rang at {sleeper['rung']}, which is too early"


@invariant("M1", "a timer that was set fires once, in the committed lineage")
def timers_fire_once(facts: Facts) -> Iterator[str]:
    """Check that at rest the timers that were set are those that fired, in the same order."""
    armed, fired = listed(facts, "Ledger", "armed"), listed(facts, "Ledger", "fired")
    if armed != fired:
        yield f"set {armed}, fired {fired}"


@invariant(
    "M2",
    "a listener that waits for one event is called exactly once, and the checks of the test application report no"
    " error",
)
def listeners_are_called_once(facts: Facts) -> Iterator[str]:
    """Check what the monitor `Ledger` found wrong, and how many of its listeners still wait."""
    yield from listed(facts, "Ledger", "wrong")
    ledger = monitor(facts, "Ledger")
    if ledger is not None:
        waiting = sum(ledger["waiting_once"].values())
        listening = len(ledger["once listeners"])
        if waiting != listening:
            yield f"{waiting} listeners should wait, {listening} do"


@invariant("M3", "a spawned monitor lives until it ends itself, and exists only once")
def spawned_live_once(facts: Facts) -> Iterator[str]:
    """Check that the spawned monitors are those that have ended and those that are alive."""
    ledger = monitor(facts, "Ledger")
    if ledger is None or facts.rest is None:
        return
    alive = [str(one["born"]) for one in facts.rest.state.get("Follower", ())]
    spawned = Counter(listed(facts, "Ledger", "spawned"))
    found = Counter([*listed(facts, "Ledger", "ended"), *alive, *condemned(facts, "main", "born").elements()])
    if spawned != found:
        yield f"spawned {sorted(spawned.elements())}, ended and alive {sorted(found.elements())}"
    for one in facts.rest.state.get("Follower", ()):
        if one["seen"] != len(one["log"]) or one["seen"] > 1:
            yield f"follower of {one['born']} saw {one['seen']}, its table holds {one['log']}"


@invariant("M4", "every event that a persistent monitor sends through a channel is handled exactly once, in order")
def channels_lose_nothing(facts: Facts) -> Iterator[str]:
    """Compare what each of the monitors `Ledger` and `Audit` sent to the other with what the other one handled.

    Events that a poison message condemned may be missing.
    """
    for one, attribute, other, received, context in (
        ("Ledger", "notes", "Audit", "noted", "audit"),
        ("Audit", "replies", "Ledger", "summaries", "main"),
    ):
        sent, got = listed(facts, one, attribute), listed(facts, other, received)
        remaining = iter(sent)
        in_order = all(text in remaining for text in got)
        if not in_order or Counter(sent) - Counter(got) != condemned(facts, context, "text"):
            yield f"{one} sent {sent}, {other} got {got}"


@invariant("M5", "the stored tables and attributes of a monitor are of the same moment")
def state_is_of_one_moment(facts: Facts) -> Iterator[str]:
    """Check that the counts and the lists in the tables agree with the handled ids."""
    ledger = monitor(facts, "Ledger")
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
    """Check persistent monitors by their state over all lives, and other monitors within each life."""
    ledger = monitor(facts, "Ledger")
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
    """Check the calls against the account that plain listeners of the same monitor keep."""
    for found, due in (("pairs", "pairs_due"), ("couples", "couples_due")):
        if sorted(listed(facts, "Matcher", found)) != sorted(listed(facts, "Matcher", due)):
            yield f"{found} {listed(facts, 'Matcher', found)}, due were {listed(facts, 'Matcher', due)}"


@invariant(
    "M8",
    "an expression with a deadline becomes true at the deadline or false by an earlier event, never both or neither",
)
def expressions_keep_time(facts: Facts) -> Iterator[str]:
    """Check that every order counts as either answered or missing."""
    yield from listed(facts, "Matcher", "wrong")
    found = sorted([*listed(facts, "Matcher", "answered"), *listed(facts, "Matcher", "missing")])
    if facts.at_rest and sorted(listed(facts, "Matcher", "orders")) != found:
        yield f"orders {listed(facts, 'Matcher', 'orders')}, answered and missing {found}"
