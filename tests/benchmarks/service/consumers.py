"""Four consumer processes of one queue against one."""

from collections.abc import Sequence

from tests.benchmarks.service.clients import Client
from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.processor import processor_s
from tests.benchmarks.service.report import Row, Table, ratios, spread

_NUMBERS = (1, 2, 4)
_BATCHES = (1, 100)


def measure(peer: BrokerPeer, messages: int, rounds: int) -> Table:
    """Fill the queue, and let so many consumers drain it.

    The processor time of consumers and server shows whether all processors were busy: then more consumers are no faster.
    """
    clients = [peer.client() for _ in range(max(_NUMBERS))]
    rates: dict[int, list[list[float]]] = {number: [[] for _ in _BATCHES] for number in _NUMBERS}
    cores: dict[int, list[list[float]]] = {number: [[] for _ in _BATCHES] for number in _NUMBERS}
    try:
        for turn in range(rounds):
            for number in _NUMBERS if turn % 2 else reversed(_NUMBERS):
                for at, batch in enumerate(_BATCHES):
                    peer.produce(messages, 100)
                    rate, busy = _drained(peer, clients[:number], messages, batch)
                    rates[number][at].append(rate)
                    cores[number][at].append(busy)
    finally:
        for client in clients:
            client.close()
    how = ["singly" if batch == 1 else f"{batch}s" for batch in _BATCHES]
    return Table(
        f"consumer processes of one queue, {peer.name}, {messages} messages, medians of {rounds} rounds",
        [*(f"receive/s, {one}" for one in how), *(f"busy processors, {one}" for one in how)],
        [
            Row(f"consumers: {number}", [*map(spread, rates[number]), *map(spread, cores[number])])
            for number in _NUMBERS
        ],
        [
            Row(f"{number} : 1", [*map(ratios, rates[number], rates[1]), *map(ratios, cores[number], cores[1])])
            for number in _NUMBERS[1:]
        ],
    )


def _drained(peer: BrokerPeer, clients: Sequence[Client], messages: int, batch: int) -> tuple[float, float]:
    """Return the messages a second, and how many processors the consumers and the server used meanwhile.

    The consumers wait for further messages after the last one, and use next to nothing.
    """
    before_s = _processor_s(peer, clients)
    for client in clients:
        client.ask("drain", batch)
    answers = [client.answer() for client in clients]
    used_s = _processor_s(peer, clients) - before_s
    assert sum(count for _, _, count in answers) == messages, answers
    took_s = (max(end for _, end, _ in answers) - min(begin for begin, _, _ in answers)) / 1e9
    return messages / took_s, used_s / took_s


def _processor_s(peer: BrokerPeer, clients: Sequence[Client]) -> float:
    return peer.server_s() + sum(processor_s(client.pid) for client in clients)
