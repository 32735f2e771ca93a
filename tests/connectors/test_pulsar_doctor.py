"""`correlator doctor` against a real broker: its findings about namespaces and topics, and that it changes nothing."""

import pytest

from correlator import Reliability
from correlator.settings import ReceiverSettings, SenderSettings
from tests.pulsar_server import PulsarServer
from tests.servers import free_port

pytestmark = pytest.mark.pulsar

RELIABLE, CARELESS = Reliability.AT_LEAST_ONCE, Reliability.BEST_EFFORT
EVICTS = {"limitSize": 1_000_000, "limitTime": -1, "policy": "consumer_backlog_eviction"}
HOLDS = {**EVICTS, "policy": "producer_request_hold"}


def receiver(namespace: str, name: str = "orders", reliability: Reliability = RELIABLE) -> ReceiverSettings:
    place = f"topic:persistent://{namespace}/{name}"
    return ReceiverSettings(id="in", connection="c", destination=place, reliability=reliability)


def sender(namespace: str, name: str = "bills", reliability: Reliability = RELIABLE) -> SenderSettings:
    place = f"topic:persistent://{namespace}/{name}"
    return SenderSettings(id="out", connection="c", destination=place, reliability=reliability)


def found(pulsar: PulsarServer, *parts: ReceiverSettings | SenderSettings, **options: object) -> list[tuple[str, str]]:
    """The code and the text of each finding."""
    receivers = [part for part in parts if isinstance(part, ReceiverSettings)]
    senders = [part for part in parts if isinstance(part, SenderSettings)]
    web = {"web_service_url": f"http://127.0.0.1:{pulsar.web_port}"}
    connection = pulsar.connection(**{**web, **options})
    try:
        return [(one.code, str(one)) for one in connection.examine(receivers, senders)]
    finally:
        connection.close()


def test_nothing_is_wrong_and_nothing_is_made(pulsar: PulsarServer) -> None:
    namespace = pulsar.namespace(deduplication=True)
    assert found(pulsar, receiver(namespace), sender(namespace), deduplication=True) == []
    assert pulsar.request("GET", f"persistent/{namespace}") == []
    assert pulsar.request("GET", f"persistent/{namespace}/partitioned") == []


def test_a_broker_that_is_down(pulsar: PulsarServer) -> None:
    address = f"127.0.0.1:{free_port()}"
    ((code, text),) = found(pulsar, receiver("public/default"), service_url=f"pulsar://{address}")
    assert (code, f"cannot connect to {address}" in text) == ("E7001", True)


def test_a_rest_interface_that_is_down(pulsar: PulsarServer) -> None:
    ((code, text),) = found(pulsar, web_service_url=f"http://127.0.0.1:{free_port()}")
    assert (code, "Look at web_service_url" in text) == ("E7001", True)


def test_without_rest_only_the_connection_is_examined(pulsar: PulsarServer) -> None:
    connection = pulsar.connection()
    (finding,) = connection.examine([receiver("public/none")], [])
    connection.close()
    assert finding.code == "W7161"
    assert "Set web_service_url" in str(finding)


def test_a_namespace_that_is_not_there(pulsar: PulsarServer) -> None:
    ((code, text),) = found(pulsar, receiver("public/nowhere"), sender("public/nowhere"))
    assert (code, "there is no namespace 'public/nowhere'" in text) == ("E7010", True)


def test_repeats_that_the_namespace_would_store(pulsar: PulsarServer) -> None:
    namespace = pulsar.namespace()
    ((code, text),) = found(pulsar, sender(namespace), receiver(namespace), deduplication=True)
    assert code == "W7160"
    assert text.startswith(f"W7160 senders.out: {namespace} stores repeats, although the connection has")
    assert text.endswith(f"pulsar-admin namespaces set-deduplication --enable {namespace}.")
    assert found(pulsar, sender(namespace)) == []
    assert found(pulsar, sender(namespace, reliability=CARELESS), deduplication=True) == []


@pytest.mark.parametrize(
    ("method", "path", "value", "findings"),
    [
        ("POST", "messageTTL", 60, {("W7034", "in", "acknowledged for 60 s")}),
        ("POST", "subscriptionExpirationTime", 5, {("W7034", "in", "without a consumer for 5 min")}),
        ("POST", "backlogQuota", EVICTS, {("W7033", "in", "drop the oldest"), ("W7033", "out", "drop the oldest")}),
        ("POST", "backlogQuota", HOLDS, set()),
        ("POST", "messageTTL", 0, set()),
    ],
)
def test_policies_that_lose_messages(pulsar: PulsarServer, method, path, value, findings) -> None:
    namespace = pulsar.namespace()
    pulsar.request(method, f"namespaces/{namespace}/{path}", value)
    texts = found(pulsar, receiver(namespace), sender(namespace))
    told = {(code, where, what) for code, where, what in findings if any(_is(one, code, where, what) for one in texts)}
    assert (told, len(texts)) == (findings, len(findings))
    assert found(pulsar, receiver(namespace, reliability=CARELESS), sender(namespace, reliability=CARELESS)) == []


def _is(finding: tuple[str, str], code: str, where: str, what: str) -> bool:
    return finding[0] == code and f".{where}: " in finding[1] and what in finding[1]


def test_topics_that_nobody_makes(pulsar: PulsarServer) -> None:
    namespace = pulsar.namespace()
    pulsar.request("POST", f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
    pulsar.request("PUT", f"persistent/{namespace}/orders")
    pulsar.request("PUT", f"persistent/{namespace}/parted/partitions", 3)
    asked = [
        receiver(namespace),
        sender(namespace, "parted"),
        receiver(namespace, "parted-partition-1"),
        ReceiverSettings(id="any", connection="c", destination=f"topic:regex:persistent://{namespace}/no-.*"),
    ]
    assert found(pulsar, *asked) == []
    texts = found(pulsar, receiver(namespace, "other"), sender(namespace, "none"))
    assert [code for code, _ in texts] == ["E7010", "E7010"]
    assert f"receivers.in: there is no topic 'persistent://{namespace}/other', and the brokers make none" in texts[0][1]
    assert "senders.out" in texts[1][1]
