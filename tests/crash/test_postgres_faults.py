"""PostgreSQL and its network fail under a running engine: it goes on or stops with a code, and nothing is lost.

The long forms are `python -m tests.crash.ambiguous` and `python -m tests.crash.campaign --store postgres`.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from correlator import Engine
from correlator.errors import StoreError
from correlator.runtime import writer
from correlator.storage import postgres, session
from correlator.storage.store import SqlStore
from correlator.testing.network import FaultProxy
from tests.crash import child
from tests.crash.ambiguous import run
from tests.crash.campaign import BACKEND, SERVER, SESSION, Figures, Plan, campaign, check, live, publish
from tests.crash.child import Job
from tests.servers import PostgresServer, running
from tests.storage.values import opened

pytestmark = pytest.mark.postgres
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def harmed() -> Iterator[PostgresServer]:
    """A server that is killed."""
    with running(PostgresServer()) as server:
        yield server


@pytest.fixture
def broker(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/broker.db"


def finishes(store: str, broker: str, orders: int) -> None:
    """An engine handles what there is, to its end."""
    assert not live(Job(store=store, broker=broker, expected=orders), Plan(), Figures(), None)
    check(store, broker, orders)


# --- ambiguous commits ---


@pytest.mark.campaign
def test_t1_every_commit_whose_answer_is_lost_is_resolved_to_the_truth(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    figures = run(postgres_server, tmp_path, commits=15, seed=7)
    assert figures.violations == []
    assert figures.commits == sum(figures.faults.values()) == 15
    assert figures.looks >= 15


class Optimistic(SqlStore):
    """Takes every commit in doubt for done."""

    def resolve(self, number: int) -> bool:
        super().resolve(number)
        return True


class Blind(SqlStore):
    """Commits again whatever became of it."""

    def resolve(self, number: int) -> bool:
        super().resolve(number)
        return False


@pytest.mark.parametrize(("mutant", "found"), [(Optimistic, "the engine believes"), (Blind, "E3202")])
def test_a_store_that_guesses_is_found_out(
    postgres_server: PostgresServer, tmp_path: Path, mutant: type[SqlStore], found: str
) -> None:
    figures = run(postgres_server, tmp_path, commits=15, seed=7, make_store=mutant)
    assert found in "\n".join(figures.violations)


# --- kills of engines and of the server ---


@pytest.mark.campaign
@pytest.mark.kill9
def test_effects_are_exactly_once_while_engine_and_server_are_killed(harmed: PostgresServer, tmp_path: Path) -> None:
    figures = campaign(harmed.fresh_schema, tmp_path, kills=6, seed=2, server=harmed)
    assert figures.violations == []
    assert figures.kills >= 6


@pytest.mark.kill9
@pytest.mark.parametrize("kind", [SESSION, BACKEND, SERVER])
def test_an_engine_outlives_its_server(harmed: PostgresServer, broker: str, kind: str) -> None:
    store, figures = harmed.fresh_schema(), Figures()
    published = 0
    for _ in range(4):  # enough to have something to do when the server is struck
        published = publish(random.Random(1), broker, published)
    job = Job(store=store, broker=broker, expected=published)
    assert live(job, Plan(strikes=[(0.0, kind)]), figures, harmed)
    assert (figures.kinds[kind], figures.refused) == (1, 0)
    check(store, broker, published)


# --- errors of the server while an engine runs ---

GOES_ON = (
    "RAISE EXCEPTION 'injected' USING ERRCODE = '40001'",
    "RAISE EXCEPTION 'injected' USING ERRCODE = '40P01'",
    "RAISE EXCEPTION 'injected' USING ERRCODE = '25006'",
    "RAISE EXCEPTION 'injected' USING ERRCODE = '53100'",
    "RAISE EXCEPTION 'injected' USING ERRCODE = '53200'",
    "RAISE EXCEPTION 'injected' USING ERRCODE = '53300'",
    "RAISE EXCEPTION 'injected' USING ERRCODE = '55P03'",
    "RAISE EXCEPTION 'injected' USING ERRCODE = '57014'",
    "PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(10)",
    "PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(10)",
)
"""What happens to one transaction after the other."""


def failing(server: PostgresServer, url: str, rows: str, bodies: tuple[str, ...], *, at_commit: bool) -> None:
    """Let two of three transactions that insert such rows fail, each in its own way, until all have had their turn."""
    cases = "".join(f"WHEN {number} THEN {body}; " for number, body in enumerate(bodies, 1))
    server.execute("CREATE SEQUENCE attempts", url)  # counts what is rolled back as well
    server.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ DECLARE attempt bigint := nextval('attempts'); BEGIN IF attempt % 3 > 0 THEN "
        f"CASE attempt - attempt / 3 {cases} ELSE NULL; END CASE; END IF; RETURN NULL; END $$",
        url,
    )
    table, _, condition = rows.partition(" ")
    kind, deferred = ("CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED") if at_commit else ("TRIGGER", "")
    server.execute(
        f"CREATE {kind} failing AFTER INSERT ON {table} {deferred} FOR EACH ROW WHEN (NEW.{condition}) "
        "EXECUTE FUNCTION fail()",
        url,
    )


def made(url: str) -> str:
    """The store, empty, with its tables."""
    store = SqlStore(url, "crash")
    opened(store)
    store.close()
    return url


RECEIVED, SENT = "receive_log receiver = 'orders'", "outbox sender = 'exact'"


@pytest.mark.parametrize(("rows", "at_commit"), [(RECEIVED, False), (SENT, True)], ids=["at a statement", "at COMMIT"])
def test_errors_after_which_the_engine_goes_on(
    postgres_server: PostgresServer, broker: str, rows: str, at_commit: bool
) -> None:
    store = made(postgres_server.fresh_schema())
    failing(postgres_server, store, rows, GOES_ON, at_commit=at_commit)
    chance, published, attempts = random.Random(1), 0, 0
    while (
        attempts < len(GOES_ON) * 3 // 2
    ):  # until every error has occurred: a quick engine commits few times for a batch
        published = publish(chance, broker, published)
        finishes(store, broker, published)
        ((last,),) = postgres_server.execute("SELECT last_value FROM attempts", store)
        assert int(str(last)) > attempts, "the engine commits something for each batch"
        attempts = int(str(last))


@pytest.mark.parametrize(
    ("state", "at_commit", "code"),
    [
        ("23514", False, "E3100 .*refused a statement: injected"),
        ("23514", True, "E3100 .*refused a statement: injected"),
        ("42501", False, "E3304 .*not allowed: injected"),
    ],
)
def test_errors_that_stop_the_engine(
    postgres_server: PostgresServer, broker: str, state: str, at_commit: bool, code: str
) -> None:
    store = made(postgres_server.fresh_schema())
    body = f"RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'"
    failing(postgres_server, store, SENT, (body,), at_commit=at_commit)
    published = publish(random.Random(1), broker, 0)
    stops(Engine(child.settings_of(Job(store=store, broker=broker, expected=0))), code)
    finishes(store, broker, published)


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (lambda proxy, server, store: (proxy.refuse(), proxy.cut()), "E3105 .*Connection refused"),
        (
            lambda proxy, server, store: (
                server.execute(f"ALTER DATABASE {store.rpartition('/')[2]} SET default_transaction_read_only = on"),
                proxy.cut(),
            ),
            "E3308 .*the server only reads",
        ),
    ],
    ids=["unreachable", "read-only"],
)
def test_a_server_that_does_not_come_back_stops_the_engine(
    postgres_server: PostgresServer,
    broker: str,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[FaultProxy, PostgresServer, str], object],
    code: str,
) -> None:
    monkeypatch.setattr(writer, "LONGEST_DOUBT_S", 0.1)
    store = postgres_server.fresh_database()
    published = publish(random.Random(1), broker, 0)
    with FaultProxy(postgres_server.port) as proxy:
        behind = store.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        engine = Engine(child.settings_of(Job(store=behind, broker=broker, expected=0)))
        stops(engine, code, lambda: harm(proxy, postgres_server, store))
    postgres_server.execute(f"ALTER DATABASE {store.rpartition('/')[2]} RESET default_transaction_read_only")
    finishes(store, broker, published)


def test_a_server_that_stands_still_stops_the_engine(
    harmed: PostgresServer, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its system takes what is sent to it, so that no time-out of TCP tells."""
    monkeypatch.setattr(writer, "LONGEST_DOUBT_S", 0.1)
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", 2)
    store = harmed.fresh_schema()
    published = publish(random.Random(1), broker, 0)
    with contextlib.ExitStack() as frozen:
        engine = Engine(child.settings_of(Job(store=store, broker=broker, expected=0)))
        stops(engine, "E3105 .*connection timeout", lambda: frozen.enter_context(harmed.frozen()))
    finishes(store, broker, published)


def test_t11_an_idle_engine_notices_that_another_one_has_taken_its_store(
    postgres_server: PostgresServer, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is ended while it has nothing to write, so that no commit tells."""
    monkeypatch.setattr(postgres, "LOOK_AT_LOCK_S", 0.01)
    store = postgres_server.fresh_database()
    other = SqlStore(store, "crash")

    def take_over() -> None:
        while not other_has_it():
            postgres_server.terminate_backends(store)

    def other_has_it() -> bool:
        try:
            opened(other)
        except StoreError:
            return False
        return True

    try:
        stops(
            Engine(child.settings_of(Job(store=store, broker=broker, expected=0))), "E3201|E3202", take_over, status=5
        )
    finally:
        other.close()


def stops(engine: Engine, code: str, harm: Callable[[], object] = lambda: None, status: int = 3) -> None:
    """The engine starts, is harmed, and stops with this error and exit status."""
    patience = threading.Timer(PATIENCE_S, engine.request_stop)
    patience.start()
    with pytest.raises(StoreError, match=code) as failure, engine:
        harm()
        engine.run_forever()
    patience.cancel()
    assert failure.value.exit_status == status
