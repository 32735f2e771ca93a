"""The quick form of the campaign that kills a bridge to a table of a lake, and that it can fail."""

import random
from pathlib import Path

import pytest

from tests.connectors.lake_campaign import rounds
from tests.connectors.lake_campaign.rounds import Result, campaign, one_round

pytestmark = [pytest.mark.kill9, pytest.mark.campaign]


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_kills_of_a_bridge(tmp_path: Path, form: str) -> None:
    result = campaign(tmp_path, form, kills=6, seed=3)
    assert (result.violations, result.blind) == ([], [])
    assert result.figures.kills == 6
    assert result.figures.waiting > 3
    assert result.figures.at_a_call > 0
    assert result.figures.refused > 0
    assert not list(tmp_path.iterdir())


def test_rows_that_are_there_twice_are_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some lives end after the call that commits a file."""
    monkeypatch.setattr(rounds, "AT_A_CALL", 1)
    monkeypatch.setattr(rounds, "LAST_CALL", 12)
    result = Result("parquet", 1)
    one_round(tmp_path / "round", result, random.Random(37), 4, is_control=True)
    assert result.control.at_a_call == result.control.kills
    assert result.control.doubles
    assert result.blind == []
    assert Result("parquet", 1).blind == ["the control stored nothing twice"]
