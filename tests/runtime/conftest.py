"""The world of a test: a broker that outlives engines, a store, and engines over both."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from correlator.core import faults
from tests.runtime.flows import SCRIPT
from tests.runtime.world import Children, World
from tests.servers import PostgresServer, database_of


@pytest.fixture(autouse=True)
def fresh_script() -> Iterator[None]:
    """No test sees what another one's monitors did."""
    SCRIPT.__init__()
    yield
    faults.install(None)


@pytest.fixture
def script():
    """What the monitors of this test do and hear."""
    return SCRIPT


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world whose store is a SQLite file."""
    made = World(f"sqlite:///{tmp_path / 'engine.db'}")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'engine.db'}"
    url: str = request.getfixturevalue("postgres_store")
    return url


@pytest.fixture
def any_world(store: str) -> Iterator[World]:
    """A world for each kind of store."""
    made = World(store)
    yield made
    made.close()


@pytest.fixture
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Copies a store that no engine has open, as an administrator does, and tells the address of the copy."""

    def copy(url: str) -> str:
        if not url.startswith("sqlite:"):
            server: PostgresServer = request.getfixturevalue("postgres_server")
            return server.fresh_database(f"TEMPLATE {database_of(url)}")
        for file in tmp_path.glob("engine.db*"):
            shutil.copy(file, tmp_path / file.name.replace("engine", "copy"))
        return f"sqlite:///{tmp_path / 'copy.db'}"

    return copy


@pytest.fixture
def no_store() -> Iterator[World]:
    """A world without persistence."""
    made = World(None)
    yield made
    made.close()


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """Starts engines in processes of their own, to be killed."""
    made = Children()
    yield made
    made.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a handler waits for; opened at the end, so that no thread stays behind."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """The lines that the engine logs in this test."""
    with structlog.testing.capture_logs() as lines:
        yield lines
