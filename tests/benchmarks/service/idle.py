"""The processor time of listeners to which nothing comes."""

import time
from collections.abc import Sequence

from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.processor import processor_s
from tests.benchmarks.service.report import Row, Spread, Table, spread

_SETTLE_S = 2.0


def measure(peers: Sequence[BrokerPeer], listeners: int, seconds: float, rounds: int) -> Table:
    """Each has a session and a queue of its own; all are in one process."""
    rows = [Row(peer.name, _shares(peer, listeners, seconds, rounds)) for peer in peers]
    title = f"share of one core used by {listeners} idle listeners, {rounds} times {seconds:g} s"
    return Table(title, ("client %", "server %"), rows, goal="at most 1 %")


def _shares(peer: BrokerPeer, listeners: int, seconds: float, rounds: int) -> list[Spread]:
    client = peer.client()
    found: list[tuple[float, float]] = []
    try:
        client.call("listen", listeners)
        time.sleep(_SETTLE_S)
        for _ in range(rounds):
            before, begin = (processor_s(client.pid), peer.server_s()), time.monotonic()
            time.sleep(seconds)
            after, took = (processor_s(client.pid), peer.server_s()), time.monotonic() - begin
            found.append((100 * (after[0] - before[0]) / took, 100 * (after[1] - before[1]) / took))
    finally:
        client.close()
    return [spread(values) for values in zip(*found, strict=True)]
