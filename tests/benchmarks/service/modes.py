"""Rates by delivery mode, acknowledgement mode and batch.

    python -m tests.benchmarks.service.modes FILE

prints the ratios that a measurement has written to a file (`--json`) as the table of docs/embedded.md.
"""

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from connectors.messaging import AcknowledgeMode
from tests.benchmarks.service.peer import BrokerPeer
from tests.benchmarks.service.report import Row, Spread, Table, ratios, spread
from tests.benchmarks.service.session_client import SETTLED_BY_PROGRAM

_BATCHES = (1, 100)
_DELIVERIES = ("persistent", "non_persistent")


class _Case(NamedTuple):
    mode: str
    batch: int
    delivery: str


CASES = [_Case(*case) for case in product(AcknowledgeMode, _BATCHES, _DELIVERIES)]
_USUAL = _Case(AcknowledgeMode.AUTO, 1, "persistent")
"""The case to which the others are compared."""
_Found = dict[tuple[_Case, str], list[tuple[float, float]]]


def measure(peers: Sequence[BrokerPeer], messages: int, rounds: int) -> Table:
    """Each session sends in its own mode, and receives in it what was sent. Modes that are not offered have no figures.

    In modes in which the session settles by itself, a batch matters for sending only. The ratios are those to single
    persistent messages in mode AUTO, of the same round.
    """
    found: _Found = {}
    for number in range(rounds):
        for case in CASES if number % 2 else reversed(CASES):
            for peer in peers:
                if peer.call("offers", case.mode)[0]:
                    found.setdefault((case, peer.name), []).append(_rates(peer, case, messages))
    columns = [f"{peer.name}, {what}" for peer in peers for what in ("send/s", "receive/s")]
    rows = [
        Row(name(case), [cell for peer in peers for cell in _cells(case, found.get((case, peer.name)))])
        for case in CASES
    ]
    compared = [
        Row(name(case), [cell for peer in peers for cell in _compared(peer.name, case, found)]) for case in CASES
    ]
    title = f"by mode, batch and delivery mode, medians of {rounds} rounds of {messages} messages, ten times as many in batches"
    return Table(title, columns, rows, compared)


def _rates(peer: BrokerPeer, case: _Case, messages: int) -> tuple[float, float]:
    count = messages if case.batch == 1 else messages * 10
    sent = peer.span("produce_in", count, case.batch, case.mode, case.delivery)
    received = peer.span("consume_in", count, case.batch, case.mode)
    return count / sent.seconds, count / received.seconds


def _cells(case: _Case, rates: Sequence[tuple[float, float]] | None) -> Sequence[Spread | None]:
    if rates is None:
        return None, None
    sends, receives = (spread(values) for values in zip(*rates, strict=True))
    return sends, receives


def _compared(peer: str, case: _Case, found: _Found) -> Sequence[Spread | None]:
    if (case, peer) not in found:
        return None, None
    sends, receives = (
        ratios([rates[at] for rates in found[case, peer]], [rates[at] for rates in found[_USUAL, peer]])
        for at in (0, 1)
    )
    return sends, receives


def name(case: _Case) -> str:
    """The name of the row of a case."""
    settles = "" if case.batch == 1 or case.mode in SETTLED_BY_PROGRAM else " (sends)"
    return f"{case.mode}, {case.batch}{settles}, {case.delivery}"


def table(ratios_of_cases: Sequence[dict[str, Any]]) -> str:
    """The ratios of a run as a table for the page: the name of each case, and its medians."""
    columns = [column for column in ratios_of_cases[0] if column != "name"]
    lines = ["| mode, batch, delivery mode | " + " | ".join(column.removesuffix("/s") for column in columns) + " |"]
    lines += ["|---|" + "---|" * len(columns)]
    for row in ratios_of_cases:
        cells = ["-" if row[column] is None else f"{row[column]['median']:.2g}" for column in columns]
        lines += [f"| {row['name']} | " + " | ".join(cells) + " |"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())["modes"][0]["ratios"]))
