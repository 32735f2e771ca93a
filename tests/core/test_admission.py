"""What receivers must not do beside each other, what they may select, and how messages of the engine itself are known."""

from dataclasses import replace
from typing import Any

import pytest

from correlator.core.admission import at_same_place, refuse_beside, selection
from correlator.core.intake import from_sources
from correlator.errors import ConfigError
from correlator.events import Message
from correlator.reliability import Reliability
from correlator.settings import ReceiverSettings

TOPIC = ReceiverSettings(
    id="one",
    connection="c",
    destination="topic:t",
    reliability=Reliability.AT_LEAST_ONCE,
    durable_topic_subscription_name="orders",
)
QUEUE = ReceiverSettings(id="one", connection="c", destination="queue:q", reliability=Reliability.EXACTLY_ONCE)


def beside(one: ReceiverSettings, *, shares: bool = True, **changes: Any) -> None:
    """Another receiver with these changes comes beside the first one."""
    other = replace(one, id="other", **changes)
    names = {"here": "topic:t", "there": "topic:u"}
    refuse_beside(other, [one, other], "receiver 'other'", names, shares=shares, group=group)


def group(receiver: ReceiverSettings) -> str:
    """The subscription that an option names."""
    assert receiver.destination not in ("here", "there")
    return receiver.options.get("group", receiver.subscription if receiver.destination.startswith("topic:") else "")


# --- a subscription that is shared ---


@pytest.mark.parametrize("changes", [{"selector": "a = 1"}, {"no_local": True}])
def test_what_one_leaves_out_would_be_lost_to_both(changes):
    with pytest.raises(ConfigError, match=r"^E1224 receiver 'other': shares .*takes other messages"):
        beside(TOPIC, **changes)


def test_who_takes_the_same_may_share_a_subscription():
    beside(TOPIC)
    beside(replace(TOPIC, selector=" a = 1 "), selector="a = 1")


@pytest.mark.parametrize(
    "changes",
    [
        {"durable_topic_subscription_name": "of its own"},
        {"connection": "another"},
        {"destination": "topic:another"},
        {"destination": "there"},
    ],
)
def test_who_shares_no_subscription_may_take_what_it_wants(changes):
    beside(TOPIC, selector="a = 1", **changes)


def test_a_logical_destination_is_where_it_leads():
    with pytest.raises(ConfigError, match="E1224"):
        beside(TOPIC, destination="here", selector="a = 1")


EXACTLY_ONCE = {"reliability": Reliability.EXACTLY_ONCE}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, EXACTLY_ONCE),
        (EXACTLY_ONCE, {"reliability": Reliability.AT_LEAST_ONCE}),
        (EXACTLY_ONCE, {}),
        ({"dup_detection_domain_id": "d", **EXACTLY_ONCE}, {"dup_detection_domain_id": "e"}),
    ],
)
def test_who_drops_repeats_must_know_what_the_other_one_has_accepted(one, other):
    with pytest.raises(ConfigError, match=r"^E1224 receiver 'other': shares .*does not know which ids"):
        beside(replace(TOPIC, **one), **other)


def test_who_shares_a_domain_may_share_a_subscription():
    beside(replace(TOPIC, dup_detection_domain_id="d", **EXACTLY_ONCE))


# --- a queue of which each gets every message ---


def test_each_would_take_for_a_repeat_what_the_other_has_accepted():
    with pytest.raises(
        ConfigError, match=r"^E1225 receiver 'other': shares its ids with receiver 'one', and would take"
    ):
        beside(QUEUE, shares=False)


@pytest.mark.parametrize(
    "changes",
    [{"dup_detection_domain_id": "d"}, {"reliability": Reliability.AT_LEAST_ONCE}, {"destination": "queue:p"}],
)
def test_who_does_not_know_the_others_ids_may_read_the_same(changes):
    beside(QUEUE, shares=False, **changes)


def test_receivers_that_share_a_queue_out_know_each_others_ids():
    beside(QUEUE)


def test_a_receiver_is_not_beside_itself():
    refuse_beside(QUEUE, [QUEUE], "receiver 'one'", {}, shares=False, group=group)
    assert at_same_place(QUEUE, [QUEUE, replace(QUEUE, id="other")], {}) == [replace(QUEUE, id="other")]


# --- a subscription that an option names ---


def test_an_option_may_let_receivers_share_a_subscription():
    one = replace(TOPIC, options={"group": "g"})
    named = {"durable_topic_subscription_name": "of its own"}
    with pytest.raises(ConfigError, match=r"^E1224 receiver 'other': shares the subscription 'g' with receiver 'one'"):
        beside(one, selector="a = 1", **named)
    beside(one, selector="a = 1", options={"group": "h"})


def test_an_option_may_give_a_receiver_of_a_queue_every_message():
    with pytest.raises(
        ConfigError, match=r"^E1225 receiver 'other': shares its ids with receiver 'one', and would take"
    ):
        beside(QUEUE, options={"group": "g"})
    beside(QUEUE, options={"group": "g"}, dup_detection_domain_id="d")
    beside(replace(QUEUE, options={"group": "g"}), options={"group": "g"})


# --- what is taken ---


def test_a_queue_that_is_shared_out_has_no_subscription_to_name():
    named = replace(QUEUE, durable_topic_subscription_name="orders")
    with pytest.raises(ConfigError, match=r"^E1222 receiver 'one'\.durable_topic_subscription_name: only topics"):
        selection(named, "receiver 'one'", selects=True)
    assert selection(named, "receiver 'one'", selects=True, shares=False) is None
    assert selection(TOPIC, "receiver 'one'", selects=True) is None


def test_only_a_broker_that_selects_itself_lets_a_queue_be_selected_from():
    """Elsewhere what is not selected would be lost to everybody; a topic keeps it for its other subscriptions."""
    with pytest.raises(ConfigError, match=r"^E1220 receiver 'one'\.selector: this broker cannot leave"):
        selection(replace(QUEUE, selector="a = 1"), "receiver 'one'", selects=False)
    assert selection(replace(QUEUE, selector="a = 1"), "receiver 'one'", selects=True) is not None
    assert selection(replace(TOPIC, selector="a = 1"), "receiver 'one'", selects=False) is not None


def test_messages_of_the_engine_itself_are_known_by_the_property_of_each_sender():
    messages = [
        Message(b"", {"source": "mine"}),
        Message(b"", {"source": "another's"}),
        Message(b"", {"from": "mine"}),
        Message(b"", {"from": "also mine", "source": "another's"}),
        Message(b""),
    ]
    assert from_sources(messages, {"source": frozenset({"mine"}), "from": frozenset({"also mine"})}) == {0, 3}
    assert from_sources(messages, {}) == set()
