"""The quick form of the campaign that kills streaming queries, and that it can fail."""

import pytest

from tests.spark_programs.campaign import rounds
from tests.spark_programs.campaign.rounds import Result, campaign

pytestmark = [pytest.mark.kill9, pytest.mark.campaign]


def test_kills_of_a_query(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "WITHOUT_CHECKPOINT", 0.5)
    monkeypatch.setattr(rounds, "KILLS_OF_A_CONTROL", 2)
    result = campaign(spark, tmp_path, None, kills=5, drivers=1, seed=4)
    assert (result.violations, result.blind) == ([], [])
    assert (result.figures.kills, result.figures.drivers) == (5, 1)
    assert result.figures.after > 1
    assert result.figures.refused > 0
    assert not list(tmp_path.iterdir())


def test_a_campaign_that_proves_nothing_says_so():
    assert Result(1).blind == [
        "no process died between the transaction and the commit log",
        "the control stored nothing twice",
    ]
