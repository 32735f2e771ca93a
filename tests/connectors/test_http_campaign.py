"""The quick form of the campaign that kills an engine between clients and a service, and the service itself."""

from pathlib import Path

import pytest

from tests.connectors.http_campaign.rounds import Figures, Result, campaign

pytestmark = [pytest.mark.kill9, pytest.mark.campaign]


def test_h1_h8_kills_of_an_engine_between_clients_and_a_service(tmp_path: Path) -> None:
    result = campaign(tmp_path, kills=8, service_kills=0, seed=2)
    assert (result.violations, result.blind) == ([], [])
    assert sum(result.figures.kills.values()) == 8
    assert result.figures.repeats > 0
    assert result.figures.repeated_calls > 0
    assert not list(tmp_path.iterdir())


def test_a_campaign_that_proves_nothing_says_so() -> None:
    assert Result(1).blind == ["no control ran"]
    assert Result(1, controls={"engine": Figures()}).blind == ["kills of the engine: the control stored nothing twice"]


def test_h8_kills_of_the_service(tmp_path: Path) -> None:
    result = campaign(tmp_path, kills=0, service_kills=8, seed=3)
    assert (result.violations, result.blind) == ([], [])
    assert sum(result.figures.kills.values()) == 8
    assert result.figures.repeated_calls > 0
    assert not list(tmp_path.iterdir())
