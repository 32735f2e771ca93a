"""Wrong options of streams: the error, and its text."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from connectors.rabbitmq_stream import StreamConnection
from connectors.rabbitmq_stream.broker import StreamBroker
from connectors.rabbitmq_stream.destinations import StartOffset, destination_of_receiver, destination_of_sender
from correlator.core.admission import refuse_beside
from correlator.errors import ConfigError
from correlator.reliability import Reliability
from correlator.runtime.engine import Engine
from correlator.settings import ConnectionSettings, EngineSettings, ReceiverSettings, SenderSettings

EXACTLY_ONCE = Reliability.EXACTLY_ONCE


def connection(**options):
    return StreamConnection("c", ConnectionSettings(type="rabbitmq_stream", options=options))


def receiver(destination="queue:q", name="r", **options):
    return ReceiverSettings(id=name, connection="c", destination=destination, options=options)


def sender(destination="queue:q", **options):
    return SenderSettings(id="s", connection="c", destination=destination, options=options)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"hots": "x"}, "E1020", "Did you mean 'host'?"),
        ({"port": 65536}, "E1022", "1 to 65535"),
        ({"password": 7}, "E1022", "quote it"),
        ({"tls": "yes"}, "E1022", "true or false"),
        ({"ca_file": "ca.pem"}, "E1022", "Set tls: true"),
        ({"heartbeat_s": 0}, "E1022", "1 to 3600"),
        ({"timeout_s": 0}, "E1022", "1 to 3600"),
        ({"declare": "no"}, "E1022", "true or false"),
        ({"queue_type": "quorum"}, "E1020", "unknown key"),
    ],
)
def test_options_of_connections(options, code, text):
    with pytest.raises(ConfigError) as raised:
        connection(**options)
    assert raised.value.code == code
    assert text in str(raised.value)


def test_tls_has_a_port_of_its_own():
    assert (connection()._broker.port, connection(tls=True)._broker.port) == (5552, 5551)


@pytest.mark.parametrize(
    ("host", "tls"),
    [
        ("localhost", False),
        ("127.0.0.5", False),
        ("::1", False),
        ("broker.example.com", True),
        ("10.0.0.1", True),
        ("0.0.0.0", True),
        ("localhost.example.com", True),
    ],
)
def test_a_server_on_another_machine_gets_tls_unless_the_options_say_otherwise(host, tls):
    made = connection(host=host)._broker
    assert (made.tls, made.port) == (tls, 5551 if tls else 5552)
    assert not connection(host=host, tls=False)._broker.tls


def test_a_password_is_shown_nowhere():
    assert "topsecret" not in repr(StreamBroker(password="topsecret"))


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("orders", {}, "E1215"),
        ("topic:t", {}, "E1215"),
        ("queue: ", {}, "E1215"),
        ("queue:" + "ü" * 128, {}, "E1215"),
        ("queue:q", {"declair": True}, "E1020"),
        ("queue:q", {"offset": "begin"}, "E1022"),
        ("queue:q", {"offset": -1}, "E1022"),
        ("queue:q", {"offset": 2**64}, "E1022"),
        ("queue:q", {"offset": True}, "E1022"),
        ("queue:q", {"offset": 1.5}, "E1022"),
        ("queue:q", {"offset": "2026-01-31T12:00:00"}, "E1022"),
        ("queue:q", {"arguments": ["max-age"]}, "E1022"),
        ("queue:q", {"arguments": {"x-max-age": "7D"}}, "E1020"),
        ("queue:q", {"arguments": {"max-age": "7 days"}}, "E1022"),
        ("queue:q", {"arguments": {"max-length-bytes": 0}}, "E1022"),
        ("queue:q", {"arguments": {"max-length-bytes": 1.5}}, "E1022"),
        ("queue:q", {"arguments": {"max-length-bytes": True}}, "E1022"),
        ("queue:q", {"arguments": {"queue-leader-locator": "nearest"}}, "E1022"),
    ],
)
def test_options_of_receivers(destination, options, code):
    with pytest.raises(ConfigError) as raised:
        connection().source(receiver(destination, **options))
    assert raised.value.code == code


def test_a_receiver_whose_id_cannot_be_stored():
    with pytest.raises(ConfigError, match="durable_topic_subscription_name"):
        connection().source(receiver(name="ü" * 128))


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("orders", {}, "E1215"),
        ("topic:t", {}, "E1215"),
        ("queue:q", {"offset": "first"}, "E1020"),
        (None, {"declare": True}, "E1022"),
        ("queue:q", {"declare": 1}, "E1022"),
    ],
)
def test_options_of_senders(destination, options, code):
    with pytest.raises(ConfigError) as raised:
        connection().sink(sender(destination, **options))
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("first", StartOffset("first")),
        ("last", StartOffset("last")),
        ("next", StartOffset("next")),
        (0, StartOffset("offset", 0)),
        ("17", StartOffset("offset", 17)),
        ("2026-01-31T12:00:00Z", StartOffset("timestamp", 1769860800000)),
        ("2026-01-31T13:00:00+01:00", StartOffset("timestamp", 1769860800000)),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), StartOffset("timestamp", 1769860800000)),
    ],
)
def test_where_reading_begins(given, start):
    assert destination_of_receiver(receiver(offset=given), StreamBroker()).start == start


def test_a_stream_and_its_arguments():
    place = destination_of_receiver(
        receiver(arguments={"max-age": "7D", "max-length-bytes": 1000}), StreamBroker(declare=False)
    )
    assert (place.stream, place.declare, place.start) == ("q", False, StartOffset("first"))
    assert place.arguments == {"max-age": "7D", "max-length-bytes": "1000"}
    assert destination_of_sender(sender(declare=True), StreamBroker(declare=False)).declare
    assert destination_of_sender(sender(None), StreamBroker()) is None


def reading(name, **settings):
    return ReceiverSettings(id=name, connection="c", destination="queue:q", reliability=EXACTLY_ONCE, **settings)


def test_receivers_of_one_stream_do_not_know_each_others_ids(tmp_path):
    """Each receiver gets every message: a message that one has accepted is no repeat for the other."""
    settings = EngineSettings(
        name="two",
        store=f"sqlite:///{tmp_path}/two.db",
        connections={"c": ConnectionSettings(type="rabbitmq_stream")},
        receivers=(reading("one"), reading("other", durable_topic_subscription_name="its own place")),
    )
    with pytest.raises(ConfigError, match="E1225 receiver 'other': shares its ids with receiver 'one', and would take"):
        Engine(settings).start()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"dup_detection_domain_id": "a"}, {"dup_detection_domain_id": "b"}),
        ({"dup_detection_domain_id": "a"}, {}),
        ({}, {"destination": "queue:another"}),
        ({}, {"reliability": Reliability.AT_LEAST_ONCE}),
    ],
)
def test_others_may_be_read_side_by_side(one, other):
    first, second = replace(reading("one"), **one), replace(reading("other"), **other)
    refuse_beside(second, [first, second], "receiver 'other'", {}, shares=False, group=lambda one: one.subscription)
