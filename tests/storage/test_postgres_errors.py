"""Errors of PostgreSQL with their real causes, at a store that is open: what each becomes, and that nothing is lost.

`test_postgres` raises the same codes from a trigger, at a statement and at COMMIT.
"""

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import exc as sql_errors
from sqlalchemy.dialects import postgresql

from correlator import Engine
from correlator.errors import CommitUnknown, Fenced, StoreBusy
from correlator.settings import EngineSettings
from correlator.storage import codec, inspect
from correlator.storage.failures import failure
from correlator.storage.store import SqlStore
from tests.runtime.test_poison import Pipeline
from tests.servers import PostgresServer, database_of, running
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres
At = Callable[[str, Callable[[], object]], None]


@pytest.fixture
def server(postgres_server: PostgresServer) -> PostgresServer:
    return postgres_server


def configured(server: PostgresServer, setting: str) -> str:
    """An empty database whose sessions begin with a setting."""
    url = server.fresh_database()
    server.execute(f"ALTER DATABASE {database_of(url)} SET {setting}")
    return url


def set_in(store: SqlStore, setting: str) -> None:
    """Change a setting of the store's own session."""
    with store._opened().transaction() as connection:
        connection.exec_driver_sql(f"SET {setting}")


@contextmanager
def transaction_of_another(url: str, statement: str) -> Iterator[psycopg.Connection]:
    """Another session in a transaction that has executed a statement; rolled back at the end."""
    with psycopg.connect(url) as other:
        other.execute(statement)
        yield other
        other.rollback()


def wait_setting(server: PostgresServer, value: str) -> None:
    """Until new sessions begin with it."""
    wait_until(lambda: server.execute("SHOW default_transaction_read_only") == [(value,)])


def goes_on(make_store: MakeStore, url: str, store: SqlStore, number: int) -> None:
    """The commit that failed succeeds now, and a restart finds what was committed."""
    store.commit(number, [values.received(number, 1, confirmed=number)])
    store.close()
    recovered = opened(make_store(url))
    assert (recovered.commit, recovered.confirmed_batches) == (number, {"orders": number})
    assert [segment.first for segment in recovered.receive_log] == list(range(1, number + 1))


@pytest.mark.parametrize(("setting", "text"), [("statement_timeout", "was cancelled"), ("lock_timeout", "get a lock")])
def test_159_57014_55p03_a_statement_that_takes_too_long(
    make_store: MakeStore, server: PostgresServer, setting: str, text: str
) -> None:
    url = server.fresh_database()
    store = make_store(url)
    opened(store)
    set_in(store, f"{setting} = '50ms'")
    with transaction_of_another(url, "SELECT * FROM engine FOR UPDATE"):
        for _ in range(2):
            with pytest.raises(StoreBusy, match=f"E3103 .*{text}"):
                store.commit(1, [values.received(1, 1)])
    set_in(store, f"{setting} = 0")
    goes_on(make_store, url, store, 1)


def test_159_40p01_a_deadlock(make_store: MakeStore, server: PostgresServer, at: At) -> None:
    url = configured(server, "deadlock_timeout = '10ms'")
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1), values.checkpoint(1)])
    with transaction_of_another(url, "SET deadlock_timeout = '1min'; UPDATE checkpoint SET number = number") as other:
        waiting = threading.Thread(target=other.execute, args=("SELECT * FROM engine FOR UPDATE",))

        def wait_for_us() -> None:
            waiting.start()
            wait_until(lambda: server.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))

        at("ck.tx.fence", wait_for_us)
        with pytest.raises(StoreBusy, match=r"E3103 .*was chosen to end a deadlock"):
            store.commit(2, [values.received(2, 1), values.checkpoint(2)])
        waiting.join()
    goes_on(make_store, url, store, 2)


def test_159_40001_a_transaction_that_cannot_be_serialized(
    make_store: MakeStore, server: PostgresServer, at: At
) -> None:
    url = configured(server, "default_transaction_isolation = 'repeatable read'")
    store = make_store(url)
    opened(store)
    row = codec.progress_row("orders")
    insert = f"INSERT INTO receive_progress VALUES ('orders', 0, {row['confirmed_crc']}, 0, {row['consumed_crc']})"
    at("rx.tx.confirmed", lambda: server.execute(insert, url))
    with pytest.raises(StoreBusy, match=r"E3103 .*could not be serialized"):
        store.commit(1, [values.received(1, 1, confirmed=1)])
    goes_on(make_store, url, store, 1)


def test_159_53300_no_connection_is_free(make_store: MakeStore, server: PostgresServer) -> None:
    url = server.fresh_database()
    guest = f"guest_{database_of(url)}"
    server.execute(f"CREATE ROLE {guest} LOGIN PASSWORD 'secret' CONNECTION LIMIT 1")
    server.execute(f"GRANT ALL ON SCHEMA public TO {guest}", url)
    url = url.replace(f"{server.user}:{server.password}", f"{guest}:secret")
    store = make_store(url)
    opened(store)
    server.terminate_backends(url)
    with pytest.raises(CommitUnknown, match=r"E3105"):
        store.commit(1, [values.received(1, 1)])
    with transaction_of_another(url, "SELECT 1"), pytest.raises(CommitUnknown, match=r"E3105 .*too many connections"):
        store.resolve(1)
    wait_until(lambda: not server.backends(url))
    assert not store.resolve(1)
    goes_on(make_store, url, store, 1)


def test_25p03_a_session_that_is_ended_within_its_transaction(
    make_store: MakeStore, server: PostgresServer, at: At
) -> None:
    url = server.fresh_database()
    store = make_store(url)
    opened(store)

    def be_idle() -> None:
        store._opened().connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '10ms'")
        wait_until(lambda: not server.backends(url))

    at("rx.tx.commit.before", be_idle)
    with pytest.raises(CommitUnknown, match=r"E3105 .*idle-in-transaction timeout"):
        store.commit(1, [values.received(1, 1)])
    assert not store.resolve(1)
    goes_on(make_store, url, store, 1)


def test_57p05_a_session_that_is_ended_while_nothing_is_to_be_done(
    make_store: MakeStore, server: PostgresServer
) -> None:
    url = server.fresh_database()
    store = make_store(url)
    opened(store)
    set_in(store, "idle_session_timeout = '2s'")
    wait_until(lambda: not server.backends(url))
    with pytest.raises(CommitUnknown, match=r"E3105 .*idle-session timeout"):
        store.commit(1, [values.received(1, 1)])
    assert not store.resolve(1)
    goes_on(make_store, url, store, 1)


def test_25006_a_server_that_may_not_be_written_for_a_while(make_store: MakeStore) -> None:
    """Sessions that live are refused their next transaction, new ones are not used (trap T34)."""
    with running(PostgresServer()) as server:
        url = server.fresh_database()
        store = make_store(url)
        opened(store)
        server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        server.execute("SELECT pg_reload_conf()")
        wait_setting(server, "on")
        with pytest.raises(CommitUnknown, match=r"E3308 .*the server only reads"):
            store.commit(1, [values.received(1, 1)])
        with pytest.raises(CommitUnknown, match=r"E3308 .*Only the primary server can be written"):
            store.resolve(1)
        server.execute("ALTER SYSTEM RESET default_transaction_read_only")
        server.execute("SELECT pg_reload_conf()")
        wait_setting(server, "off")
        assert not store.resolve(1)
        goes_on(make_store, url, store, 1)


@pytest.mark.parametrize(
    ("error", "statement", "committing", "code"),
    [
        (psycopg.OperationalError("cannot exit pipeline mode while busy"), "INSERT", False, "E3105"),
        (psycopg.OperationalError("sending query failed"), None, True, "E3105"),
        (psycopg.OperationalError("connection refused"), None, False, "E3301"),
        (psycopg.OperationalError("FATAL:  the database system is starting up"), None, False, "E3301"),
        (psycopg.DataError("text fields cannot contain NUL"), "INSERT", False, "E3100"),
        (psycopg.errors.CheckViolation("no"), "INSERT", False, "E3100"),
    ],
)
def test_a_driver_that_fails_without_a_state_has_lost_its_session(
    error: psycopg.Error, statement: str | None, committing: bool, code: str
) -> None:
    raised = sql_errors.DBAPIError.instance(statement, {}, error, psycopg.Error, dialect=postgresql.dialect())
    translated = failure("postgresql", "db", raised, committing=committing)
    assert translated.code == code
    assert isinstance(translated, CommitUnknown) is (code == "E3105")


# --- failover to a replica ---


@pytest.fixture
def replicated() -> Iterator[tuple[PostgresServer, PostgresServer, str]]:
    """A server, its replica, and the address of a database that names both."""
    primary = PostgresServer()
    try:
        primary.start()
        name = database_of(primary.fresh_database())
        replica = primary.replica()
        try:
            hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (primary, replica))
            yield primary, replica, f"postgresql://{primary.user}:{primary.password}@/{name}?{hosts}"
        finally:
            replica.close()
    finally:
        primary.close()


def test_t34_157_a_failover_to_a_replica_that_has_everything(
    make_store: MakeStore, replicated: tuple[PostgresServer, PostgresServer, str]
) -> None:
    primary, replica, url = replicated
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1)])
    replica.wait_replayed(primary)
    primary.kill()
    with pytest.raises(CommitUnknown, match="E3105"):
        store.commit(2, [values.received(2, 1)])
    with pytest.raises(CommitUnknown, match="E3308 .*the server only reads"):
        store.resolve(2)
    replica.promote()
    assert not store.resolve(2)
    goes_on(make_store, f"{url}&target_session_attrs=read-write", store, 2)
    assert inspect.instance(f"{url}&target_session_attrs=read-write").commit == 2, "readers need no writable session"


def test_t33_157_a_failover_to_a_replica_that_lacks_commits_stops_the_engine(
    make_store: MakeStore, replicated: tuple[PostgresServer, PostgresServer, str]
) -> None:
    """What was answered as committed is not there: nothing may be built on it."""
    primary, replica, url = replicated
    store = make_store(url)
    opened(store)
    store.commit(1, [values.received(1, 1)])
    replica.wait_replayed(primary)
    replica.stop()
    store.commit(2, [values.received(2, 1)])
    primary.kill()
    replica.start()
    replica.promote()
    with pytest.raises(CommitUnknown, match="E3105"):
        store.commit(3, [values.received(3, 1)])
    with pytest.raises(Fenced, match="E3202 .*3 of epoch 1 does not follow commit 1 of epoch 1: the store went back"):
        store.resolve(3)
    store.close()
    assert opened(make_store(url)).commit == 1


class SlowPipeline(Pipeline):
    """Starts for longer than a transaction may be idle; nothing is received for it."""

    receivers = ()
    senders = ()

    def __init__(self, url: str) -> None:
        super().__init__("none")
        self._url = url

    def open(self) -> None:
        """Until the server has ended a transaction that began later than all of the start."""
        with psycopg.connect(self._url) as other:
            other.execute("SELECT 1")
            select.select([other.pgconn.socket], [], [])
            with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
                other.execute("SELECT 1")
            other.close()


def test_25p03_a_start_may_take_longer_than_a_transaction_may_be_idle(server: PostgresServer) -> None:
    url = configured(server, "idle_in_transaction_session_timeout = '2s'")
    with Engine(EngineSettings(name="alpha", store=url), processors=[SlowPipeline(url)]) as engine:
        assert engine.checkpoint()


def test_57p05_a_session_that_is_ended_during_a_start(make_store: MakeStore, server: PostgresServer) -> None:
    store = make_store(configured(server, "idle_session_timeout = '2s'"))
    recovered = store.read()
    wait_until(lambda: not server.backends(store._url))
    store.take_over(recovered)
    store.commit(1, [values.received(1, 1)])


@pytest.mark.parametrize(
    ("lives", "code"), [(True, "E3201"), (False, "E3202 .*at commit 0 of epoch 0, and is at commit")]
)
def test_154_of_two_engines_that_have_read_only_one_takes_over(
    make_store: MakeStore, server: PostgresServer, lives: bool, code: str
) -> None:
    """The first one loses its session, and the lock with it."""
    url = server.fresh_database()
    first, second = make_store(url), make_store(url)
    read_by_first = first.read()
    server.terminate_backends(url)
    second.take_over(second.read())
    if not lives:
        second.close()
    with pytest.raises(Fenced, match=code):
        first.take_over(read_by_first)
