"""Level broker: real processes over a real PostgreSQL that is cut off, delayed, and ends their sessions."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from correlator.cli.loading import importable
from correlator.cli.main import execute
from correlator.errors import StoreError, UsageError
from correlator.storage.store import SqlStore
from correlator.testing.crashtest import replay
from correlator.testing.crashtest.campaign import repeated
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.runs import Outcome, RunPlan
from correlator.testing.crashtest.served import Broker, on_this_machine
from correlator.testing.kill9 import disturbances
from correlator.testing.kill9.stores import SCHEMA
from correlator.testing.schedule import Fault
from tests.crash.projects import TEST, project, run_pytest, screen
from tests.crash.test_crash_tests import reproduced
from tests.crash.test_kill9_level import CONFIG, SOUND, body
from tests.servers import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.kill9]
STARTED = 13
"""COMMITs of the first start."""
AT_COMMITS = (
    *(Fault(kind, n) for at, kind in enumerate(disturbances.AT_COMMIT) for n in (STARTED + at, STARTED + 6 + at)),
    Fault(disturbances.BACKEND, 5),
    Fault(disturbances.BACKEND, 9),
)
ANYWHERE = tuple(
    Fault(kind, n) for at, kind in enumerate(disturbances.ANYWHERE) for n in (100 + 7 * at, 140 + 7 * at, 180 + 7 * at)
)


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """A database in which nothing is left at the end."""
    url = postgres_server.fresh_database()
    yield f"{url}?options=-cjit%3Doff&application_name=mine"
    assert postgres_server.execute(f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{SCHEMA}%'", url) == []
    postgres_server.wait_for_no_backend(url)


CONNECTIONS = {
    "http": ("queue", "type: http, port: 8731"),
    "kafka": ("topic", 'type: kafka, bootstrap_servers: "127.0.0.1:9092"'),
    "objects": ("queue", "type: objects, path: objects"),
    "sql": ("queue", 'type: sql, database: "sqlite:///orders.db"'),
}
"""For each of these connectors, the kind of its destinations, and a connection."""


@contextmanager
def level_of(directory: Path, database: str, prepare: Sequence[str] = (), config: str = CONFIG) -> Iterator[Broker]:
    """The level for a configuration file with an application beside it."""
    (directory / "shop.py").write_text(SOUND)
    file = directory / "shop.yaml"
    file.write_text(config)
    with importable(file):
        level = Broker(Configured(file, database), prepare)
        try:
            yield level
        finally:
            level.close()


def kinds(*outcomes: Outcome) -> set[str]:
    return {fault.kind for outcome in outcomes for fault in outcome.faults}


# --- what holds ---


@pytest.mark.parametrize("connector", CONNECTIONS)
def test_a_sound_application_of_each_connector_stands_it(tmp_path: Path, database: str, connector: str):
    kind, connection = CONNECTIONS[connector]
    config = CONFIG.replace("type: embedded", connection).replace("queue:", f"{kind}:")
    with level_of(tmp_path, database, config=config) as level:
        outcomes = [
            level.run(partial(body, destination=f"{kind}:orders"), plan)
            for plan in (RunPlan(1, AT_COMMITS), RunPlan(4))
        ]
    assert [one.violated for one in outcomes] == [None, None]
    assert kinds(outcomes[0]) == {fault.kind for fault in AT_COMMITS}


def test_a_sound_application_stands_what_happens_between_it_and_its_server(tmp_path: Path, database: str):
    with level_of(tmp_path, database) as level:
        whole = level.run(body, RunPlan(1, ()))
        assert (whole.violated, whole.crashes, whole.faults) == (None, 0, ())
        commits = whole.points[disturbances.COMMIT]
        assert commits > STARTED
        singles = {faults[0] for faults in level.singles(whole)}
        assert {Fault("commit.lost_reply", commits), Fault("kill ck.tx.commit.after", 1)} <= singles
        at_commits = level.run(body, RunPlan(1, AT_COMMITS))
        anywhere = level.run(body, RunPlan(1, ANYWHERE))
        lost = Fault("commit.lost_reply", 1)
        at_start = level.run(body, RunPlan(1, (lost, lost, Fault("kill rx.ack.before", 1))))
        drawn_ones = [level.run(body, RunPlan(seed)) for seed in (1, 2, 3)]
    outcomes = (at_commits, anywhere, at_start, *drawn_ones)
    assert [one.violated for one in outcomes] == [None] * len(outcomes)
    assert kinds(at_commits) == {fault.kind for fault in AT_COMMITS}
    assert kinds(anywhere) == {fault.kind for fault in ANYWHERE}
    assert (at_start.crashes, kinds(at_start)) == (2, {"commit.lost_reply", "kill rx.ack.before"})
    assert any(kinds(one) & set(disturbances.KINDS) for one in drawn_ones)


def test_what_is_drawn_is_of_the_seed_and_nothing_is_drawn_twice():
    for seed in range(100):
        drawn = disturbances.drawn(seed)
        assert drawn == disturbances.drawn(seed)
        assert len(drawn) == len(set(drawn))


def test_a_fault_that_nobody_knows_is_refused(tmp_path: Path, database: str):
    with level_of(tmp_path, database) as level, pytest.raises(UsageError, match="E2432"):
        level.run(body, RunPlan(1, (Fault("commit.busy", 1),)))


# --- what is found ---


def taken_for_done(life: Any) -> None:
    """A commit whose answer was lost is taken for committed."""
    _resolve_as(committed=True)
    del life


def taken_for_failed(life: Any) -> None:
    """A commit whose answer was lost is tried again, whatever became of it."""
    _resolve_as(committed=False)
    del life


def _resolve_as(*, committed: bool) -> None:
    resolve = SqlStore.resolve

    def guess(self: SqlStore, number: int) -> bool:
        resolve(self, number)
        return committed

    SqlStore.resolve = guess  # type: ignore[method-assign]


def gives_up(life: Any) -> None:
    """An engine whose connection is lost does not make another one."""

    def lost(self: SqlStore, number: int) -> bool:
        raise StoreError("E3105", "store", f"given up at {number}")

    SqlStore.resolve = lost  # type: ignore[method-assign]
    del life


MISTAKES = {
    taken_for_done: (Fault("commit.lost_request", STARTED + 2), "E3202"),
    taken_for_failed: (Fault("commit.lost_reply", STARTED + 2), "E3202"),
    gives_up: (Fault(disturbances.BACKEND, 3), "given up"),
}


def test_a_store_that_guesses_or_gives_up_is_found_and_found_again(tmp_path: Path, database: str):
    """One level, whose server imports this module, forks the processes of all three."""
    names = [f"{__name__}:{mistake.__name__}" for mistake in MISTAKES]
    with level_of(tmp_path, database, names) as level:
        for name, (fault, found) in zip(names, MISTAKES.values(), strict=True):
            level._prepare = [name]
            outcome = level.run(body, RunPlan(1, (fault,)))
            kept = replay.write(tmp_path, level.configured.file, "test", level.name, outcome)
            again = repeated(level, body, replay.read(kept).plan).found
            for one in (outcome, again):
                assert one is not None, name
                assert found in str(one.violated), name
                assert kinds(one) == {fault.kind}, name
                assert one.kept is not None
                shutil.rmtree(one.kept)


def test_u8_the_user_names_a_database_and_a_failure_is_repeated(tmp_path: Path, database: str):
    test = TEST.replace('budget="300s"', 'levels=["broker"]').replace("range(1, 21)", "range(20)")
    place = project(tmp_path, test_orders=test)
    nowhere = pytest.raises(UsageError, match="^E2434 level broker: needs a PostgreSQL database")
    with nowhere, opened("broker", place / "engine.yaml", ""):
        pass
    result = run_pytest(tmp_path, f"--crash-store={database}", TMPDIR=str(tmp_path))
    lines = screen(result.stdout)
    assert lines[0].startswith("test violated (what the test asserts)")
    assert "level broker: 1 runs" in lines[-1]
    again = reproduced(tmp_path, lines, tmp_path, CORRELATOR_CRASH_STORE=database, TMPDIR=str(tmp_path))
    assert (again.returncode, screen(again.stdout)[0].partition(":")[0]) == (1, lines[0].partition(":")[0])
    password = database.partition("@")[0].rpartition(":")[2]
    assert password not in result.stdout
    assert not [one for one in tmp_path.rglob("*.json*") if password in one.read_text()]


FIXTURE = """
from correlator.testing.schedule import Fault

FAULTS = [Fault("postgres.backend_ended", 5), Fault("ack.lost", 1)]


def test_one_world(correlator_broker_world):
    world = correlator_broker_world("engine.yaml", faults=FAULTS)
    world.publish("queue:orders", [{"id": 1}])
    world.run_until_quiet()
    world.check()
    assert world.state("Totals") == [{"total": 1}]
    assert FAULTS[0].kind in [one.who for _, one in world.lives.history.of("fault")]
"""


def test_u8_a_world_without_a_decorator(tmp_path: Path, database: str):
    project(tmp_path, test_fixture=FIXTURE.replace("postgres.backend_ended", disturbances.BACKEND))
    result = run_pytest(tmp_path, f"--crash-store={database}", TMPDIR=str(tmp_path))
    assert (result.returncode, "1 passed" in result.stdout) == (0, True), result.stdout


# --- what is refused ---


@pytest.mark.parametrize(
    ("database", "code", "text"),
    [
        (None, "E2434", "set CORRELATOR_CRASH_STORE"),
        ("", "E2434", "set CORRELATOR_CRASH_STORE"),
        ("sqlite:///here.db", "E2434", "is no PostgreSQL database"),
        ("postgresql://someone:secret@db.example.org/orders", "E2435", "db.example.org"),
        ("postgresql://someone:secret@127.0.0.1,db.example.org/orders", "E2435", "may be on another machine"),
        ("postgresql:///orders?host=/run/postgresql", "E2435", "Hosts: localhost, 127.0.0.1"),
        ("postgresql://localhost/orders?hostaddr=10.0.0.1", "E2435", "may be on another machine"),
        ("postgresql://localhost/orders?service=production", "E2435", "may be on another machine"),
    ],
)
def test_a_database_elsewhere_is_refused(database: str | None, code: str, text: str):
    with pytest.raises(UsageError, match=code) as refused:
        on_this_machine(database)
    assert text in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://me@localhost:5433/tests", "postgresql+psycopg://me:pw@127.0.0.1/tests"])
def test_a_database_here_is_accepted(url: str):
    assert on_this_machine(url) == url


def test_a_file_without_a_store_is_refused(tmp_path: Path):
    (tmp_path / "engine.yaml").write_text("name: orders\n")
    with pytest.raises(UsageError, match="E2434 .*has no store"):
        Broker(Configured(tmp_path / "engine.yaml", "postgresql://localhost/tests"))


def test_u8_an_option_that_cannot_be_ends_the_session(tmp_path: Path):
    project(tmp_path, test_orders=TEST)
    result = run_pytest(tmp_path, "--crash-store=postgresql://db.example.org/orders")
    assert (result.returncode, result.stderr.startswith("ERROR: E2435 ")) == (4, True), result.stderr


@pytest.mark.parametrize(
    ("store", "code"), [((), "E2434"), (("--store", "postgresql://db.example.org/orders"), "E2435")]
)
def test_u8_the_command_refuses_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Sequence[str], code: str
):
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORRELATOR_CRASH_STORE", raising=False)
    assert execute(["crashtest", "engine.yaml", "--level", "broker", *store]) == 2
    assert capsys.readouterr().err.startswith(f"{code} ")
