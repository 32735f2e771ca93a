"""The quick form of the campaign that kills a bridge between tables and their server, and that it can fail."""

import random
from pathlib import Path

import pytest

from tests.connectors.sql_campaign.bridge import CAPTURE, OUTBOX, POLLED, SNAPSHOT
from tests.connectors.sql_campaign.rounds import SERVERS, Result, one_round
from tests.servers import running

pytestmark = [pytest.mark.kill9, pytest.mark.campaign]


@pytest.mark.parametrize("source", [OUTBOX, POLLED])
def test_kills_of_a_bridge_in_sqlite(tmp_path: Path, source: str) -> None:
    result = Result("sqlite", 3, source)
    one_round(tmp_path / "round", result, random.Random(3), None, [False] * 4)
    assert result.violations == []
    assert result.figures.kills == 4
    assert result.figures.orders > 50
    assert result.figures.looks > 10
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("database", "sources"),
    [
        pytest.param("postgres", (OUTBOX, POLLED, CAPTURE, SNAPSHOT), marks=pytest.mark.postgres),
        pytest.param("mysql", (OUTBOX,), marks=pytest.mark.mysql),
    ],
)
def test_kills_of_a_bridge_and_of_its_server(tmp_path: Path, database: str, sources: tuple[str, ...]) -> None:
    with running(SERVERS[database]()) as server:
        for source in sources:
            result = Result(database, 3, source)
            one_round(tmp_path / source, result, random.Random(3), server, [False, True, False])
            assert result.violations == []
            assert (result.figures.kills, result.figures.server_kills) == (3, 1)


def test_what_is_there_twice_is_seen(tmp_path: Path) -> None:
    result = Result("sqlite", 1)
    for seed in range(5, 10):  # a kill before the first row that is there twice shows nothing
        one_round(tmp_path / str(seed), result, random.Random(seed), None, [False] * 4, is_control=True)
        if not result.blind:
            break
    assert result.control.at_a_call == result.control.kills
    assert result.violations == []
    assert result.blind == []
    assert len(Result("sqlite", 1).blind) == 2
