"""The quick form of the campaign that kills an engine between clients and a service, and that it can fail."""

from pathlib import Path

import pytest

from tests.connectors.http_campaign.rounds import Result, campaign

pytestmark = [pytest.mark.kill9, pytest.mark.campaign]


def test_h1_h8_kills_of_an_engine_between_clients_and_a_service(tmp_path: Path) -> None:
    result = campaign(tmp_path, kills=8, seed=2)
    assert (result.violations, result.blind) == ([], [])
    assert sum(result.figures.kills.values()) == 8
    assert result.figures.repeats > 0
    assert result.figures.repeated_calls > 0
    assert not list(tmp_path.iterdir())
    assert Result(1).blind == ["the control stored nothing twice"]
