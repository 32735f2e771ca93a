"""Which faults strike and when: chosen at random from a seed, or given as a list to repeat or shrink a failure.

A fault is named by its kind and by the count of opportunities for that kind. So a run can be repeated with some of its
faults left out. Another random generator determines the order in which actors run: leaving out faults does not change
it.
"""

import random
from collections.abc import Collection, Mapping
from typing import NamedTuple

KILL = "kill"
LATE = "return.late"
"""The broker notices a lost connection late, and redelivers its messages after others."""
CUT_AGAIN = "receive.cut_again"
"""A connection is lost while messages of an earlier lost connection are still unacknowledged."""
LOST_BESIDE = "ack.lost_beside"
"""The first acknowledgement is lost while another receiver of the queue has unacknowledged messages of a loss."""
AWAY_BESIDE = "connect.away_beside"
"""A receiver that lost its connection stays away from its queue while another receiver takes from it."""
PART = "receive.part"
"""Only some of the waiting messages arrive, so redelivered messages come in other batches than before."""
APART = (LATE, CUT_AGAIN, LOST_BESIDE, AWAY_BESIDE, PART)
"""Kinds with few opportunities. They are chosen apart from the others, with the faults that lead to an opportunity."""
DOUBTS = {
    "ack.lost": 0.4,
    "ack.silent": 0.5,
    "ack.answer_lost": 0.1,
    CUT_AGAIN: 0.3,
    LOST_BESIDE: 0.9,
    AWAY_BESIDE: 0.6,
    PART: 0.5,
    LATE: 0.5,
}
BROKER_KINDS = (
    "receive.cut",
    "receive.repeat",
    "ack.lost",
    "ack.silent",
    "ack.answer_lost",
    "send.lost",
    "send.refused",
    "send.partial",
    "broker.down",
    "broker.cut",
    *APART,
)
STORE_KINDS = ("commit.busy", "commit.lost_request", "commit.lost_reply", "commit.failed", "commit.failed_committed")
OTHER_KINDS = ("zombie", "pause")
KINDS = (KILL, *BROKER_KINDS, *STORE_KINDS, *OTHER_KINDS)


class Fault(NamedTuple):
    """A fault of one kind, at the n-th opportunity for this kind, counted from 1."""

    kind: str
    n: int


class Schedule:
    """The faults of one run. Not safe for threads.

    Args:
        seed: determines the random faults.
        rates: the probability of each kind at each opportunity. The run itself decides when the engine is killed.
        exactly: if given, these faults strike and no others.

    Attributes:
        fired: the faults that have struck, in order.
        on: whether faults may strike.
    """

    def __init__(self, seed: int, rates: Mapping[str, float], exactly: Collection[Fault] | None = None) -> None:
        self.fired: list[Fault] = []
        self.on = True
        self.random = random.Random(f"faults {seed}")
        self._seed = seed
        self.rates = rates
        self._exactly = None if exactly is None else frozenset(exactly)
        self._given = self._exactly or frozenset()
        self._possible = frozenset(rates if exactly is None else [kind for kind, _ in exactly])
        self._counts = dict.fromkeys(KINDS, 0)

    def strikes(self, kind: str) -> bool:
        """Count an opportunity for a fault of this kind, and return whether the fault strikes."""
        if kind not in self._possible or not self.on:
            return False
        n = self._counts[kind] = self._counts[kind] + 1
        drawn = self._exactly is None
        struck = self.random.random() < self.rates[kind] if drawn else (kind, n) in self._given
        if struck:
            self.fired.append(Fault(kind, n))
        return struck

    def kills(self, planned: bool) -> bool:
        """Count a fault point, and return whether the engine dies there: as `planned`, or as `exactly` says."""
        n = self._counts[KILL] = self._counts[KILL] + 1
        if not self.on:
            return False
        struck = planned if self._exactly is None else (KILL, n) in self._given
        if struck:
            self.fired.append(Fault(KILL, n))
        return struck

    def detail(self, kind: str, limit: int) -> int:
        """Return a number from 0 to `limit` (inclusive), determined by the seed, the kind and the count of
        opportunities.
        """
        return random.Random(f"{self._seed} {kind} {self._counts[kind]}").randint(0, limit)


def is_doubtful(seed: int) -> bool:
    """Return whether the run of this seed concentrates on messages in doubt: it loses connections again and again."""
    return random.Random(f"doubts {seed}").random() < 0.3


def draw_rates(seed: int) -> dict[str, float]:
    """Choose the kinds of faults of a seed, with their rates. One seed in ten has no faults, one in ten
    has only kills.
    """
    rng = random.Random(f"swarm {seed}")
    control = rng.randrange(10)
    if control == 0:
        return {}
    if control == 1:
        return {KILL: 1.0}
    kinds = [kind for kind in KINDS[1:] if kind not in APART and rng.random() < 0.4]
    rates = {kind: rng.choice((0.01, 0.03, 0.1)) for kind in kinds}
    for rare in ("broker.down", "broker.cut", "pause"):
        if rare in rates:
            rates[rare] /= 5
    if "zombie" in rates:
        rates["zombie"] = 0.3  # a share of the deaths, not of the steps
    if random.Random(f"late {seed}").random() < 0.4:
        rates[LATE] = 0.3
    kills = rng.random() < 0.9
    if is_doubtful(seed):  # a start has more messages in doubt than a loss has: half of these runs have no kills
        rates |= DOUBTS
        kills = kills and random.Random(f"unkilled {seed}").random() < 0.5
    return {KILL: 1.0 if kills else 0.0, **rates}
