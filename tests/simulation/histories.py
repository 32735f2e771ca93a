"""Hand-written histories: a few records each, good or bad."""

from typing import Any

from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import CATALOGUE
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.history import (
    Checkpointed,
    History,
    Published,
    ReceivedBatch,
    ReceiverFacts,
    Rest,
    Sent,
    Setup,
)
from tests.harness.simulation.invariants import GROUPS

assert GROUPS  # they fill the catalogue, after those that hold for every application
RECEIVERS = {
    "orders": ReceiverFacts(
        reliability=Reliability.EXACTLY_ONCE, destination="queue:orders", domain="d1", max_batch_size=2
    ),
    "others": ReceiverFacts(
        reliability=Reliability.EXACTLY_ONCE, destination="queue:others", domain="d2", max_batch_size=2
    ),
    "readings": ReceiverFacts(reliability=Reliability.AT_LEAST_ONCE, destination="queue:readings"),
    "hints": ReceiverFacts(reliability=Reliability.BEST_EFFORT, destination="queue:hints"),
    "tasks": ReceiverFacts(reliability=Reliability.APP_CONTROLLED, destination="queue:tasks"),
}
SENDERS = {
    "exact": Reliability.EXACTLY_ONCE,
    "steady": Reliability.AT_LEAST_ONCE,
    "quick": Reliability.BEST_EFFORT,
}
MATCHER: dict[str, Any] = {
    "orders": [],
    "answered": [],
    "missing": [],
    "wrong": [],
    "pairs": [],
    "pairs_due": [],
    "couples": [],
    "couples_due": [],
}
LEDGER: dict[str, Any] = {
    "handled": [],
    "readings": [],
    "extras": [],
    "aside": [],
    "sent": [],
    "steady": [],
    "notes": [],
    "summaries": [],
    "armed": [],
    "fired": [],
    "spawned": [],
    "ended": [],
    "wrong": [],
    "waiting_once": {},
    "ticks": 0,
    "born": 0.0,
    "last_tick": 0.0,
    "counts": {},
    "baskets": {},
    "beats": [0.4],
    "once listeners": [],
}
AUDIT: dict[str, Any] = {"orders": [], "noted": [], "replies": []}


class Story:
    """A history under construction; every method adds a record and returns the story."""

    def __init__(self, **setup: Any) -> None:
        self.history = History(Setup(**{"receivers": RECEIVERS, "senders": SENDERS} | setup))

    def add(self, kind: Any, who: str = "", data: Any = None, life: int = 1) -> "Story":
        self.history.add(life, kind, who, data)
        return self

    def published(self, destination: str, *messages: Published) -> "Story":
        return self.add("published", f"queue:{destination}", messages, 0)

    def order(self, pid: str, uid: str = "", flaw: str = "", *, unselected: tuple[str, ...] = ()) -> "Story":
        return self.published("orders", Published(pid, uid, uid.partition(":")[2], pid.rstrip("'"), flaw, unselected))

    def received(self, who: str, first: int, *pids: str, ids: Any = (), time: float = 0.0, dead: Any = ()) -> "Story":
        return self.add("received", who, ReceivedBatch(first, pids, tuple(ids), tuple(dead), time))

    def delivered(self, who: str, *pids: str, life: int = 1) -> "Story":
        return self.add("delivered", who, pids, life)

    def acknowledged(self, who: str, *pids: str, life: int = 1) -> "Story":
        return self.add("acknowledged", who, pids, life)

    def checkpoint(self, number: int, **fields: Any) -> "Story":
        values: dict[str, Any] = {"outbound": {}, "confirmed": {}, "next_sequence": {}} | fields
        return self.add("checkpoint", "", Checkpointed(number, b"digest %d" % number, **values))

    def released(self, sender: str, first: int, *bodies: bytes, number: int = 1) -> "Story":
        return self.checkpoint(number, outbound={sender: (first, bodies)})

    def accepted(self, sender: str, number: int, body: bytes, source: str = "s", life: int = 1) -> "Story":
        one = Sent(source, number, f"queue:{sender}", body, f"{number}:{source}")
        return self.add("accepted", sender, (one,), life)

    def rest(
        self, ledger: Any = None, audit: Any = None, followers: Any = (), matcher: Any = None, **fields: Any
    ) -> "Story":
        state = fields.pop("state", None)
        if state is None and (ledger is not None or audit is not None or matcher is not None):
            state = {
                "Ledger": [LEDGER | (ledger or {})],
                "Audit": [AUDIT | (audit or {})],
                "Follower": list(followers),
                "Matcher": [MATCHER | (matcher or {})],
            }
        return self.add("rest", "", Rest(state=state or {}, **fields), 0)

    def violates(self, name: str) -> bool:
        """Whether the invariant is violated."""
        return bool(list(CATALOGUE[name].contradictions(Facts(self.history))))
