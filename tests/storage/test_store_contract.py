"""The contract of the port `Store`, on both databases: what was committed comes back, nothing else does."""

from collections.abc import Callable

import pytest

from correlator.core.commit import (
    DiscardCommit,
    QueueRun,
    ReceiveCommit,
    Recovered,
    RegistryCommit,
    SuspectCommit,
    Write,
)
from correlator.errors import Fenced, RecoveryRefused, StoreError
from correlator.storage import inspect
from correlator.storage.store import SqlStore
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened


def reopened(make_store: MakeStore, url: str, store: SqlStore) -> Recovered:
    store.close()
    return opened(make_store(url))


def test_a_fresh_store_is_empty(make_store: MakeStore, url: str) -> None:
    recovered = opened(make_store(url))
    assert recovered.epoch == 1
    got = values.contents(recovered)
    assert [got.pop(name) for name in ("commit", "checkpoint", "engine_time", "digest")] == [0, 0, 0.0, b""]
    assert [got.pop(name) for name in ("confirmed_batches", "consumed")] == [{}, {}]
    assert all(values == [] for values in got.values())


def test_each_start_takes_the_next_epoch(make_store: MakeStore, url: str) -> None:
    for epoch in (1, 2, 3):
        store = make_store(url)
        assert opened(store).epoch == epoch
        store.close()


def test_every_kind_of_write_comes_back(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    run = QueueRun("orders", 3, 2)
    kept = QueueRun("", 0, 1, [("Trade", b"\x01\x02")])
    state, outbound = values.state(1, a=b"1", b=None), values.outbound(1, 3)
    store.commit(1, [RegistryCommit(put=[values.endpoint("orders"), values.endpoint("alerts", "sender")])])
    store.commit(2, [values.received(1, 4, number=1), values.received(5, 2, number=2, confirmed=1)])
    checkpoint = values.checkpoint(
        1, contexts=[values.context(run, kept)], senders=[values.sender(0, 4)], state=[state], outbound=[outbound]
    )
    store.commit(3, [checkpoint, values.received(1, 1, receiver="other")])
    got = values.contents(reopened(make_store, url, store))
    assert got == {
        "commit": 3,
        "checkpoint": 1,
        "engine_time": 0.5,
        "digest": b"digest 1",
        "contexts": [values.context(run, kept)],
        "senders": [values.sender(0, 4)],
        "state": [state],
        "ids": [values.ids(1, "m1", "m2", "m3", "m4"), values.ids(2, "m5", "m6", batch=5)],
        "confirmed_batches": {"orders": 1},
        "consumed": {},
        "receive_log": [
            values.received(1, 4).segment,
            values.received(5, 2).segment,
            values.received(1, 1, receiver="other").segment,
        ],
        "outbound": [outbound],
        "endpoints": [values.endpoint("alerts", "sender"), values.endpoint("orders")],
        "suspects": [],
    }


def test_a_checkpoint_replaces_the_one_before(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.checkpoint(1, contexts=[values.context()], senders=[values.sender()])])
    store.commit(2, [values.checkpoint(2)])
    recovered = reopened(make_store, url, store)
    assert (recovered.checkpoint, recovered.digest, recovered.contexts, recovered.senders) == (2, b"digest 2", [], [])


def test_consumed_segments_leave_the_receive_log(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 4), values.received(5, 4), values.received(1, 4, receiver="other")])
    store.commit(2, [values.checkpoint(1, consumed={"orders": 7, "absent": 3})])
    recovered = reopened(make_store, url, store)
    assert [(s.receiver, s.first) for s in recovered.receive_log] == [("orders", 5), ("other", 1)]
    assert recovered.consumed == {"orders": 7, "absent": 3}


def test_t14_numbers_are_remembered_when_all_messages_are_consumed(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 4)])
    store.commit(2, [values.checkpoint(1, consumed={"orders": 4})])
    store.commit(3, [values.checkpoint(2, consumed={"orders": 2})])  # never goes down
    recovered = reopened(make_store, url, store)
    assert (recovered.consumed, recovered.receive_log) == ({"orders": 4}, [])


def test_the_confirmed_batch_never_goes_down(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1, confirmed=5), values.received(2, 1, confirmed=3), values.received(3, 1)])
    assert reopened(make_store, url, store).confirmed_batches == {"orders": 5}


def test_confirmed_sends_leave_the_outbox(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(
        1, [values.checkpoint(1, outbound=[values.outbound(1, 3), values.outbound(4, 3), values.outbound(1, 1, "b")])]
    )
    store.commit(2, [values.checkpoint(2, senders=[values.sender(5, 7)])])
    recovered = reopened(make_store, url, store)
    assert [(s.sender, s.first) for s in recovered.outbound] == [("alerts", 4), ("b", 1)]


def test_ids_are_rewritten_and_forgotten(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 2, number=1), values.received(3, 2, number=2), values.received(5, 2, number=3)])
    survivors = values.ids(2, "m4", batch=3)
    write = ReceiveCommit(
        receiver="orders", segment=None, ids=None, rewritten=[survivors], forgotten=[("d", 1), ("x", 9)]
    )
    store.commit(2, [write])
    recovered = reopened(make_store, url, store)
    assert list(recovered.ids) == [survivors, values.ids(3, "m5", "m6", batch=5)]


def test_state_is_replaced_by_later_segments_in_one_transaction(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.checkpoint(1, state=[values.state(1, a=b"1"), values.state(2, b=b"2")])])
    store.commit(2, [values.checkpoint(2, state=[values.state(3, a=b"3")], state_dropped=[1])])
    assert list(store.read_state([3, 2, 1])) == [values.state(2, b=b"2"), values.state(3, a=b"3")]
    assert list(reopened(make_store, url, store).state) == [values.state(2, b=b"2"), values.state(3, a=b"3")]


def test_a_removed_endpoint_leaves_nothing(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    put = [
        values.endpoint("orders"),
        values.endpoint("twin"),
        values.endpoint("lone", domain="e"),
        values.endpoint("alerts", "sender"),
    ]
    lone = ReceiveCommit(
        receiver="lone", segment=None, ids=values.ids(1, "x", domain="e", receiver="lone"), confirmed_batch=1
    )
    store.commit(1, [RegistryCommit(put=put), values.received(1, 2, number=1, confirmed=1), lone])
    cut = values.context(QueueRun("orders", 1, 2), QueueRun("twin", 1, 1), entered={"orders": 2, "twin": 1})
    senders = [values.sender(0, 4), values.sender(name="kept")]
    store.commit(2, [values.checkpoint(1, contexts=[cut], senders=senders, outbound=[values.outbound(1, 3)])])
    store.commit(3, [RegistryCommit(removed=["orders", "alerts", "lone"])])
    recovered = reopened(make_store, url, store)
    assert [e.id for e in recovered.endpoints] == ["twin"]
    assert (recovered.receive_log, recovered.outbound, recovered.confirmed_batches) == ([], [], {})
    assert list(recovered.contexts) == [values.context(QueueRun("twin", 1, 1), entered={"twin": 1})]
    assert list(recovered.senders) == [values.sender(name="kept")]
    assert list(recovered.ids) == [values.ids(1, "m1", "m2")], "the domain is shared with another receiver"


def test_dead_letters_are_numbered_and_numbers_are_never_used_again(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    dead = ReceiveCommit(
        receiver="orders", segment=None, ids=None, dead_letters=[values.letter("1"), values.letter("2")]
    )
    store.commit(1, [dead, values.checkpoint(1, dead_letters=[values.letter("3")])])
    store.commit(2, [DiscardCommit(numbers=[1, 3, 99])])
    store.close()
    again = make_store(url)
    opened(again)
    again.commit(3, [values.checkpoint(2, dead_letters=[values.letter("4")])])
    assert [(row.number, row.letter) for row in inspect.dead_letters(url)] == [
        (2, values.letter("2")),
        (4, values.letter("4")),
    ]
    assert [row.number for row in inspect.dead_letters(url, inspect.Selection(numbers=[4]))] == [4]
    for below, most, numbers in ((100, 9, [4, 2]), (100, 1, [4]), (4, 9, [2]), (2, 9, [])):
        assert [row.number for row in inspect.newest_dead_letters(url, inspect.ALL, below, most)] == numbers


def test_few_large_dead_letters_are_read_at_a_time(
    make_store: MakeStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.checkpoint(1, dead_letters=[values.letter(str(number)) for number in range(1, 5)])])

    def numbers(above: int, most: int) -> list[int]:
        return [number for number, _ in store.read_letters(above, most)]

    assert [numbers(0, 3), numbers(2, 3), numbers(4, 3)] == [[1, 2, 3], [3, 4], []]
    monkeypatch.setattr("correlator.core.pieces.MOST_BYTES", 10)
    assert [numbers(0, 3), numbers(3, 3)] == [[1], [4]]


def test_t26_what_a_start_handles_is_found_with_one_death_more(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    one, another, third = values.suspect(1, 9), values.suspect(3, 3, 1), values.suspect(1, 1, context="audit")
    store.commit(1, [SuspectCommit(contexts=["main", "audit"], suspects=[values.suspect(5, 5), third])])
    store.commit(2, [SuspectCommit(contexts=["main"], suspects=[one, another])])
    store.close()
    again = make_store(url)
    found = opened(again).suspects
    assert found == [values.suspect(1, 1, 1, "audit"), values.suspect(1, 9, 1), values.suspect(3, 3, 2)]
    again.commit(3, [values.checkpoint(1, absolved=[another])])
    again.commit(4, [SuspectCommit(contexts=["audit"])])
    again.close()
    assert opened(make_store(url)).suspects == [values.suspect(1, 9, 1)]


EVERYTHING: list[Write] = [
    RegistryCommit(put=[values.endpoint("orders"), values.endpoint("gone")], removed=["gone"]),
    ReceiveCommit(
        receiver="orders",
        segment=values.received(3, 2).segment,
        ids=values.ids(2, "m3"),
        rewritten=[values.ids(1, "m1")],
        forgotten=[("d", 9)],
        confirmed_batch=1,
        dead_letters=[values.letter()],
        returned=[8],
    ),
    values.checkpoint(
        1,
        contexts=[values.context()],
        senders=[values.sender(1, 2)],
        state=[values.state(1, a=b"1")],
        state_dropped=[9],
        outbound=[values.outbound(1, 1)],
        consumed={"orders": 1},
        dead_letters=[values.letter()],
        absolved=[values.suspect(1, 1)],
        returned=[9],
    ),
    SuspectCommit(contexts=["main"], suspects=[values.suspect(1, 2)]),
    DiscardCommit(numbers=[1]),
]
POINTS = (
    "ck.tx.begin", "ck.tx.fence", "rx.tx.insert", "rx.tx.dedup", "rx.tx.expire", "rx.tx.confirmed", "rx.tx.dead_letter",
    "ck.tx.state", "ck.tx.state.dropped", "ck.tx.outbox", "ck.tx.prune_outbox", "ck.tx.prune_rx", "ck.tx.consumed",
    "ck.tx.dead_letter", "ck.tx.absolve", "ck.tx.meta", "rec.tx.suspects.clear", "rec.tx.suspects",
    "cfg.tx.put", "cfg.tx.forget", "cfg.tx.forget.cuts", "dl.tx.discard", "ck.tx.commit.before",
)  # fmt: skip


def test_a_commit_is_all_or_nothing(make_store: MakeStore, url: str, at: Callable[..., None]) -> None:
    """An exception at any fault point leaves the store as it was, and the number free."""
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 2, number=1)])
    for name in POINTS:
        at(name, lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            store.commit(2, EVERYTHING)
    store.close()
    before = values.contents(opened(make_store(url)))
    assert (before["commit"], before["checkpoint"], before["endpoints"], before["state"]) == (1, 0, [], [])
    assert before["receive_log"] == [values.received(1, 2).segment]
    assert inspect.dead_letters(url) == []


def test_154_a_second_engine_is_refused_while_the_first_lives(make_store: MakeStore, url: str) -> None:
    first = make_store(url)
    opened(first)
    with pytest.raises(Fenced, match=r"E3201 .*owned by pid \d+ on host .* since \d{4}-\d\d-\d\dT[\d:]{8}Z") as refusal:
        opened(make_store(url))
    assert refusal.value.exit_status == 5
    first.commit(1, [values.received(1, 1)])


def test_t10_154_an_engine_is_fenced_when_another_has_taken_over(make_store: MakeStore, url: str) -> None:
    """The lock was lost (a paused session on PostgreSQL): the epoch decides."""
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1)])
    with store._opened().transaction() as connection:
        connection.exec_driver_sql("UPDATE engine SET epoch = epoch + 1")
    with pytest.raises(Fenced, match=r"E3202 .* of epoch 1 does not follow commit 1 of epoch 2"):
        store.commit(2, [values.received(2, 1)])
    with pytest.raises(Fenced, match=r"E3202"):
        store.resolve(2)
    store.close()
    assert len(opened(make_store(url)).receive_log) == 1


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_number_out_of_order_is_refused(make_store: MakeStore, url: str, number: int) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1)])
    with pytest.raises(Fenced, match=r"E3202"):
        store.commit(number, [values.received(2, 1)])
    store.commit(2, [values.received(2, 1)])


def test_resolve_tells_what_was_committed(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1)])
    assert store.resolve(1)
    assert not store.resolve(2)
    store.commit(2, [values.received(2, 1)])


def test_a_store_opens_under_its_name_only(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.close()
    with pytest.raises(RecoveryRefused, match=r"E4310 .*'alpha', this one is 'beta'") as refusal:
        opened(make_store(url, "beta"))
    assert refusal.value.exit_status == 6
    assert opened(make_store(url)).epoch == 2, "the refusal took no epoch"


def test_a_value_without_encoding_writes_nothing(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    bad = ReceiveCommit(receiver="orders", segment=None, ids=values.ids(1, "\ud800"))
    with pytest.raises(UnicodeEncodeError):
        store.commit(1, [values.received(1, 1), bad])
    store.commit(1, [values.received(1, 1)])


def test_a_start_that_has_only_read_leaves_the_store_as_it_was(make_store: MakeStore, url: str) -> None:
    """What refuses a start refuses it between the two."""
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 2, number=1), values.checkpoint(1, state=[values.state(1, a=b"1")])])
    store.close()
    refused = make_store(url)
    seen = values.contents(refused.read())
    with pytest.raises(Fenced, match=r"E3202"):
        refused.commit(2, [values.received(3, 1)])
    refused.close()
    recovered = opened(make_store(url))
    assert recovered.epoch == 2, "the refusal took no epoch"
    assert seen == values.contents(recovered)


CHANGES = {
    "another engine has taken over": "UPDATE engine SET epoch = epoch + 1",
    "the engine before has committed": "UPDATE engine SET commit_number = commit_number + 1",
    "somebody has emptied the store": "DELETE FROM engine",
}


def changed_between(store: SqlStore, statement: str) -> None:
    """Read, let somebody change the store who does not ask for the lock, and take over."""
    recovered = store.read()
    with store._opened().transaction() as connection:
        connection.exec_driver_sql(statement)
    store.take_over(recovered)


@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES)
def test_154_a_store_that_has_changed_since_it_was_read_is_not_taken_over(
    make_store: MakeStore, url: str, statement: str
) -> None:
    first = make_store(url)
    opened(first)
    first.commit(1, [values.received(1, 1)])
    first.close()
    store = make_store(url)
    with pytest.raises(Fenced, match=r"E3202 .*was read at commit 1 of epoch 1, and is at commit \d of epoch \d now"):
        changed_between(store, statement)
    with pytest.raises(Fenced, match=r"E3202"):
        store.commit(2, [values.received(2, 1)])


def test_154_a_new_store_that_another_engine_has_taken_meanwhile_is_not_taken_over(
    make_store: MakeStore, url: str
) -> None:
    taken = "INSERT INTO engine VALUES (1, 'alpha', 'another', 1, 0, 0)"
    with pytest.raises(Fenced, match=r"E3202 .*was read at commit 0 of epoch 0, and is at commit 0 of epoch 1 now"):
        changed_between(make_store(url), taken)


class Trusting(SqlStore):
    """Takes over without a comparison."""

    def _refuse_changed(self, *_: object) -> None: ...


def test_a_take_over_without_the_comparison_is_found_out(url: str) -> None:
    store = Trusting(url, "alpha")
    try:
        opened(store)
        store.close()
        changed_between(store, CHANGES["the engine before has committed"])
    finally:
        store.close()


@pytest.mark.parametrize("name", ["o'rders\";--", "bestellungen-ü", "a b\tc", "%s %(x)s", "?"])
def test_t51_names_are_only_values(make_store: MakeStore, url: str, name: str) -> None:
    store = make_store(url, name)
    opened(store)
    store.commit(
        1,
        [
            RegistryCommit(put=[values.endpoint(name, domain=name)]),
            values.received(1, 2, receiver=name, number=1, confirmed=1),
        ],
    )
    store.commit(
        2,
        [
            values.checkpoint(
                1, consumed={name: 1}, outbound=[values.outbound(1, 1, name)], senders=[values.sender(name=name)]
            )
        ],
    )
    store.close()
    again = make_store(url, name)
    recovered = opened(again)
    assert [s.receiver for s in recovered.receive_log] == [name]
    assert recovered.consumed == {name: 1}
    again.commit(3, [RegistryCommit(removed=[name])])


def test_a_closed_store_says_so(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.close()
    store.close()
    for use in (lambda: store.commit(1, []), lambda: store.resolve(1), lambda: store.read_state([1])):
        with pytest.raises(StoreError, match=r"E3109 .*the store is closed"):
            use()
