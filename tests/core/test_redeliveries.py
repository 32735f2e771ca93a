"""How many messages may come again, and when that is over (trap T42)."""

from typing import Any

from correlator.connector import Features
from correlator.core.redeliveries import MOST_IN_DOUBT, Redeliveries

SURE = Features(acknowledges_surely=True)


def redeliveries(features: Features = SURE, *, in_doubt: int = 0, beside: int = 0, **fields: Any) -> Redeliveries:
    numbers = {"confirmed_batch": 0, "last_batch": 0, "max_batch_size": 10, **fields}
    made = Redeliveries(features, in_doubt=in_doubt, beside=lambda: beside, **numbers)
    made.connected(0.0)
    return made


def test_without_doubt_each_acknowledgement_is_sure_at_once():
    one = redeliveries()
    one.expect(0.0)
    assert one.awaited is None
    one.acknowledged(1, 5, 0.0)
    assert one.sure.through == 1


def test_what_a_life_has_left_in_doubt_has_its_turn_first():
    one = redeliveries(in_doubt=7)
    assert one.may_give_back == 17
    one.expect(0.0)
    assert one.awaited == 7
    one.acknowledged(1, 5, 0.0)
    assert (one.awaited, one.sure.through) == (2, 0)
    one.acknowledged(2, 5, 0.0)
    assert (one.awaited, one.sure.through, one.may_give_back) == (None, 2, 10)


def test_messages_count_from_the_first_of_a_batch_on():
    one = redeliveries(in_doubt=7)
    one.acknowledged(1, 50, 0.0)
    assert (one.sure.through, one.may_give_back) == (0, 17)


def test_what_neighbours_may_give_back_comes_before():
    one = redeliveries(in_doubt=7, beside=20)
    one.expect(0.0)
    assert one.awaited == 27


def test_a_second_loss_adds_to_the_first_and_begins_to_count_anew():
    one = redeliveries(in_doubt=7)
    one.expect(0.0)
    one.acknowledged(1, 5, 0.0)
    one.lost(under_way=4, last_batch=2)
    assert one.awaited is None
    one.expect(0.0)
    assert one.awaited == 11


def test_what_has_no_answer_yet_is_in_doubt_when_the_connection_is_lost():
    one = redeliveries(Features())
    for batch in (1, 2):
        one.acknowledged(batch, 5, 0.0)
    one.lost(under_way=0, last_batch=2)
    assert one.may_give_back == 10 + 10


def test_nothing_counts_until_the_broker_has_noticed_the_loss():
    one = redeliveries(Features(acknowledges_surely=True, notices_loss_within_s=60.0), in_doubt=7)
    one.expect(59.0)
    assert one.awaited is None
    one.expect(60.0)
    assert one.awaited == 7 + 10  # those that were on their way then may have been others


def test_too_much_in_doubt_makes_a_receiver_wait_until_the_loss_is_noticed():
    one = redeliveries(Features(acknowledges_surely=True, notices_loss_within_s=60.0))
    one.lost(under_way=MOST_IN_DOUBT, last_batch=1)
    assert not one.too_many(0.0)
    one.lost(under_way=1, last_batch=2)
    assert one.too_many(59.0)
    assert not one.too_many(60.0)


def test_more_may_be_in_doubt_where_batches_are_large():
    one = redeliveries(Features(notices_loss_within_s=60.0), max_batch_size=MOST_IN_DOUBT)
    one.lost(under_way=9 * MOST_IN_DOUBT, last_batch=1)
    assert not one.too_many(0.0)
