"""Sessions over the embedded broker, with either database."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.embedded.rooms import room_of
from connectors.embedded.sink import EmbeddedSink
from connectors.embedded.waking import _bell_of
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.messaging.asynchronous import AsyncConnection
from correlator.errors import ConnectionLost, SendRejected, UsageError
from correlator.events import Message
from correlator.settings import SenderSettings
from tests.connectors.embedded import DEAD, QUEUE, Broker, address, bodies_of, kill, message, wait_until


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def broker(request, tmp_path):
    broker = Broker(address(request, tmp_path))
    yield broker
    broker.close()


@pytest.fixture
def connection(broker):
    with ConnectionFactory(EmbeddedConnection, {"store": broker.store}).create_connection() as connection:
        yield connection


# --- messages that expire while they are at hand ---


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED])
def test_what_expires_at_hand_is_dead_like_what_expires_in_the_queue(broker, connection, mode):
    broker.send("first", message("late", time_to_live_ms=300), message("late, too", time_to_live_ms=300), "last")
    session = connection.create_session(mode)
    consumer = session.create_consumer(QUEUE)
    assert consumer.receive(timeout_s=5).body == b"first"
    wait_until(lambda: bodies_of(broker, QUEUE) in (["first", "last"], ["last"]))
    assert consumer.receive(timeout_s=5).body == b"last"
    assert consumer.receive(timeout_s=0) is None
    assert bodies_of(broker, DEAD) == ["late", "late, too"]
    dead = broker.connection.browse(DEAD, 9)[0]
    assert (dead.properties["correlator_dmq_undelivered_reason"], dead.headers.delivery_count) == ("EXPIRED", 1)
    if mode is AcknowledgeMode.CLIENT:
        session.acknowledge()
    if mode is AcknowledgeMode.TRANSACTED:
        session.commit()
    assert broker.tally() == (2, 0)


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_clock_of_the_client_does_not_matter(broker, connection, monkeypatch, hours):
    """The test gives the client another clock than the database (`sql` reads that of SQLite in nanoseconds)."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + hours * 3600)
    broker.send("first", message("late", time_to_live_ms=300), message("lives", time_to_live_ms=600_000))
    session = connection.create_session()
    assert [m.body for m in session.create_browser(QUEUE).enumerate()][-1:] == [b"lives"]
    consumer = session.create_consumer(QUEUE)
    assert consumer.receive(timeout_s=5).body == b"first"
    wait_until(lambda: bodies_of(broker, QUEUE) == ["lives"])
    assert consumer.receive(timeout_s=5).body == b"lives"
    assert consumer.receive(timeout_s=0) is None
    assert bodies_of(broker, DEAD) == ["late"]


def test_the_time_to_live_of_a_message_that_waits_for_room_has_begun(broker, connection):
    broker.connection.create(QUEUE, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    broker.send("first")
    producer = connection.create_session().create_producer(QUEUE)
    sending = threading.Thread(target=producer.send, args=(Message(b"late"),), kwargs={"time_to_live_ms": 200})
    sending.start()
    broker.send(message("sent later, and lives longer", time_to_live_ms=1000), destination="queue:clock")
    wait_until(lambda: bodies_of(broker, "queue:clock") == [])
    consumer = connection.create_session().create_consumer(QUEUE)
    assert consumer.receive(timeout_s=5).body == b"first"
    sending.join(20)
    assert not sending.is_alive()
    assert consumer.receive(timeout_s=0) is None
    assert bodies_of(broker, DEAD) == ["late"]


# --- closing while somebody waits for room ---


@pytest.fixture
def full(broker):
    broker.connection.create(QUEUE, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    broker.send("first")
    return broker


def send(_session, producer):
    producer.send(Message(b"no room"))


def commit(session, producer):
    producer.send(Message(b"no room"))
    session.commit()


def send_async(_session, producer):
    errors = []
    producer.send_async(Message(b"no room"), lambda _, error: errors.append(error))
    wait_until(lambda: errors)
    if errors[0] is not None:
        raise errors[0]


WAITS = pytest.mark.parametrize(
    ("mode", "wait"),
    [(AcknowledgeMode.AUTO, send), (AcknowledgeMode.TRANSACTED, commit), (AcknowledgeMode.AUTO, send_async)],
    ids=["send", "commit", "send_async"],
)
REFUSED = f"^E8108 .*{QUEUE} had no room, or was paused, when the session, or a consumer or producer of it, was closed"


@pytest.mark.parametrize("closed", ["session", "connection"])
@WAITS
def test_closing_refuses_what_waits_for_room(full, connection, mode, wait, closed):
    session = connection.create_session(mode)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait, session, session.create_producer(QUEUE))
        wait_until(lambda: is_waiting(session))
        connection.stop()
        assert not waiting.done()
        (session if closed == "session" else connection).close()
        with pytest.raises(SendRejected, match=REFUSED):
            waiting.result(20)
    assert bodies_of(full, QUEUE) == ["first"]


@pytest.mark.parametrize("closed", ["that producer", "another producer", "a consumer"])
@WAITS
def test_closing_a_producer_or_consumer_refuses_what_waits_for_room_and_later_messages_wait(
    full, connection, mode, wait, closed
):
    session = connection.create_session(mode)
    that, another = session.create_producer(QUEUE), session.create_producer(QUEUE)
    ends = {"that producer": that, "another producer": another, "a consumer": session.create_consumer("queue:other")}
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait, session, that)
        wait_until(lambda: is_waiting(session))
        ends[closed].close()
        with pytest.raises(SendRejected, match=REFUSED):
            waiting.result(20)
        again = thread.submit(wait, session, another if that.closed else that)
        wait_until(lambda: is_waiting(session))
        assert connection.create_session().create_consumer(QUEUE).receive(timeout_s=5).body == b"first"
        again.result(20)
    assert bodies_of(full, QUEUE) == ["no room"]


def test_closing_an_asynchronous_session_refuses_what_waits_for_room(full):
    async def program():
        factory = ConnectionFactory(EmbeddedConnection, {"store": full.store})
        async with await AsyncConnection.connect(factory) as connection:
            session = await connection.create_session()
            producer = await session.create_producer(QUEUE)
            sending = asyncio.create_task(producer.send(Message(b"no room")))
            closing = asyncio.create_task(producer.close())
            await asyncio.to_thread(wait_until, lambda: is_waiting(session._session))
            assert not closing.done()
            await session.close()
            await closing
            with pytest.raises(SendRejected, match=REFUSED):
                await sending

    asyncio.run(program())
    assert bodies_of(full, QUEUE) == ["first"]


def test_a_producer_that_its_own_thread_closes_waits_until_there_is_room(full, connection):
    session, errors = connection.create_session(), []
    producer = session.create_producer(QUEUE)

    def send_and_close():
        producer.send_async(Message(b"second"), lambda _, error: errors.append(error))
        producer.close()

    with ThreadPoolExecutor(1) as thread:
        closing = thread.submit(send_and_close)
        wait_until(lambda: is_waiting(session))
        assert connection.create_session().create_consumer(QUEUE).receive(timeout_s=5).body == b"first"
        closing.result(20)
    assert errors == [None]
    assert bodies_of(full, QUEUE) == ["second"]


@pytest.mark.parametrize("closed", ["producer", "consumer", "connection"])
def test_closing_refuses_what_a_listener_sends_to_a_full_queue(full, connection, closed):
    session = connection.create_session(AcknowledgeMode.CLIENT)
    producer, refused, entered = session.create_producer(QUEUE), [], threading.Event()

    def answer(_):
        entered.set()
        try:
            producer.send(Message(b"no room"))
        except SendRejected as error:
            refused.append(error.code)

    consumer = session.create_consumer("queue:questions")
    consumer.set_listener(answer)
    connection.start()
    full.send("?", destination="queue:questions")
    assert entered.wait(20)  # now it waits for no message any more
    wait_until(lambda: is_waiting(session))
    {"producer": producer, "consumer": consumer, "connection": connection}[closed].close()
    assert refused == ["E8108"]


def test_a_sender_that_waits_for_room_does_not_wake_itself(broker, monkeypatch):
    """Nor if the bell that it rings is by chance the one that it hears."""
    queue = next(one for at in count(1) if _bell_of(one := f"queue:{at * 'x'}") == _bell_of(room_of(one)))
    broker.connection.create(queue, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    broker.send("first", destination=queue)
    store, tries = EmbeddedSink._store, []
    monkeypatch.setattr(EmbeddedSink, "_store", lambda *args: tries.append(1) or store(*args))
    factory = ConnectionFactory(EmbeddedConnection, {"store": broker.store, "ack_timeout_ms": 500})
    with factory.create_connection() as connection, pytest.raises(SendRejected, match="^E8108"):
        connection.create_session().create_producer(queue).send(Message(b"no room"))
    assert len(tries) < 20


def is_waiting(session):
    """Whether somebody waits for room in the queue."""
    return bool(session._link.service._access.bells._bells[_bell_of(room_of(QUEUE))].waiting)


# --- how many producers a destination may have ---


def test_a_destination_has_so_many_producers_and_no_more(broker, connection):
    broker.connection.create(QUEUE, {"max_num_producers": 2})
    session = connection.create_session()
    first, _ = session.create_producer(QUEUE), session.create_producer(QUEUE)
    assert producers_of(broker) == 2
    with pytest.raises(UsageError, match="^E7526 queue:work: it has 2 producers already"):
        session.create_producer(QUEUE)
    first.close()
    first.close()
    session.create_producer(QUEUE).send(Message(b"third"))
    session.close()
    assert producers_of(broker) == 0
    assert bodies_of(broker, QUEUE) == ["third"]


def test_the_producers_of_a_killed_process_leave_their_places(broker, connection):
    broker.connection.create(QUEUE, {"max_num_producers": 1})
    killed = broker.opened(broker.client().session())
    broker.opened(killed.sink(SenderSettings(id="s", connection="c", destination=QUEUE))).connect()
    kill(killed)
    kill(killed._client)

    def gets_the_place():  # PostgreSQL ends a session a moment after its client
        with suppress(UsageError):
            return connection.create_session().create_producer(QUEUE)

    wait_until(gets_the_place)
    assert producers_of(broker) == 1


def test_a_producer_that_connects_again_counts_once(broker, connection):
    session = connection.create_session()
    producer = session.create_producer(QUEUE)
    session._link.service._access.close()  # as after a failure of the database
    with pytest.raises(ConnectionLost):
        producer.send(Message(b"lost"))
    producer.send(Message(b"again"))
    assert producers_of(broker) == 1


def test_neither_engines_nor_destinations_that_take_nothing_have_producers(broker, connection):
    session = connection.create_session()
    for destination in (DEAD, "queue:mq.tmp.gone"):
        with pytest.raises(SendRejected):
            session.create_producer(destination).send(Message(b"x"))
    sink = broker.opened(broker.connection.sink(SenderSettings(id="s", connection="c", destination=QUEUE)))
    sink.connect()
    assert broker.count("SELECT count(*) FROM broker_producer") == 0


def producers_of(broker):
    (found,) = [one for one in broker.connection.administration().destinations() if one.destination == QUEUE]
    return found.producers
