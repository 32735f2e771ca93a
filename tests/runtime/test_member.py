"""Members on real leases and stores: shares are started, handed over, taken over, and started again after a failure."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors.embedded import EmbeddedConnection
from correlator import Engine, Member, Monitor, event, on
from correlator.configuration import of_share
from correlator.core.faults import install
from correlator.errors import CommitUnknown, ConfigError, Fenced, RecoveryRefused, UsageError
from correlator.events import Message, Outgoing
from correlator.runtime.member import shares_of
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    HttpSettings,
    MonitorSettings,
    SenderSettings,
    ShareSettings,
)
from correlator.storage.leases import Table, shown
from correlator.storage.reset import reset
from correlator.storage.store import SqlStore
from correlator.testing.network import FaultProxy
from tests.runtime.world import receiver, sender
from tests.servers import PostgresServer

pytestmark = pytest.mark.postgres

PATIENCE_S = 60.0
LEASE_S = 10.0
"""So long that none ends because the machine is busy."""
COUNT = 4
_failing: set[str] = set()


@event
class Order:
    id: int


class Total(Monitor, persistent=True):
    handled: int = 0

    @on(Order)
    def order(self, order: Order) -> None:
        if str(order.id) in _failing:
            raise ValueError("this order cannot be handled")
        self.handled += 1
        self.send(f"{self.handled}:{order.id}".encode(), to="out")


class Shared:
    """One engine of four shares on PostgreSQL, its queues in an embedded broker, and the members of this test."""

    def __init__(self, store: str, broker: str) -> None:
        self.settings = EngineSettings(
            name="orders",
            store=store,
            shares=ShareSettings(count=COUNT, lease=LEASE_S),
            connections={"memory": ConnectionSettings(type="embedded", options={"store": broker})},
            receivers=(receiver(destination="queue:in-${share}", event=f"{__name__}:Order"),),
            senders=(sender(destination="queue:out-${share}"),),
            monitors=(MonitorSettings(type=f"{__name__}:Total"),),
            stop_timeout=10.0,
            status_interval=0,
        )
        self.broker = EmbeddedConnection("memory", self.settings.connections["memory"])
        self._members: list[Member] = []
        self._sessions = contextlib.ExitStack()

    def member(self, settings: EngineSettings | None = None, **more: Any) -> Member:
        member = Member(settings or self.settings, **more)
        self._members.append(member)
        member.start()
        return member

    def table(self) -> Table:
        return shown(shares_of(self.settings))

    def sql(self, statement: str) -> None:
        with psycopg.connect(shares_of(self.settings).url, autocommit=True) as session:
            session.execute(statement)

    def publish(self, share: int, *ids: int) -> None:
        sink = self.broker.sink(SenderSettings(id="p", connection="memory", destination=f"queue:in-{share}"))
        sink.connect()
        messages = [Message(b'{"id":%d}' % one, {"uniqueMessageId": f"{one}:P"}) for one in ids]
        assert not any(sink.send([Outgoing(0, "", f"queue:in-{share}", one) for one in messages]))
        sink.close()

    def sent(self, share: int) -> list[str]:
        with contextlib.suppress(UsageError):
            return [one.body.decode() for one in self.broker.browse(f"queue:out-{share}", 100)]
        return []

    def sources(self, share: int) -> set[str]:
        messages = self.broker.browse(f"queue:out-{share}", 100)
        return {str(one.properties["uniqueMessageId"]).partition(":")[2] for one in messages}

    def wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, self.table()
            pause.wait(0.02)

    def wait_running(self, *wanted: tuple[Member, int]) -> None:
        """Wait until members run so many engines each, and every share is held."""
        self.wait(lambda: all(len(member.engines) == count for member, count in wanted))
        self.wait(lambda: all(one.state == "held" for one in self.table().shares))

    def close(self) -> None:
        for member in self._members:
            member.stop(drain=False)


@pytest.fixture
def shared(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Shared]:
    made = Shared(postgres_server.fresh_database(), f"sqlite:///{tmp_path}/broker.db")
    _failing.clear()
    yield made
    made.close()
    install(None)


def test_a_lone_member_runs_every_share_with_a_store_and_source_of_its_own(shared: Shared):
    member = shared.member()
    for share in range(COUNT):
        shared.publish(share, 1, 2)
    for share in range(COUNT):
        shared.wait(lambda share=share: shared.sent(share) == ["1:1", "2:2"])
    assert {engine.settings.name for engine in member.engines.values()} == {f"orders/{n}" for n in range(COUNT)}
    sources = [shared.sources(share) for share in range(COUNT)]
    assert all(len(one) == 1 for one in sources)
    assert len(set.union(*sources)) == COUNT
    member.stop()
    table = shared.table()
    assert {one.state for one in table.shares} == {"free"}
    assert table.members == []
    assert sum(totals["received"] for totals in member.totals.values()) == 2 * COUNT


def test_a_second_member_gets_half_and_the_first_keeps_the_rest(shared: Shared):
    first = shared.member()
    shared.wait_running((first, COUNT))
    kept = {number: engine for number, engine in first.engines.items() if number < 2}
    second = shared.member()
    shared.wait_running((first, 2), (second, 2))
    assert first.engines == kept, "the same engines: what stays is not started anew"
    assert [one.epoch for one in shared.table().shares] == [1, 1, 2, 2]
    second.stop()
    shared.wait_running((first, 4))
    assert [one.epoch for one in shared.table().shares] == [1, 1, 3, 3]


def test_state_and_numbers_go_with_the_share(shared: Shared):
    first = shared.member()
    shared.publish(3, 1, 2)
    shared.wait(lambda: len(shared.sent(3)) == 2)
    second = shared.member()
    shared.wait_running((first, 2), (second, 2))
    assert 3 in second.engines
    shared.publish(3, 3)
    shared.wait(lambda: shared.sent(3) == ["1:1", "2:2", "3:3"])
    assert len(shared.sources(3)) == 1


def test_a_share_that_another_member_has_taken_is_dropped(shared: Shared):
    member = shared.member()
    shared.wait_running((member, COUNT))
    shared.sql("UPDATE share SET owner = 'x', epoch = epoch + 1 WHERE number = 0")
    shared.wait(lambda: 0 not in member.engines)
    assert sorted(member.engines) == [1, 2, 3], "the others go on"
    assert member.failure is None
    shared.wait(lambda: 0 in member.engines)  # nobody renews the lease of x
    assert shared.table().shares[0].epoch == 3


def test_the_store_of_a_frozen_owner_is_taken_over(shared: Shared):
    """Its session lives, and has the lock on the store."""
    of_first = of_share(shared.settings, 0)
    assert of_first.store is not None
    shared.member().stop()
    frozen = SqlStore(of_first.store, of_first.name)
    frozen.take_over(frozen.read())
    try:
        member = shared.member()
        shared.wait_running((member, COUNT))
        with pytest.raises(CommitUnknown, match="E3105"):
            frozen.commit(1, [])
        with pytest.raises(Fenced, match="E3201"):
            frozen.resolve(1)
        member.stop()
        with pytest.raises(Fenced, match="E3202 .*another engine has taken over"):
            frozen.resolve(1)
    finally:
        frozen.close()


def test_an_engine_that_nobody_displaces_keeps_its_store(shared: Shared):
    """Only sessions of the same share are ended, not those of a person who looks into it, or of another engine."""
    of_first = of_share(shared.settings, 0)
    assert of_first.store is not None
    shared.member().stop()
    other = of_first.store.replace("application_name=orders_share_0", "application_name=somebody")
    assert other != of_first.store
    store = SqlStore(other, of_first.name)
    recovered = store.read()
    store.take_over(recovered)
    with contextlib.closing(store):
        member = shared.member()
        shared.wait(lambda: shared.table().shares[0].problem == "E3201")
        shared.wait(lambda: sorted(member.engines) == [1, 2, 3])
        store.commit(recovered.commit + 1, [])
    shared.wait_running((member, COUNT))
    shared.wait(lambda: shared.table().shares[0].problem == "")


def test_a_share_that_fails_is_started_again_and_the_others_go_on(shared: Shared):
    member = shared.member()
    _failing.add("13")
    shared.publish(1, 13)
    shared.publish(2, 1)
    shared.wait(lambda: shared.table().shares[1].problem == "E5500")
    shared.wait(lambda: shared.sent(2) == ["1:1"])
    assert member.failure is None
    _failing.clear()
    shared.wait(lambda: shared.sent(1) == ["1:13"])
    shared.wait(lambda: shared.table().shares[1].problem == "")
    assert shared.table().shares[1].epoch == 1


def test_a_cut_of_all_connections_ends_in_the_same_epochs_if_nobody_else_is_there(
    shared: Shared, postgres_server: PostgresServer
):
    with FaultProxy(postgres_server.port) as proxy:
        assert shared.settings.store is not None
        behind = shared.settings.store.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        member = shared.member(replace(shared.settings, store=behind))
        shared.wait_running((member, COUNT))
        before = member.engines
        proxy.refuse()
        proxy.cut()
        shared.wait(lambda: not member.engines)  # two thirds of the lease have passed
        proxy.accept()
        shared.wait_running((member, COUNT))
        assert not set(before.values()) & set(member.engines.values())
    assert [one.epoch for one in shared.table().shares] == [1] * COUNT


def test_a_renewal_does_not_wait_for_a_commit(shared: Shared):
    """The commit of a share holds its row locks for as long as the server needs."""
    member = shared.member()
    shared.wait_running((member, COUNT))
    reached, go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "rx.tx.commit.before":
            reached.set()
            go_on.wait(PATIENCE_S)

    install(hold)
    shared.publish(0, 1)
    assert reached.wait(PATIENCE_S)
    keeper_saw = [thread.valid_until for thread in member._keeper.threads.values()]
    shared.wait(
        lambda: all(
            thread.valid_until > before
            for thread, before in zip(member._keeper.threads.values(), keeper_saw, strict=True)
        )
    )
    install(None)
    go_on.set()
    shared.wait(lambda: shared.sent(0) == ["1:1"])


def test_an_error_of_the_configuration_ends_the_member(shared: Shared):
    made = []

    def make(settings: EngineSettings, **more: Any) -> Engine:
        if made:
            raise ConfigError("E1514", "spark", "there is no Java")
        made.append(settings)
        return Engine(settings, **more)

    member = shared.member(make_engine=make)
    with pytest.raises(ConfigError, match="E1514"):
        member.run_forever()
    member.stop()
    assert {one.state for one in shared.table().shares} == {"free"}


def test_a_member_with_an_outdated_configuration_stops(shared: Shared):
    member = shared.member()
    shared.wait_running((member, COUNT))
    shared.sql("UPDATE configuration SET digest = 'another'")
    with pytest.raises(Fenced, match="E3204"):
        member.run_forever()
    member.stop()
    assert member.engines == {}


def test_another_configuration_cannot_join(shared: Shared):
    member = shared.member()
    other = replace(shared.settings, monitors=(MonitorSettings(type=f"{__name__}:Total", on_error="skip"),))
    with pytest.raises(RecoveryRefused, match="E4341"):
        shared.member(other)
    with pytest.raises(RecoveryRefused, match="E4340"):
        shared.member(replace(shared.settings, shares=ShareSettings(count=5)))
    another_lease = replace(shared.settings, shares=ShareSettings(count=COUNT, lease=30.0), max_queued=7)
    second = shared.member(another_lease)
    shared.wait_running((member, 2), (second, 2))


def test_the_first_start_with_shares_refuses_to_leave_a_store_behind(shared: Shared) -> None:
    undivided = replace(shared.settings, shares=None, receivers=(), senders=(sender(destination="queue:late"),))
    with Engine(undivided):
        pass
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match="E4342 .*would use: .* rows in .*correlator db reset STORE_URL"):
            shared.member()
    with Engine(undivided):  # nothing was changed
        pass
    assert shared.table().count is None
    reset(shared.settings.store, None)
    shared.member()


def test_a_store_of_another_engine_beside_the_shares_does_not_matter(shared: Shared) -> None:
    with Engine(replace(shared.settings, name="another", shares=None, receivers=(), senders=())):
        pass
    shared.member()


def test_a_standby_has_nothing_to_do_until_it_is_needed(shared: Shared):
    members = [shared.member() for _ in range(COUNT)]
    shared.wait_running(*((member, 1) for member in members))
    standby = shared.member()
    shared.wait(lambda: len(shared.table().members) == COUNT + 1)
    assert standby.engines == {}
    members[0].stop()
    shared.wait_running((standby, 1))


def test_a_forked_child_leaves_the_member_alone(shared: Shared):
    member = shared.member()
    shared.wait_running((member, COUNT))
    child = os.fork()
    if not child:
        refused = False
        try:
            member.run_forever()
        except UsageError as error:
            refused = error.code == "E2050"
        member.request_stop()
        member.stop()
        os._exit(0 if refused else 1)
    assert os.waitpid(child, 0)[1] == 0
    shared.publish(0, 1)
    shared.wait(lambda: shared.sent(0) == ["1:1"])
    assert [one.epoch for one in shared.table().shares] == [1] * COUNT


def test_a_member_has_one_life(shared: Shared):
    member = shared.member()
    with pytest.raises(UsageError, match="E2051"):
        member.start()
    member.stop()
    member.stop()


def test_settings_of_shares_are_for_members(shared: Shared):
    with pytest.raises(UsageError, match=r"E2052 .*Use Member"):
        Engine(shared.settings)
    with pytest.raises(UsageError, match="E2061"):
        Member(replace(shared.settings, shares=None))


def test_wrong_settings_are_refused_before_anything_is_opened(shared: Shared):
    with pytest.raises(ConfigError, match="E1332"):
        Member(replace(shared.settings, receivers=(receiver(destination="queue:in"),)))
    with pytest.raises(ConfigError, match="E1331"):
        Member(replace(shared.settings, store="sqlite:///store.db"))
    with pytest.raises(ConfigError, match="E1211"):
        Member(replace(shared.settings, connections={}))


def test_one_engine_of_a_process_starts_at_a_time(shared: Shared):
    """msgspec ends the process if two threads let it learn a class of the application at the same time."""
    starting, most = [0], [0]

    class Counted(Engine):
        def start(self) -> None:
            starting[0] += 1
            most[0] = max(most[0], starting[0])
            super().start()
            starting[0] -= 1

    member = shared.member(make_engine=Counted)
    shared.wait_running((member, COUNT))
    assert most == [1]


def test_members_need_the_same_settings_but_not_the_same_spelling(shared: Shared):
    def digest(**changes: Any) -> str:
        return shares_of(replace(shared.settings, **changes)).digest

    (first,) = shared.settings.receivers
    same = [
        {},
        {"checkpoint": CheckpointSettings(interval=9.0)},
        {"shares": ShareSettings(count=COUNT, lease=77.0)},
        {"receivers": (replace(first, max_batch_size=1000),)},  # its default
    ]
    other = [
        {"receivers": (replace(first, max_batch_size=7),)},
        {"receivers": (first, replace(first, id="second"))},
        {"monitors": ()},
        {"destinations": {"a": "queue:b-${share}"}},
    ]
    assert len({digest(**one) for one in same}) == 1
    assert len({digest(**one) for one in (*same, *other)}) == 1 + len(other)


def test_each_share_answers_over_http_at_a_port_of_its_own(shared: Shared):
    member = shared.member(replace(shared.settings, http=HttpSettings(port=0)))
    shared.wait_running((member, COUNT))
    engines = list(member.engines.values())
    addresses = {engine.http_address for engine in engines}
    assert len(addresses) == COUNT
    assert None not in addresses
    member.stop()
    assert {engine.http_address for engine in engines} == addresses, "also when it no longer listens"


def test_a_short_cut_takes_nothing_away_and_a_long_one_does(shared: Shared, postgres_server: PostgresServer):
    with FaultProxy(postgres_server.port) as proxy:
        assert shared.settings.store is not None
        behind = shared.settings.store.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        first = shared.member(replace(shared.settings, store=behind))
        second = shared.member()
        shared.wait_running((first, 2), (second, 2))
        cut_off = sorted(first.engines)
        before = [one.epoch for one in shared.table().shares]

        def left() -> float:
            return min(shared.table().shares[number].seconds or 0.0 for number in cut_off)

        proxy.refuse()
        proxy.cut()
        shared.wait(lambda: left() < LEASE_S / 2)
        proxy.accept()
        shared.wait(lambda: left() > LEASE_S * 0.8)
        shared.wait_running((first, 2), (second, 2))
        assert [one.epoch for one in shared.table().shares] == before
        proxy.refuse()
        proxy.cut()
        shared.wait_running((first, 0), (second, COUNT))
        after = [one.epoch for one in shared.table().shares]
        assert after == [epoch + (number in cut_off) for number, epoch in enumerate(before)], "once"
        proxy.accept()
        shared.wait_running((first, 2), (second, 2))
