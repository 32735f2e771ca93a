"""Warnings about options that are allowed, but probably do not have the intended effect."""

from collections.abc import Iterator

from correlator.connector import Advice
from correlator.reliability import Reliability
from correlator.settings import ReceiverSettings, SenderSettings

REDELIVERY_OPTIONS = ("ack_timeout", "negative_ack_delay")


def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterator[Advice]:
    """Yield warnings about a receiver or sender; see `correlator.connector.Advising`."""
    if isinstance(endpoint, ReceiverSettings):
        yield from _of_receiver(endpoint)
    elif "delivery_delay" in endpoint.options and (endpoint.destination or "").startswith("topic:"):
        what = "the only consumer of an exclusive or failover subscription gets its messages at once"
        yield Advice("W1229", "delivery_delay", what, "Shared subscriptions, as of queues, obey the delay")


def _of_receiver(receiver: ReceiverSettings) -> Iterator[Advice]:
    options = receiver.options
    if options.get("initial_position") == "latest" and receiver.reliability is not Reliability.BEST_EFFORT:
        what = f"{receiver.reliability} loses messages published before the receiver subscribes for the first time"
        yield Advice("W1227", "initial_position", what, "", "Use earliest")
    drops = options.get("acknowledge_rejected_messages")
    if options.get("dead_letter_policy") is not None and receiver.selector and not drops:
        what = "messages given back for other receivers count as redelivered, and may become dead letters"
        yield Advice("W1228", "dead_letter_policy", what, "", "Raise max_redeliver_count")
