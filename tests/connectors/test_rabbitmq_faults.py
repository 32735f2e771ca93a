"""Connections are cut and the server is killed under load: nothing is lost, and nothing is doubled downstream of an
EXACTLY_ONCE receiver. Without duplicate detection the same faults do double."""

import contextlib
import re
import threading

import pytest

from correlator import Engine, Message, Monitor, Reliability, on
from correlator.errors import ConnectionLost
from correlator.events import Outgoing
from correlator.settings import CheckpointSettings, EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import (
    bodies,
    check_a_token_ends_with_its_connection,
    check_acknowledged_messages_never_come_again,
    check_exactly_these_are_acknowledged,
    take,
    tokens,
)
from correlator.testing.network import (
    AtRequest,
    Direction,
    FaultProxy,
    NetworkFault,
    Swallow,
    lost_reply,
    lost_request,
)
from tests.connectors.rabbit import (
    LONG_S,
    Seen,
    codes,
    drained,
    lose_again_and_again,
    lost,
    lost_by,
    opened,
    outgoing,
    receiver,
    sender,
)
from tests.contract.worlds import QuorumRabbitWorld
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq

PUBLISH = re.compile(rb"\x00\x3c\x00\x28")
ACKNOWLEDGE = re.compile(rb"\x00\x3c\x00\x50")
MESSAGES = 2000
QUARTER = MESSAGES // 4
AT_A_QUARTER, GO_ON = threading.Event(), threading.Event()


class Forwards(Monitor, persistent=True):
    """Sends on each message; a test may let it wait after a quarter of the messages."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.count += 1
        if self.count % MESSAGES == QUARTER:
            AT_A_QUARTER.set()
            GO_ON.wait(LONG_S)
        self.send(message.body, to="out")


SEEN = Seen()


class Counts(Monitor, persistent=True):
    """Counts each body."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        SEEN.add(message.body)


@pytest.fixture(autouse=True)
def fresh():
    SEEN.counts.clear()
    GO_ON.set()


def engine(name, path, connection, *, monitor, source, reliability, target=None):
    settings = EngineSettings(
        name=name,
        store=f"sqlite:///{path / name}.db",
        checkpoint=CheckpointSettings(interval=0.02),
        receivers=(
            ReceiverSettings(
                id=f"{name}-in",
                connection="rabbit",
                destination=f"queue:{source}",
                reliability=reliability,
                max_batch_size=100,
                max_batch_interval_ms=5,
            ),
        ),
        senders=(
            SenderSettings(
                id="out",
                connection="rabbit",
                destination=f"queue:{target}",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=100,
            ),
        )
        if target
        else (),
        monitors=(MonitorSettings(type=f"{__name__}:{monitor}"),),
        connection_retry_interval=0.05,
        max_connection_retry_interval=0.05,
    )
    return Engine(settings, connections={"rabbit": connection})


def forwards(path, connection, queues, reliability):
    """An engine that forwards from the first to the second queue."""
    source, target = queues
    return engine(
        "forwarding", path, connection, monitor="Forwards", source=source, target=target, reliability=reliability
    )


@contextlib.contextmanager
def pipeline(connection, path, queues, reliability):
    """Two engines: one forwards from the first to the second queue, the other counts the messages of the second."""
    forwarding = forwards(path, connection, queues, Reliability.EXACTLY_ONCE)
    counting = engine("counting", path, connection, monitor="Counts", source=queues[1], reliability=reliability)
    with forwarding, counting:
        yield


def feed(rabbit, queue, first, last):
    """Publish numbered messages with unique ids."""
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        batch = [
            Outgoing(number, "feed", f"queue:{queue}", Message(b"%d" % number, {"uniqueMessageId": f"{number}:feed"}))
            for number in range(first, last)
        ]
        assert not any(sink.send(batch))


def run_with_lost_answers(rabbit, path, reliability):
    queues = rabbit.queue(), rabbit.queue()
    with FaultProxy(rabbit.port) as proxy:
        connection = rabbit.connection(port=proxy.port)
        with pipeline(connection, path, queues, reliability):
            feed(rabbit, queues[0], 0, 200)
            SEEN.wait_for(200)
            for part in range(1, 10):
                fault = (lost_reply(PUBLISH, hit=20), lost_request(ACKNOWLEDGE))[part % 2]
                injection = proxy.inject(fault)
                feed(rabbit, queues[0], part * 200, (part + 1) * 200)
                assert injection.wait(LONG_S)
                injection.withdraw()
                SEEN.wait_for((part + 1) * 200)
    return SEEN.counts


@pytest.mark.parametrize(("fault", "copies"), [(lost_request, 1), (lost_reply, 2)])
def test_r14_a_message_whose_confirm_is_lost_with_the_connection_is_kept_and_sent_again(
    rabbit: RabbitServer, tmp_path, fault, copies
):
    queues = rabbit.queue(), rabbit.queue()
    with FaultProxy(rabbit.port) as proxy:
        connection = rabbit.connection(port=proxy.port)
        forwarding = forwards(tmp_path, connection, queues, Reliability.AT_LEAST_ONCE)
        with forwarding, opened(rabbit.connection().source(receiver(queues[1]))) as source:
            injection = proxy.inject(fault(PUBLISH))
            feed(rabbit, queues[0], 1, 2)
            assert injection.wait(LONG_S)
            injection.withdraw()
            messages = [message for chunk in take(source, copies) for message in chunk.messages]
            assert not source.receive(1, 0.5).messages
    assert [message.body for message in messages] == [b"1"] * copies
    assert len({message.properties["uniqueMessageId"] for message in messages}) == 1


def test_lost_confirms_and_acknowledgements_double_nothing(rabbit: RabbitServer, tmp_path):
    seen = run_with_lost_answers(rabbit, tmp_path, Reliability.EXACTLY_ONCE)
    assert seen == {b"%d" % number: 1 for number in range(MESSAGES)}


def test_without_duplicate_detection_they_do_double(rabbit: RabbitServer, tmp_path):
    seen = run_with_lost_answers(rabbit, tmp_path, Reliability.AT_LEAST_ONCE)
    assert set(seen) == {b"%d" % number for number in range(MESSAGES)}
    assert max(seen.values()) > 1


def test_180_a_server_killed_under_load_loses_and_doubles_nothing_and_a_queue_that_it_forgets_is_told(
    rabbit: RabbitServer, tmp_path
):
    queues = rabbit.queue(), rabbit.queue()
    with pipeline(rabbit.connection(), tmp_path, queues, Reliability.EXACTLY_ONCE):
        for kill in range(2):
            AT_A_QUARTER.clear()
            GO_ON.clear()  # however quick the engines are, most is before them when the server dies
            feed(rabbit, queues[0], kill * MESSAGES, (kill + 1) * MESSAGES)
            with queue_that_is_forgotten(rabbit):
                assert AT_A_QUARTER.wait(LONG_S)
                assert len(SEEN.counts) < kill * MESSAGES + QUARTER
                rabbit.write_definitions()  # else the killed server may not have the queues that it has just declared
                GO_ON.set()
                rabbit.restart()
            SEEN.wait_for((kill + 1) * MESSAGES)
    assert SEEN.counts == {b"%d" % number: 1 for number in range(2 * MESSAGES)}


@contextlib.contextmanager
def queue_that_is_forgotten(rabbit):
    """A queue that does not survive the server, which is killed within the block: source and sink are told."""
    queue = rabbit.queue()
    with (
        opened(rabbit.connection().source(receiver(queue, durable=False))) as source,
        opened(rabbit.connection().sink(sender(queue, durable=False))) as sink,
    ):
        assert codes(sink.send(outgoing(queue, b"lost"))) == [None]
        assert bodies(take(source, 1)) == [b"lost"]
        yield
        assert lost_by(source).code == "E7001"
        assert lost(source.connect).code == "W7020"
        source.connect()
        assert lost(lambda: sink.send(outgoing(queue, b"kept"))).code == "E7001"
        sink.connect()
        assert codes(sink.send(outgoing(queue, b"kept"))) == [None]
        assert bodies(take(source, 1)) == [b"kept"]


def test_184_the_whole_backlog_comes_again(rabbit: RabbitServer, tmp_path):
    """The broker has gone back to an earlier state; one more message shows that the backlog was received."""
    queue = rabbit.queue()
    source = {"monitor": "Counts", "source": queue, "reliability": Reliability.EXACTLY_ONCE}
    with engine("counting", tmp_path, rabbit.connection(), **source):
        feed(rabbit, queue, 0, MESSAGES)
        SEEN.wait_for(MESSAGES)
    feed(rabbit, queue, 0, MESSAGES + 1)
    with engine("counting", tmp_path, rabbit.connection(), **source) as again:
        SEEN.wait_for(MESSAGES + 1)
        assert again.receivers["counting-in"].counters.duplicates == MESSAGES
    assert SEEN.counts == {b"%d" % number: 1 for number in range(MESSAGES + 1)}


# --- sources and sinks alone ---


@pytest.mark.parametrize(
    "check",
    [
        check_exactly_these_are_acknowledged,
        check_acknowledged_messages_never_come_again,
        check_a_token_ends_with_its_connection,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("options", [{}, {"queue_type": "quorum"}], ids=["classic", "quorum"])
def test_t41_acknowledgements_reach_what_they_are_about(rabbit: RabbitServer, tmp_path, check, options):
    """The connection claims sure acknowledgements, since the contract runs these checks only for such connections."""
    world = QuorumRabbitWorld(rabbit, tmp_path.name)
    world.options = options
    check(world)


def test_t42_an_acknowledgement_that_never_arrives_is_found_out_at_the_next_one(rabbit: RabbitServer):
    queue = rabbit.queue()
    feed(rabbit, queue, 0, 20)
    with FaultProxy(rabbit.port) as proxy:
        with opened(rabbit.connection(port=proxy.port, timeout_s=1).source(receiver(queue))) as source:
            first, second = take(source, 10), take(source, 10)
            proxy.inject(NetworkFault(AtRequest(matcher=ACKNOWLEDGE, direction=Direction.REQUEST), Swallow()))
            source.acknowledge(tokens(first))
            assert lost(lambda: source.acknowledge(tokens(second))).code == "E7023"
            proxy.cut()
        with opened(rabbit.connection().source(receiver(queue))) as source:
            assert bodies(take(source, 20)) == [b"%d" % number for number in range(20)]


def test_185_what_is_acknowledged_before_an_orderly_close_never_comes_again(rabbit: RabbitServer):
    queue = rabbit.queue()
    feed(rabbit, queue, 0, 1000)
    acknowledged = []
    while len(acknowledged) < 1000:
        with opened(rabbit.connection().source(receiver(queue))) as source:
            chunk = source.receive(37, LONG_S)
            source.acknowledge(chunk.tokens)
            acknowledged += bodies([chunk])
            source.receive(10, 1.0)
    assert acknowledged == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("hit", [1, 7, 300])
def test_a_connection_that_is_cut_within_a_batch(rabbit: RabbitServer, hit):
    """The sender sends the whole batch again; every message is there, in the order of the last attempt."""
    queue = rabbit.queue()
    contents = [b"%d" % number for number in range(400)]
    with FaultProxy(rabbit.port) as proxy, opened(rabbit.connection(port=proxy.port).sink(sender(queue))) as sink:
        proxy.inject(lost_request(PUBLISH, hit=hit, after=2))
        with pytest.raises(ConnectionLost):
            sink.send(outgoing(queue, *contents))
        sink.connect()
        assert not any(sink.send(outgoing(queue, *contents)))
    with opened(rabbit.connection().source(receiver(queue))) as source:
        received = drained(source, 400)
    assert received[-400:] == contents
    assert received[:-400] == contents[: len(received) - 400]


def test_183_many_lost_connections_leave_nothing_behind(rabbit: RabbitServer):
    queue = rabbit.queue()
    lose_again_and_again(rabbit.port, lambda port: rabbit.connection(port=port).source(receiver(queue)), 50)
