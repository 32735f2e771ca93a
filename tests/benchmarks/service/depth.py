"""The cost of a send and of a receive, against the number of messages that wait in the queue."""

from collections import defaultdict
from collections.abc import Callable

from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.report import Row, Table, ratios, spread

SHALLOW = 10
_BATCH = 100
_WORK = ("send", "receive", f"send, {_BATCH}s", f"receive, {_BATCH}s")
_COLUMNS = (*(f"{work}: us" for work in _WORK), *(f"{work}: cpu us" for work in _WORK))


def measure(make: Callable[[], BrokerPeer], depth: int, messages: int, rounds: int) -> Table:
    """Two stores of one kind, one with 10 messages and one with `depth`; each round sends and receives on both.

    The processor time is that of client and server. It is the steadier figure where others use the disk, too.
    """
    peers = {SHALLOW: make(), depth: make()}
    found: dict[int, list[list[float]]] = defaultdict(lambda: [[] for _ in _COLUMNS])
    try:
        for waiting, peer in peers.items():
            peer.start()
            peer.produce(waiting, _BATCH)
        for number in range(rounds + 1):
            for waiting, peer in sorted(peers.items(), reverse=bool(number % 2)):
                results = [
                    work(messages if batch == 1 else messages * 10, batch)
                    for batch in (1, _BATCH)
                    for work in (peer.produce, peer.consume)
                ]
                if number:
                    costs = [1e6 / result.rate for result in results]
                    costs += [result.client_us + result.server_us for result in results]
                    for values, cost in zip(found[waiting], costs, strict=True):
                        values.append(cost)
    finally:
        for peer in peers.values():
            peer.stop()
    name = peers[depth].name
    return Table(
        f"time for each message by the number of messages that wait, {name}, medians of {rounds} rounds",
        _COLUMNS,
        [Row(f"{waiting:,} waiting", [spread(values) for values in found[waiting]]) for waiting in peers],
        [Row("ratio", [ratios(deep, shallow) for deep, shallow in zip(found[depth], found[SHALLOW], strict=True)])],
        "at most 1.2",
    )
