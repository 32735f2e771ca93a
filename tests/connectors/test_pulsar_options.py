"""Wrong options of Pulsar: the error, and its text."""

import dataclasses
import json
import subprocess
import sys

import pytest

from connectors.messaging import ConnectionFactory
from connectors.pulsar import PulsarConnection
from connectors.pulsar import connection as connection_module
from connectors.pulsar.broker import BrokerAddress, PulsarBroker, broker
from connectors.pulsar.destinations import route_of_sender, subscription_of_receiver, topic_of
from correlator import Engine, Reliability
from correlator.cli import main
from correlator.configuration import EngineFile, read_text
from correlator.errors import ConfigError
from correlator.runtime.subscriptions import subscriptions
from correlator.settings import ConnectionSettings, EngineSettings, ReceiverSettings, SenderSettings
from tests.docs.test_pages import ROOT, blocks


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
        ({"token": "a\nb"}, "E1022 connections.c.token: holds a blank, or a character that no token has."),
        ({"token": 7}, "E1022 connections.c.token: is not a text. A text; quote it."),
        (
            {"token": "t", "token_file": "f"},
            "E1022 connections.c.token_file: is of no use beside 'token'. Set one of them.",
        ),
        (
            {"token_file": "f", "password": "token:t"},
            "E1022 connections.c.password: is of no use beside 'token_file'. Set one of them.",
        ),
        ({"password": "topsecret"}, "E1022 connections.c.password: holds no token. token: and the token."),
        ({"password": 7}, "E1022 connections.c.password: is not a text. A text; quote it."),
        ({"user": "u"}, "E1022 connections.c.user: is of no use without 'password'. Remove it."),
        ({"user": "", "password": "token:t"}, "E1022 connections.c.user: '' is not a text. A text, not empty."),
        (
            {"tls_trust_certs_file": "ca.pem"},
            "E1022 connections.c.tls_trust_certs_file: is of no use without TLS. Set a service_url that begins with ",
        ),
        (
            {"web_service_url": "pulsar://h:8080"},
            "E1214 connections.c.web_service_url: is not the address of a REST interface. Use http://HOST:PORT or https:",
        ),
        (
            {"web_service_url": "http://a:secret@h"},
            "E1214 connections.c.web_service_url: is not the address of a REST ",
        ),
        ({"timeout_s": 0}, "E1022 connections.c.timeout_s: '0' is not allowed. A whole number from 1 to 3600."),
        ({"deduplication": "yes"}, "E1022 connections.c.deduplication: 'yes' is not true or false."),
        ({"client_id": ""}, "E1022 connections.c.client_id: '' is not a text. A text, not empty."),
        (
            {"ack_timeout": "9s"},
            "E1022 connections.c.ack_timeout: '9s' is not allowed. One duration from 10s to 24h: it does not grow.",
        ),
        (
            {"ack_timeout": {"min_delay": "10s"}},
            "E1022 connections.c.ack_timeout: '{'min_delay': '10s'}' is not allowed.",
        ),
        (
            {"ack_timeout": "10s", "priority_mapping": "linear"},
            "E1022 connections.c.ack_timeout: is of no use beside 'priority_mapping': the client would count the time ",
        ),
        ({"ack_timeout": 10}, "E1022 connections.c.ack_timeout: '10' is not allowed."),
        (
            {"priority_mapping": "nonlinear"},
            "E1022 connections.c.priority_mapping: 'nonlinear' is not allowed. linear, non-linear.",
        ),
        ({"priority_mapping": True}, "E1022 connections.c.priority_mapping: 'True' is not allowed."),
    ],
)
def test_26_options_of_connections(options, text):
    assert refusal(lambda: connection(**options)).startswith(text)


def test_a_service_url_may_name_several_brokers():
    made = broker("c", {"service_url": "pulsar+ssl://one,two:7000,[::1]:1/"})
    assert made.addresses == [BrokerAddress("one", 6651), BrokerAddress("two", 7000), BrokerAddress("::1", 1)]


def test_a_token_is_shown_nowhere():
    assert "topsecret" not in repr(PulsarBroker(token="topsecret"))


def test_repeats_are_dropped_where_the_option_says_so():
    assert not connection().features.deduplicates_sends
    assert connection(deduplication=True).features.deduplicates_sends


NO_TOPIC = (
    "is not a topic. Use queue:NAME or topic:NAME, NAME without slashes or as persistent://TENANT/NAMESPACE/NAME."
)


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
            "E1020 receivers.r.subscription_typ: unknown key. Known: acknowledge_rejected_messages, dead_letter_policy, ",
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
        (
            "queue:q",
            {"acknowledge_rejected_messages": 1},
            "E1022 receivers.r.acknowledge_rejected_messages: '1' is not true or false.",
        ),
        (
            "queue:q",
            {"negative_ack_delay": "99ms"},
            "E1022 receivers.r.negative_ack_delay: '99ms' is not allowed. A duration from 100ms to 24h.",
        ),
        ("queue:q", {"negative_ack_delay": 1}, "E1022 receivers.r.negative_ack_delay: '1' is not allowed."),
        (
            "queue:q",
            {"negative_ack_delay": {"max_delay": "25h"}},
            "E1022 receivers.r.negative_ack_delay.max_delay: '25h' is not allowed. A duration from 100ms to 24h.",
        ),
        (
            "queue:q",
            {"negative_ack_delay": {"min_delay": "2m"}},
            "E1022 receivers.r.negative_ack_delay.max_delay: 60s is shorter than min_delay (120s).",
        ),
        (
            "queue:q",
            {"negative_ack_delay": {"multiplier": 0.5}},
            "E1022 receivers.r.negative_ack_delay.multiplier: '0.5' is not allowed. A number from 1 to 100.",
        ),
        (
            "queue:q",
            {"negative_ack_delay": {"factor": 2}},
            "E1020 receivers.r.negative_ack_delay.factor: unknown key. Known: max_delay, min_delay, multiplier.",
        ),
        (
            "queue:q",
            {"dead_letter_policy": 3},
            "E1022 receivers.r.dead_letter_policy: '3' is not a mapping. Set max_redeliver_count in it.",
        ),
        (
            "queue:q",
            {"dead_letter_policy": {"dead_letter_topic": "dead"}},
            "E1021 receivers.r.dead_letter_policy: 'max_redeliver_count' is missing.",
        ),
        (
            "queue:q",
            {"dead_letter_policy": {"max_redeliver_count": 0}},
            "E1022 receivers.r.dead_letter_policy.max_redeliver_count: '0' is not allowed. A whole number from 1 to ",
        ),
        (
            "queue:q",
            {"dead_letter_policy": {"max_redeliver_count": 1, "dead_letter_topic": "a/b"}},
            "E1022 receivers.r.dead_letter_policy.dead_letter_topic: 'a/b' is not a topic. NAME without slashes or as persis",
        ),
        (
            "topic:t",
            {"dead_letter_policy": {"max_redeliver_count": 1}},
            "E1022 receivers.r.dead_letter_policy: is of no use with subscription_type exclusive: nothing is given ",
        ),
        (
            "queue:q",
            {"subscription_type": "failover", "negative_ack_delay": "1s"},
            "E1022 receivers.r.negative_ack_delay: is of no use with subscription_type failover: ",
        ),
        (
            "queue:q",
            {"dead_letter_policy": {"max_redeliver_count": 1, "dead_letter_topic": "queue:bad"}},
            "E1022 receivers.r.dead_letter_policy.dead_letter_topic: 'queue:bad' is not a topic. NAME without slashes or as ",
        ),
        (
            "queue:q",
            {"dead_letter_policy": {"max_redeliver_count": 1, "dead_letter_topic": "q"}},
            "E1022 receivers.r.dead_letter_policy.dead_letter_topic: 'q' is its own topic: no message would ever ",
        ),
        (
            "queue:multi:p,q",
            {"dead_letter_policy": {"max_redeliver_count": 1, "dead_letter_topic": "persistent://public/default/q"}},
            "E1022 receivers.r.dead_letter_policy.dead_letter_topic: 'persistent://public/default/q' is its own topic",
        ),
        ("queue:multi:", {}, "E1215 receivers.r.destination: 'queue:' is not a destination."),
        ("queue:regex:", {}, "E1215 receivers.r.destination: 'queue:regex:' has no regular expression."),
        ("queue:multi:a,b/c", {}, f"E1215 receivers.r.destination: 'queue:b/c' {NO_TOPIC}"),
        (
            "topic:multi:a,b:s",
            {},
            "E1215 receivers.r.destination: 'topic:multi:a,b:s' names a subscription, as only queues do. Set durable_",
        ),
        (
            "queue:multi:a,b:s",
            {"queue_subscription": "t"},
            "E1022 receivers.r.queue_subscription: is of no use: the destination names the subscription.",
        ),
        (
            "queue:regex:a(",
            {},
            "E1215 receivers.r.destination: 'queue:regex:a(' has no regular expression: missing ), unterminated ",
        ),
        (
            "queue:q",
            {"pattern_auto_discovery_period": "1s"},
            "E1022 receivers.r.pattern_auto_discovery_period: is for destinations regex:PATTERN.",
        ),
        (
            "queue:regex:a",
            {"pattern_auto_discovery_period": "1.5s"},
            "E1022 receivers.r.pattern_auto_discovery_period: '1.5s' is not allowed. A duration of whole seconds, from 1s ",
        ),
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
        (None, {"delivery_delay": "0s"}, "E1022 senders.s.delivery_delay: '0s' is not allowed. A duration above 0s"),
        (None, {"delivery_delay": "8761h"}, "E1022 senders.s.delivery_delay: '8761h' is not allowed."),
        (None, {"delivery_delay": 3}, "E1022 senders.s.delivery_delay: '3' is not allowed."),
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
        ("queue:multi:a,b", None),
        ("topic:regex:a", None),
        ("queue:multi:", None),
    ],
)
def test_destinations_are_topics(destination, topic):
    assert topic_of(destination, PulsarBroker(namespace="a/b")) == topic


def test_s1_8_several_topics():
    made = subscription_of_receiver(receiver("queue:multi:a,persistent://t/n/b:mine"), PulsarBroker())
    assert (made.topics, made.name) == (["persistent://public/default/a", "persistent://t/n/b"], "mine")
    made = subscription_of_receiver(receiver("queue:multi:persistent://t/n/b,a"), PulsarBroker())
    assert (made.topics, made.name) == (["persistent://t/n/b", "persistent://public/default/a"], "jms-queue")
    assert (
        subscription_of_receiver(receiver("topic:regex:a.*"), PulsarBroker()).pattern
        == "persistent://public/default/a.*"
    )
    whole = "persistent://t/n/a.*"
    assert subscription_of_receiver(receiver(f"topic:regex:{whole}"), PulsarBroker()).pattern == whole


def test_s2_1_the_topic_of_dead_letters_is_in_the_namespace_of_the_connection():
    policy = {"max_redeliver_count": 1, "dead_letter_topic": "dead"}
    made = subscription_of_receiver(receiver("queue:q", dead_letter_policy=policy), PulsarBroker(namespace="a/b"))
    assert made.dead_letters.dead_letter_topic == "persistent://a/b/dead"


def test_the_receivers_of_the_page_can_be_made():
    (text,) = (text for _, text in blocks(ROOT / "docs" / "pulsar.md") if text.startswith("# receivers.yaml"))
    loaded = read_text(text, EngineFile, connectors={"pulsar"})
    assert loaded.warnings == ()
    made = PulsarConnection("events", loaded.settings.connections["events"])
    places = [made.source(one) and subscription_of_receiver(one, PulsarBroker()) for one in loaded.settings.receivers]
    assert [place.name for place in places] == ["all", "accounts", "jms-queue"]
    made.close()


def test_s4_3_a_selector_that_would_leave_messages_to_nobody():
    selective = dataclasses.replace(receiver("queue:q", subscription_type="key_shared"), selector="n = 1")
    assert refusal(lambda: connection().source(selective)).startswith(
        "E1220 receivers.r.selector: unselected messages would come back to this receiver for ever"
    )


def test_s2_2_the_time_after_which_a_message_comes_again_is_a_feature():
    assert connection(ack_timeout="10s").features.holds_for_s == 10
    assert connection().features.holds_for_s is None


# --- client ids ---


def with_client_id(options, name="c"):
    return PulsarConnection(name, ConnectionSettings(type="pulsar", options=options))


def test_s1_2_a_client_id_is_that_of_one_connection_in_a_process():
    first = with_client_id({"client_id": "shop"}, "first")
    assert refusal(lambda: connection(client_id="shop")) == (
        "E1226 connections.c.client_id: 'shop' is that of connection 'first' in this process. Choose another one."
    )
    connection(client_id="other")
    connection(client_id="shop", service_url="pulsar://another:6650")
    first.close()
    connection(client_id="shop")


def test_s1_2_a_connection_that_nobody_has_any_more_keeps_no_client_id():
    with_client_id({"client_id": "forgotten"})
    connection(client_id="forgotten")


def test_s1_2_the_sessions_of_a_connection_share_its_client_id():
    factory = ConnectionFactory(PulsarConnection, {"client_id": "sessions"})
    with factory.create_connection() as one, factory.create_connection() as other:
        sessions = [one.create_session(), one.create_session()]
        with pytest.raises(ConfigError, match="^E1226"):
            other.create_session()
        assert not any(session.closed for session in sessions)
    with factory.create_connection() as later:
        later.create_session()


def test_s1_2_another_process_may_have_the_same_client_id():
    mine = connection(client_id="everywhere")
    program = (
        "from connectors.pulsar import PulsarConnection\n"
        "from correlator.settings import ConnectionSettings\n"
        "PulsarConnection('c', ConnectionSettings(type='pulsar', options={'client_id': 'everywhere'}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    mine.close()


# --- lint ---


def warnings_of(receiver):
    text = (
        "name: e\nstore: sqlite:///e.db\nconnections:\n  c: {type: pulsar}\nreceivers:\n"
        f"  - {{id: r, connection: c, {receiver}}}\n"
    )
    return [str(warning) for warning in read_text(text, EngineFile, connectors={"pulsar"}).warnings]


@pytest.mark.parametrize("mode", ["AT_LEAST_ONCE", "EXACTLY_ONCE", "APP_CONTROLLED"])
def test_s1_11_lint_warns_of_a_reliable_receiver_that_begins_at_the_latest_message(mode):
    (warning,) = warnings_of(f"destination: 'topic:t', reliability: {mode}, options: {{initial_position: latest}}")
    assert warning.startswith("W1227 config.yaml:6:")
    assert f"receivers[0].options.initial_position: {mode} loses messages published before" in warning


def test_s1_11_lint_is_silent_about_the_others():
    assert warnings_of("destination: 'topic:t', reliability: AT_LEAST_ONCE") == []
    assert warnings_of("destination: 'topic:t', options: {initial_position: latest}") == []
    assert warnings_of("destination: 'topic:t', reliability: EXACTLY_ONCE, options: {initial_position: earliest}") == []


def test_s2_4_lint_warns_of_a_selector_beside_a_dead_letter_policy():
    policy = "dead_letter_policy: {max_redeliver_count: 3}"
    (warning,) = warnings_of(f"destination: 'queue:q', selector: 'n = 1', options: {{{policy}}}")
    assert warning.startswith("W1228 config.yaml:6:")
    assert "may become dead letters" in warning
    assert warnings_of(f"destination: 'queue:q', options: {{{policy}}}") == []
    drops = f"{policy}, acknowledge_rejected_messages: true"
    assert warnings_of(f"destination: 'queue:q', selector: 'n = 1', options: {{{drops}}}") == []


@pytest.mark.parametrize(("destination", "warned"), [("topic:t", ["W1229"]), ("queue:q", [])])
def test_s4_4_lint_warns_of_a_delay_that_readers_of_a_topic_do_not_keep_to(destination, warned):
    text = (
        "name: e\nconnections:\n  c: {type: pulsar}\nsenders:\n"
        f"  - {{id: s, connection: c, destination: '{destination}', options: {{delivery_delay: 3s}}}}\n"
    )
    warnings = read_text(text, EngineFile, connectors={"pulsar"}).warnings
    assert [warning.code for warning in warnings] == warned


# --- places ---


def test_s1_1_names_of_subscriptions():
    """A name is `clientId_name` if there is a client id, as in JMS."""
    assert subscription_of_receiver(receiver("topic:t", subscription="s"), PulsarBroker(client_id="c1")).name == "c1_s"
    assert subscription_of_receiver(receiver("topic:t", subscription="s"), PulsarBroker()).name == "s"
    assert subscription_of_receiver(receiver("topic:t"), PulsarBroker()).name == "r"


def test_s1_7_queues_and_topics_differ_by_their_subscriptions():
    queue = subscription_of_receiver(receiver("queue:q"), PulsarBroker(client_id="c1"))
    assert (queue.name, queue.subscription_type) == ("jms-queue", "shared")
    topic = subscription_of_receiver(receiver("topic:q"), PulsarBroker())
    assert (topic.topic, topic.subscription_type) == (queue.topic, "exclusive")
    other = subscription_of_receiver(receiver("queue:q", queue_subscription="other"), PulsarBroker())
    assert other.name == "other"


def test_s1_11_a_subscription_begins_at_the_earliest_message():
    assert subscription_of_receiver(receiver("topic:t"), PulsarBroker()).initial_position == "earliest"


def test_a_sender_needs_no_destination():
    assert route_of_sender(sender(None), PulsarBroker()).topic is None


@pytest.mark.parametrize(
    ("part", "subscription"),
    [
        ({"receivers": [{"id": "r", "options": {"queue_subscription": "mine"}}]}, "mine"),
        ({"senders": [{"id": "s", "options": {"queue_subscription": "mine"}}]}, "mine"),
        ({"receivers": [{"id": "r"}]}, "jms-queue"),
        ({}, "jms-queue"),
    ],
    ids=["of a receiver", "of a sender", "not named", "no part"],
)
def test_browse_looks_at_the_subscription_that_the_file_names(part, subscription, tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(connection_module, "copies", lambda *where: looked.append(where[2:]) or [])
    parts = {
        kind: [{"connection": "c", "reliability": "AT_LEAST_ONCE", "destination": "orders", **one} for one in parts]
        for kind, parts in part.items()
    }
    written = {
        "version": 1,
        "name": "n",
        "store": f"sqlite:///{tmp_path}/x.db",
        "connections": {"c": {"type": "pulsar", "web_service_url": "http://127.0.0.1:1"}},
        "destinations": {"orders": "queue:q"},
    }
    (tmp_path / "engine.yaml").write_text(json.dumps(written | parts))
    assert main.execute(["browse", str(tmp_path / "engine.yaml"), "c", "orders"]) == 0
    assert looked == [("persistent://public/default/q", subscription, 20)]


def test_receivers_of_two_subscriptions_of_a_queue_do_not_know_each_others_ids(tmp_path):
    """Each subscription gets every message: a message that one receiver has accepted is no repeat for the other."""
    once = {"reliability": Reliability.EXACTLY_ONCE}
    one = dataclasses.replace(receiver(name="one"), **once)
    other = dataclasses.replace(receiver(name="other", queue_subscription="audit"), **once)
    settings = EngineSettings(
        name="two",
        store=f"sqlite:///{tmp_path}/two.db",
        connections={"c": ConnectionSettings(type="pulsar")},
        receivers=(one, other),
    )
    with (
        pytest.raises(ConfigError, match="E1225 receiver 'other': shares its ids with receiver 'one', and would take"),
        Engine(settings),
    ):
        pass


def test_s1_1_the_subscriptions_that_a_start_compares_have_the_client_id_and_the_option():
    """So a start notices that another `client_id` would make a receiver read another subscription."""

    def read(**options):
        receivers = (
            receiver("topic:t", "own"),
            receiver("queue:q", "common"),
            receiver("queue:q", "named", queue_subscription="n"),
            receiver("queue:q", "wrong", queue_subscription=7),
        )
        pulsar = ConnectionSettings(type="pulsar", options=options)
        return subscriptions(EngineSettings(name="e", connections={"c": pulsar}, receivers=receivers), [])

    assert read() == {"own": "own", "common": "jms-queue", "named": "n"}
    for _ in range(2):  # it does not keep the client id
        assert read(client_id="shop") == {"own": "shop_own", "common": "jms-queue", "named": "n"}
