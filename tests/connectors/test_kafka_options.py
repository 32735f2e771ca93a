"""Wrong options and destinations of the Kafka connector: each is an error before anything is opened."""

import threading
from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

import confluent_kafka as confluent
import pytest

from connectors.kafka import KafkaConnection, patience
from connectors.kafka.broker import _OURS
from connectors.kafka.cluster import Topic
from connectors.kafka.destinations import Start, start_of, topics_of_receiver
from connectors.kafka.offsets import GroupOffsets
from connectors.kafka.patience import answer_within
from connectors.kafka.source import KafkaSource
from correlator.connector import Order
from correlator.errors import ConfigError, ConnectionLost
from correlator.secrets import without_secrets
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


def made(**options: object) -> KafkaConnection:
    given = {"bootstrap_servers": "127.0.0.1:9", **options}
    return KafkaConnection("k", ConnectionSettings(type="kafka", options=given))


def receiver(destination: str = "topic:orders", **options: object) -> ReceiverSettings:
    return ReceiverSettings(id="r", connection="k", destination=destination, options=options)


def sender(destination: str | None = "topic:orders", **options: object) -> SenderSettings:
    return SenderSettings(id="s", connection="k", destination=destination, options=options)


TOKENS_AT = "sasl.oauthbearer.token.endpoint.url"


def token(**changed: str | None) -> dict[str, str]:
    """Settings of a client that logs in with a token, without those that are `None`."""
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "billing",
        "sasl.oauthbearer.client.secret": "topsecret",
        TOKENS_AT: "https://login.example.com/token",
        **changed,
    }
    return {name: value for name, value in settings.items() if value is not None}


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"bootstrap_server": "x"}, "E1020", "Did you mean 'bootstrap_servers'?"),
        ({"bootstrap_servers": ""}, "E1022", "connections.k.bootstrap_servers"),
        ({"bootstrap_servers": "me:geheim99@h:1"}, "E1022", "Set sasl.username and sasl.password in client"),
        ({"bootstrap_servers": ["a:1"]}, "E1022", "connections.k.bootstrap_servers"),
        ({"timeout_s": 0}, "E1022", "connections.k.timeout_s"),
        ({"timeout_s": 301}, "E1022", "connections.k.timeout_s"),
        ({"client": "security.protocol=SSL"}, "E1022", "is not a mapping"),
        ({"client": {"security.protocl": "SSL"}}, "E1022", "No such configuration property"),
        ({"client": {"session.timeout.ms": "long"}}, "E1022", "session.timeout.ms"),
        ({"client": {"session.timeout.ms": 400_000}}, "E1022", "max.poll.interval.ms"),
        ({"client": {"compression.type": "best"}}, "E1022", "best"),
        ({"client": {"security.protocol": "SASL_SSL", "sasl.mechanisms": "GSSAPI"}}, "E1022", "GSSAPI"),
        (
            {"client": {"ssl.ca.location": "/etc/ca.pem"}},
            "E1022",
            "is of no use without TLS. Set security.protocol: SSL",
        ),
        (
            {"bootstrap_servers": "far:9", "client": {"security.protocol": "PLAINTEXT", "ssl.key.password": "x"}},
            "E1022",
            "connections.k.client.ssl.key.password",
        ),
        (
            {"client": {"security.protocol": "PLAINTEXT", "sasl.username": "me", "sasl.password": "geheim99"}},
            "E1022",
            "client.sasl.username: is of no use with security.protocol: PLAINTEXT, since the client would not log in",
        ),
        (
            {"client": {"security.protocol": "ssl", "sasl.mechanisms": "PLAIN"}},
            "E1022",
            "Set security.protocol: SASL_SSL, or leave it out",
        ),
        ({"client": {"enable.ssl.certificate.verification": False}}, "E1022", "would let anybody pass for a broker"),
        ({"client": {"ssl.endpoint.identification.algorithm": "none"}}, "E1022", "would let anybody pass for a broker"),
        (
            {"client": {"security.protocol": "SSL", "ssl.certificate.location": "/c.pem"}},
            "E1021",
            "connections.k.client: 'ssl.key.location' is missing",
        ),
        (
            {"client": {"security.protocol": "SSL", "ssl.key.pem": "x"}},
            "E1021",
            "connections.k.client: 'ssl.certificate.location' is missing",
        ),
        ({"client": token(**{"sasl.oauthbearer.method": None})}, "E1022", "client.sasl.oauthbearer.method: is missing"),
        ({"client": token(**{"sasl.oauthbearer.method": "default"})}, "E1022", "client.sasl.oauthbearer.method"),
        (
            {"client": {"sasl.mechanism": "oauthbearer", "enable.sasl.oauthbearer.unsecure.jwt": True}},
            "E1022",
            "would have no token that a broker can verify",
        ),
        (
            {"client": token(**{"sasl.oauthbearer.client.id": None})},
            "E1022",
            "`sasl.oauthbearer.client.id` is mandatory",
        ),
        ({"client": token(**{TOKENS_AT: None})}, "E1022", f"`{TOKENS_AT}` is mandatory"),
        ({"client": token(**{TOKENS_AT: "http://login.example.com/token"})}, "E1022", f"client.{TOKENS_AT}: is no"),
        ({"client": token(**{TOKENS_AT: "login.example.com/token"})}, "E1022", f"client.{TOKENS_AT}: is no"),
        ({"client": token(**{TOKENS_AT: "https://[/token"})}, "E1022", f"client.{TOKENS_AT}: is no"),
        ({"client": token(**{"sasl.oauthbearer.scop": "x"})}, "E1022", "No such configuration property"),
        ({"client": {"error_cb": print}}, "E1022", "connections.k.client.error_cb"),
        ({"client": {"error_cb": "print"}}, "E1022", "connections.k.client.error_cb: is not a setting of librdkafka"),
        ({"client": {"throttle_cb": "print"}}, "E1022", "connections.k.client.throttle_cb: is not a setting"),
        ({"client": {"default.topic.config": "x"}}, "E1022", "client.default.topic.config: is not a setting"),
        ({"client": {"session.timeout.ms": "0x10000"}}, "E1022", "session.timeout.ms: '0x10000' is not a whole number"),
        ({"client": {"max.poll.interval.ms": 400_000.5}}, "E1022", "client.max.poll.interval.ms: '400000.5' is not a"),
        ({"client": {7: "x"}}, "E1022", "connections.k.client.7"),
    ],
)
def test_options_of_a_connection(options: dict[str, object], code: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made(**options)
    assert raised.value.code == code
    assert text in str(raised.value)


def test_the_servers_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"E1021 connections\.k: 'bootstrap_servers' is missing"):
        KafkaConnection("k", ConnectionSettings(type="kafka"))


@pytest.mark.parametrize(
    ("servers", "client", "protocol"),
    [
        ("127.0.0.1:9,localhost:9", {}, None),
        ("[::1]:9", {}, None),
        ("PLAINTEXT://127.0.0.1:9", {}, None),
        ("127.0.0.1", {}, None),
        ("kafka.example.com:9", {}, "SSL"),
        ("127.0.0.1:9, 10.0.0.7:9", {}, "SSL"),
        ("kafka.example.com", {"ssl.ca.location": "/etc/ca.pem"}, "SSL"),
        ("kafka.example.com:9", {"sasl.mechanisms": "PLAIN", "sasl.username": "me", "sasl.password": "x"}, "SASL_SSL"),
        ("127.0.0.1:9", {"sasl.mechanisms": "PLAIN", "sasl.username": "me", "sasl.password": "x"}, "SASL_PLAINTEXT"),
        ("kafka.example.com:9", {"security.protocol": "PLAINTEXT"}, "PLAINTEXT"),
        ("127.0.0.1:9", {"security.protocol": "ssl", "ssl.ca.location": "/etc/ca.pem"}, "ssl"),
    ],
)
def test_brokers_on_other_machines_get_tls_unless_the_options_say_otherwise(
    servers: str, client: dict[str, object], protocol: str | None
) -> None:
    settings = made(bootstrap_servers=servers, client=client)._broker
    of_clients = [settings.common(), settings.of_consumer("g"), settings.of_producer("t", 1)]
    assert [one.get("security.protocol") for one in of_clients] == [protocol] * 3


@pytest.mark.parametrize("name", sorted(_OURS))
def test_what_guarantees_rest_on_is_set_by_the_connector(name: str) -> None:
    with pytest.raises(ConfigError, match=r"E1022 connections\.k\.client\..* is set by the connector"):
        made(client={name: "1"})


def test_a_password_is_not_repeated() -> None:
    secret = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "NONE", "sasl.password": "topsecret"}
    with pytest.raises(ConfigError) as raised:
        made(client=secret)
    assert "topsecret" not in str(raised.value)
    connection = made(client={"sasl.mechanisms": "PLAIN", "sasl.username": "me", "sasl.password": "topsecret"})
    assert "topsecret" not in repr(connection._broker)


@pytest.mark.parametrize(
    "client",
    [
        {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"},
        {
            "security.protocol": "SSL",
            "ssl.certificate.location": "/nowhere/c.pem",
            "ssl.key.location": "/nowhere/c.key",
        },
        {"security.protocol": "SSL", "ssl.certificate.location": "/nowhere/c.pem", "ssl.key.pem": "the key"},
        token(**{"https.ca.location": "/nowhere/ca.pem"}),
    ],
)
def test_a_file_that_only_the_engine_has_is_not_looked_for(client: dict[str, object]) -> None:
    made(client=client)


def test_tokens_come_over_tls_by_default_and_from_this_machine_also_without() -> None:
    far = made(bootstrap_servers="far:9", client=token(**{"security.protocol": None}))._broker
    assert far.client["security.protocol"] == "SASL_SSL"
    here = token(**{TOKENS_AT: "http://127.0.0.1:8080/token"})
    assert made(client=here)._broker.common()[TOKENS_AT] == "http://127.0.0.1:8080/token"


def test_secrets_of_tokens_and_keys_are_left_out_of_every_output() -> None:
    names = (
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
    )
    shown = without_secrets({"client": {**dict.fromkeys(names, "topsecret"), TOKENS_AT: "https://login.example.com"}})
    assert shown == {"client": {**dict.fromkeys(names, "***"), TOKENS_AT: "https://login.example.com"}}
    with pytest.raises(ConfigError) as raised:
        made(client=token(**{"sasl.oauthbearer.grant.type": "none"}))
    assert "topsecret" not in str(raised.value)


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("orders", {}, "E1215"),
        ("topic:", {}, "E1215"),
        ("queue:orders", {}, "E1216"),
        ("topic:a/b", {}, "E1216"),
        ("topic:Ünïcode", {}, "E1216"),
        ("topic:^orders(", {}, "E1216"),
        ("topic:orders.*", {}, "E1216"),
        ("queue:^orders.*", {}, "E1216"),
        ("topic:..", {}, "E1216"),
        ("topic:" + "x" * 250, {}, "E1216"),
        ("topic:orders", {"strat": "latest"}, "E1020"),
        ("topic:orders", {"start": "first"}, "E1022"),
        ("topic:orders", {"start": 17}, "E1022"),
        ("topic:orders", {"start": "2026-01-31T12:00:00"}, "E1022"),
        ("topic:orders", {"start": {}}, "E1022"),
        ("topic:orders", {"start": {0: -1}}, "E1022"),
        ("topic:orders", {"start": {"first": 7}}, "E1022"),
        ("topic:orders", {"start": {0: True}}, "E1022"),
        ("topic:^orders.*", {"start": {0: 7}}, "E1022"),
    ],
)
def test_receivers(destination: str, options: dict[str, object], code: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made().source(receiver(destination, **options))
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("queue:orders", {}, "E1216"),
        ("topic:a b", {}, "E1216"),
        ("topic:^orders.*", {}, "E1216"),
        ("topic:orders", {"transactional.id": "mine"}, "E1020"),
    ],
)
def test_senders(destination: str, options: dict[str, object], code: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made().sink(sender(destination, **options))
    assert raised.value.code == code


def test_a_pattern_matches_whole_names_and_no_internal_topic() -> None:
    topics = topics_of_receiver(receiver("topic:^(orders|__c).*"))
    assert topics.among(["orders", "__consumer_offsets", "my-orders", "orders-2", "__c"]) == ["orders", "orders-2"]
    assert topics_of_receiver(receiver("topic:orders.2")).pattern is None
    with pytest.raises(ConfigError, match=r"E1216 receivers\.r\.destination: '\^\[' is not a regular expression: "):
        made().source(receiver("topic:^["))


@pytest.mark.parametrize(("interval_ms", "discovers_s"), [(None, 30.0), ("200", 0.2), (-1, 30.0)])
def test_new_topics_are_looked_for_as_the_client_is_set(interval_ms: object, discovers_s: float) -> None:
    client = {} if interval_ms is None else {"topic.metadata.refresh.interval.ms": interval_ms}
    assert made(client=client)._broker.discovers_s == discovers_s


def test_a_rare_topic_that_was_made_again_is_noticed_beside_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, asked = 1000.0, []
    ids = {"busy": "1", "rare": "2"}

    class Asked:
        def topics(self, names: Collection[str]) -> dict[str, Topic]:
            asked.append(set(names))
            return {name: Topic(name, ids[name], 1, 1) for name in names}

    monkeypatch.setattr("connectors.kafka.source.time", SimpleNamespace(monotonic=lambda: now_s))
    source = made().source(receiver("topic:^.*"))
    assert isinstance(source, KafkaSource)
    monkeypatch.setattr(source, "_cluster", Asked())
    source._know(Asked().topics(["busy", "rare"]))
    asked.clear()
    source._check_topics(["busy", "rare"])
    ids["rare"] = "3"
    now_s += 10
    source._check_topics(["busy"])
    now_s += 0.05
    source._check_topics(["busy"])
    assert asked == [{"busy", "rare"}, {"busy"}]
    with pytest.raises(ConnectionLost, match="E7018 .*'rare' was deleted"):
        source._check_topics(["rare"])
    source._know({"busy": Topic("busy", "1", 1, 1)})
    assert set(source._looked_s) == {"busy"}


@pytest.mark.parametrize(
    ("metadata", "begins"),
    [
        ("", 7),
        ("a" * 22, 7),
        ("AXoAAAGcKk0=", 7),
        ("note of another program", 7),
        ("b" * 22, 3),
        ("+/_-" + "b" * 18, 3),
    ],
)
def test_only_the_id_of_another_topic_makes_an_offset_worthless(metadata: str, begins: int) -> None:
    """A group may have offsets of Kafka Streams or of another program, which leaves metadata of its own."""

    class Group:
        def committed(
            self, places: Collection[confluent.TopicPartition], _timeout_s: float
        ) -> list[confluent.TopicPartition]:
            return [confluent.TopicPartition(one.topic, one.partition, 7, metadata) for one in places]

        def get_watermark_offsets(self, _place: confluent.TopicPartition, _timeout_s: float) -> tuple[int, int]:
            return 3, 9

    offsets = GroupOffsets("receivers.r", made()._broker, "billing", {"orders": Topic("orders", "a" * 22, 1, 1)})
    (place,) = offsets.of(cast("confluent.Consumer", Group()), [confluent.TopicPartition("orders", 0)])
    assert (place.offset, place.metadata) == (begins, "a" * 22)


def test_where_a_receiver_begins() -> None:
    assert start_of(receiver()) == Start("earliest")
    assert start_of(receiver(start="committed")) == Start("committed")
    assert start_of(receiver(start="2026-01-31T12:00:00Z")) == Start("time", 1_769_860_800_000)
    assert start_of(receiver(start={0: 17, "1": 2**62 // 10})) == Start("offsets", 0, {0: 17, 1: 2**62 // 10})


def test_features_follow_the_settings_of_the_client() -> None:
    features = made(client={"session.timeout.ms": "6000", "max.poll.interval.ms": 60_000}).features
    assert (features.notices_loss_within_s, features.holds_for_s) == (6.0, 60.0)
    assert (features.order, features.shares, features.deduplicates_sends) == (Order.ANY, False, True)


def test_a_call_of_the_library_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_GRACE_S", 0.0)
    ended = threading.Event()
    with pytest.raises(confluent.KafkaException, match="a call was given up"):
        answer_within(0.01, ended.wait)
    ended.set()
    assert answer_within(60.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        answer_within(60.0, lambda: 1 / 0)
