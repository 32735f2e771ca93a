"""A short campaign of real kills on each database; the long one is `python -m tests.crash.campaign`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.campaign import campaign, sqlite_stores

KILLS = 40


@pytest.mark.campaign
@pytest.mark.kill9
def test_effects_are_exactly_once_over_sqlite(tmp_path: Path) -> None:
    figures = campaign(sqlite_stores(tmp_path), tmp_path, kills=KILLS, seed=1)
    assert figures.violations == []
    assert figures.kills >= KILLS


@pytest.mark.campaign
@pytest.mark.kill9
@pytest.mark.postgres
def test_effects_are_exactly_once_over_postgres(postgres: Callable[[], str], tmp_path: Path) -> None:
    figures = campaign(postgres, tmp_path, kills=KILLS, seed=2)
    assert figures.violations == []
    assert figures.kills >= KILLS
