"""Wrong options of Pulsar: which error, and what it says."""

import pytest

from connectors.pulsar import PulsarConnection
from connectors.pulsar.broker import Address, Broker, broker
from connectors.pulsar.places import place_of_receiver, topic_of, way_of_sender
from correlator.errors import ConfigError
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


def connection(**options):
    return PulsarConnection("c", ConnectionSettings(type="pulsar", options=options))


def receiver(destination="queue:q", name="r", subscription=None, **options):
    return ReceiverSettings(
        id=name,
        connection="c",
        destination=destination,
        durable_topic_subscription_name=subscription,
        options=options,
    )


def sender(destination="queue:q", **options):
    return SenderSettings(id="s", connection="c", destination=destination, options=options)


def refusal(call):
    with pytest.raises(ConfigError) as raised:
        call()
    return str(raised.value)


URLS = "Use pulsar://HOST:PORT or pulsar+ssl://HOST:PORT, several HOST:PORT separated by commas."


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servce_url": "x"}, "E1020 connections.c.servce_url: unknown key."),
        ({"service_url": 7}, "E1022 connections.c.service_url: '7' is not a text. A text, not empty."),
        (
            {"service_url": "http://h:8080"},
            f"E1214 connections.c.service_url: is not the address of a Pulsar broker. {URLS}",
        ),
        (
            {"service_url": "pulsar://"},
            f"E1214 connections.c.service_url: is not the address of a Pulsar broker. {URLS}",
        ),
        (
            {"service_url": "pulsar://a:secret@h:6650"},
            f"E1214 connections.c.service_url: has a malformed host or port. {URLS}",
        ),
        ({"service_url": "pulsar://h,,i"}, f"E1214 connections.c.service_url: has a malformed host or port. {URLS}"),
        (
            {"service_url": "pulsar://h:65536"},
            f"E1214 connections.c.service_url: port 65536 is not between 1 and 65535. {URLS}",
        ),
        (
            {"namespace": "default"},
            "E1022 connections.c.namespace: 'default' is not a namespace. TENANT/NAMESPACE, as in public/default.",
        ),
        ({"namespace": "public/default/x"}, "E1022 connections.c.namespace: 'public/default/x' is not a namespace."),
        ({"token": 7}, "E1022 connections.c.token: is not a text. A text; quote it."),
        (
            {"token": "t", "token_file": "f"},
            "E1022 connections.c.token_file: is of no use beside 'token'. Set one of them.",
        ),
        (
            {"tls_trust_certs_file": "ca.pem"},
            "E1022 connections.c.tls_trust_certs_file: is of no use without TLS. Set a service_url that begins with ",
        ),
        ({"timeout_s": 0}, "E1022 connections.c.timeout_s: '0' is not allowed. A whole number from 1 to 3600."),
        ({"deduplication": "yes"}, "E1022 connections.c.deduplication: 'yes' is not true or false."),
        ({"client_id": ""}, "E1022 connections.c.client_id: '' is not a text. A text, not empty."),
    ],
)
def test_options_of_connections(options, text):
    assert refusal(lambda: connection(**options)).startswith(text)


def test_a_service_url_may_name_several_brokers():
    made = broker("c", {"service_url": "pulsar+ssl://one,two:7000,[::1]:1/"})
    assert made.addresses == [Address("one", 6651), Address("two", 7000), Address("::1", 1)]


def test_a_token_is_shown_nowhere():
    assert "topsecret" not in repr(Broker(token="topsecret"))


def test_repeats_are_dropped_where_the_option_says_so():
    assert not connection().features.deduplicates_sends
    assert connection(deduplication=True).features.deduplicates_sends


NO_TOPIC = "is no topic. Use queue:NAME or topic:NAME, NAME without slashes or as persistent://TENANT/NAMESPACE/NAME."


@pytest.mark.parametrize(
    ("destination", "options", "text"),
    [
        ("orders", {}, "E1215 receivers.r.destination: 'orders' is not a destination. Use queue:NAME or topic:NAME."),
        ("queue:a/b", {}, f"E1215 receivers.r.destination: 'queue:a/b' {NO_TOPIC}"),
        ("queue: ", {}, f"E1215 receivers.r.destination: 'queue: ' {NO_TOPIC}"),
        (
            "topic:non-persistent://public/default/t",
            {},
            f"E1215 receivers.r.destination: 'topic:non-persistent://public/default/t' {NO_TOPIC}",
        ),
        ("queue:persistent://public/t", {}, f"E1215 receivers.r.destination: 'queue:persistent://public/t' {NO_TOPIC}"),
        (
            "queue:q",
            {"subscription_typ": "shared"},
            "E1020 receivers.r.subscription_typ: unknown key. Known: initial_position, queue_subscription, subscription",
        ),
        (
            "queue:q",
            {"subscription_type": "Shared"},
            "E1022 receivers.r.subscription_type: 'Shared' is not allowed. shared, exclusive, failover, key_shared.",
        ),
        (
            "topic:t",
            {"initial_position": 0},
            "E1022 receivers.r.initial_position: '0' is not allowed. earliest, latest.",
        ),
        (
            "topic:t",
            {"queue_subscription": "s"},
            "E1022 receivers.r.queue_subscription: is for queues. Set durable_topic_subscription_name.",
        ),
        ("queue:q", {"queue_subscription": ""}, "E1022 receivers.r.queue_subscription: '' is not a text."),
    ],
)
def test_options_of_receivers(destination, options, text):
    assert refusal(lambda: connection().source(receiver(destination, **options))).startswith(text)


@pytest.mark.parametrize(
    ("destination", "options", "text"),
    [
        ("topic:a/b", {}, f"E1215 senders.s.destination: 'topic:a/b' {NO_TOPIC}"),
        ("queue:q", {"initial_position": "latest"}, "E1020 senders.s.initial_position: unknown key."),
        (None, {"text": "yes"}, "E1022 senders.s.text: 'yes' is not true or false."),
    ],
)
def test_options_of_senders(destination, options, text):
    assert refusal(lambda: connection().sink(sender(destination, **options))).startswith(text)


@pytest.mark.parametrize(
    ("destination", "topic"),
    [
        ("queue:q", "persistent://a/b/q"),
        ("topic:q", "persistent://a/b/q"),
        ("topic:x:y?z#ü", "persistent://a/b/x:y?z#ü"),
        ("queue:persistent://t/n/q", "persistent://t/n/q"),
        ("queue:persistent://t/n/x/q", None),
        ("queue: q", None),
        ("x:q", None),
    ],
)
def test_destinations_are_topics(destination, topic):
    assert topic_of(destination, Broker(namespace="a/b")) == topic


def test_s1_1_names_of_subscriptions():
    """`clientId_name` where there is a client id, as in JMS."""
    assert place_of_receiver(receiver("topic:t", subscription="s"), Broker(client_id="c1")).subscription == "c1_s"
    assert place_of_receiver(receiver("topic:t", subscription="s"), Broker()).subscription == "s"
    assert place_of_receiver(receiver("topic:t"), Broker()).subscription == "r"


def test_s1_7_queues_and_topics_differ_by_their_subscriptions():
    queue = place_of_receiver(receiver("queue:q"), Broker(client_id="c1"))
    assert (queue.subscription, queue.subscription_type) == ("jms-queue", "shared")
    topic = place_of_receiver(receiver("topic:q"), Broker())
    assert (topic.topic, topic.subscription_type) == (queue.topic, "exclusive")
    other = place_of_receiver(receiver("queue:q", queue_subscription="other"), Broker())
    assert other.subscription == "other"


def test_s1_11_a_subscription_begins_at_the_earliest_message():
    assert place_of_receiver(receiver("topic:t"), Broker()).initial_position == "earliest"


def test_a_sender_needs_no_destination():
    assert way_of_sender(sender(None), Broker()).topic is None
