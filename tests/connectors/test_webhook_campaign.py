"""The quick form of the campaign that kills the engine of the example of webhooks, and its servers; and that it can fail."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.webhook_campaign.rounds import (
    CONTROLS,
    ENGINE,
    KAFKA,
    POSTGRES,
    Figures,
    Result,
    Site,
    one_round,
)
from tests.kafka_server import KafkaServer
from tests.servers import PostgresServer, running

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.kill9, pytest.mark.campaign]


@pytest.fixture(scope="module")
def victim() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    with running(PostgresServer()) as server:
        yield server


def test_kills_of_the_engine_and_of_its_servers(kafka: KafkaServer, victim: PostgresServer, tmp_path: Path) -> None:
    figures = Figures()
    one_round(Site(tmp_path / "round", victim, kafka), figures, random.Random(1), [ENGINE, POSTGRES, KAFKA, ENGINE])
    assert figures.violations == []
    assert figures.kills.total() == 2 + figures.together
    assert figures.server_kills == {POSTGRES: 1, KAFKA: 1}
    assert figures.orders > 20
    assert figures.repeats > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("control", CONTROLS)
def test_what_is_there_twice_is_found(kafka: KafkaServer, victim: PostgresServer, tmp_path: Path, control: str) -> None:
    result = Result(1)
    found = result.controls[control]
    for seed in range(1, 6):  # a kill before the first order that is there twice shows nothing
        site = Site(tmp_path / str(seed), victim, kafka)
        one_round(site, found, random.Random(seed), [ENGINE] * 2, control=control)
        if found.twice_in_table and found.twice_in_topic:
            break
    assert result.violations == []
    assert found.twice_in_table
    assert found.twice_in_topic
    assert len(result.blind) == 2
