"""The board of campaigns: a wait goes on as long as orders move, and then ends."""

import pytest

from tests.connectors.campaign.board import Board, Stalled

LONG_S, AT_ONCE_S = 60.0, 0.0


def test_a_campaign_that_begins_slowly_has_not_stalled():
    """At the first look no order has moved yet."""
    board = Board()
    looks = iter(("", "0"))
    board.wait_as_long_as_it_moves(lambda: board.counted == 1, lambda: board.note(counted=next(looks)), LONG_S)


def test_a_standstill_ends_the_wait():
    board = Board()
    board.note(begun=3, confirmed=2, counted="0")
    with pytest.raises(Stalled, match="of 3 orders 2 are confirmed and 1 counted"):
        board.wait_as_long_as_it_moves(lambda: False, lambda: None, AT_ONCE_S)


def test_what_has_ended_somebody_ends_the_wait():
    def look():
        raise ValueError("ended")

    with pytest.raises(ValueError, match="ended"):
        Board().wait_as_long_as_it_moves(lambda: False, look, LONG_S)


def test_as_long_as_orders_come_through_it_waits():
    board = Board()
    names = iter(("0", "1", "2"))
    board.wait_as_long_as_it_moves(lambda: board.counted == 3, lambda: board.note(counted=next(names)), AT_ONCE_S)
