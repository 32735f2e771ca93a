"""Which message a confirm settles, and which chunk an acknowledgement covers, without a server."""

import pytest

from connectors.rabbitmq import confirms
from connectors.rabbitmq.confirms import BatchInFlight, RabbitPublication
from connectors.rabbitmq.deliveries import Inbox, Settlement, UnsettledTags
from connectors.rabbitmq.destinations import Route
from connectors.rabbitmq.frames import RabbitDelivery
from correlator.errors import SendRejected

ROUTE = Route("", "q", mandatory=True)
REFUSAL = SendRejected("E8110", "message 0:", "no")


def flight(*sizes, route=ROUTE, unheard=print):
    return BatchInFlight(
        len(sizes), lambda at: RabbitPublication(route, b"", bytes(sizes[at]), f"id {at}", f"message {at}"), unheard
    )


def published(one):
    return [parcel.message_id for parcel in one.next()]


def codes(one):
    return [result and result.code for result in one.results]


def test_r14_what_no_queue_gets_is_told_and_confirmed_if_it_is_not_mandatory():
    unheard = []
    one = flight(1, 1, route=Route("x", "t", mandatory=False, watched=True), unheard=unheard.append)
    assert len(published(one)) == 2
    one.returned("id 1", "312 NO_ROUTE")
    one.confirmed(2, multiple=True)
    assert codes(one) == [None, None]
    assert [route.routing_key for route in unheard] == ["t"]


def test_confirms_settle_one_or_all_up_to_a_number():
    one = flight(1, 1, 1, 1)
    assert published(one) == ["id 0", "id 1", "id 2", "id 3"]
    one.confirmed(3, multiple=False)
    assert one.settled == 1
    one.confirmed(2, multiple=True)
    assert one.settled == 3
    assert not one.over
    one.confirmed(4, multiple=True)
    assert one.over
    assert codes(one) == [None] * 4


def test_numbers_go_on_from_flight_to_flight_on_a_channel():
    one = flight(1, 1)
    one.begin_channel(10)
    published(one)
    one.confirmed(1, multiple=False)
    one.confirmed(10, multiple=True)
    assert one.settled == 0
    one.confirmed(12, multiple=True)
    assert one.over


def test_a_nack_is_about_its_own_messages():
    one = flight(1, 1, 1)
    published(one)
    one.refused(1, multiple=False)
    one.confirmed(2, multiple=False)
    one.refused(3, multiple=True)
    assert codes(one) == ["E8102", None, "E8102"]
    assert one.over


def test_t38_a_returned_message_is_refused_though_it_is_confirmed():
    one = flight(1, 1, 1)
    published(one)
    one.returned("id 1", "312 NO_ROUTE")
    assert not one.settled
    one.confirmed(3, multiple=True)
    assert codes(one) == [None, "E8101", None]


def test_a_return_for_nothing_that_is_outstanding_changes_nothing():
    one = flight(1)
    published(one)
    one.returned("id 9", "312 NO_ROUTE")
    one.returned(None, "312 NO_ROUTE")
    one.confirmed(1, multiple=False)
    assert codes(one) == [None]


def test_what_cannot_be_published_is_settled_when_it_is_its_turn():
    items = [REFUSAL, RabbitPublication(ROUTE, b"", b"", "id", "m"), REFUSAL]
    one = BatchInFlight(3, items.__getitem__, print)
    assert published(one) == ["id"]
    assert one.settled == 2
    one.confirmed(1, multiple=False)
    assert codes(one) == ["E8110", None, "E8110"]
    assert one.over


def test_a_flight_of_nothing_is_over():
    assert BatchInFlight(0, [].__getitem__, print).over
    one = BatchInFlight(1, [REFUSAL].__getitem__, print)
    assert not published(one)
    assert one.over


def test_the_window_is_bounded_in_messages(monkeypatch):
    monkeypatch.setattr(confirms, "MOST_OUTSTANDING", 3)
    one = flight(*[1] * 7)
    assert len(published(one)) == 3
    assert not published(one)
    one.confirmed(1, multiple=False)
    assert published(one) == ["id 3"]
    one.confirmed(4, multiple=True)
    assert published(one) == ["id 4", "id 5", "id 6"]


def test_the_window_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(confirms, "MOST_OUTSTANDING_BYTES", 10)
    one = flight(6, 6, 6, 99, 1)
    assert published(one) == ["id 0", "id 1"]
    one.confirmed(1, multiple=False)
    assert published(one) == ["id 2"]
    one.confirmed(3, multiple=True)
    assert published(one) == ["id 3"]
    one.refused(4, multiple=False)
    assert published(one) == ["id 4"]


def test_after_a_closed_channel_messages_go_one_by_one_until_the_culprit_is_found():
    one = flight(1, 1, 1, 1)
    published(one)
    one.confirmed(1, multiple=False)
    one.channel_closed("E8106", "too large")
    one.begin_channel(0)
    assert published(one) == ["id 1"]
    one.confirmed(1, multiple=False)
    assert published(one) == ["id 2"]
    one.channel_closed("E8106", "too large")
    assert codes(one) == [None, None, "E8106", None]
    one.begin_channel(0)
    assert published(one) == ["id 3"]
    one.confirmed(1, multiple=False)
    assert one.over


def test_what_was_returned_on_a_closed_channel_may_be_routed_on_the_next():
    one = flight(1, 1)
    published(one)
    one.returned("id 0", "312 NO_ROUTE")
    one.channel_closed("E8106", "too large")
    one.begin_channel(0)
    published(one)
    one.confirmed(1, multiple=False)
    assert codes(one) == [None, None]
    assert one.settled == 1


def test_t43_a_late_confirm_of_a_closed_channel_settles_nothing():
    one = flight(1, 1)
    one.begin_channel(100)
    published(one)
    one.channel_closed("E8106", "too large")
    one.begin_channel(0)
    published(one)
    one.confirmed(102, multiple=False)
    assert one.settled == 0


# --- acknowledgements ---


def run(first, last):
    return list(range(first, last + 1))


@pytest.mark.parametrize("earlier", [0, 1000])
@pytest.mark.parametrize(
    ("calls", "frames"),
    [
        ([run(1, 10)], [[(10, True)]]),
        ([run(1, 10) + run(11, 15) + run(16, 16)], [[(16, True)]]),
        ([run(11, 12) + run(1, 10)], [[(12, True)]]),
        ([run(11, 12), run(1, 10), run(13, 13)], [[(11, False), (12, False)], [(10, True)], [(13, True)]]),
        ([run(1, 2) + run(5, 6), run(3, 4)], [[(2, True), (5, False), (6, False)], [(4, True)]]),
        ([[2], [1, 4], [3]], [[(2, False)], [(1, True), (4, False)], [(3, True)]]),
        ([run(1, 2), run(1, 2)], [[(2, True)], []]),
        ([run(3, 4), run(3, 4)], [[(3, False), (4, False)], []]),
        ([[]], [[]]),
    ],
)
def test_a_cumulative_acknowledgement_covers_what_was_asked_for_and_no_more(calls, frames, earlier):
    unsettled = UnsettledTags(earlier)
    tokens = unsettled.tokens(1, 16)
    assert [unsettled.settle([tokens[tag - 1] for tag in tags]) for tags in calls] == [
        [Settlement(tag, multiple) for tag, multiple in frame] for frame in frames
    ]


def test_a_token_of_an_earlier_channel_settles_nothing():
    before = UnsettledTags()
    stale = before.tokens(1, 3)
    after = UnsettledTags(before.delivered)
    fresh = after.tokens(1, 2)
    assert after.settle(stale) == []
    assert after.settle([*stale, *fresh]) == [Settlement(2, multiple=True)]


def test_the_inbox_keeps_the_order_and_the_bounds():
    inbox = Inbox()
    for tag in range(1, 6):
        inbox.put(RabbitDelivery(tag, redelivered=False, properties=b"", body=bytes(10)))
    assert [one.tag for one in inbox.take(2, 1000, 0.0)] == [1, 2]
    assert [one.tag for one in inbox.take(9, 25, 0.0)] == [3, 4]
    assert [one.tag for one in inbox.take(9, 1, 0.0)] == [5]
    assert inbox.take(9, 1, 0.0) == []
    inbox.stir()
    assert inbox.take(9, 1, 0.0) == []
