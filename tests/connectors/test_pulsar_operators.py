"""Changes of topics in use by operators: quotas, unloading, going back to the beginning (bad inputs 179 and 184)."""

import threading
import time

import pytest

from correlator import Engine, Message, Monitor, Reliability, on
from correlator.errors import ConnectionLost
from correlator.events import Headers, Outgoing
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from tests.connectors.rabbit import LONG_S, opened
from tests.connectors.test_pulsar_faults import messages_of, numbers, outgoing, received, sender, sent
from tests.pulsar_server import PulsarServer

pytestmark = pytest.mark.pulsar


@pytest.fixture
def namespace(pulsar: PulsarServer):
    """A namespace whose broker drops repeats."""
    return pulsar.namespace(deduplication=True)


@pytest.fixture
def connection(pulsar: PulsarServer, namespace):
    """A connection to that namespace."""
    return pulsar.connection(namespace=namespace, deduplication=True, timeout_s=3)


@pytest.mark.parametrize("policy", ["producer_exception", "producer_request_hold"])
def test_179_a_quota_is_waited_for_and_nothing_is_lost_or_doubled(pulsar: PulsarServer, namespace, connection, policy):
    with opened(connection.sink(sender("queue:q"))) as sink:
        assert not any(sink.send(outgoing("queue:q", 10)))
        limit = {"limitSize": 1, "limitTime": -1, "policy": policy}
        pulsar.request("POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage", limit)
        number = refused_at(sink, 11)
        pulsar.request("DELETE", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage")
        assert not any(sent(sink, outgoing("queue:q", 10, first=number)))
    assert received(connection, number + 9) == numbers(number + 9)


def refused_at(sink, number):
    """The first number that the broker refuses because of the quota."""
    deadline = time.monotonic() + LONG_S
    while True:
        assert time.monotonic() < deadline
        try:
            assert not any(sink.send(outgoing("queue:q", 1, first=number)))
            number += 1
        except ConnectionLost as error:
            if quota_is_told(error, sink):
                return number


def quota_is_told(error, sink):
    """Whether the error is about the quota, at once or when the sink connects again."""
    try:
        sink.connect()
    except ConnectionLost as another:
        error = another
    return error.code == "E7026"


class Counting(Monitor, persistent=True):
    """Counts its messages, and sends each one on with its number."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.count += 1
        self.send(Message(message.body, {"number": self.count}), to="out")


def engine(connection, tmp_path) -> Engine:
    """An engine from queue `q` to queue `out`."""
    mode = Reliability.EXACTLY_ONCE
    settings = EngineSettings(
        name="operators",
        store=f"sqlite:///{tmp_path}/operators.db",
        receivers=(ReceiverSettings(id="in", connection="pulsar", destination="queue:q", reliability=mode),),
        senders=(SenderSettings(id="out", connection="pulsar", destination="queue:out", reliability=mode),),
        monitors=(MonitorSettings(type=f"{__name__}:Counting"),),
    )
    return Engine(settings, connections={"pulsar": connection})


def forwarded(connection, count):
    """The bodies and numbers of the messages in queue `out`; it must hold exactly `count`."""
    messages = messages_of(connection, "queue:out", count, LONG_S)
    return [(message.body, message.properties["number"]) for message in messages]


def of_life(first, count, priorities=1):
    """Messages with ids as those of an EXACTLY_ONCE sender, with `priorities` priorities in turn."""
    return [
        Outgoing(number, "life", "queue:q", of_number(number, priorities)) for number in range(first, first + count)
    ]


def of_number(number, priorities):
    properties = {"uniqueMessageId": f"{number}:life"}
    return Message(b"%d" % number, properties, headers=Headers(priority=number % priorities))


def test_179_topics_that_are_unloaded_in_the_middle_of_traffic(pulsar: PulsarServer, namespace, connection, tmp_path):
    with opened(connection.sink(sender("queue:q"))) as sink, engine(connection, tmp_path):

        def send(first):
            for one in range(first, first + 500, 100):
                assert not any(sent(sink, of_life(one, 100)))

        for first in range(1, 3000, 500):
            thread = threading.Thread(target=send, args=[first])
            thread.start()
            pulsar.request("PUT", f"namespaces/{namespace}/unload")
            thread.join(LONG_S)
        assert forwarded(connection, 3000) == list(zip(numbers(3000), range(1, 3001), strict=True))


def test_each_message_of_each_priority_is_counted_once_although_topics_are_unloaded(pulsar, namespace, tmp_path):
    connection = pulsar.connection(namespace=namespace, deduplication=True, priority_mapping="linear")
    pulsar.request("PUT", f"{pulsar.path('q', namespace)}/partitions", 5)
    with opened(connection.sink(sender("queue:q"))) as sink, engine(connection, tmp_path):
        for first in range(1, 2000, 500):
            assert not any(sent(sink, of_life(first, 500, priorities=10)))
            pulsar.request("PUT", f"namespaces/{namespace}/unload")
        there = forwarded(connection, 2000)
    assert sorted(int(body) for body, _ in there) == list(range(1, 2001))
    assert sorted(number for _, number in there) == list(range(1, 2001))


def test_184_a_backlog_that_is_given_once_more_is_counted_once(pulsar: PulsarServer, namespace, connection, tmp_path):
    with opened(connection.sink(sender("queue:q"))) as sink, engine(connection, tmp_path) as running:
        assert not any(sent(sink, of_life(1, 500)))
        once = list(zip(numbers(500), range(1, 501), strict=True))
        assert forwarded(connection, 500) == once
        cursor = f"{pulsar.path('q', namespace)}/subscription/jms-queue/resetcursor"
        pulsar.request("POST", f"{cursor}/0")
        deadline = time.monotonic() + LONG_S
        while running.status().receivers["in"][1].duplicates < 500:
            assert time.monotonic() < deadline
        assert not any(sent(sink, of_life(501, 1)))
        assert forwarded(connection, 1) == [(b"501", 501)]
