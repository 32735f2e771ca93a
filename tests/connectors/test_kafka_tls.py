"""TLS, passwords and tokens at a real broker: what is accepted, and which error says why something is refused."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from connectors.kafka import KafkaConnection
from connectors.kafka.failures import Complaints
from connectors.kafka.oauth import NO_LOGIN
from correlator import Reliability
from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import bodies, take, tokens
from tests.kafka_server import PASSWORD, USER, KafkaServer
from tests.token_server import TokenServer, giving_tokens, token

pytestmark = pytest.mark.kafka

PATIENCES_S = (2, 30)
"""How long a connection that is refused waits: the library tries again and again for this time. The second time is for a
machine so busy that the reason did not come in the first."""
NO_ANSWER = ("E7001 ", "E7023 ")


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


def refusals(
    kafka: KafkaServer, listener: str, client: Mapping[str, str], patiences_s: Sequence[int] = PATIENCES_S
) -> list[str]:
    """The errors of a source and of a sink."""
    for patience_s in patiences_s:
        connection = kafka.connection_at(listener, client, timeout_s=patience_s)
        errors = []
        for part in (connection.source(receiver("t")), connection.sink(sender("t"))):
            with closing(part), pytest.raises(ConnectionLost) as raised:
                part.connect()
            errors.append(str(raised.value))
        if not any(one.startswith(NO_ANSWER) for one in errors):
            break
    return errors


def pass_messages(connection: KafkaConnection, topic: str) -> None:
    """Send a message and receive it."""
    with closing(connection.sink(sender(topic))) as sink, closing(connection.source(receiver(topic))) as source:
        sink.connect()
        assert sink.send([Outgoing(1, "life", f"topic:{topic}", Message(b"1"))]) == [None]
        source.connect()
        chunks = take(source, 1)
        source.acknowledge(tokens(chunks))
    assert bodies(chunks) == [b"1"]


def granted(kafka: KafkaServer) -> str:
    """A topic that `USER` may use."""
    topic = kafka.topic()
    operations = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
    kafka.grant(ResourceType.TOPIC, topic, *operations)
    kafka.grant(ResourceType.GROUP, f"of-{topic}", AclOperation.READ)
    kafka.grant(ResourceType.GROUP, "correlator-", AclOperation.READ, AclOperation.DESCRIBE, is_prefix=True)
    kafka.grant(ResourceType.TRANSACTIONAL_ID, "correlator-", AclOperation.WRITE, AclOperation.DESCRIBE, is_prefix=True)
    return topic


def test_messages_pass_with_tls(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    connection = kafka.connection_at("SSL", trusting(kafka))
    pass_messages(connection, topic)
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
    errors = refusals(kafka, listener, client)
    text = re.escape(f": no TLS with 127.0.0.1:{kafka.ports[listener]}: {why}.")
    assert all(re.fullmatch(rf"E7016 (receivers\.of-t|senders\.s){text}", one) for one in errors), errors


def test_an_authority_that_nobody_knows_is_refused(kafka: KafkaServer) -> None:
    errors = refusals(kafka, "SSL", {"security.protocol": "SSL"})
    assert all(one.startswith("E7016 ") and "unable to get local issuer certificate" in one for one in errors), errors


def test_a_missing_file_of_the_authority_is_told(kafka: KafkaServer) -> None:
    errors = refusals(kafka, "SSL", trusting(kafka, ssl_ca_location="/nowhere/ca.pem"))
    told = ": the files for TLS cannot be used: "
    assert all(one.startswith("E7016 ") and told in one and "ssl.ca.location" in one for one in errors), errors


def test_a_broker_without_tls_is_told(kafka: KafkaServer) -> None:
    errors = refusals(kafka, "PLAINTEXT", trusting(kafka))
    told, todo = "SSL connection closed by peer", "If the brokers have no TLS, set security.protocol below 'client'"
    assert all(one.startswith("E7016 ") and told in one and todo in one for one in errors), errors


def test_a_broker_with_tls_is_suspected_when_it_does_not_answer(kafka: KafkaServer) -> None:
    errors = refusals(kafka, "SSL", {}, PATIENCES_S[:1])
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
    errors = refusals(kafka, "SASL_SSL", wrong)
    assert all(one.startswith("E7002 ") and "Authentication failed" in one for one in errors), errors
    assert not any("not-the-password" in one for one in errors)


# --- certificates of clients ---

KEY_PASSWORD = "the-password-of-a-key"


def with_certificate(kafka: KafkaServer, key: Path, **settings: str) -> Mapping[str, str]:
    """Settings of a client that has a certificate, which the authority of the broker has signed."""
    certificate = str(kafka.directory / "another.pem")
    return trusting(kafka, ssl_certificate_location=certificate, ssl_key_location=str(key), **settings)


@pytest.fixture
def encrypted_key(kafka: KafkaServer, tmp_path: Path) -> Path:
    """The key of a client, which only a password opens."""
    key = tmp_path / "encrypted.key"
    command = ["openssl", "pkey", "-in", str(kafka.directory / "another.key"), "-aes256", "-out", str(key)]
    subprocess.run([*command, "-passout", f"pass:{KEY_PASSWORD}"], check=True)
    return key


def test_messages_pass_with_the_certificate_of_a_client(kafka: KafkaServer, encrypted_key: Path) -> None:
    client = with_certificate(kafka, encrypted_key, ssl_key_password=KEY_PASSWORD)
    connection = kafka.connection_at("MUTUAL", client)
    topic = granted(kafka)
    pass_messages(connection, topic)
    (finding,) = connection.examine([receiver(topic)], [])
    assert finding.code == "W7140"  # the user of the certificate may not see the settings of the brokers


def test_a_client_without_a_certificate_is_refused(kafka: KafkaServer) -> None:
    errors = refusals(kafka, "MUTUAL", trusting(kafka))
    todo = "If the brokers want a certificate of the client, set ssl.certificate.location and ssl.key.location"
    assert all(one.startswith("E7016 ") and "bad certificate" in one and todo in one for one in errors), errors


def test_a_certificate_that_the_broker_does_not_trust_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    key, certificate = tmp_path / "own.key", tmp_path / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*command, "-subj", "/CN=test", "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    client = {**with_certificate(kafka, key), "ssl.certificate.location": str(certificate)}
    errors = refusals(kafka, "MUTUAL", client)
    assert all(one.startswith("E7016 ") for one in errors), errors


def test_a_key_that_cannot_be_used_is_told_without_its_password(kafka: KafkaServer, encrypted_key: Path) -> None:
    for password in ({}, {"ssl_key_password": "not-the-password"}):
        errors = refusals(kafka, "MUTUAL", with_certificate(kafka, encrypted_key, **password))
        told = ": the files for TLS cannot be used: "
        assert all(one.startswith("E7016 ") and told in one and "ssl.key.location" in one for one in errors), errors
        assert not any("not-the-password" in one for one in errors)


# --- tokens ---


@pytest.fixture
def tokens_of() -> Iterator[TokenServer]:
    """A server that gives tokens."""
    with giving_tokens() as server:
        yield server


def with_token(kafka: KafkaServer, server: TokenServer, **settings: str) -> Mapping[str, str]:
    """Settings of a client that logs in with a token, over TLS."""
    return {**trusting(kafka, security_protocol="SASL_SSL", **settings), **server.settings()}


def test_messages_pass_with_a_token(kafka: KafkaServer, tokens_of: TokenServer) -> None:
    tokens_of.token = token(kafka.signing_key)
    connection = kafka.connection_at("TOKEN", with_token(kafka, tokens_of, sasl_oauthbearer_scope="orders"))
    assert tokens_of.scopes == []  # to check the settings, nobody is asked
    pass_messages(connection, granted(kafka))
    assert set(tokens_of.scopes) == {"orders"}


def test_a_token_that_the_broker_cannot_verify_is_refused(kafka: KafkaServer, tokens_of: TokenServer) -> None:
    tokens_of.token = token(kafka.directory / "another.key")
    errors = refusals(kafka, "TOKEN", with_token(kafka, tokens_of))
    assert all(one.startswith("E7002 ") and "invalid_token" in one for one in errors), errors


def test_a_server_that_gives_no_token_is_told(kafka: KafkaServer, tokens_of: TokenServer) -> None:
    client = with_token(kafka, tokens_of)
    errors = refusals(kafka, "TOKEN", client)
    assert all(one.startswith("E7002 ") and f"{NO_LOGIN}: " in one and "no such client" in one for one in errors)
    (finding,) = kafka.connection_at("TOKEN", client, timeout_s=PATIENCES_S[-1]).examine([], [sender("t")])
    assert (finding.code, "no such client" in str(finding)) == ("E7002", True)
    assert not any(tokens_of.settings()["sasl.oauthbearer.client.secret"] in one for one in errors)


def test_a_token_that_cannot_be_renewed_now_ends_no_connection() -> None:
    complaints = Complaints()
    complaints(confluent.KafkaError(confluent.KafkaError._AUTHENTICATION, f"{NO_LOGIN}: no answer"))
    assert complaints.cause is not None
    assert complaints.serious is None
    complaints(confluent.KafkaError(confluent.KafkaError._AUTHENTICATION, "the broker refuses the token"))
    assert complaints.serious is not None
