"""Four consumer processes of one queue against one."""

from collections.abc import Sequence

from tests.benchmarks.service.clients import Client
from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.report import Row, Table, ratios, spread

_NUMBERS = (1, 2, 4)
_BATCHES = (1, 100)


def measure(peer: BrokerPeer, messages: int, rounds: int) -> Table:
    """Fill the queue, and let so many consumers drain it."""
    clients = [peer.client() for _ in range(max(_NUMBERS))]
    found: dict[int, dict[int, list[float]]] = {number: {batch: [] for batch in _BATCHES} for number in _NUMBERS}
    try:
        for turn in range(rounds):
            for number in _NUMBERS if turn % 2 else reversed(_NUMBERS):
                for batch in _BATCHES:
                    peer.produce(messages, 100)
                    found[number][batch].append(_rate(clients[:number], messages, batch))
    finally:
        for client in clients:
            client.close()
    return Table(
        f"consumer processes of one queue, {peer.name}, {messages} messages, medians of {rounds} rounds",
        [f"receive/s, {'singly' if batch == 1 else f'{batch}s'}" for batch in _BATCHES],
        [Row(f"consumers: {number}", [spread(found[number][batch]) for batch in _BATCHES]) for number in _NUMBERS],
        [
            Row(f"{number} : 1", [ratios(found[number][batch], found[1][batch]) for batch in _BATCHES])
            for number in _NUMBERS[1:]
        ],
    )


def _rate(clients: Sequence[Client], messages: int, batch: int) -> float:
    for client in clients:
        client.ask("drain", batch)
    answers = [client.answer() for client in clients]
    assert sum(count for _, _, count in answers) == messages, answers
    return messages / ((max(end for _, end, _ in answers) - min(begin for begin, _, _ in answers)) / 1e9)
