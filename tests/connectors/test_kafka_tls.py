"""TLS and passwords at a real broker: what is accepted, and which error says why something is refused."""

import re
from collections.abc import Mapping
from contextlib import closing

import pytest

from connectors.kafka import KafkaConnection
from correlator import Reliability
from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import bodies, take, tokens
from tests.kafka_server import PASSWORD, USER, KafkaServer

pytestmark = pytest.mark.kafka

SHORT_S = 2
"""How long a connection that is refused waits: the library tries again and again for this time."""


def trusting(kafka: KafkaServer, **settings: str) -> Mapping[str, str]:
    """Settings of a client that trusts the authority of the broker; underscores in names stand for dots."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return {"security.protocol": "SSL", "ssl.ca.location": str(kafka.authority), **given}


def with_password(kafka: KafkaServer, mechanism: str, user: str, password: str) -> Mapping[str, str]:
    """Settings of a client that logs in over TLS."""
    return trusting(
        kafka, security_protocol="SASL_SSL", sasl_mechanisms=mechanism, sasl_username=user, sasl_password=password
    )


def receiver(topic: str) -> ReceiverSettings:
    return ReceiverSettings(id=f"of-{topic}", connection="k", destination=f"topic:{topic}")


def sender(topic: str) -> SenderSettings:
    return SenderSettings(id="s", connection="k", destination=f"topic:{topic}", reliability=Reliability.EXACTLY_ONCE)


def refusals(connection: KafkaConnection) -> list[str]:
    """The errors of a source and of a sink."""
    errors = []
    for part in (connection.source(receiver("t")), connection.sink(sender("t"))):
        with closing(part), pytest.raises(ConnectionLost) as raised:
            part.connect()
        errors.append(str(raised.value))
    return errors


def test_messages_pass_with_tls(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    connection = kafka.connection_at("SSL", trusting(kafka))
    with closing(connection.sink(sender(topic))) as sink, closing(connection.source(receiver(topic))) as source:
        sink.connect()
        assert sink.send([Outgoing(1, "life", f"topic:{topic}", Message(b"1"))]) == [None]
        source.connect()
        chunks = take(source, 1)
        source.acknowledge(tokens(chunks))
    assert bodies(chunks) == [b"1"]
    assert connection.examine([receiver(topic)], []) == kafka.connection().examine([receiver(topic)], [])


@pytest.mark.parametrize(
    ("listener", "authority", "why"),
    [
        ("SSL", "another.pem", "unable to get local issuer certificate"),
        ("EXPIRED", "ca.pem", "certificate has expired"),
        ("ANOTHER", "ca.pem", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
def test_a_wrong_certificate_is_refused(kafka: KafkaServer, listener: str, authority: str, why: str) -> None:
    trusted = str(kafka.directory / authority)
    client = trusting(kafka, ssl_ca_location=trusted)
    errors = refusals(kafka.connection_at(listener, client, timeout_s=SHORT_S))
    text = re.escape(f": no TLS with 127.0.0.1:{kafka.ports[listener]}: {why}.")
    assert all(re.fullmatch(rf"E7016 (receivers\.of-t|senders\.s){text}", one) for one in errors), errors


def test_an_authority_that_nobody_knows_is_refused(kafka: KafkaServer) -> None:
    errors = refusals(kafka.connection_at("SSL", {"security.protocol": "SSL"}, timeout_s=SHORT_S))
    assert all(one.startswith("E7016 ") and "unable to get local issuer certificate" in one for one in errors), errors


def test_a_missing_file_of_the_authority_is_told(kafka: KafkaServer) -> None:
    errors = refusals(kafka.connection_at("SSL", trusting(kafka, ssl_ca_location="/nowhere/ca.pem")))
    told = ": the files for TLS cannot be used: "
    assert all(one.startswith("E7016 ") and told in one and "ssl.ca.location" in one for one in errors), errors


def test_a_broker_without_tls_is_told(kafka: KafkaServer) -> None:
    errors = refusals(kafka.connection_at("PLAINTEXT", trusting(kafka), timeout_s=SHORT_S))
    told, todo = "SSL connection closed by peer", "If the brokers have no TLS, set security.protocol below 'client'"
    assert all(one.startswith("E7016 ") and told in one and todo in one for one in errors), errors


def test_a_broker_with_tls_is_suspected_when_it_does_not_answer(kafka: KafkaServer) -> None:
    errors = refusals(kafka.connection_at("SSL", {}, timeout_s=SHORT_S))
    todo = "If the brokers use TLS, set security.protocol below 'client'"
    assert all(one.startswith("E7023 ") and todo in one for one in errors), errors


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_password_over_tls(kafka: KafkaServer, mechanism: str) -> None:
    kafka.let_log_in(USER, PASSWORD)
    logged_in = kafka.connection_at("SASL_SSL", with_password(kafka, mechanism, USER, PASSWORD))
    for part in (logged_in.source(receiver("t")), logged_in.sink(sender("t"))):
        with closing(part), pytest.raises(ConnectionLost, match=r"E7007 .*: Broker: Topic authorization failed"):
            part.connect()  # the user is known, and has no right
    wrong = with_password(kafka, mechanism, USER, "not-the-password")
    errors = refusals(kafka.connection_at("SASL_SSL", wrong, timeout_s=SHORT_S))
    assert all(one.startswith("E7002 ") and "Authentication failed" in one for one in errors), errors
    assert not any("not-the-password" in one for one in errors)
