"""Finds messages that arrived in another order than they were published, because the broker has redelivered them."""

from collections.abc import Iterator
from itertools import groupby

from correlator.reliability import RECEIVING
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.history import History

EXPLAINED = 'See docs/crash-tests.md, "Order"'


def disorder(history: History) -> str:
    """Return the first message that a receiver took after one published later, with the reason; "" if there is none."""
    facts = Facts(history)
    for name, receiver in facts.setup.receivers.items():
        places = {one.pid: at for at, one in enumerate(facts.published_to.get(receiver.destination, ()))}
        for stretch in _taken(history, set(facts.beside(name)), stored=RECEIVING[receiver.reliability].stored):
            if found := _first(places, stretch):
                return f"order: {name} took {found}. {EXPLAINED}"
    return ""


def _first(places: dict[str, int], pids: list[str]) -> str:
    seen: set[str] = set()
    last = ""
    for pid in (one for one in pids if one in places):
        if last and places[pid] < places[last]:
            if pid in seen:
                return f"{pid} again, after {last}: its mode allows repeats"
            return f"{pid} after {last}, which was published later: its broker may redeliver messages out of order"
        seen.add(pid)
        last = pid
    return ""


def _taken(history: History, receivers: set[str], *, stored: bool) -> Iterator[list[str]]:
    """Yield the messages that the receivers of a queue have taken, in order; life by life if they are not stored."""
    if stored:
        yield [pid for _, record in history.of("received") if record.who in receivers for pid in record.data.pids]
        return
    delivered = [record for _, record in history.of("delivered") if record.who in receivers]
    for _, records in groupby(delivered, key=lambda record: record.life):
        yield [pid for record in records for pid in record.data]
