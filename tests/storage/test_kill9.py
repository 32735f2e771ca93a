"""Engines killed by SIGKILL at every fault point: the next start finds exactly what was committed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from correlator.errors import StoreError
from correlator.storage import database, migrate
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened
from tests.storage.victim import COMMITS, REVISIONS, tables_of

pytestmark = pytest.mark.kill9

Die = Callable[[str, str, int], tuple[int, int, str]]
KILLED = -9


@pytest.fixture(scope="module")
def die() -> Iterator[Die]:
    """Runs a piece of work in a process that is killed at its n-th fault point."""
    command = [sys.executable, "-m", "tests.storage.victim"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(work: str, url: str, hit: int) -> tuple[int, int, str]:
            print(work, url, hit, file=process.stdin, flush=True)
            status, commits, point = process.stdout.readline().split()
            return int(status), int(commits), point

        yield run
        process.stdin.close()


@pytest.fixture
def expected(make_store: MakeStore, tmp_path: Path) -> list[dict[str, object]]:
    """What a store holds after each commit, when nobody dies."""
    contents = []
    for count in range(len(COMMITS) + 1):
        url = f"sqlite:///{tmp_path}/expected{count}.db"
        store = make_store(url)
        opened(store)
        for number in range(1, count + 1):
            store.commit(number, COMMITS[number - 1])
        store.close()
        contents.append(values.contents(opened(make_store(url))))
    return contents


def test_an_engine_killed_at_any_point_starts_with_what_was_committed(
    die: Die, expected: list[dict[str, object]], make_store: MakeStore, tmp_path: Path
) -> None:
    """Each kill is followed by a kill in the middle of the recovery, then by a start that must succeed."""
    points = set()
    for hit in range(1, 200):
        url = f"sqlite:///{tmp_path}/store{hit}.db"
        status, commits, point = die("engine", url, hit)
        if point == "end":
            break
        points.add(point)
        assert status == KILLED
        assert die("engine", url, 1 + hit % 4)[0] == KILLED
        store = make_store(url)
        recovered = opened(store)
        committed = commits + point.endswith("tx.commit.after")
        assert values.contents(recovered) == expected[committed], f"killed at {point}"
        for number in range(committed + 1, len(COMMITS) + 1):
            store.commit(number, COMMITS[number - 1])
        store.close()
        again = make_store(url)
        assert values.contents(opened(again)) == expected[-1]
        again.close()
    assert points >= {"rec.lock", "rec.migrate.step", "rec.epoch.commit.before", "rec.epoch.commit.after"}
    assert points >= {"ck.tx.begin", "ck.tx.fence", "ck.tx.meta", "ck.tx.commit.before", "ck.tx.commit.after"}
    assert points >= {"rx.tx.begin", "rx.tx.insert", "rx.tx.dedup", "rx.tx.commit.before", "rx.tx.commit.after"}


def test_t30_147_a_migration_killed_at_any_step_succeeds_at_the_next_start(
    die: Die, make_store: MakeStore, tmp_path: Path
) -> None:
    points = []
    for hit in range(1, 50):
        url = _store_of_this_schema(make_store, tmp_path / f"store{hit}.db")
        status, _, point = die("migration", url, hit)
        points.append(point)
        if point == "end":
            break
        assert status == KILLED
        store = database.connect(url)
        assert migrate.bring_up(store, head="0006", scripts=REVISIONS) in ("0004", "0005")
        with store.transaction() as connection:
            assert connection.exec_driver_sql("SELECT number, doubled FROM state_log").all() == [(1, 2), (2, 4)]
        assert tables_of(store) & {"one", "two"} == {"two"}
        store.close()
        with pytest.raises(StoreError, match=r"E3004 .*written by correlator .* \(schema 6\), this is schema 4"):
            opened(make_store(url))
    steps = ["test.migrate.begin", "test.migrate.between", "test.migrate.end", "rec.migrate.step"]
    assert points == [
        "rec.migrate.begin",
        *steps,
        "test.migrate.column",
        "test.migrate.filled",
        "rec.migrate.step",
        "end",
    ]


def _store_of_this_schema(make_store: MakeStore, path: Path) -> str:
    url = f"sqlite:///{path}"
    store = make_store(url)
    opened(store)
    for number in (1, 2, 3):
        store.commit(number, COMMITS[number - 1])
    store.close()
    return url
