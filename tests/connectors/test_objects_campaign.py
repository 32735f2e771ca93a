"""The quick form of the campaign that kills an engine which writes and reads objects, and that it can fail."""

import random
from pathlib import Path

import pytest

from tests.connectors.objects_campaign import rounds
from tests.connectors.objects_campaign.rounds import Result, one_round

pytestmark = [pytest.mark.kill9, pytest.mark.campaign]


def test_kills_of_an_engine_that_uses_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "AT_A_CALL", 1)
    monkeypatch.setattr(rounds, "LAST_CALL", 30)
    result = Result("folder", 3)
    one_round(tmp_path / "round", result, random.Random(3), 4, None)
    assert result.violations == []
    assert result.figures.at_a_call == result.figures.kills == 4
    assert result.figures.stored > 0


@pytest.mark.parametrize("control", ["sender", "receiver"])
def test_what_is_there_twice_is_found(tmp_path: Path, control: str) -> None:
    result = Result("folder", 1)
    found = result.controls[control]
    for seed in range(37, 42):  # a kill before the first message that is there twice shows nothing
        one_round(tmp_path / str(seed), result, random.Random(seed), 4, None, control=control)
        if found.doubles or found.repeats:
            break
    assert found.at_a_call == found.kills
    assert found.doubles if control == "sender" else found.repeats
    assert len(result.blind) == 1
    assert len(Result("folder", 1).blind) == 2
