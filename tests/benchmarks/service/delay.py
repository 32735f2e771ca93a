"""The delay from the call of send to the receipt by another process, which waits."""

from collections.abc import Sequence
from statistics import quantiles

from tests.benchmarks.service.peer import Peer
from tests.benchmarks.service.report import Row, Table, spread

_GAP_MS = 100


def measure(peers: Sequence[Peer], messages: int, rounds: int) -> Table:
    """The receiver is idle before each message; quantiles of each round, and their medians."""
    found: dict[str, list[list[float]]] = {peer.name: [] for peer in peers}
    for number in range(rounds):
        for peer in sorted(peers, key=lambda peer: peer.name, reverse=bool(number % 2)):
            cuts = quantiles(peer.delays(messages, _GAP_MS), n=100)
            found[peer.name].append([cuts[49], cuts[94], cuts[98]])
    return Table(
        f"delay between processes, {messages} persistent messages about {_GAP_MS} ms apart, medians of {rounds} rounds",
        ("p50 ms", "p95 ms", "p99 ms"),
        [Row(name, [spread(values) for values in zip(*cuts, strict=True)]) for name, cuts in found.items()],
        goal="p50 at most 10 ms (sqlite), 5 ms (postgres)",
    )
