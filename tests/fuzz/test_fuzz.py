"""A few cases of each campaign of `tests.fuzz`, and what the campaigns have found."""

import pytest

from tests.fuzz.__main__ import CAMPAIGNS
from tests.fuzz.outcome import Outcome


@pytest.mark.parametrize(("what", "cases", "answers"), [("files", 120, 10), ("stores", 60, 6), ("requests", 300, 6)])
def test_a_campaign_finds_nothing(what, cases, answers):
    outcome = Outcome(what, seed=1)
    with CAMPAIGNS[what](1) as campaign:
        for number in range(cases):
            campaign.run(number, outcome)
    assert outcome.violations == []
    assert len(outcome.answers) >= answers, outcome.answers
