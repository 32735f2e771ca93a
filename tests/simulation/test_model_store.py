"""The model of a store and the real one read back the same after the same writes, and fail by the same rules."""

import random
from pathlib import Path
from typing import Any

import pytest

from correlator.core.commit import (
    DiscardCommit,
    Endpoint,
    ReceiveCommit,
    Recovered,
    RegistryCommit,
    SuspectCommit,
    Write,
)
from correlator.errors import CommitUnknown, Fenced, StoreBusy, StoreError
from correlator.storage.store import SqlStore
from correlator.testing.store import Disk, ModelStore
from tests.storage import values
from tests.storage.values import opened


def random_writes(rng: random.Random, count: int) -> list[list[Write]]:
    """Transactions that an engine could have made."""
    orders, sends, state, checkpoint, confirmed = 1, 1, 1, 0, 0
    made: list[list[Write]] = [[RegistryCommit(put=[values.endpoint("orders"), values.endpoint("alerts", "sender")])]]
    for batch in range(1, count):
        group: list[Write] = []
        if rng.random() < 0.7:
            size = rng.randint(1, 4)
            group.append(values.received(orders, size, number=batch, confirmed=rng.choice((0, batch - 1))))
            orders += size
        if rng.random() < 0.5:
            checkpoint += 1
            size = rng.randint(0, 3)
            outbound = [values.outbound(sends, size)] if size else []
            sends += size
            confirmed = rng.randint(confirmed, sends - 1)
            write = values.checkpoint(
                checkpoint,
                senders=[values.sender(confirmed, sends)],
                outbound=outbound,
                state=[values.state(state, a=b"%d" % batch)],
                state_dropped=[state - 1] if state > 1 and rng.random() < 0.5 else [],
                consumed={"orders": rng.randint(0, orders - 1)},
                absolved=[values.suspect(batch - 1, batch - 1, 1, "audit")],
            )
            state += 1
            group.append(write)
        if rng.random() < 0.3:
            suspects = [values.suspect(number, number + rng.randint(0, 3)) for number in range(rng.randint(0, 3))]
            group.append(SuspectCommit(contexts=["main"], suspects=suspects))
            group.append(SuspectCommit(contexts=["audit"], suspects=[values.suspect(batch, batch, 1, "audit")]))
        if group:
            made.append(group)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_both_stores_read_back_the_same(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    disk, url = Disk(), f"sqlite:///{tmp_path}/store.db"
    model, real = ModelStore(disk), SqlStore(url, "alpha")
    opened(model)
    opened(real)
    for number, writes in enumerate(random_writes(rng, 40), 1):
        model.commit(number, writes)
        real.commit(number, writes)
        if rng.random() < 0.2:
            real.close()
            model, real = ModelStore(disk), SqlStore(url, "alpha")
            assert contents(opened(model)) == contents(opened(real))
    real.close()


@pytest.mark.parametrize("shared", [True, False])
def test_both_stores_forget_the_same(shared: bool, tmp_path: Path) -> None:
    domain = "orders" if shared else "other"
    other = Endpoint(
        id="other",
        kind="receiver",
        origin="dynamic",
        reliability="EXACTLY_ONCE",
        connection="c",
        destination="queue:o",
        domain=domain,
    )
    writes: list[list[Write]] = [
        [RegistryCommit(put=[values.endpoint("orders"), other])],
        [values.received(1, 3, number=1)],
        [values.checkpoint(1, contexts=[values.context()], senders=[values.sender(0, 1)])],
        [RegistryCommit(removed=["orders"])],
    ]
    disk, real = Disk(), SqlStore(f"sqlite:///{tmp_path}/store.db", "alpha")
    model = ModelStore(disk)
    opened(model)
    opened(real)
    for number, group in enumerate(writes, 1):
        model.commit(number, group)
        real.commit(number, group)
    real.close()
    assert contents(opened(ModelStore(disk))) == contents(opened(SqlStore(f"sqlite:///{tmp_path}/store.db", "alpha")))


def contents(recovered: Recovered) -> dict[str, Any]:
    """Everything but the epoch, as lists."""
    return values.contents(recovered)


def with_fault(fault: Any) -> tuple[Disk, ModelStore]:
    disk = Disk()
    faults = iter([fault])
    store = ModelStore(disk, fault=lambda _number, _writes: next(faults, None))
    opened(store)
    return disk, store


def one_batch() -> list[ReceiveCommit]:
    return [values.received(1, 2, number=1)]


def test_busy_writes_nothing_and_may_be_tried_again() -> None:
    disk, store = with_fault("busy")
    with pytest.raises(StoreBusy):
        store.commit(1, one_batch())
    assert not disk.receive_log
    store.commit(1, one_batch())
    assert disk.receive_log


@pytest.mark.parametrize(("fault", "committed"), [("lost_request", False), ("lost_reply", True)])
def test_a_lost_answer_is_looked_up(fault: str, committed: bool) -> None:
    disk, store = with_fault(fault)
    with pytest.raises(CommitUnknown):
        store.commit(1, one_batch())
    assert store.resolve(1) is committed
    assert bool(disk.receive_log) is committed


@pytest.mark.parametrize(("fault", "committed"), [("failed", False), ("failed_committed", True)])
def test_an_error_at_commit_leaves_the_truth_to_the_next_start(fault: str, committed: bool) -> None:
    disk, store = with_fault(fault)
    with pytest.raises(StoreError):
        store.commit(1, one_batch())
    assert bool(opened(ModelStore(disk)).receive_log) is committed


def test_a_later_engine_fences_an_earlier_one() -> None:
    disk = Disk()
    earlier, later = ModelStore(disk), ModelStore(disk)
    opened(earlier)
    opened(later)
    with pytest.raises(Fenced):
        earlier.commit(1, one_batch())
    later.commit(1, one_batch())


def test_of_two_engines_that_have_read_only_one_takes_over() -> None:
    disk = Disk()
    first, second = ModelStore(disk), ModelStore(disk)
    read_by_first, read_by_second = first.read(), second.read()
    assert disk.epoch == 0, "to read changes nothing"
    first.take_over(read_by_first)
    with pytest.raises(Fenced, match="E3202"):
        second.take_over(read_by_second)
    first.commit(1, one_batch())


def test_discarded_letters_are_gone_and_numbers_are_never_used_again():
    disk = Disk()
    model = ModelStore(disk)
    opened(model)
    dead = ReceiveCommit(receiver="r", segment=None, ids=None, dead_letters=[values.letter("1"), values.letter("2")])
    model.commit(1, [dead])
    model.commit(2, [DiscardCommit(numbers=[1, 9])])
    model.commit(3, [values.checkpoint(1, dead_letters=[values.letter("3")])])
    model.commit(4, [DiscardCommit(numbers=[2])])
    assert disk.dead_letters == [values.letter("3")]
