"""One Spark session for the tests of the format `correlator`, and stores that an engine has open."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from correlator.core.commit import StateEntry, StateSegment
from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings
from correlator.storage.store import SqlStore
from tests import spark_marks
from tests.storage import values

pack = msgspec.msgpack.encode
HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items):
    """Mark the tests that use the session."""
    spark_marks.mark(items, HERE, "spark")


@pytest.fixture(scope="session")
def shared():
    one = SharedSession(SparkSettings(master="local[2]"))
    one.acquire()
    yield one
    one.release()


@pytest.fixture
def spark(shared):
    """The session of this process; another one if a test of survival has killed its JVM meanwhile."""
    session = shared.acquire()
    if shared.is_lost(session):
        session = shared.renew(session)
    yield session
    shared.release()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return request.getfixturevalue("postgres_server").fresh_schema()


class OpenStore:
    """A store with rows of each table, which its engine has open."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sql = SqlStore(url, "alpha")
        values.opened(self.sql)
        self._commit = 0
        for first in range(1, 91, 10):
            self.commit(values.received(first, 10))
        self.commit(values.received(1, 3, receiver="others"))
        state = [
            StateSegment(number, [StateEntry("table:T#0.x", pack(key), pack({"v": number})) for key in (number, 7)])
            for number in range(1, 40)
        ]
        gone = StateSegment(40, [StateEntry("table:T#0.x", pack(3), None), StateEntry("monitor:A#0", b"k", b"\xa1x")])
        outbound = [values.outbound(first, 5) for first in range(1, 26, 5)]
        self.commit(values.checkpoint(1, state=[*state, gone], outbound=outbound, dead_letters=[values.letter()] * 7))

    def commit(self, *writes) -> None:
        self._commit += 1
        self.sql.commit(self._commit, list(writes))

    def letters(self, *reasons: str) -> None:
        """Add dead letters."""
        self.commit(values.checkpoint(self._commit, dead_letters=[values.letter(one) for one in reasons]))

    def stop(self) -> None:
        self.sql.close()


@pytest.fixture
def opened() -> Iterator[Callable[[str], OpenStore]]:
    with contextlib.ExitStack() as end:

        def make(url: str) -> OpenStore:
            store = OpenStore(url)
            end.callback(store.stop)
            return store

        yield make


@pytest.fixture
def store(url: str, opened: Callable[[str], OpenStore]) -> OpenStore:
    """A store on each database."""
    return opened(url)


@pytest.fixture
def sqlite_store(tmp_path: Path, opened: Callable[[str], OpenStore]) -> OpenStore:
    return opened(f"sqlite:///{tmp_path}/store.db")
