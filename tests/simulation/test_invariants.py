"""Each invariant refuses a hand-written bad history, and lets the same history pass when it is put right."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from correlator.core.commit import Suspect
from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import CATALOGUE
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.history import (
    Checkpointed,
    Condemned,
    Death,
    Declined,
    History,
    Published,
    ReceivedBatch,
    ReceiverFacts,
    Sent,
    UnmappedMessage,
)
from tests.harness.simulation.changes import Bill, Parts
from tests.simulation.histories import Story

Tell = Callable[[], Story]
BAD: list[tuple[str, Tell, Tell]] = []


def case(name: str, bad: Tell, good: Tell) -> None:
    BAD.append((name, bad, good))


def context(*monitors: object, waiting: tuple[object, ...] = ()) -> tuple[object, ...]:
    return (("main", monitors, waiting),)


def began(number: int, digest: bytes, time: float = 0.0) -> tuple[int, int, bytes, float]:
    return 1, number, digest, time


# general
case(
    "G1",
    lambda: Story().checkpoint(1).checkpoint(2).add("began", data=began(1, b"digest 1"), life=2),
    lambda: Story().checkpoint(1).checkpoint(2).add("began", data=began(2, b"digest 2"), life=2),
)
case(
    "G1",
    lambda: (
        Story()
        .add("snapshot", data=(1, context("a", waiting=(1, 2))))
        .checkpoint(1)
        .add("restored", data=(1, context("a", waiting=(2,))), life=2)
    ),
    lambda: (
        Story()
        .add("snapshot", data=(1, context("a", waiting=(1, 2))))
        .checkpoint(1)
        .add("restored", data=(1, context("a", waiting=(1, 2, 3))), life=2)
    ),
)
case(
    "G2",
    lambda: Story().add("restored", data=(1, context("a"))).add("restored", data=(1, context("b")), life=2),
    lambda: Story().add("restored", data=(1, context("a"))).add("restored", data=(1, context("a")), life=2),
)
case("G3", lambda: Story().checkpoint(1).checkpoint(3), lambda: Story().checkpoint(1).checkpoint(2))
case(
    "G4",
    lambda: Story().add("commit", data=(1, 1)).add("commit", data=(2, 2), life=2).add("commit", data=(1, 3)),
    lambda: Story().add("commit", data=(1, 1)).add("commit", data=(2, 2), life=2).add("commit", data=(2, 3), life=2),
)
case(
    "G5",
    lambda: Story().released("exact", 1, b"1:a").accepted("exact", 2, b"2:b"),
    lambda: Story().released("exact", 1, b"1:a").accepted("exact", 1, b"1:a"),
)
case(
    "G5",
    lambda: Story().add("handled", "Relay", "a"),
    lambda: Story().published("hints", hint("a")).add("handled", "Relay", "a"),
)
case(
    "G5",
    lambda: Story().accepted("quick", 1, b"x"),
    lambda: Story().add("sent", "quick", ("relay", b"x")).accepted("quick", 1, b"x"),
)
case(
    "G6",
    lambda: failed().rest(),
    lambda: failed().checkpoint(1, dead=(("handler", "orders", "", b'{"id":"a"}'),)).rest(),
)
case(
    "G6",
    lambda: Story(receivers={"orders": EXACTLY}).order("a", flaw="mapping").acknowledged("orders", "a").rest(),
    lambda: Story(receivers={"orders": EXACTLY}).order("a", flaw="mapping").received("orders", 0, dead=("a",)).rest(),
)
case("G7", lambda: Story().rest(outbox_rows=1), lambda: Story().rest())
case("G7", lambda: Story().rest(reached=False), lambda: Story().rest())
case(
    "G11",
    lambda: Story().checkpoint(1, engine_time=5.0).add("began", data=began(1, b"digest 1", 4.0), life=2),
    lambda: Story().checkpoint(1, engine_time=5.0).add("began", data=began(1, b"digest 1", 5.0), life=2),
)
case("M1", lambda: Story().rest({"armed": ["a"]}), lambda: Story().rest({"armed": ["a"], "fired": ["a"]}))
case("M2", lambda: Story().rest({"wrong": ["twice"]}), lambda: Story().rest({}))
case(
    "M3",
    lambda: Story().rest({"spawned": ["a"]}),
    lambda: Story().rest({"spawned": ["a"]}, followers=[{"born": "a", "seen": 1, "log": {1: "r"}}]),
)
case("M4", lambda: Story().rest({"notes": ["a"]}), lambda: Story().rest({"notes": ["a"]}, {"noted": ["a"]}))
case(
    "M5",
    lambda: Story().rest({"handled": ["a"], "counts": {0: 2}, "baskets": {0: ["a"]}}),
    lambda: Story().rest({"handled": ["a"], "counts": {0: 1}, "baskets": {0: ["a"]}}),
)
case(
    "M6",
    lambda: Story().rest({"ticks": 9, "last_tick": 1.2, "repeating timers": [4.0]}),
    lambda: Story().rest({"ticks": 3, "last_tick": 1.2, "repeating timers": [1.6]}),
)
case(
    "M6",
    lambda: (
        Story()
        .add("ticked", "Relay", (0.4, 9.0))
        .add("ticked", "Relay", (0.4, 9.0))
        .add("began", data=began(0, b"", 9.0))
    ),
    lambda: Story().add("ticked", "Relay", (0.4, 9.4)).add("began", data=began(0, b"", 9.0)),
)
case(
    "M7",
    lambda: Story().rest(matcher={"pairs": ["a", "a"], "pairs_due": ["a"]}),
    lambda: Story().rest(matcher={"pairs": ["a"], "pairs_due": ["a"]}),
)
case(
    "M7",
    lambda: Story().rest(matcher={"couples_due": ["a b"]}),
    lambda: Story().rest(matcher={"couples": ["a b"], "couples_due": ["a b"]}),
)
case(
    "M8",
    lambda: Story().rest(matcher={"orders": ["a"], "answered": ["a"], "missing": ["a"]}),
    lambda: Story().rest(matcher={"orders": ["a", "b"], "answered": ["a"], "missing": ["b"]}),
)
case(
    "M8",
    lambda: Story().rest(matcher={"orders": ["a"]}),
    lambda: Story().rest(matcher={"orders": ["a"]}, reached=False),
)
case("M8", lambda: Story().rest(matcher={"wrong": ["too late"]}), lambda: Story().rest(matcher={}))

case(
    "M9",
    lambda: Story().rest(state={"Sleeper": [{"rung": [24.0], "over": [24.0]}]}),
    lambda: Story().rest(state={"Sleeper": [{"rung": [25.0, 51.0], "over": [25.0]}]}),
)
case(
    "M9",
    lambda: Story().rest(state={"Sleeper": [{"rung": [25.0, 51.0], "over": []}]}),
    lambda: Story().rest(state={"Sleeper": [{"rung": [], "over": []}]}),
)
case(
    "G12",
    lambda: Story(checkpoint_interval=1.0).add("died", "", Death(95.0, True)).add("began", data=began(1, b"", 80.0)),
    lambda: Story(checkpoint_interval=5.0).add("died", "", Death(95.0, True)).add("began", data=began(1, b"", 80.0)),
)
case(
    "G12",
    lambda: Story().add("died", "", Death(95.0, True)).add("began", data=began(1, b"")),
    lambda: Story().add("died", "", Death(95.0, False)).add("began", data=began(1, b"")),
)
case(
    "G13",
    lambda: Story().add("received", "orders", ReceivedBatch(1, ("a",), ("1",), (), 7.0, 7.5)),
    lambda: Story().add("received", "orders", ReceivedBatch(1, ("a",), ("1",), (), 7.0, 7.0)),
)
case(
    "G13",
    lambda: Story().add("snapshot", data=(1, context(), 3.0)).checkpoint(1, engine_time=2.0),
    lambda: Story().add("snapshot", data=(1, context(), 3.0)).checkpoint(1, engine_time=3.0),
)
case("G10", lambda: Story().add("unlocked", "", ("main",)), lambda: Story().checkpoint(1))

# receiving
EXACTLY = ReceiverFacts(reliability=Reliability.EXACTLY_ONCE, destination="queue:orders", domain="d1")
case("BE1", lambda: Story().received("hints", 1, "h"), lambda: Story().received("hints", 0, dead=("h",)))
case(
    "BE3",
    lambda: Story().published("hints", hint("a"), hint("b")).add("handled", "Relay", "b").rest(),
    lambda: Story().published("hints", hint("a")).add("handled", "Relay", "a").rest(),
)
case(
    "A1",
    lambda: Story().order("a").acknowledged("orders", "a").received("orders", 1, "a"),
    lambda: Story().order("a").received("orders", 1, "a").acknowledged("orders", "a"),
)
case(
    "A2",
    lambda: Story().order("a").rest({}),
    lambda: Story().order("a").received("orders", 1, "a").rest({"handled": ["a"]}, {"orders": ["a"]}),
)
case(
    "A2",
    lambda: Story().order("a").received("orders", 1, "a").rest({}),
    lambda: Story().order("a").received("orders", 1, "a").rest({"handled": ["a"]}, {"orders": ["a"]}),
)
case(
    "A3",
    lambda: Story().order("a").received("orders", 1, "a").rest({"handled": ["a", "a"]}, {"orders": ["a"]}),
    lambda: Story().order("a").received("orders", 1, "a").rest({"handled": ["a"]}, {"orders": ["a"]}),
)
case(
    "A4",
    lambda: two_orders().received("orders", 1, "a", "b").rest({"handled": ["b", "a"]}, {"orders": ["a", "b"]}),
    lambda: two_orders().received("orders", 1, "a", "b").rest({"handled": ["a", "b"]}, {"orders": ["a", "b"]}),
)
case(
    "A4",
    lambda: two_orders().received("orders", 1, "b", "a").rest(),
    lambda: two_orders().received("orders", 1, "a", "b").rest(),
)
case(
    "A5",
    lambda: Story().delivered("orders", "a", "b").delivered("orders", "c"),
    lambda: Story().delivered("orders", "a", "b").acknowledged("orders", "a", "b").delivered("orders", "c"),
)
case(
    "A6",
    lambda: Story().add("hooks", "on_conclude_recovery", ("orders",)),
    lambda: Story().add("hooks", "on_conclude_recovery", ()),
)
case(
    "A7",
    lambda: Story().order("a", unselected=("orders",)).order("b").received("orders", 1, "a", "b"),
    lambda: (
        Story()
        .order("a", unselected=("orders",))
        .order("b")
        .received("orders", 1, "b")
        .acknowledged("orders", "a", "b")
    ),
)
case(
    "W1",
    lambda: windowed().add("granted", "orders", 1).received("orders", 1, "a", "b"),
    lambda: windowed().add("granted", "orders", 2).received("orders", 1, "a", "b"),
)
case(
    "W1",
    lambda: windowed().add("granted", "orders", 2, 1).add("received", "orders", ReceivedBatch(1, ("a",), ()), 2),
    lambda: windowed().add("granted", "orders", 2, 2).add("received", "orders", ReceivedBatch(1, ("a",), ()), 2),
)
case(
    "D1",
    lambda: extra().received("extras", 1, "e").rest({}),
    lambda: extra().received("extras", 1, "e").rest({"extras": ["e"]}),
)
case(
    "D1",
    lambda: extra().received("extras", 1, "e").rest({"extras": ["e", "e"]}),
    lambda: extra().received("extras", 1, "e").received("extras", 2, "e").rest({"extras": ["e", "e"]}),
)
case(
    "D2",
    lambda: Story().rest({"aside": ["x"]}),
    lambda: Story().accepted("aside", 1, b"x").rest({"aside": ["x"]}),
)
case(
    "D3",
    lambda: extra().acknowledged("extras", "e").received("extras", 1, "e"),
    lambda: extra().received("extras", 1, "e").acknowledged("extras", "e"),
)
case(
    "N1",
    lambda: two_orders().received("orders", 1, "a").received("orders", 1, "b"),
    lambda: two_orders().received("orders", 1, "a").received("orders", 2, "b"),
)
case(
    "E1",
    lambda: (
        Story().order("a", "1:P").order("a'", "1:P").received("orders", 1, "a", ids=["1:P"]).received("orders", 2, "a'")
    ),
    lambda: Story().order("a", "1:P").order("a'", "1:P").received("orders", 1, "a", ids=["1:P"]).received("orders", 0),
)
case(
    "E1",
    lambda: doubtful().add("returned", "orders", ("a",)).received("orders", 3, "a", ids=["1:P"]),
    lambda: (
        doubtful()
        .add("began", data=began(0, b""), life=2)
        .add("returned", "orders", ("a",))
        .received("orders", 3, "a", ids=["1:P"])
    ),
)
case(
    "E1",
    lambda: doubtful().acknowledged("orders", "b").acknowledged("orders", "c").received("orders", 3, "a", ids=["1:P"]),
    lambda: doubtful().acknowledged("orders", "a").received("orders", 3, "a", ids=["1:P"]),
)
case(
    "E2",
    lambda: Story().order("a", "1:P").received("orders", 0, ids=["1:P"]),
    lambda: Story().order("a", "1:P").received("orders", 1, "a", ids=["1:P"]).received("orders", 0, ids=["1:P"]),
)
case(
    "E3",
    lambda: Story().order("a").acknowledged("orders", "a"),
    lambda: Story().order("a").received("orders", 1, "a").acknowledged("orders", "a"),
)
case(
    "E4",
    lambda: two_domains().received("others", 1, "o", ids=["1:P"]).acknowledged("orders", "a"),
    lambda: two_domains().received("orders", 1, "a", ids=["1:P"]).acknowledged("orders", "a"),
)
case(
    "E5",
    lambda: Story().order("a", "1:P").delivered("orders", "a").rest(),
    lambda: Story().order("a", "1:P").delivered("orders", "a").acknowledged("orders", "a").rest(),
)
case(
    "E6",
    lambda: Story().order("a", "1:P").received("orders", 1, "a"),
    lambda: Story().order("a", "1:P").received("orders", 1, "a", ids=["1:P"]),
)
case(
    "E6",
    lambda: Story().rest(memory={"d1": (("1:P",), ())}),
    lambda: Story().rest(memory={"d1": (("1:P",), ("1:P",))}),
)
case(
    "E6",
    lambda: repeated().received("orders", 0, ids=()).acknowledged("orders", "a'"),
    lambda: repeated().received("orders", 0, ids=["1:P"]).acknowledged("orders", "a'"),
)
case("E7", lambda: Story().rest(ids={"d1": (9, 5, 9)}), lambda: Story().rest(ids={"d1": (5, 5, 9)}))
case(
    "E8",
    lambda: Story().order("a", "1:P").order("b", "1:P").received("orders", 1, "a", "b", ids=["1:P"]),
    lambda: Story().order("a", "1:P").order("b", "2:P").received("orders", 1, "a", "b", ids=["1:P", "2:P"]),
)
case(
    "E9",
    lambda: Story().order("a", "1:P").add("forgotten", data=(("orders", "a", "1:P"),)),
    lambda: Story().order("a", "1:P").add("forgotten", data=()),
)
case(
    "E9",
    lambda: Story().add("uncounted", data=(("orders", 2, 3),)),
    lambda: Story().add("uncounted", data=()),
)
case(
    "C1",
    lambda: task().delivered("tasks", "t").acknowledged("tasks", "t").add("resumed", "tasks"),
    lambda: task().delivered("tasks", "t").add("resumed", "tasks").acknowledged("tasks", "t"),
)
case(
    "C2",
    lambda: Story().delivered("tasks", "t", "u").acknowledged("tasks", "t"),
    lambda: Story().delivered("tasks", "t", "u").acknowledged("tasks", "t", "u"),
)
case(
    "C3",
    lambda: Story().add("suspended", "tasks").delivered("tasks", "t"),
    lambda: Story().add("suspended", "tasks").add("resumed", "tasks").delivered("tasks", "t"),
)
case("C4", lambda: task().rest(), lambda: task().acknowledged("tasks", "t").rest())
case(
    "C6",
    lambda: Story().add("attempt", "acknowledge twice", ""),
    lambda: Story().add("attempt", "acknowledge twice", "E7101"),
)
case(
    "C7",
    lambda: task("mapping").acknowledged("tasks", "t"),
    lambda: task("mapping").received("tasks", 0, dead=("t",)).acknowledged("tasks", "t"),
)
case(
    "X1",
    lambda: task().add("derived", "tasks", ("t", b"x")).acknowledged("tasks", "t").accepted("quick", 1, b"x"),
    lambda: task().add("derived", "tasks", ("t", b"x")).accepted("quick", 1, b"x").acknowledged("tasks", "t"),
)

# sending
case(
    "S1",
    lambda: Story().accepted("exact", 1, b"a").released("exact", 1, b"a"),
    lambda: Story().released("exact", 1, b"a").accepted("exact", 1, b"a"),
)
case(
    "S2",
    lambda: Story().released("exact", 1, b"a").rest(),
    lambda: Story().released("exact", 1, b"a").accepted("exact", 1, b"a").rest(),
)
case(
    "S3",
    lambda: Story().released("exact", 1, b"a").released("exact", 3, b"b", number=2),
    lambda: Story().released("exact", 1, b"a").released("exact", 2, b"b", number=2),
)
case(
    "S4",
    lambda: Story().accepted("exact", 1, b"a").accepted("exact", 1, b"b"),
    lambda: Story().accepted("exact", 1, b"a").accepted("exact", 1, b"a"),
)
case(
    "S5",
    lambda: Story().accepted("exact", 2, b"b").accepted("exact", 1, b"a"),
    lambda: Story().accepted("exact", 1, b"a").accepted("exact", 2, b"b").accepted("exact", 1, b"a"),
)
case(
    "S6",
    lambda: Story(deduplicating=True).accepted("exact", 1, b"a").accepted("exact", 1, b"a"),
    lambda: Story(deduplicating=True).accepted("exact", 1, b"a"),
)
case(
    "S6",
    lambda: Story(deduplicating=True).accepted("exact", 1, b"a").accepted("exact", 2, b"a"),
    lambda: Story(deduplicating=True).accepted("exact", 1, b"a").accepted("exact", 2, b"b"),
)
case(
    "S7",
    lambda: Story().released("exact", 1, b"a").checkpoint(2, confirmed={"exact": 1}).accepted("exact", 1, b"a"),
    lambda: Story().released("exact", 1, b"a").accepted("exact", 1, b"a").checkpoint(2, confirmed={"exact": 1}),
)
case(
    "S7",
    lambda: given_up().checkpoint(2, confirmed={"exact": 1}),
    lambda: given_up().checkpoint(2, confirmed={"exact": 1}, dead=(("send", "exact", "1:s", b"a"),)),
)
case(
    "S7",
    lambda: Story().accepted("exact", 1, b"a").checkpoint(1, dead=(("send", "exact", "1:s", b"a"),)),
    lambda: given_up().checkpoint(2, dead=(("send", "exact", "1:s", b"a"),)),
)
case(
    "S8",
    lambda: Story().accepted("exact", 1, b"a").accepted("exact", 1, b"a"),
    lambda: Story().add("fault", "send.partial").accepted("exact", 1, b"a").accepted("exact", 1, b"a"),
)
case(
    "S8",
    lambda: Story().add("fault", "send.refused").accepted("exact", 1, b"a").accepted("exact", 1, b"a"),
    lambda: Story().accepted("exact", 1, b"a").accepted("exact", 1, b"a", life=2),
)
case(
    "S9",
    lambda: Story().accepted("exact", 1, b"1:a").rest({"sent": ["1:b"]}),
    lambda: Story().accepted("exact", 1, b"1:a").rest({"sent": ["1:a"]}),
)
case(
    "B1",
    lambda: Story().add("sent", "quick", ("relay", b"x")).rest(),
    lambda: Story().add("sent", "quick", ("relay", b"x")).accepted("quick", 1, b"x").rest(),
)
case(
    "B2",
    lambda: Story().accepted("quick", 1, b"x").accepted("quick", 2, b"y", life=2),
    lambda: Story().accepted("quick", 1, b"x").accepted("quick", 1, b"y", source="t", life=2),
)
case("B3", lambda: Story().released("quick", 1, b"x"), lambda: Story().released("exact", 1, b"x"))
case(
    "F1",
    lambda: flush().add("flushed", "quick", ("relay", 1, 0)).accepted("quick", 1, b"x"),
    lambda: flush().accepted("quick", 1, b"x").add("flushed", "quick", ("relay", 1, 0)),
)
case(
    "F2",
    lambda: flush().add("flushed", "quick", ("relay", 1, 0), 2),
    lambda: flush().add("flushed", "quick", ("relay", 1, 0)),
)
case(
    "F3",
    lambda: Story().add("flushed", "quick", ("relay", 2, 0)).add("flushed", "quick", ("relay", 1, 0)),
    lambda: Story().add("flushed", "quick", ("relay", 1, 0)).add("flushed", "quick", ("relay", 2, 0)),
)
case("F4", lambda: flush().rest(), lambda: flush().add("flushed", "quick", ("relay", 1, 0)).rest())
case(
    "F4",
    lambda: flush().add("flush", "quick", ("relay", 2)).add("flushed", "quick", ("relay", 2, 0)),
    lambda: flush().add("flush", "quick", ("other", 2)).add("flushed", "quick", ("other", 2, 0)),
)
case(
    "F6",
    lambda: Story().add("flush", "quick", ("relay", 1)).rest(),
    lambda: Story().add("flush", "quick", ("relay", 1)).add("flushed", "quick", ("relay", 1, 0)).rest(),
)
case(
    "F5",
    lambda: Story().add("attempt", "request_flush in a persistent monitor", ""),
    lambda: Story().add("attempt", "request_flush in a persistent monitor", "E4110"),
)


def hint(name: str) -> Published:
    return Published(name, "", "", name)


def two_orders() -> Story:
    return Story().order("a").order("b")


def failed() -> Story:
    return Story(on_error="dead_letter").order("a", flaw="handler").received("orders", 1, "a")


def doubtful() -> Story:
    """Accepted, never acknowledged, and pushed out of a window of one."""
    story = Story(window=1, expiry=0.0).order("a", "1:P").order("b", "2:P")
    return story.received("orders", 1, "a", ids=["1:P"]).received("orders", 2, "b", ids=["2:P"])


def repeated() -> Story:
    story = Story().order("a", "1:P").order("a'", "1:P")
    return story.received("orders", 1, "a", ids=["1:P"]).acknowledged("orders", "a")


def extra() -> Story:
    return Story().published("extras", Published("e", "1:E", "E", "e"))


def windowed() -> Story:
    facts = ReceiverFacts(reliability=Reliability.EXACTLY_ONCE, destination="queue:orders", flow_control=True)
    return Story(receivers={"orders": facts})


def two_domains() -> Story:
    return Story().order("a", "1:P").published("others", Published("o", "1:P", "P", "o"))


def task(flaw: str = "") -> Story:
    return Story().published("tasks", Published("t", "", "", "t", flaw))


def flush() -> Story:
    return Story().add("sent", "quick", ("relay", b"x")).add("flush", "quick", ("relay", 1))


def given_up() -> Story:
    story = Story().released("exact", 1, b"a")
    for _ in range(3):
        story.add("refused", "exact", (Sent("s", 1, "queue:exact", b"a", "1:s"),))
    return story


def poisoned() -> Story:
    """Order `a`, number 1, ends the process."""
    return Story().order("a", "1:P", "kills").received("orders", 1, "a", ids=("1:P",))


def dies_with(story: Story, *deaths: Suspect, life: int = 1) -> Story:
    """Lives that end in recovery with these notes."""
    for number, suspect in enumerate(deaths, life):
        story.add("noted", data=(("main",), (suspect,)), life=number).add("died", "handling a", life=number)
    return story


def condemned(story: Story, number: int = 1) -> Story:
    return story.add("condemned", "main", Condemned("orders", number, b'{"id":"a"}'), life=9)


def suspect(first: int, last: int) -> Suspect:
    return Suspect("main", "orders", first, last, 0)


case("P1", lambda: poisoned().rest(), lambda: condemned(poisoned()).rest())
case("P1", lambda: condemned(condemned(poisoned())).rest(), lambda: condemned(poisoned()).rest())
case(
    "P2",
    lambda: condemned(dies_with(poisoned(), suspect(1, 1))),
    lambda: condemned(dies_with(poisoned(), suspect(1, 2), suspect(1, 1))),
)
case(
    "P2",
    lambda: condemned(dies_with(poisoned(), suspect(1, 1), suspect(1, 2))),
    lambda: condemned(dies_with(poisoned(), suspect(1, 1), suspect(1, 1))),
)
case(
    "P2",
    lambda: condemned(dies_with(poisoned(), suspect(1, 2), suspect(2, 2))),
    lambda: condemned(dies_with(poisoned(), suspect(1, 2), suspect(2, 2), suspect(1, 1))),
)
case("P3", lambda: condemned(poisoned(), number=2), lambda: condemned(poisoned()))


# a configuration that changes


def configured(*, to: str = "tap", bills: str = "queue:bills", discards: tuple[str, ...] = (), **more: str):
    contexts = {"passing": "", "counting": ""} | more
    return Parts(routes={"left": (to,)}, pipelines=(to,), discards=discards, bills=bills, **contexts)


def changing(*lives: Parts) -> Story:
    story = Story()
    for life, one in enumerate(lives, 1):
        story.add("configured", data=one, life=life)
    return story


def billed(story: Story, *bills: Bill, life: int = 1, first: int = 1) -> Story:
    bodies = tuple(msgspec.json.encode(one) for one in bills)
    checkpoint = Checkpointed(life, b"", {"bills": (first, bodies)}, {}, {})
    return story.add("checkpoint", data=checkpoint, life=life)


def bill(pid: str, total: int, pipeline: str = "tap", version: int = 0) -> Bill:
    return Bill(pipeline, "left", pid, total, version, number=int(pid.removeprefix("la")) + 1)


RENAMED = (configured(), configured(to="copy"))
case(
    "K1",
    lambda: billed(
        changing(*RENAMED).received("left", 1, "la0"), bill("la0", 1), bill("la0", 1, "copy"), life=2
    ).rest(),
    lambda: billed(changing(*RENAMED).received("left", 1, "la0"), bill("la0", 1)).rest(),
)
case(
    "K1",
    lambda: billed(changing(configured()).received("left", 1, "la0", "la1"), bill("la0", 1)).rest(),
    lambda: (
        billed(changing(configured()).received("left", 1, "la0", "la1"), bill("la0", 1))
        .add("condemned", "tap", Condemned("left", 2, b"{}"))
        .rest()
    ),
)


def two_places() -> Story:
    story = changing(configured()).published("left", Published("la0", "0:L", "L", "la0"))
    return story.published("left2", Published("lb0", "0:L", "L", "lb0")).received("left", 1, "la0", ids=["0:L"])


case(
    "K2",
    lambda: two_places().acknowledged("left", "la0", "lb0"),
    lambda: two_places().acknowledged("left", "la0").received("left", 2, "lb0").acknowledged("left", "lb0"),
)


def sent_bill(destination: str) -> Story:
    story = billed(changing(configured(), configured(bills="queue:bills2")), bill("la0", 1))
    return story.add("accepted", "bills", (Sent("s", 1, destination, b""),), 2)


case("K3", lambda: sent_bill("queue:bills2"), lambda: sent_bill("queue:bills"))


def declined(*, unchanged: bool = True, again: bool = False) -> Story:
    return changing(configured()).add("declined", "E4301", Declined(unchanged, again, "E4301 …"))


case("K4", lambda: declined(unchanged=False), declined)
case("K4", lambda: declined(again=True), declined)


def passed_by(*heard: str) -> Story:
    story = changing(configured(), configured(passing="side")).order("or0").order("or1")
    story.received("orders", 1, "or0")
    story.add("received", "orders", ReceivedBatch(2, ("or1",), ()), life=2)
    for one in heard:
        story.add("heard", data=one, life=2)
    return story.rest()


case("K5", lambda: passed_by("or0", "or1"), lambda: passed_by("or1"))
case("K5", passed_by, lambda: passed_by("or1"))


def counted(*orders: str) -> Story:
    story = changing(configured(counting="counting")).order("or0").received("orders", 1, "or0")
    return story.rest(state={"Counter": [{"orders": list(orders)}]})


case("K5", lambda: counted("or0", "or0"), lambda: counted("or0"))
case("K5", counted, lambda: counted("or0"))


def counted_beside_a_dead_letter(*orders: str) -> Story:
    """A message without an id came twice, and the process died of one of the copies."""
    story = changing(configured(counting="counting")).order("or0").received("orders", 1, "or0", "or0")
    story.add("condemned", "counting", Condemned("orders", 1, b'{"id":"or0"}'))
    return story.rest(state={"Counter": [{"orders": list(orders)}]})


case("K5", lambda: counted_beside_a_dead_letter("or0", "or0"), lambda: counted_beside_a_dead_letter("or0"))
case("K5", counted_beside_a_dead_letter, lambda: counted_beside_a_dead_letter("or0"))
LIVES = (configured(), configured(), configured(discards=("tap",)))
case(
    "K6",
    lambda: billed(billed(changing(*LIVES), bill("la0", 1)), bill("la1", 1), life=2),
    lambda: billed(billed(changing(*LIVES), bill("la0", 1)), bill("la1", 2), life=2),
)
case(
    "K6",
    lambda: billed(billed(changing(*LIVES), bill("la0", 1)), bill("la1", 2, version=1), life=3),
    lambda: billed(billed(changing(*LIVES), bill("la0", 1)), bill("la1", 1, version=1), life=3),
)


def unmapped_in(*checkpoints: int) -> Story:
    """The first of two messages, of which a pipeline has handled the first in the first life."""
    story = billed(changing(*LIVES).received("left", 1, "la0", "la1"), bill("la0", 1))
    for one in checkpoints:
        story.add("unmapped", "left", UnmappedMessage(1, one))
    return billed(story, bill("la1", 2), life=3).rest()


case("K7", lambda: unmapped_in(2, 3), lambda: unmapped_in(2))
case("K7", lambda: unmapped_in(1), lambda: unmapped_in(2))


@pytest.mark.parametrize(("name", "bad", "good"), BAD, ids=[f"{name}-{at}" for at, (name, _, _) in enumerate(BAD)])
def test_a_bad_history_is_refused_and_a_good_one_is_not(name: str, bad: Tell, good: Tell) -> None:
    assert bad().violates(name)
    assert not good().violates(name)


def test_every_check_refuses_a_bad_history() -> None:
    """An invariant may have several checks."""
    silent = [
        f"{one.id}: {check.__name__}"
        for one in CATALOGUE.values()
        for check in one.checks
        if not any(list(check(Facts(bad().history))) for name, bad, _ in BAD if name == one.id)
    ]
    assert silent == []


def test_what_only_our_application_tells_is_no_fault_of_another_one() -> None:
    """The invariants of this application ask `Setup.told`, or for records that nobody else makes."""
    told = {
        "handled",
        "sent",
        "derived",
        "suspended",
        "granted",
        "flush",
        "flushed",
        "attempt",
        "heard",
        "hooks",
        "ticked",
    }
    ours = [(one.id, check) for one in CATALOGUE.values() for check in one.checks if "harness" in check.__module__]
    wrong = []
    for name, bad, _ in BAD:
        history = bad().history
        others = History(replace(history.setup, told=False))
        for record in history.records:
            if record.kind not in told | {"configured"}:
                others.add(*record)
        wrong += [one for one, check in ours if one == name and list(check(Facts(others)))]
    assert wrong == []
