"""Producer threads of one process: whether their sends share commits."""

from collections.abc import Sequence

from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.report import Row, Table, ratios, spread

_NUMBERS = (1, 2, 4, 8)


def measure(peers: Sequence[BrokerPeer], messages: int, rounds: int) -> Table:
    """Each thread has a session and sends singly; the rate is that of all together."""
    messages = messages // max(_NUMBERS) * max(_NUMBERS)
    found: dict[int, list[list[float]]] = {number: [[] for _ in peers] for number in _NUMBERS}
    for turn in range(rounds):
        for number in _NUMBERS if turn % 2 else reversed(_NUMBERS):
            for values, peer in zip(found[number], peers, strict=True):
                values.append(messages / peer.span("threads", messages, number).seconds)
                peer.consume(messages, 100)
    return Table(
        f"producer threads of one process, {messages} messages singly, medians of {rounds} rounds",
        [f"{peer.name}, send/s" for peer in peers],
        [Row(f"threads: {number}", [spread(values) for values in found[number]]) for number in _NUMBERS],
        [
            Row(f"{number} : 1", [ratios(many, one) for many, one in zip(found[number], found[1], strict=True)])
            for number in _NUMBERS[1:]
        ],
    )
