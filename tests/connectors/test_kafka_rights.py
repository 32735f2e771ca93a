"""A user of Kafka logs in with a password, and has the rights that docs/kafka.md lists, and no others."""

from contextlib import closing

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from connectors.kafka import KafkaConnection
from correlator import Reliability
from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import bodies, take, tokens
from tests.kafka_server import KafkaServer
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

TOPIC, GROUP, TRANSACTIONS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
DESCRIBE_CONFIGS = AclOperation.DESCRIBE_CONFIGS


def receiver(topic: str) -> ReceiverSettings:
    return ReceiverSettings(id=f"of-{topic}", connection="k", destination=f"topic:{topic}")


def sender(topic: str) -> SenderSettings:
    return SenderSettings(id="s", connection="k", destination=f"topic:{topic}", reliability=Reliability.EXACTLY_ONCE)


def send(connection: KafkaConnection, topic: str) -> None:
    """Send a message."""
    with closing(connection.sink(sender(topic))) as sink:
        sink.connect()
        assert sink.send([Outgoing(1, f"life of {topic}", f"topic:{topic}", Message(b"1"))]) == [None]


def receive(connection: KafkaConnection, topic: str) -> list[bytes]:
    """Receive a message, and acknowledge it."""
    with closing(connection.source(receiver(topic))) as source:
        source.connect()
        chunks = take(source, 1)
        source.acknowledge(tokens(chunks))
    return bodies(chunks)


def test_the_rights_of_the_page_are_enough(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.grant(TOPIC, topic, READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS)
    kafka.grant(TRANSACTIONS, "correlator-", WRITE, DESCRIBE, is_prefix=True)
    kafka.grant(GROUP, "correlator-", READ, DESCRIBE, is_prefix=True)
    send(kafka.connection_of_user(), topic)
    kafka.grant(GROUP, f"of-{topic}", READ)
    assert receive(kafka.connection_of_user(), topic) == [b"1"]
    assert kafka.offsets(f"of-{topic}")[topic, 0] > 0


def test_a_missing_right_is_told_and_waited_for(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, {"value": b"1"})
    kafka.grant(TOPIC, topic, READ, DESCRIBE)
    with pytest.raises(ConnectionLost, match=r"E7007 .* Group authorization failed"):
        receive(kafka.connection_of_user(), topic)
    kafka.grant(GROUP, f"of-{topic}", READ)
    assert receive(kafka.connection_of_user(), topic) == [b"1"]


def test_a_wrong_password_is_told_and_not_repeated(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    wrong = kafka.connection_of_user("not-the-password", timeout_s=2)
    for part in (wrong.source(receiver(topic)), wrong.sink(sender(topic))):
        with closing(part), pytest.raises(ConnectionLost, match=r"E7002 .* Check the settings below 'client'") as error:
            part.connect()
        assert "not-the-password" not in str(error.value)


def test_the_doctor_says_what_it_may_not_see(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.grant(TOPIC, topic, READ, DESCRIBE, DESCRIBE_CONFIGS)

    def found() -> list[tuple[str, str]]:
        examined = kafka.connection_of_user().examine([receiver(topic)], [sender(topic)])
        return [(one.code, one.where) for one in examined]

    unseen = [("W7140", "connections.kafka"), ("W7147", "senders.s")]
    assert found() == unseen
    kafka.grant(ResourceType.BROKER, "kafka-cluster", DESCRIBE_CONFIGS)
    assert found() == [("W7147", "senders.s")]
    kafka.revoke(ResourceType.BROKER, "kafka-cluster")  # other tests use this user, too
    wait_until(lambda: found() == unseen)
