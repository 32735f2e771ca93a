"""Leases on a real server: who may take a share, and the statements whose small changes would break that.

Each scenario is a function that fails with a mutated statement; `test_a_mutant_is_noticed` runs it with each mutant.
"""

import contextlib
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest
from _pytest.outcomes import Failed

from correlator.configuration import in_schema
from correlator.core import faults
from correlator.core.shares import Lease
from correlator.errors import CommitUnknown, Fenced, RecoveryRefused, StoreBusy, StoreError, UsageError
from correlator.storage import leases
from correlator.storage.leases import LeaseTable, Shares, shown
from correlator.storage.postgres import PostgresDatabase
from correlator.storage.store import SqlStore
from correlator.testing.network import FaultProxy
from tests.servers import PgBouncer, PostgresServer, running

pytestmark = pytest.mark.postgres

LONG_S = 3600.0
SHORT_S = 0.2
_numbers = itertools.count()


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.fresh_database()


@pytest.fixture
def shares(database: str) -> Shares:
    schema = f"risk{next(_numbers)}_share"
    return Shares(
        url=in_schema(database, f"{schema}_leases"),
        schema=f"{schema}_leases",
        stores=[f"{schema}_{number}" for number in range(4)],
        name="risk",
        digest="one",
        undivided=database,
    )


class World:
    """Tables of several members, closed at the end, and a session that looks."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._opened = contextlib.ExitStack()
        self._looking: psycopg.Connection | None = None

    def member(self, name: str, lease_s: float = LONG_S, shares: Shares | None = None) -> LeaseTable:
        table = LeaseTable(shares or self.shares, name, lease_s)
        self._opened.callback(table.close)
        table.join()
        return table

    def sql(self, statement: str) -> list[tuple]:
        if self._looking is None:
            self._looking = self._opened.enter_context(psycopg.connect(self.shares.url, autocommit=True))
        cursor = self._looking.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def lapse(self, *numbers: int) -> None:
        """Let the leases of shares end, and those of nobody else."""
        where = f"WHERE number IN ({', '.join(map(str, numbers))})" if numbers else ""
        self.sql(f"UPDATE share SET until = clock_timestamp() - interval '1 ms' {where}")

    def epochs(self) -> list[int]:
        return [epoch for (epoch,) in self.sql("SELECT epoch FROM share ORDER BY number")]

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def world(shares: Shares) -> Iterator[World]:
    made = World(shares)
    yield made
    made.close()


# --- scenarios that mutants of the statements fail ---


def a_lease_passes_on_with_a_higher_epoch(world: World) -> None:
    a, b = world.member("a"), world.member("b")
    assert a.take(2) == [Lease(0, 1), Lease(1, 1)]
    assert b.take(9) == [Lease(2, 1), Lease(3, 1)], "what is held is not taken"
    world.lapse(0)
    assert b.take(9) == [Lease(0, 2)]
    assert a.renew().mine == [Lease(1, 1)]
    a.give_back(Lease(0, 1))
    assert Lease(0, 2) in b.renew().mine, "an outdated lease cannot be given back"


def an_own_lapsed_lease_is_renewed_and_not_taken(world: World) -> None:
    a = world.member("a")
    a.take(4)
    world.lapse()
    assert a.take(4) == []
    assert a.renew().mine == [Lease(number, 1) for number in range(4)]
    assert world.member("b").take(4) == [], "the renewal counts"


def an_epoch_only_grows(world: World) -> None:
    a = world.member("a")
    for expected in (1, 2, 3):
        assert a.take(1) == [Lease(0, expected)]
        a.give_back(Lease(0, expected))
    assert world.epochs() == [3, 0, 0, 0]


def two_members_that_take_at_once_do_not_wait_for_one_another(world: World) -> None:
    b = world.member("b", lease_s=2.0)
    with psycopg.connect(world.shares.url) as other:
        other.execute("SELECT FROM share WHERE number = 0 FOR UPDATE")
        assert b.take(2) == [Lease(1, 1), Lease(2, 1)]


def a_lease_begins_when_it_is_renewed(world: World) -> None:
    """Not when the transaction began, in which the renewal may have waited."""
    a = world.member("a", lease_s=10.0)
    a.take(1)
    with psycopg.connect(world.shares.url) as held:
        held.execute("SELECT pg_sleep(0.3)")
        held.execute(leases.RENEW, {"me": "a", "lease": 10.0})
        ((seconds,),) = held.execute("SELECT extract(epoch FROM until - clock_timestamp()) FROM share WHERE number = 0")
    assert seconds > 9.9


def a_look_compares_with_the_present(world: World) -> None:
    a, b = world.member("a", lease_s=1.0), world.member("b")
    a.take(4)
    with psycopg.connect(world.shares.url) as held:
        held.execute("SELECT pg_sleep(1.1)")
        assert len(held.execute(leases.TAKE, {"me": "b", "most": 4, "count": 4, "lease": 9.0}).fetchall()) == 4
    assert len(b.renew().mine) == 4


SCENARIOS = (
    a_lease_passes_on_with_a_higher_epoch,
    an_own_lapsed_lease_is_renewed_and_not_taken,
    an_epoch_only_grows,
    two_members_that_take_at_once_do_not_wait_for_one_another,
    a_lease_begins_when_it_is_renewed,
    a_look_compares_with_the_present,
)
MUTANTS = [
    ("TAKE", "owner IS DISTINCT FROM %(me)s", "true", an_own_lapsed_lease_is_renewed_and_not_taken),
    ("TAKE", "owner IS DISTINCT FROM %(me)s", "owner <> %(me)s", a_lease_passes_on_with_a_higher_epoch),
    ("TAKE", "epoch = epoch + 1", "epoch = epoch", a_lease_passes_on_with_a_higher_epoch),
    ("TAKE", "until < clock_timestamp()", "true", a_lease_passes_on_with_a_higher_epoch),
    ("TAKE", "until < clock_timestamp()", "until < now()", a_look_compares_with_the_present),
    ("TAKE", " SKIP LOCKED", "", two_members_that_take_at_once_do_not_wait_for_one_another),
    ("TAKE", " FOR UPDATE SKIP LOCKED", "", two_members_that_take_at_once_do_not_wait_for_one_another),
    ("RENEW", "clock_timestamp()", "now()", a_lease_begins_when_it_is_renewed),
    ("RENEW", "WHERE owner = %(me)s", "WHERE owner = %(me)s AND until > clock_timestamp()", an_own_lapsed_lease_is_renewed_and_not_taken),
    ("GIVE_BACK", "until = '-infinity'", "until = '-infinity', epoch = 0", an_epoch_only_grows),
    ("GIVE_BACK", "owner = NULL, ", "", an_epoch_only_grows),
    ("GIVE_BACK", " AND owner = %(me)s AND epoch = %(epoch)s", "", a_lease_passes_on_with_a_higher_epoch),
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_leases(world: World, scenario: Callable[[World], None]) -> None:
    scenario(world)


@pytest.mark.parametrize(("statement", "part", "instead", "scenario"), MUTANTS)
def test_a_mutant_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch, statement: str, part: str, instead: str, scenario: Callable
) -> None:
    original = getattr(leases, statement)
    assert part in original
    monkeypatch.setattr(leases, statement, original.replace(part, instead, 1))
    with pytest.raises((AssertionError, StoreBusy)):
        scenario(world)


# --- what a look shows ---


def test_what_a_member_sees(world: World):
    a, b = world.member("a"), world.member("b")
    world.member("c")
    a.take(1)
    b.take(2)
    seen = a.renew()
    assert (seen.count, seen.mine, seen.others, seen.free) == (4, [Lease(0, 1)], {"b": 2, "c": 0}, 1)
    assert seen.next_end == pytest.approx(LONG_S, abs=60)
    assert world.member("d").renew(leaving=True).others == {"a": 1, "b": 2, "c": 0}
    assert a.renew().others == {"b": 2, "c": 0}, "who leaves is not counted"


def test_a_member_that_is_not_heard_of_is_not_counted(world: World):
    a, b = world.member("a"), world.member("b")
    b.take(1)
    world.sql("UPDATE member SET until = clock_timestamp() - interval '1 ms' WHERE id = 'b'")
    assert a.renew().others == {}
    b.renew()
    assert a.renew().others == {"b": 1}, "it joins again by its next renewal"


def test_what_the_command_shows(world: World):
    assert shown(replace(world.shares, schema="nowhere_leases", url=world.shares.url)).count is None
    a = world.member("a")
    a.take(2)
    a.note(Lease(1, 1), "E5500")
    a.give_back(Lease(0, 1))
    table = shown(world.shares)
    assert table.count == 4
    assert [(one.number, one.state, one.epoch, one.problem) for one in table.shares] == [
        (0, "free", 1, ""),
        (1, "held", 1, "E5500"),
        (2, "free", 0, ""),
        (3, "free", 0, ""),
    ]
    assert [one.shares for one in table.members] == [1]
    world.lapse(1)
    ended = shown(world.shares).shares[1]
    assert (ended.state, ended.member) == ("ended", table.members[0].member)
    assert ended.seconds is not None
    assert ended.seconds < 0
    assert world.member("b").take(4)[1] == Lease(1, 2)
    assert shown(world.shares).shares[1].problem == "", "a new owner begins without a problem"


def test_dead_members_are_forgotten_after_a_day(world: World):
    world.member("a")
    world.sql("UPDATE member SET until = clock_timestamp() - interval '25 hours'")
    world.member("b")
    assert world.sql("SELECT id FROM member") == [("b",)]


# --- who may join ---


def test_another_number_of_shares_is_refused(world: World):
    a = world.member("a")
    a.renew(leaving=True)
    fewer = replace(world.shares, stores=world.shares.stores[:3])
    with pytest.raises(RecoveryRefused, match="E4340 .*has 4 shares, the configuration says 3"):
        world.member("b", shares=fewer)
    assert world.sql("SELECT count FROM configuration") == [(4,)]


def test_the_number_changes_by_command_while_nobody_lives(world: World):
    a = world.member("a")
    a.take(4)
    fewer = replace(world.shares, stores=world.shares.stores[:3])
    command = LeaseTable(fewer, "", 60.0)
    with contextlib.closing(command):
        with pytest.raises(UsageError, match="E2062"):
            command.recount()
        a.renew(leaving=True)
        with pytest.raises(UsageError, match="E2062"):
            command.recount()  # its leases have not ended
        world.lapse()
        command.recount()
    with pytest.raises(Fenced, match="E3204"):
        a.renew()
    b = world.member("b", shares=fewer)
    assert b.take(9) == [Lease(0, 2), Lease(1, 2), Lease(2, 2)]
    assert b.renew().free == 0, "the fourth share is no longer one"


def test_another_configuration_is_refused_while_members_live(world: World):
    a = world.member("a")
    other = replace(world.shares, digest="two")
    with pytest.raises(RecoveryRefused, match="E4341 .*1 other members"):
        world.member("b", shares=other)
    a.renew(leaving=True)
    world.member("b", shares=other)
    with pytest.raises(Fenced, match="E3204"):
        a.renew()


def test_another_engine_is_refused(world: World):
    world.member("a")
    with pytest.raises(RecoveryRefused, match="E4310 .*'risk', this one is 'other'"):
        world.member("b", shares=replace(world.shares, name="other"))


def test_tables_of_a_newer_version_are_refused(world: World):
    world.member("a")
    world.sql("UPDATE configuration SET version = 99")
    with pytest.raises(StoreError, match="E3004"):
        world.member("b")


def test_members_with_other_leases_work_together(world: World):
    a, b = world.member("a", lease_s=2.0), world.member("b", lease_s=LONG_S)
    a.take(2)
    b.take(2)
    assert b.renew().next_end < 2.1
    assert a.renew().next_end > 2.1


def test_many_members_make_the_tables_at_once(database: str):
    schema = f"crowd{next(_numbers)}_share"
    context = multiprocessing.get_context("forkserver")
    with context.Pool(4) as pool:
        taken = pool.starmap(_join_and_take, [(database, schema, str(number)) for number in range(4)])
    assert sorted(lease.number for each in taken for lease in each) == [0, 1, 2, 3]


def _join_and_take(database: str, schema: str, me: str) -> list[Lease]:
    stores = [f"{schema}_{number}" for number in range(4)]
    url = in_schema(database, f"{schema}_leases")
    table = LeaseTable(
        Shares(url=url, schema=f"{schema}_leases", stores=stores, name="x", digest="", undivided=url), me, LONG_S
    )
    with contextlib.closing(table):
        table.join()
        return table.take(1)


# --- servers and networks ---


def test_a_pooler_is_refused(postgres_server: PostgresServer, shares: Shares):
    with running(PgBouncer(postgres_server, "session")) as pooler:
        table = LeaseTable(replace(shares, url=pooler.url(shares.url.partition("?")[0])), "a", LONG_S)
        with pytest.raises(StoreError, match="E3311"):
            table.join()
        table.close()


def test_a_lost_session_is_opened_again(world: World, postgres_server: PostgresServer):
    with FaultProxy(postgres_server.port) as proxy:
        behind = replace(world.shares, url=world.shares.url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
        a = world.member("a", shares=behind)
        a.take(2)
        postgres_server.terminate_backends(world.shares.url)
        with pytest.raises(CommitUnknown, match="E3105"):
            a.renew()
        assert a.renew().mine == [Lease(0, 1), Lease(1, 1)]


def test_a_frozen_server_holds_nobody_up_for_long(world: World):
    with running(PostgresServer()) as server:
        database = server.fresh_database()
        shares = replace(world.shares, url=in_schema(database, world.shares.schema))
        table = LeaseTable(shares, "a", 2.0)
        table.join()
        with server.frozen(), pytest.raises(StoreError, match=r"has said nothing for 0\.75 s"):
            table.renew()
        table.close()


def test_an_open_transaction_of_a_frozen_member_ends(world: World):
    """Its rows would be locked, and skipped by those who take, for as long as it is frozen."""
    a, b = world.member("a", lease_s=1.0), world.member("b")
    a.take(4)
    assert a._connection is not None
    with pytest.raises(Exception, match="."), a._connection.begin():
        a._connection.exec_driver_sql(leases.RENEW, {"me": "a", "lease": 1.0})
        world.sql("SELECT pg_sleep(1.5)")  # the member does nothing for longer than a quarter of its lease
        assert len(b.take(4)) == 4
        a._connection.exec_driver_sql("SELECT 1")


def test_a_forked_child_leaves_the_leases_alone(world: World):
    a = world.member("a")
    child = os.fork()
    if not child:
        refused = False
        try:
            a.renew()
        except UsageError as error:
            refused = error.code == "E2050"
        a.close()
        os._exit(0 if refused else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert a.take(1) == [Lease(0, 1)], "the session of the parent goes on"


# --- the fence of a store, which decides who can write ---


class Stores:
    """Two owners of one store: `first` owns it, `second` displaces it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = in_schema(server.fresh_database(), "public")
        self.first, self.second = (SqlStore(self.url, "risk/0", displace=True) for _ in range(2))
        self.first.take_over(self.first.read())

    def close(self) -> None:
        faults.install(None)
        self.first.close()
        self.second.close()


@pytest.fixture
def stores(postgres_server: PostgresServer) -> Iterator[Stores]:
    made = Stores(postgres_server)
    yield made
    made.close()


def no_takeover_between_the_check_of_the_epoch_and_the_commit(stores: Stores) -> None:
    taken = []

    def take(name: str) -> None:
        if name != "cfg.tx.fence":
            return
        with psycopg.connect(stores.url) as other, contextlib.suppress(psycopg.errors.LockNotAvailable):
            other.execute("SET lock_timeout = '300ms'")
            other.execute("UPDATE engine SET epoch = epoch + 1")
            taken.append(name)

    faults.install(take)
    with contextlib.suppress(Fenced):
        stores.first.commit(1, [])
        assert not taken, "both have happened"


def what_is_committed_after_the_reading_is_not_lost(stores: Stores) -> None:
    stores.first.close()
    recovered = stores.second.read()
    stores.server.terminate_backends(stores.url)  # the lock is free
    first = SqlStore(stores.url, "risk/0")
    again = first.read()
    first.take_over(again)
    first.commit(again.commit + 1, [])
    first.close()
    with pytest.raises(Fenced, match="E3202 .*another engine or a command has changed it"):
        stores.second.take_over(recovered)


def an_owner_that_was_displaced_commits_nothing(stores: Stores) -> None:
    stores.second.take_over(stores.second.read())
    with pytest.raises(CommitUnknown):
        stores.first.commit(1, [])
    with pytest.raises(Fenced, match="E3201"):
        stores.first.resolve(1)
    stores.second.commit(1, [])
    stores.second.close()
    with pytest.raises(Fenced, match="E3202"):
        stores.first.resolve(1)


def _checked_before(self: SqlStore, _: object, number: int) -> None:
    with psycopg.connect(self._url, autocommit=True) as other:
        ((epoch, before),) = other.execute("SELECT epoch, commit_number FROM engine").fetchall()
        assert (epoch, before) == (self._epoch, number - 1)
        other.execute("UPDATE engine SET commit_number = %s", [number])


FENCES = [
    (no_takeover_between_the_check_of_the_epoch_and_the_commit, SqlStore, "_fence", _checked_before),
    (what_is_committed_after_the_reading_is_not_lost, SqlStore, "_refuse_changed", lambda *_: None),
    (an_owner_that_was_displaced_commits_nothing, PostgresDatabase, "_end_other_owner", lambda _: None),
    (an_owner_that_was_displaced_commits_nothing, PostgresDatabase, "_take_lock", lambda one: one.connection.commit()),
]


@pytest.mark.parametrize("scenario", dict.fromkeys(one[0] for one in FENCES), ids=lambda one: one.__name__)
def test_the_fence_of_a_store(stores: Stores, scenario: Callable[[Stores], None]) -> None:
    scenario(stores)


@pytest.mark.parametrize(("scenario", "place", "name", "mutant"), FENCES)
def test_a_mutant_of_the_fence_is_noticed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, scenario: Callable, place: type, name: str, mutant: Callable
) -> None:
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises((AssertionError, Failed, StoreError)) as noticed:
        scenario(stores)
    assert not isinstance(noticed.value, CommitUnknown)
