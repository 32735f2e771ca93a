"""The quick form of the campaign that kills a bridge between two topics, and the broker; and that it can fail."""

import random
from pathlib import Path

import pytest

from tests.connectors.kafka_campaign import rounds
from tests.connectors.kafka_campaign.bridge import PLACES
from tests.connectors.kafka_campaign.rounds import Result, campaign, one_round
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.kill9, pytest.mark.campaign]


def test_kills_at_every_place_store_nothing_twice(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "AT_A_PLACE", 1.0)
    monkeypatch.setattr(rounds, "KILLS_OF_A_CONTROL", 2)
    result = campaign(kafka, tmp_path, kills=len(PLACES), broker_kills=0, seed=1)
    assert (result.violations, result.blind) == ([], []), result.lines()
    assert set(result.figures.kills) == set(PLACES)
    assert not list(tmp_path.iterdir())


def test_kills_of_the_broker_store_nothing_twice(kafka: KafkaServer, tmp_path: Path) -> None:
    result = Result(1)
    one_round(kafka, tmp_path / "round", result.figures, random.Random(1), 0, broker_kills=1)
    assert result.violations == []
    assert result.figures.broker_kills == 1
    assert result.blind == ["the control stored nothing twice"]
