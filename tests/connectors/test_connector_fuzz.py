"""A few thousand messages of hostile programs for each connector; `tests.connectors.fuzz` runs more of them."""

import pytest

from tests.connectors.fuzz.feeds import FEEDS
from tests.connectors.fuzz.rounds import campaign

MESSAGES = 3000


@pytest.mark.parametrize("connector", FEEDS)
def test_no_message_of_a_hostile_program_stops_an_engine(connector):
    """Rounds of each kind run: with and without a selector, with and without an event type."""
    figures = campaign(connector, MESSAGES, seed=1, of_round=MESSAGES // 5)
    assert figures.fed == MESSAGES
    assert figures.handled
    assert figures.dead_letters
