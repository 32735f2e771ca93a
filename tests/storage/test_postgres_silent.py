"""A PostgreSQL server that stands still, that does not wait for its standby, or that a pooler hides."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.embedded import destinations, storing
from connectors.embedded import link as links
from connectors.embedded.storing import NewMessage
from correlator.core.commit import RegistryCommit
from correlator.errors import CommitUnknown, ConnectionLost, Fenced, StoreError
from correlator.storage import database, inspect, migrate, postgres, session
from correlator.storage.deadletters import discard
from correlator.storage.forget import forget
from correlator.storage.inspect import Selection
from correlator.storage.reset import reset
from correlator.storage.store import SqlStore
from tests.servers import PgBouncer, PostgresServer, running
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened

pytestmark = pytest.mark.postgres
At = Callable[[str, Callable[[], object]], None]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that may be frozen: others wait for the server of the whole session."""
    with running(PostgresServer()) as own:
        yield own


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", 2)


# --- a frozen server ---


@pytest.mark.parametrize("where", ["rx.tx.begin", "rx.tx.fence", "rx.tx.insert", "rx.tx.commit.before"])
@pytest.mark.usefixtures("impatient")
def test_a_server_that_freezes_leaves_a_commit_unknown_and_the_truth_is_found_afterwards(
    make_store: MakeStore, server: PostgresServer, at: At, where: str
) -> None:
    url = server.fresh_schema()
    store = make_store(url)
    opened(store)
    with contextlib.ExitStack() as frozen:
        at(where, lambda: frozen.enter_context(server.frozen()))
        with pytest.raises(CommitUnknown, match=r"E3105 .*the server has said nothing for 0.3 s"):
            store.commit(1, [values.received(1, 1)])
        with pytest.raises(CommitUnknown, match=r"E3105 .*connection timeout expired"):
            store.resolve(1)
    committed = store.resolve(1)
    assert committed or where != "rx.tx.commit.before", "COMMIT had reached the server"
    store.close()
    assert opened(make_store(url)).commit == int(committed)


@pytest.mark.usefixtures("impatient")
def test_who_looks_at_a_frozen_server_is_told_so(server: PostgresServer, make_store: MakeStore) -> None:
    url = server.fresh_schema()
    opened(make_store(url))
    with server.frozen(), pytest.raises(StoreError, match="connection timeout expired"):
        inspect.instance(url)


@pytest.mark.usefixtures("impatient")
def test_a_store_on_a_frozen_server_can_be_closed(make_store: MakeStore, server: PostgresServer) -> None:
    store = make_store(server.fresh_schema())
    opened(store)
    with server.frozen():
        store.close()


@pytest.mark.usefixtures("impatient")
def test_an_embedded_broker_on_a_frozen_server_is_a_lost_connection(server: PostgresServer) -> None:
    link = links.open_link(server.fresh_schema())
    with server.frozen():
        expected = pytest.raises(ConnectionLost, match="E7003 .*has said nothing")
        with expected, links.translated("broker"), link.transaction() as connection:
            destinations.lock_registry(connection)
        link.close()


@pytest.mark.usefixtures("impatient")
def test_a_send_to_an_embedded_broker_on_a_frozen_server_is_a_lost_connection(server: PostgresServer) -> None:
    link = links.open_link(server.fresh_schema())
    message = NewMessage("", 0, "ID:a", b"x")
    with server.frozen():
        with pytest.raises(ConnectionLost, match="E7003 .*has said nothing"), links.translated("broker"):
            storing.send(link.connection, "queue:orders", message, lazy=False)
        link.close()


# --- statements that take their time ---


@pytest.fixture
def slow(server: PostgresServer, impatient: None, make_store: MakeStore) -> str:
    """A store in which nothing is updated or deleted in the time that an engine would wait."""
    url = server.fresh_schema()
    store = make_store(url)
    opened(store)
    store.commit(1, [RegistryCommit(put=[values.endpoint("a")]), values.checkpoint(1, dead_letters=[values.letter()])])
    store.close()
    server.execute(
        "CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END';"
        "CREATE TRIGGER slow AFTER UPDATE ON engine EXECUTE FUNCTION take_time()",
        url,
    )
    return url


@pytest.mark.parametrize(
    "administer",
    [lambda url: reset(url, None), lambda url: forget(url, "a"), lambda url: discard(url, Selection())],
    ids=["reset", "forget", "discard"],
)
def test_what_a_command_removes_may_take_its_time(slow: str, administer: Callable[[str], object]) -> None:
    administer(slow)


@pytest.mark.usefixtures("impatient")
def test_a_look_may_take_its_time(server: PostgresServer) -> None:
    with database.reading(server.fresh_schema()) as connection:
        connection.exec_driver_sql("SELECT pg_sleep(1)")


@pytest.mark.usefixtures("impatient")
def test_a_revision_may_take_its_time_and_the_transactions_of_an_engine_may_not(
    server: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "env.py").write_text(
        "from alembic import context\n"
        "with context.config.attributes['database'].transaction() as connection:\n"
        "    connection.exec_driver_sql('SELECT pg_sleep(1)')\n"
    )
    owned = database.connect(server.fresh_schema())
    migrate.bring_up(owned, scripts=tmp_path)
    with pytest.raises(CommitUnknown, match="E3105 .*has said nothing"), owned.transaction() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(1)")
    owned.close()


# --- a standby that is not there ---


@pytest.fixture
def lonely(server: PostgresServer) -> Iterator[PostgresServer]:
    """A server each of whose commits waits for a standby, once `standby` was called."""
    yield server
    standby(server, "")


def standby(server: PostgresServer, name: str) -> None:
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    server.execute("SELECT pg_reload_conf()")
    while server.execute("SHOW synchronous_standby_names") != [(name,)]:
        pass
    server.execute("CHECKPOINT")  # by the process that tells all sessions of the new setting, which it does before


def cancelling(server: PostgresServer) -> threading.Thread:
    """Cancels the next wait for a standby."""

    def cancel() -> None:
        while not (waiting := server.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")):
            pass
        server.execute(f"SELECT pg_cancel_backend({waiting[0][0]})")

    thread = threading.Thread(target=cancel)
    thread.start()
    return thread


def test_a_commit_whose_wait_for_the_standby_was_cancelled_is_not_taken_for_durable(
    make_store: MakeStore, lonely: PostgresServer
) -> None:
    url = lonely.fresh_schema()
    store = make_store(url)
    opened(store)
    standby(lonely, "nowhere")
    for attempt in (lambda: store.commit(1, [values.received(1, 1)]), lambda: store.resolve(1)):
        cancel = cancelling(lonely)
        with pytest.raises(CommitUnknown, match=r"E3111 .*COMMIT was answered with a warning: canceling wait for sync"):
            attempt()
        cancel.join()
    standby(lonely, "")
    assert store.resolve(1)
    store.commit(2, [values.received(2, 1)])


@pytest.mark.usefixtures("impatient")
def test_a_commit_that_waits_for_its_standby_for_too_long_is_unknown(
    make_store: MakeStore, lonely: PostgresServer
) -> None:
    store = make_store(lonely.fresh_schema())
    opened(store)
    standby(lonely, "nowhere")
    for attempt in (lambda: store.commit(1, [values.received(1, 1)]), lambda: store.resolve(1)):
        with pytest.raises(CommitUnknown, match=r"E3105 .*has said nothing"):
            attempt()
    standby(lonely, "")
    assert store.resolve(1)


def test_an_embedded_broker_confirms_nothing_that_its_standby_may_lack(lonely: PostgresServer) -> None:
    link = links.open_link(lonely.fresh_schema())
    standby(lonely, "nowhere")
    cancel = cancelling(lonely)
    expected = pytest.raises(ConnectionLost, match="E7003 .*COMMIT was answered with a warning")
    with expected, links.translated("broker"), link.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE something (id int)")
    cancel.join()
    link.close()


def test_an_embedded_broker_confirms_no_single_message_that_its_standby_may_lack(lonely: PostgresServer) -> None:
    link = links.open_link(lonely.fresh_schema())
    with link.transaction() as connection:
        destinations.ensure(connection, "queue:orders")
    standby(lonely, "nowhere")
    cancel = cancelling(lonely)
    expected = pytest.raises(ConnectionLost, match="E7003 .*COMMIT was answered with a warning")
    with expected, links.translated("broker"):
        storing.send(link.connection, "queue:orders", NewMessage("", 0, "ID:a", b"x"), lazy=False)
    cancel.join()
    link.close()


# --- two brokers in two schemas ---


def test_two_embedded_brokers_in_one_database_share_nothing(server: PostgresServer) -> None:
    """Their first consumers have the same number, and neither waits for the other."""
    here, there = (links.open_link(server.fresh_schema()) for _ in range(2))
    with here.transaction() as connection:
        destinations.ensure(connection, "queue:orders")
        here.live("1")
    with there.transaction() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        assert destinations.queues(connection) == ["queue:mq.sys.dmq"]
        assert there.is_dead("1")
        there.live("1")
    here.close()
    there.close()


def test_an_embedded_broker_keeps_what_its_address_says_of_commits(server: PostgresServer) -> None:
    schema = server.fresh_schema()
    link = links.open_link(f"{schema}%20-csynchronous_commit%3Dremote_apply")
    assert link.connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "remote_apply"
    link.close()
    link = links.open_link(f"{schema}%20-csynchronous_commit%3Doff")
    assert link.connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    link.close()


# --- poolers, and a lock that is gone ---


@pytest.fixture(scope="module", params=["transaction", "session"])
def pooler(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    with running(PgBouncer(server, request.param)) as own:
        yield own


def test_a_store_behind_a_pooler_is_refused(make_store: MakeStore, server: PostgresServer, pooler: PgBouncer) -> None:
    """Two clients may have one session of the server: both would have its lock."""
    url = server.fresh_database()
    owner = make_store(url)
    opened(owner)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"E3311 .*a connection pooler stands between"):
            opened(make_store(pooler.url(url)))
    owner.commit(1, [values.received(1, 1)])


def test_an_embedded_broker_behind_a_pooler_is_refused(server: PostgresServer, pooler: PgBouncer) -> None:
    with pytest.raises(ConnectionLost, match="E3311"), links.translated("broker"):
        links.open_link(pooler.url(server.fresh_database()))


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "LOOK_AT_LOCK_S", 0.0)


@pytest.mark.usefixtures("attentive")
def test_a_lock_that_is_gone_is_noticed_while_nothing_is_written(make_store: MakeStore, server: PostgresServer) -> None:
    store = make_store(server.fresh_schema())
    opened(store)
    assert store.confirm_lock() == 0.0
    unlock(store)
    with pytest.raises(Fenced, match="E3203 .*lost the lock"):
        store.confirm_lock()


def unlock(store: SqlStore) -> None:
    with store._opened().transaction() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_unlock_all()")


def test_a_look_at_the_lock_is_taken_only_when_it_is_due(make_store: MakeStore, server: PostgresServer) -> None:
    store = make_store(server.fresh_schema())
    opened(store)
    unlock(store)
    wait = store.confirm_lock()
    assert wait is not None
    assert 0 < wait <= postgres.LOOK_AT_LOCK_S


@pytest.mark.usefixtures("attentive")
def test_an_engine_that_lost_its_session_is_told_who_owns_the_store_now(
    make_store: MakeStore, server: PostgresServer
) -> None:
    url = server.fresh_database()
    store = make_store(url)
    opened(store)
    server.terminate_backends(url)
    other = make_store(url)
    opened(other)
    with pytest.raises(CommitUnknown, match="E3105"):
        store.confirm_lock()
    with pytest.raises(Fenced, match="E3201"):
        store.resolve(1)
