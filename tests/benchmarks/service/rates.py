"""Rates of sending and receiving, ours against the peers."""

from collections import defaultdict
from collections.abc import Sequence

from tests.benchmarks.service.ours import OURS
from tests.benchmarks.service.peer import Peer, Result
from tests.benchmarks.service.report import Row, Spread, Table, ratios, spread

_COLUMNS = (
    "send/s",
    "receive/s",
    "together/s",
    "send: client us",
    "send: server us",
    "receive: client us",
    "receive: server us",
)
Results = dict[str, list[Result]]
"""The results of all rounds by peer."""


def measure(peers: Sequence[Peer], messages: int, batch: int, rounds: int) -> Table:
    """Fill the queue, drain it, then both together; all peers in each round, in another order each time."""
    sends: Results = defaultdict(list)
    receives: Results = defaultdict(list)
    together: Results = defaultdict(list)
    for number in range(rounds + 1):
        first = number % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            results = peer.produce(messages, batch), peer.consume(messages, batch), peer.both(messages, batch)
            if number:  # the first round warms up
                for found, result in zip((sends, receives, together), results, strict=True):
                    found[peer.name].append(result)
    names = [peer.name for peer in peers]
    rows = [Row(name, _figures(sends[name], receives[name], together[name])) for name in names]
    compared = [
        Row(f"{ours} : {other}", _compared([(found[ours], found[other]) for found in (sends, receives, together)]))
        for ours in names
        if ours in OURS
        for other in names
        if other not in OURS
    ]
    how = "singly" if batch == 1 else f"in batches of {batch}"
    return Table(f"{messages} persistent messages {how}, medians of {rounds} rounds", _COLUMNS, rows, compared)


def _figures(sends: Sequence[Result], receives: Sequence[Result], together: Sequence[Result]) -> list[Spread | None]:
    rates = [spread([result.rate for result in found]) for found in (sends, receives, together)]
    costs = [
        spread(values)
        for found in (sends, receives)
        for values in ([result.client_us for result in found], [result.server_us for result in found])
    ]
    return [*rates, *costs]


def _compared(pairs: Sequence[tuple[Sequence[Result], Sequence[Result]]]) -> list[Spread | None]:
    found = [ratios([one.rate for one in ours], [one.rate for one in others]) for ours, others in pairs]
    return [*found, *[None] * (len(_COLUMNS) - len(found))]
