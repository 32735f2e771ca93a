"""A real broker, and clients, that are killed, frozen or cut off: which messages come again, and that none is lost."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from correlator.testing.network import FaultProxy
from tests.connectors.embedded import wait_until
from tests.connectors.rabbit import LONG_S, drained, lose_again_and_again, lost, lost_by, opened
from tests.pulsar_server import PulsarServer
from tests.servers import START_TIMEOUT_S

pytestmark = pytest.mark.pulsar


def receiver(destination, name="r", **settings):
    return ReceiverSettings(id=name, connection="pulsar", destination=destination, **settings)


def sender(destination):
    return SenderSettings(id="s", connection="pulsar", destination=destination)


def outgoing(destination, count, first=1, source="life"):
    return [Outgoing(number, source, destination, Message(b"%d" % number)) for number in range(first, first + count)]


def numbers(count):
    return [b"%d" % number for number in range(1, count + 1)]


@pytest.fixture
def deduplicating(pulsar: PulsarServer):
    """Options of a connection to a new namespace whose broker drops repeats."""
    return {"namespace": pulsar.namespace(deduplication=True), "deduplication": True}


def connected(end):
    """Connect, and try again after each lost connection, as an engine does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return end.connect()
        except ConnectionLost:
            assert time.monotonic() < deadline


def sent(sink, batch):
    """Send the batch, again after each lost connection; return the results."""
    while True:
        try:
            return sink.send(batch)
        except ConnectionLost:
            connected(sink)


def received(connection, count):
    """The bodies of all messages in the queue `q`, in order; waits for at least `count`."""
    return [message.body for message in messages_of(connection, "queue:q", count)]


def messages_of(connection, queue, count, patience_s=START_TIMEOUT_S):
    """All messages in a queue, in order; waits for at least `count`."""
    with opened(connection.source(receiver(queue))) as source:
        chunks = []
        deadline = time.monotonic() + patience_s
        while chunks[-1:] != [()] or sum(map(len, chunks)) < count:
            assert time.monotonic() < deadline, f"{sum(map(len, chunks))} of {count}"
            chunk = source.receive(1000, 1.0)
            chunks.append(chunk.messages)
            source.acknowledge(chunk.tokens)
    return [message for messages in chunks for message in messages]


@contextlib.contextmanager
def worker(options, destination, count):
    """The worker process, within the block."""
    command = [sys.executable, "-m", "tests.connectors.pulsar_worker", json.dumps(options), destination, str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(LONG_S)
        process.stdout.close()


# --- repeats ---


@pytest.mark.kill9
@pytest.mark.parametrize("deduplication", [True, False])
def test_what_a_killed_process_has_sent_is_stored_once(pulsar: PulsarServer, deduplication):
    """The control: without deduplication by the broker the topic holds repeats."""
    options = {"namespace": pulsar.namespace(deduplication=deduplication), "deduplication": deduplication}
    with worker({**pulsar.options, **options}, "queue:q", 50) as process:
        assert process.stdout.readline() == "confirmed\n"
    connection = pulsar.connection(**options)
    with opened(connection.sink(sender("queue:q"))) as sink:
        assert not any(sent(sink, outgoing("queue:q", 40, first=31)))
    there = received(connection, 70)
    assert set(there) == set(numbers(70))
    assert (there == numbers(70)) is deduplication


@pytest.mark.kill9
def test_a_process_is_killed_in_the_middle_of_a_batch(pulsar: PulsarServer, deduplicating):
    with worker({**pulsar.options, **deduplicating}, "queue:q", 5000) as process:
        deadline = time.monotonic() + LONG_S
        while not stored(pulsar, deduplicating["namespace"]):
            assert time.monotonic() < deadline
        process.kill()
        process.wait(LONG_S)
    connection = pulsar.connection(**deduplicating)
    with opened(connection.sink(sender("queue:q"))) as sink:
        assert not any(sent(sink, outgoing("queue:q", 5000)))
    assert received(connection, 5000) == numbers(5000)


def stored(pulsar, namespace):
    """Whether the queue `q` has a message; before the first sink there is no queue."""
    with contextlib.suppress(OSError):
        return pulsar.stats("q", namespace)["msgInCounter"] > 0
    return False


def test_t36_179_the_name_of_another_producer_is_busy_until_it_is_closed(pulsar: PulsarServer, deduplicating):
    connection = pulsar.connection(**deduplicating)
    with opened(connection.sink(sender("queue:q"))) as other, opened(connection.sink(sender("queue:q"))) as sink:
        assert not any(other.send(outgoing("queue:q", 5)))
        error = lost(lambda: sink.send(outgoing("queue:q", 7)))
        assert error.code == "E7009"
        assert "a producer of the same name is still there" in str(error)
        other.close()
        assert not any(sent(sink, outgoing("queue:q", 7)))
    assert received(connection, 7) == numbers(7)


@pytest.mark.kill9
def test_t36_the_name_of_a_process_that_hangs_is_waited_for(pulsar: PulsarServer, deduplicating):
    """The broker gives up the producer of a client that does not answer; until then the name is busy."""
    connection = pulsar.connection(**deduplicating)
    with worker({**pulsar.options, **deduplicating}, "queue:q", 5) as process:
        assert process.stdout.readline() == "confirmed\n"
        process.send_signal(signal.SIGSTOP)
        with opened(connection.sink(sender("queue:q"))) as sink:
            assert not any(sent(sink, outgoing("queue:q", 7)))
    assert received(connection, 7) == numbers(7)


# --- the broker is killed ---


@pytest.mark.kill9
def test_the_broker_is_killed_while_messages_are_sent_received_and_acknowledged(pulsar: PulsarServer, deduplicating):
    """Nothing is lost and nothing is stored twice, as the second subscription shows; acknowledgements are forgotten."""
    connection = pulsar.connection(**deduplicating)
    sink, source = connection.sink(sender("queue:q")), connection.source(receiver("queue:q"))
    everything = connection.source(receiver("topic:q", "everything", max_batch_size=5000))
    for end in (sink, source, everything):
        end.connect()
    everything.close()
    batches = [outgoing("queue:q", 100, first) for first in range(1, 4000, 100)]
    thread = threading.Thread(target=lambda: [sent(sink, batch) for batch in batches])
    thread.start()
    with acknowledgements_that_are_forgotten(pulsar) as acknowledge:
        got = taken(source, 1000)
        acknowledge()
        pulsar.restart()
    connected(source)
    deadline = time.monotonic() + START_TIMEOUT_S
    while len(got) < 4000:
        assert time.monotonic() < deadline, f"{len(got)} of 4000"
        got |= taken(source, 100)
    thread.join(START_TIMEOUT_S)
    source.close()
    sink.close()
    connected(everything)
    assert bodies(take(everything, 5000)) == numbers(4000)
    everything.close()


def taken(source, count):
    """The bodies of `count` messages, received and acknowledged; fewer if no more come."""
    got = set()
    while len(got) < count:
        try:
            chunk = source.receive(100, 1.0)
            if not chunk.messages:
                break
            source.acknowledge(chunk.tokens)
        except ConnectionLost:
            connected(source)
            continue
        got |= set(bodies([chunk]))
    return got


@contextlib.contextmanager
def acknowledgements_that_are_forgotten(pulsar):
    """Half of a queue is acknowledged at the call; the broker is killed at once, within the block: it may come again."""
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    with opened(connection.sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, 20)))
    with opened(connection.source(receiver(destination))) as source:
        done = take(source, 10)
        yield lambda: source.acknowledge(tokens(done))
        assert lost_by(source).code == "E7001"
        connected(source)
        again = drained(source, 10)
    assert [body for body in again if body not in bodies(done)] == numbers(20)[10:]
    assert len(again) == len(set(again))


@pytest.mark.kill9
def test_a_token_of_an_earlier_connection_acknowledges_nothing(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    with opened(connection.sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, 3)))
    with opened(connection.source(receiver(destination))) as source:
        stale = tokens(take(source, 3))
        source.connect()
        source.acknowledge(stale)
        assert bodies(take(source, 3)) == numbers(3)
    with opened(connection.source(receiver(destination))) as source:
        assert bodies(take(source, 3)) == numbers(3)


# --- the network, and brokers that are none ---


def test_a_connection_that_was_lost_and_made_again_meanwhile_is_noticed(pulsar: PulsarServer):
    """The client reconnects by itself. Unacknowledged messages come a second time."""
    destination = f"queue:{pulsar.name()}"
    with opened(pulsar.connection().sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, 5)))
    with FaultProxy(pulsar.port) as proxy:
        through = pulsar.connection(service_url=f"pulsar://127.0.0.1:{proxy.port}")
        with opened(through.source(receiver(destination))) as source:
            assert bodies(take(source, 5)) == numbers(5)
            consumer = source._consumer
            proxy.cut()
            deadline = time.monotonic() + PATIENCE_S
            while consumer.is_connected():
                assert time.monotonic() < deadline
            while not consumer.is_connected():
                assert time.monotonic() < deadline
            assert "made again" in str(lost_by(source))
            source.connect()
            assert bodies(take(source, 5)) == numbers(5)


def test_a_source_that_is_cut_off_again_and_again_leaves_nothing(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"

    def source_at(port):
        return pulsar.connection(service_url=f"pulsar://127.0.0.1:{port}").source(receiver(destination))

    with opened(pulsar.connection().sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, 1)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    lose_again_and_again(pulsar.port, source_at, 3, hold=lambda source: take(source, 1))
    wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 1)  # the client closes in its threads


def test_a_broker_that_does_nothing(pulsar: PulsarServer):
    """Every call ends although the broker does not answer."""
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection(timeout_s=4)
    sink, source = connection.sink(sender(destination)), connection.source(receiver(destination))
    sink.connect()
    source.connect()
    begun = time.monotonic()
    with pulsar.frozen():
        assert lost(lambda: sink.send(outgoing(destination, 3))).code == "E7023"
        assert source.receive(1, 0.5).messages == ()
        source.close()
        assert lost(source.connect).code == "E7001"
        assert lost(sink.connect).code == "E7001"
    assert time.monotonic() - begun < LONG_S
    connected(sink)
    assert not any(sent(sink, outgoing(destination, 3)))
    sink.close()


def test_nobody_listens(pulsar: PulsarServer):
    error = lost(pulsar.connection(service_url="pulsar://127.0.0.1:1").source(receiver("queue:q")).connect)
    assert str(error) == "E7001 receivers.r: cannot connect to 127.0.0.1:1 (connection refused)."


def test_a_web_server_listens(pulsar: PulsarServer):
    url = f"pulsar://127.0.0.1:{pulsar.web_port}"
    error = lost(pulsar.connection(service_url=url).sink(sender("queue:q")).connect)
    assert error.code == "E7005"
    assert f"127.0.0.1:{pulsar.web_port} does not speak Pulsar's protocol" in str(error)


def test_one_of_several_brokers_is_enough(pulsar: PulsarServer):
    url = f"pulsar://127.0.0.1:1,127.0.0.1:{pulsar.port}"
    with opened(pulsar.connection(service_url=url).sink(sender("queue:q"))) as sink:
        assert not any(sink.send(outgoing("queue:q", 1)))


def test_a_namespace_that_is_not_there(pulsar: PulsarServer):
    connection = pulsar.connection(namespace="public/nowhere")
    for end in (connection.source(receiver("queue:q")), connection.sink(sender("queue:q"))):
        error = lost(end.connect)
        assert error.code == "E7010"
        assert "'persistent://public/nowhere/q': its topic or namespace does not exist" in str(error)


def test_tls(pulsar: PulsarServer):
    options = {"service_url": f"pulsar+ssl://127.0.0.1:{pulsar.tls_port}"}
    authority = str(pulsar.directory / "ca.pem")
    destination = f"queue:{pulsar.name()}"
    with opened(pulsar.connection(**options, tls_trust_certs_file=authority).sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, 1)))
    unknown = lost(pulsar.connection(**options).sink(sender(destination)).connect)
    assert unknown.code == "E7016"
    missing = lost(pulsar.connection(**options, tls_trust_certs_file="nowhere.pem").sink(sender(destination)).connect)
    assert missing.code == "E7016"
    assert "tls_trust_certs_file nowhere.pem cannot be read" in str(missing)
    plain = {"service_url": f"pulsar+ssl://127.0.0.1:{pulsar.port}", "tls_trust_certs_file": authority}
    assert lost(pulsar.connection(**plain).sink(sender(destination)).connect).code == "E7016"
