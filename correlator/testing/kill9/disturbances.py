"""Faults between engines and the server of their store: chosen at random from a seed, or listed in a plan.

The number n of such a fault counts over all lives of a run: COMMITs, parts of requests, or announced transactions.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from correlator.testing.network import (
    ANY,
    POSTGRES_COMMIT,
    AtRequest,
    CutConnection,
    NetworkFault,
    Stall,
    lost_reply,
    lost_request,
)
from correlator.testing.schedule import Fault

COMMIT = "commit"
"""The kind of opportunity that is counted on the way to a store."""
SLOW_S = 0.05
AT_COMMIT: Mapping[str, Callable[[int], NetworkFault]] = {
    "commit.lost_request": lambda n: lost_request(POSTGRES_COMMIT, hit=n),
    "commit.lost_reply": lambda n: lost_reply(POSTGRES_COMMIT, hit=n),
    "commit.lost_client": lambda n: NetworkFault(
        AtRequest(matcher=POSTGRES_COMMIT, hit=n), CutConnection(upstream=False)
    ),
}
"""The n-th COMMIT does not arrive, or it is done and its reply is lost; in the last case the server gets no notice of
it.
"""
ANYWHERE: Mapping[str, Callable[[int], NetworkFault]] = {
    "server.lost_request": lambda n: lost_request(ANY, hit=n),
    "server.lost_reply": lambda n: lost_reply(ANY, hit=n),
    "server.slow": lambda n: NetworkFault(AtRequest(hit=n), Stall(seconds=SLOW_S)),
}
"""The same faults for anything that a client sends, and a reply that is late."""
BACKEND = "server.backend_ended"
"""The server ends the session of the engine at about the time when the n-th transaction is committed."""
KINDS = (*AT_COMMIT, *ANYWHERE, BACKEND)
OFTEN = (1, 1, 2, 4)
COMMITS, REQUESTS = 40, 400
"""Random faults strike among the first `COMMITS` COMMITs or `REQUESTS` requests; a short run makes half as many."""


def drawn(seed: int) -> Sequence[Fault]:
    """Choose faults at random; each seed enables kinds of its own (swarm testing)."""
    rng = random.Random(f"server {seed}")
    return [
        Fault(kind, n)
        for kind in KINDS
        if rng.random() < 0.5
        for n in rng.sample(range(1, 1 + (REQUESTS if kind in ANYWHERE else COMMITS)), rng.choice(OFTEN))
    ]


def singles(commits: int) -> Iterator[Fault]:
    """Yield every way in which each of the first `commits` COMMITs can go wrong."""
    for n in range(1, commits + 1):
        for kind in (*AT_COMMIT, BACKEND):
            yield Fault(kind, n)
