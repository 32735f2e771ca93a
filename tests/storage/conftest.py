"""Stores on both databases, closed at the end of each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from correlator.core import faults
from correlator.storage.store import SqlStore

MakeStore = Callable[..., SqlStore]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return request.getfixturevalue("postgres_server").fresh_schema()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def make_store() -> Iterator[MakeStore]:
    """Makes stores that are closed at the end."""
    stores: list[SqlStore] = []

    def make(url: str, name: str = "alpha", **options: Any) -> SqlStore:
        stores.append(SqlStore(url, name, **options))
        return stores[-1]

    yield make
    for store in reversed(stores):
        store.close()


@pytest.fixture
def at() -> Iterator[Callable[[str, Callable[[], object]], None]]:
    """Does something once when a fault point is passed."""

    def install(name: str, action: Callable[[], object]) -> None:
        def handle(passed: str) -> None:
            if passed == name:
                faults.install(None)
                action()

        faults.install(handle)

    yield install
    faults.install(None)
