"""The fault points of a commit: crash tests and reports name them, so each is passed where its statement is."""

from collections.abc import Iterator

import pytest

from correlator.core import faults
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.test_store_contract import EVERYTHING
from tests.storage.values import opened


@pytest.fixture
def passed() -> Iterator[list[str]]:
    """The points that are passed, in order."""
    names: list[str] = []
    faults.install(names.append)
    yield names
    faults.install(None)


def around(kind: str, *points: str) -> list[str]:
    """The points of a transaction of a kind: `ck`, `rx` or `cfg`."""
    return [f"{kind}.tx.begin", f"{kind}.tx.fence", *points, f"{kind}.tx.commit.before", f"{kind}.tx.commit.after"]


def test_each_kind_of_commit_passes_its_points_in_order(make_store: MakeStore, url: str, passed: list[str]) -> None:
    """What a checkpoint is part of is a checkpoint's transaction, then a receiver's."""
    store = make_store(url)
    opened(store)
    registry, receive, checkpoint, suspects, discard = EVERYTHING
    receives = (
        "rx.tx.insert",
        "rx.tx.dedup",
        "rx.tx.expire",
        "rx.tx.confirmed",
        *["rx.tx.dead_letter"] * 2,
        "dl.tx.discard",
    )
    checkpoints = (
        *("ck.tx.prune_outbox", "ck.tx.prune_rx", "ck.tx.state.dropped", "ck.tx.state", "ck.tx.outbox"),
        *("ck.tx.consumed", *["ck.tx.dead_letter"] * 2, "dl.tx.discard", "ck.tx.absolve", "ck.tx.meta"),
    )
    notes = ("rec.tx.suspects.clear", "rec.tx.suspects")
    expected = [
        ([registry], around("cfg", "cfg.tx.put", *["cfg.tx.forget"] * 5, "cfg.tx.forget.cuts")),
        ([suspects], around("cfg", *notes)),
        ([discard], around("cfg", "dl.tx.discard")),
        ([suspects, receive], around("rx", *notes, *receives)),
        ([values.received(9, 1), checkpoint], around("ck", "rx.tx.insert", *checkpoints)),
    ]
    for number, (writes, points) in enumerate(expected, 1):
        passed.clear()
        store.commit(number, writes)
        assert passed == points
    store.close()
    recovered = opened(make_store(url))
    assert (recovered.consumed, recovered.confirmed_batches) == ({"orders": 1}, {"orders": 1})
