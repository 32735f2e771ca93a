"""What PostgreSQL and its network do to a store (traps T1 and T34, bad inputs 155 and 156)."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from correlator import Engine
from correlator.core.commit import ReceiveCommit, RegistryCommit
from correlator.errors import CommitUnknown, CorrelatorError, Fenced, RecoveryRefused, StoreBusy, StoreError
from correlator.settings import EngineSettings, MonitorSettings
from correlator.storage import deadletters, inspect
from correlator.storage.inspect import Selection
from correlator.storage.reset import reset
from correlator.storage.witness import witness_of
from correlator.testing.network import (
    POSTGRES_COMMIT,
    AtRequest,
    CutConnection,
    Direction,
    FaultProxy,
    NetworkFault,
    lost_reply,
    lost_request,
)
from tests.servers import PostgresServer, database_of, free_port, running
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.test_store_contract import EVERYTHING, POINTS
from tests.storage.values import opened

pytestmark = pytest.mark.postgres


@pytest.fixture
def server(postgres_server: PostgresServer) -> PostgresServer:
    return postgres_server


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as proxy:
        yield proxy


def through(proxy: FaultProxy, server: PostgresServer, url: str) -> str:
    """The same address behind the proxy."""
    return url.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.mark.parametrize(("lost", "committed"), [(lost_request, False), (lost_reply, True)])
def test_t1_a_lost_commit_is_resolved(
    make_store: MakeStore, server: PostgresServer, proxy: FaultProxy, lost: Callable[..., NetworkFault], committed: bool
) -> None:
    direct = server.fresh_schema()
    store = make_store(through(proxy, server, direct))
    opened(store)
    dead = values.checkpoint(1, dead_letters=[values.letter("1")])
    proxy.inject(lost(POSTGRES_COMMIT))
    with pytest.raises(CommitUnknown, match=r"E3105 .*the connection was lost"):
        store.commit(1, [values.received(1, 3, number=1), dead])
    assert store.resolve(1) is committed
    assert store.resolve(1) is committed, "asked twice, answered the same"
    if not committed:
        store.commit(1, [values.received(1, 3, number=1), dead])
    store.commit(2, [values.checkpoint(2, dead_letters=[values.letter("2")])])
    store.close()
    recovered = opened(make_store(direct))
    assert (recovered.commit, recovered.checkpoint, len(recovered.receive_log)) == (2, 2, 1)


@pytest.mark.parametrize("point", POINTS)
def test_156_a_session_that_dies_at_each_statement(
    make_store: MakeStore, server: PostgresServer, at: Callable[..., None], point: str
) -> None:
    url = server.fresh_schema()
    store = make_store(url)
    opened(store)
    at(point, lambda: server.terminate_backends(url))
    with pytest.raises(CommitUnknown):
        store.commit(1, EVERYTHING)
    assert not store.resolve(1)
    store.commit(1, EVERYTHING)
    store.close()
    assert opened(make_store(url)).commit == 1


def test_a_server_that_crashes_and_comes_back(make_store: MakeStore, at: Callable[..., None]) -> None:
    with running(PostgresServer()) as server:
        url = server.fresh_schema()
        store = make_store(url)
        opened(store)
        store.commit(1, [values.received(1, 1)])
        at("rx.tx.commit.before", server.kill)
        with pytest.raises(CommitUnknown):
            store.commit(2, [values.received(2, 1)])
        with pytest.raises(CommitUnknown, match=r"E3105"):
            store.resolve(2)
        server.start()
        assert not store.resolve(2)
        at("rx.tx.commit.after", server.crash)
        store.commit(2, [values.received(2, 1)])
        with pytest.raises(CommitUnknown):
            store.commit(3, [values.received(3, 1)])
        assert not store.resolve(3)
        store.commit(3, [values.received(3, 1)])
        store.close()


def test_t11_an_engine_that_lost_its_session_to_another(make_store: MakeStore, server: PostgresServer) -> None:
    url = server.fresh_schema()
    first, second = make_store(url), make_store(url)
    opened(first)
    server.terminate_backends(url)
    assert opened(second).epoch == 2
    with pytest.raises(CommitUnknown):
        first.commit(1, [values.received(1, 1)])
    with pytest.raises(Fenced, match=r"E3201"):
        first.resolve(1)
    second.commit(1, [values.received(1, 1)])
    second.close()
    with pytest.raises(Fenced, match=r"E3202 .*commit 1 of epoch 1 does not follow commit 1 of epoch 2"):
        first.resolve(1)


@pytest.mark.parametrize("act", [deadletters.replay, deadletters.discard])
def test_an_engine_that_lost_its_session_is_fenced_by_what_is_done_with_its_letters(
    make_store: MakeStore, server: PostgresServer, act: Callable[..., int]
) -> None:
    """It looks as if nobody had taken over: the lock is free again, and the number of the commit is the one before."""
    url = server.fresh_schema()
    first = make_store(url)
    opened(first)
    failed = values.letter("E5101 bad")
    put = RegistryCommit(put=[msgspec.structs.replace(values.endpoint("orders"), reliability="EXACTLY_ONCE")])
    first.commit(1, [put, ReceiveCommit(receiver="orders", segment=None, ids=None, dead_letters=[failed])])
    server.terminate_backends(url)
    assert act(url, Selection()) == 1
    with pytest.raises(CommitUnknown):
        first.commit(2, [values.received(1, 1)])
    with pytest.raises(Fenced, match=r"E3202 .*epoch 1 does not follow commit 1 of epoch 2: another engine"):
        first.resolve(2)


@pytest.mark.parametrize("after", [0, 5, 12])
def test_our_own_lost_session_is_ended_before_we_look(
    make_store: MakeStore, server: PostgresServer, proxy: FaultProxy, after: int
) -> None:
    """The server has not noticed that we are gone: the old session still owns the lock, and could still commit."""
    direct = server.fresh_database()
    store = make_store(through(proxy, server, direct))
    opened(store)
    place = AtRequest(matcher=POSTGRES_COMMIT, direction=Direction.REQUEST, after=after)
    proxy.inject(NetworkFault(place, CutConnection(upstream=False)))
    with pytest.raises(CommitUnknown):
        store.commit(1, [values.received(1, 1)])
    (lost,) = server.backends(direct)
    committed = store.resolve(1)
    assert committed is (after == 12 and committed), "a request that arrived whole may have been carried out"
    server.wait_for_no_backend(direct, lost)  # the server lists it until a moment after it has freed its lock
    store.commit(1 + committed, [values.received(2, 1)])


def test_the_server_notices_a_host_that_vanished(make_store: MakeStore, server: PostgresServer) -> None:
    """Also after a reconnect: its lock would keep every other engine out."""
    url = server.fresh_schema()
    store = make_store(url)
    opened(store)
    for _ in range(2):
        with store._opened().transaction() as connection:
            settings = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
            values_now = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in settings]
        assert values_now == ["10", "5", "4"]
        store.resolve(1)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_look_that_is_lost_in_its_turn(
    make_store: MakeStore, server: PostgresServer, proxy: FaultProxy, noticed: bool
) -> None:
    """The answer to each request of the new session is lost once; the server may keep the sessions, and the lock."""
    store = make_store(through(proxy, server, server.fresh_database()))
    opened(store)
    for number in range(1, 100):
        proxy.inject(lost_request(POSTGRES_COMMIT))
        with pytest.raises(CommitUnknown):
            store.commit(number, [values.received(number, 1)])
        lost = proxy.inject(NetworkFault(AtRequest(hit=number), CutConnection(upstream=noticed)))
        with contextlib.suppress(CommitUnknown):
            store.resolve(number)
        lost.withdraw()
        assert not store.resolve(number)
        store.commit(number, [values.received(number, 1)])
        if not lost.fired:
            break
    assert number > 10, "a look is more than ten requests"


FAILING = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$
"""


@pytest.mark.parametrize("when", ["statement", "commit"])
@pytest.mark.parametrize("state", ["40001", "40P01", "53100", "53200", "53300", "55P03", "57014"])
def test_what_the_server_rolled_back_may_be_tried_again(
    make_store: MakeStore, server: PostgresServer, state: str, when: str
) -> None:
    url = server.fresh_schema()
    store = make_store(url)
    opened(store)
    _make_failing(server, url, state, when)
    with pytest.raises(StoreBusy, match=r"E3103 .*rolled back"):
        store.commit(1, [values.received(1, 1)])
    server.execute("DROP TRIGGER failing ON receive_log", url)
    store.commit(1, [values.received(1, 1)])


def _make_failing(server: PostgresServer, url: str, state: str, when: str) -> None:
    server.execute(FAILING.format(state=state), url)
    kind, deferred = ("CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED") if when == "commit" else ("TRIGGER", "")
    server.execute(
        f"CREATE {kind} failing AFTER INSERT ON receive_log {deferred} FOR EACH ROW EXECUTE FUNCTION fail()",
        url,
    )


@pytest.mark.parametrize("when", ["statement", "commit"])
def test_any_other_error_stops_the_engine(make_store: MakeStore, server: PostgresServer, when: str) -> None:
    url = server.fresh_schema()
    store = make_store(url)
    opened(store)
    _make_failing(server, url, "23514", when)
    with pytest.raises(StoreError, match=r"E3100 .*refused a statement: no") as failure:
        store.commit(1, [values.received(1, 1)])
    assert type(failure.value) is StoreError


def test_155_nobody_listens(make_store: MakeStore) -> None:
    url = f"postgresql://u:secret@127.0.0.1:{free_port()}/d"
    refused(make_store, url, StoreError, r"E3301 postgresql://u:\*\*\*@127.0.0.1:\d+/d: cannot connect")


def test_155_a_wrong_password(make_store: MakeStore, server: PostgresServer) -> None:
    refused(make_store, server.url().replace(server.password, "secret"), StoreError, "E3302 .*the user was refused")


def test_155_an_unknown_user(make_store: MakeStore, server: PostgresServer) -> None:
    refused(make_store, server.url().replace("correlator:", "nobody:secret"), StoreError, "E3302")


def test_155_a_database_that_does_not_exist(make_store: MakeStore, server: PostgresServer) -> None:
    refused(make_store, server.url("nowhere"), StoreError, 'E3303 .*database "nowhere" does not exist')


def test_155_an_encrypted_connection_that_the_server_has_not(make_store: MakeStore, server: PostgresServer) -> None:
    refused(make_store, server.url() + "?sslmode=require", StoreError, "E3309 .*no encrypted connection")


def test_155_a_database_in_another_encoding(make_store: MakeStore, server: PostgresServer) -> None:
    url = server.fresh_database("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    refused(make_store, url, StoreError, "E3305 .*SQL_ASCII. Only UTF8")


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("synchronous_commit = off", "E3306"),
        ("default_transaction_read_only = on", "E3308"),
        ("search_path = ''", "E3304"),
    ],
)
def test_t4_155_settings_of_the_database(
    make_store: MakeStore, server: PostgresServer, setting: str, code: str
) -> None:
    url = server.fresh_database()
    server.execute(f"ALTER DATABASE {database_of(url)} SET {setting}")
    refused(make_store, url, StoreError, code)


def test_155_a_user_without_rights(make_store: MakeStore, server: PostgresServer) -> None:
    url = server.fresh_database()
    server.execute(f"CREATE ROLE guest{url[-1]} LOGIN PASSWORD 'secret'")
    url = url.replace(f"correlator:{server.password}", f"guest{url[-1]}:secret")
    refused(make_store, url, StoreError, "E3304 .*permission denied for schema public")


def test_155_tables_of_somebody_else(make_store: MakeStore, server: PostgresServer) -> None:
    url = server.fresh_schema()
    server.execute("CREATE TABLE outbox (id int)", url)
    refused(make_store, url, StoreError, "E3003 .*belongs to another application")


def test_a_schema_beside_others(make_store: MakeStore, server: PostgresServer) -> None:
    """Two stores live in two schemas of one database, at the same time."""
    url = server.fresh_database()
    server.execute("CREATE SCHEMA other", url)
    opened(make_store(url))
    other = f"{url}?options=-csearch_path%3Dother"
    assert opened(make_store(other, "beta")).epoch == 1
    assert [inspect.instance(each).name for each in (url, other)] == ["alpha", "beta"]  # type: ignore[union-attr]


def test_without_the_driver(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    refused(make_store, "postgresql://u@127.0.0.1/d", StoreError, r"E3310 .*pip install correlator\[postgres\]")


def test_a_row_that_was_edited(make_store: MakeStore, server: PostgresServer) -> None:
    url = server.fresh_schema()
    store = make_store(url)
    opened(store)
    store.commit(1, [values.checkpoint(812)])
    store.close()
    server.execute("UPDATE checkpoint SET content = 'x'", url)
    refused(make_store, url, RecoveryRefused, "E4201 checkpoint 812: content does not match its digest")
    assert server.execute("SELECT epoch FROM engine", url) == [(1,)]


def test_a_server_that_went_back(make_store: MakeStore, server: PostgresServer, tmp_path: Path) -> None:
    """A replica without the last checkpoints was promoted: the witness on our own disk knows better (trap T33)."""
    url = server.fresh_schema()
    store = make_store(url, witness_directory=tmp_path)
    opened(store)
    store.commit(1, [values.checkpoint(1)])
    store.commit(2, [values.checkpoint(2)])
    store.close()
    server.execute("DELETE FROM checkpoint", url)
    with pytest.raises(RecoveryRefused, match=r"E4311 .*went back from checkpoint 2 to 0"):
        opened(make_store(url, witness_directory=tmp_path))


def test_t33_an_engine_notices_a_server_that_went_back(server: PostgresServer, tmp_path: Path) -> None:
    """Started again, planned, and emptied: the last forgets what was noted, too."""
    url = server.fresh_schema()
    settings = EngineSettings(
        name="desk/1",
        store=url,
        witness_directory=str(tmp_path / "notes"),
        monitors=(MonitorSettings(type="tests.runtime.flows:Keeps"),),
    )
    with Engine(settings):
        pass
    assert inspect.checkpoints(url)
    (witness,) = (tmp_path / "notes").iterdir()
    assert witness.name.startswith("desk%2F1-")
    server.execute("DELETE FROM checkpoint", url)
    with pytest.raises(RecoveryRefused, match="E4311 .*went back from checkpoint"):
        Engine(settings).start()
    with pytest.raises(RecoveryRefused, match="E4311 .*went back from checkpoint"):
        inspect.refuse_older(url, "desk/1", settings.witness_directory)
    inspect.refuse_older(url, "desk/1")
    other = server.fresh_schema()
    with Engine(replace(settings, store=other)):
        pass
    reset(url, witness_of(settings.witness_directory, "desk/1", url))
    assert witness.exists() is False
    long = "Ж" * 200
    with Engine(replace(settings, store=server.fresh_schema(), name=long)):
        pass
    tmp_path.chmod(0o777)
    with pytest.raises(StoreError, match="E9101"):
        Engine(replace(settings, store=server.fresh_schema(), witness_directory=str(tmp_path))).start()
    tmp_path.chmod(0o700)
    with Engine(settings):
        pass


def refused(make_store: MakeStore, url: str, kind: type[CorrelatorError], text: str) -> None:
    with pytest.raises(kind, match=text) as refusal:
        opened(make_store(url))
    assert "secret" not in str(refusal.value)
