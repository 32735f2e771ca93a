"""What goes wrong between engines and the server of their store: drawn from a seed, or as a plan says.

The n of such a fault counts over all lives of a run: COMMITs, pieces of requests, or announced transactions.
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
"""What is counted on the way to a store."""
SLOW_S = 0.05
AT_COMMIT: Mapping[str, Callable[[int], NetworkFault]] = {
    "commit.lost_request": lambda n: lost_request(POSTGRES_COMMIT, hit=n),
    "commit.lost_reply": lambda n: lost_reply(POSTGRES_COMMIT, hit=n),
    "commit.lost_client": lambda n: NetworkFault(
        AtRequest(matcher=POSTGRES_COMMIT, hit=n), CutConnection(upstream=False)
    ),
}
"""The n-th COMMIT does not arrive; it is done and its reply is lost, in the last case without a word to the server."""
ANYWHERE: Mapping[str, Callable[[int], NetworkFault]] = {
    "server.lost_request": lambda n: lost_request(ANY, hit=n),
    "server.lost_reply": lambda n: lost_reply(ANY, hit=n),
    "server.slow": lambda n: NetworkFault(AtRequest(hit=n), Stall(seconds=SLOW_S)),
}
"""The same for whatever a client sends, and a reply that is late."""
BACKEND = "server.backend_ended"
"""The server ends the session of the engine, about when the n-th transaction is committed."""
KINDS = (*AT_COMMIT, *ANYWHERE, BACKEND)
OFTEN = (1, 1, 2, 4)
COMMITS, REQUESTS = 40, 400
"""Among the first so many; a short run has half of them."""


def drawn(seed: int) -> Sequence[Fault]:
    """A swarm: each seed has its own kinds."""
    rng = random.Random(f"server {seed}")
    return [
        Fault(kind, n)
        for kind in KINDS
        if rng.random() < 0.5
        for n in rng.sample(range(1, 1 + (REQUESTS if kind in ANYWHERE else COMMITS)), rng.choice(OFTEN))
    ]


def singles(commits: int) -> Iterator[Fault]:
    """Every way in which each of so many COMMITs can go wrong."""
    for n in range(1, commits + 1):
        for kind in (*AT_COMMIT, BACKEND):
            yield Fault(kind, n)
