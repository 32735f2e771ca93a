"""Sessions over a message service: fetching ahead, transactions, client ids, kinds of subscriptions (docs/rules.md)."""

import math
import threading
import time
from queue import SimpleQueue

import pytest
from sqlalchemy import text

from connectors import embedded
from connectors.embedded import EmbeddedConnection
from connectors.messaging import ConnectionFactory, SendOptions
from connectors.messaging.link import Link
from correlator.connector import FlowTerms
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.storage.database import reading
from correlator.testing.contract import PATIENCE_S, outgoing
from correlator.testing.service import ServiceBroker
from tests.connectors.test_messaging import (
    AUTO,
    CLIENT,
    CUMULATIVE,
    DUPS_OK,
    INDIVIDUAL,
    NO_ACKNOWLEDGE,
    TRANSACTED,
    Connector,
    Memory,
    bodies,
    numbered,
    receive,
    rest,
    send,
)

QUEUE = "queue:q"
TOPIC = "topic:t"


class Service:
    """A message service, and a connection to it."""

    def __init__(self, **settings) -> None:
        self.broker = ServiceBroker()
        self.connection = self.connect(**settings)

    def connect(self, **settings):
        return ConnectionFactory(self.broker.connection, **settings).create_connection()

    def session(self, mode=AUTO):
        return self.connection.create_session(mode)

    def give(self, count, first=1, destination=QUEUE):
        with self.connect() as connection:
            send(connection.create_session(), destination, numbered(count, first))

    def left(self, destination=QUEUE):
        """How many messages wait, and how many consumers hold."""
        return self.broker.waiting(destination), self.broker.held(destination)


class EmbeddedService(Service):
    """The embedded broker in a SQLite file, and a connection to it."""

    def __init__(self, store):
        self.store = store
        self.connection = self.connect()

    def connect(self, **settings):
        return ConnectionFactory(EmbeddedConnection, {"store": self.store}, **settings).create_connection()

    def left(self, destination=QUEUE):
        wanted = (
            "SELECT count(*) FROM broker_delivery d JOIN broker_subscription s ON s.id = d.subscription"
            " JOIN broker_destination n ON n.id = s.destination WHERE n.name = :name AND d.state = :state"
        )
        with reading(self.store) as connection:
            found = [connection.scalar(text(wanted), {"name": destination, "state": state}) for state in (0, 1)]
        return tuple(found)


@pytest.fixture(params=["memory", "embedded"])
def service(request, tmp_path):
    service = Service() if request.param == "memory" else EmbeddedService(f"sqlite:///{tmp_path}/broker.db")
    yield service
    service.connection.close()


FAULTS = pytest.mark.parametrize("service", ["memory"], indirect=True)
"""For tests of faults that only the broker in memory can have on demand."""


def until(condition):
    """Wait until something holds that another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


# --- rule Q19: what a consumer holds ---


def test_q19_a_consumer_fetches_as_far_as_its_flow_limit_and_again_below_half_of_it(service):
    service.give(30)
    consumer = service.session(INDIVIDUAL).create_consumer(QUEUE, flow_limit=10)
    receive(consumer, 1)
    assert service.left() == (20, 10)
    receive(consumer, 9)
    with pytest.raises(UsageError, match="^E7502 consumer of queue:q: 10 of its messages"):
        consumer.receive(0)
    assert service.left() == (20, 10)


def test_q19_the_next_batch_is_fetched_when_fewer_than_half_are_at_hand(service):
    service.give(30)
    consumer = service.session().create_consumer(QUEUE, flow_limit=10)
    held = []
    for _ in range(7):
        receive(consumer, 1)
        held.append(service.left()[1])
    assert held == [9, 8, 7, 6, 5, 4, 9]  # the last batch is of six: four were at hand


@FAULTS
@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (FlowTerms(4), [3, 2, 1, 3]),
        (FlowTerms(100, 90), [9, 8, 9, 8]),
        (FlowTerms(None, 0), [9, 8, 7, 6]),
    ],
)
def test_q19_a_consumer_fetches_ahead_as_far_as_its_destination_allows(service, terms, expected):
    service.broker.flow = terms
    service.give(30)
    consumer = service.session().create_consumer(QUEUE, flow_limit=10)
    held = []
    for _ in expected:
        receive(consumer, 1)
        held.append(service.left()[1])
    assert held == expected


@FAULTS
def test_q19_a_consumer_that_connects_again_asks_its_destination_again(service):
    service.give(30)
    consumer = service.session().create_consumer(QUEUE, flow_limit=10)
    service.broker.flow = FlowTerms(4)
    service.broker.drop_connections()
    with pytest.raises(ConnectionLost):
        consumer.receive(0)
    receive(consumer, 1)
    assert service.left()[1] == 3


def test_q19_without_prefetch_nothing_is_fetched_but_what_receive_returns(service):
    service.give(3)
    consumer = service.session(CLIENT).create_consumer(QUEUE, prefetch=False)
    receive(consumer, 1)
    assert service.left() == (2, 1)


def test_q19_a_busy_listener_without_prefetch_leaves_the_next_message_to_others(service):
    entered, leaves = threading.Event(), threading.Event()

    def busy(_message):
        entered.set()
        leaves.wait(PATIENCE_S)

    service.session().create_consumer(QUEUE, prefetch=False).set_listener(busy)
    service.connection.start()
    service.give(2)
    assert entered.wait(PATIENCE_S)
    assert bodies(receive(service.session().create_consumer(QUEUE), 1)) == ["2"]
    leaves.set()


def test_q19_what_an_idle_consumer_has_fetched_ahead_goes_to_another_and_is_not_marked(service):
    service.give(4)
    receive(service.session().create_consumer(QUEUE), 1)
    assert service.left() == (0, 3)
    others = receive(service.session().create_consumer(QUEUE), 3)
    assert [(one.body, one.headers.redelivered, one.headers.delivery_count) for one in others] == [
        (b"2", False, 1),
        (b"3", False, 1),
        (b"4", False, 1),
    ]


def test_q19_without_a_thread_for_idle_sessions_no_message_is_lost(service, monkeypatch, caplog):
    service.give(4)
    consumer = service.session().create_consumer(QUEUE)
    with monkeypatch.context() as patch:
        patch.setattr("connectors.messaging.housekeeping.Thread", NoThread)
        assert bodies(receive(consumer, 2)) == ["1", "2"]
    told = "Messages of idle sessions are not settled at present: can't start new thread"
    assert caplog.messages == [told] * 2
    assert bodies(receive(consumer, 1)) == ["3"]
    until(lambda: service.left() == (1, 0))


class NoThread(threading.Thread):
    """A thread that the operating system refuses."""

    def start(self):
        raise RuntimeError("can't start new thread")


def test_s5_1_without_a_thread_for_listeners_the_start_fails_and_can_be_repeated(service, monkeypatch):
    service.give(1)
    found = SimpleQueue()
    service.session().create_consumer(QUEUE).set_listener(found.put)
    with monkeypatch.context() as patch:
        patch.setattr("connectors.messaging.listening.Thread", NoThread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            service.connection.start()
    service.connection.stop()
    service.connection.start()
    assert found.get(timeout=PATIENCE_S).body == b"1"


def test_q19_who_was_idle_fetches_only_as_much_as_it_has_used(service):
    service.give(20)
    consumer = service.session().create_consumer(QUEUE)
    receive(consumer, 2)
    until(lambda: service.left() == (18, 0))
    receive(consumer, 1)
    assert service.left() == (16, 1)


def test_q19_what_expires_while_it_is_at_hand_is_left_out_and_done(service):
    session = service.session()
    producer = session.create_producer(QUEUE)
    producer.send(Message(b"first"))
    producer.send(Message(b"late"), time_to_live_ms=30)
    sent_ms = time.time() * 1000
    producer.send(Message(b"last"))
    consumer = session.create_consumer(QUEUE, flow_limit=3)
    assert bodies(receive(consumer, 1)) == ["first"]
    until(lambda: time.time() * 1000 > sent_ms + 31)
    assert bodies(receive(consumer, 1)) == ["last"]
    assert service.left() == (0, 0)


def test_q19_connectors_that_read_ahead_by_themselves_refuse_to_do_without():
    with pytest.raises(ConfigError, match=r"^E7541 consumer of queue:q.prefetch: its connector reads ahead by itself"):
        Memory().session().create_consumer(QUEUE, prefetch=False)


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, 10**7])
def test_q19_a_flow_limit_has_a_range(service, limit):
    with pytest.raises(UsageError, match=r"^E7540 consumer of queue:q.flow_limit: .* from 1 to 1000000"):
        service.session().create_consumer(QUEUE, flow_limit=limit)
    with pytest.raises(UsageError, match=r"^E7540 factory.flow_limit"):
        service.connect(flow_limit=limit)


@FAULTS
def test_q19_a_lost_connection_gives_no_message_twice_that_was_only_at_hand(service):
    service.give(4)
    consumer = service.session().create_consumer(QUEUE)
    assert bodies(receive(consumer, 1)) == ["1"]
    service.broker.drop_connections()
    found = bodies(receive(consumer, 4))  # the acknowledgement of the second is lost: twice rather than never
    assert found == ["2", "2", "3", "4"]
    assert service.left() == (0, 0)


# --- rules Q9 to Q12: modes ---


@pytest.mark.parametrize(("mode", "acknowledged"), [(CLIENT, 4), (CUMULATIVE, 3), (INDIVIDUAL, 1)])
def test_z4_each_mode_of_the_client_acknowledges_what_its_name_says(service, mode, acknowledged):
    service.give(4)
    session = service.session(mode)
    messages = receive(session.create_consumer(QUEUE), 4)
    session.acknowledge(messages[2])
    assert service.left() == (0, 4 - acknowledged)
    session.acknowledge()
    assert service.left() == (0, 0)


def test_every_connection_of_the_port_is_closed():
    connector = Connector()
    with ConnectionFactory(connector).create_connection() as connection:
        with pytest.raises(UsageError, match="^E7509"):
            connection.create_session(TRANSACTED)
        assert connector.closes == 0
    assert connector.closes == 1
    with pytest.raises(UsageError, match="^E7545"):
        ConnectionFactory(connector, client_id="desk").create_connection()
    assert connector.closes == 2


@FAULTS
def test_a_connection_that_is_refused_is_closed(service):
    service.broker.down = True
    connection = service.connect()
    with pytest.raises(ConnectionLost, match="^E7001 attach"):
        connection.create_session()
    service.broker.down = False
    assert connection.create_session().create_consumer(QUEUE).receive(0) is None
    connection.close()


@FAULTS
def test_q11_dups_ok_acknowledges_after_ten(service):
    service.give(17)
    consumer = service.session(DUPS_OK).create_consumer(QUEUE)
    receive(consumer, 17)
    service.broker.drop_connections()  # as a crash of the program does
    assert service.left() == (7, 0)


@pytest.mark.parametrize("way", ["receive", "listener", "asynchronous"])
def test_q11_dups_ok_acknowledges_one_message_after_an_idle_second(service, way):
    service.give(1)
    if way == "asynchronous":
        consumer = service.session(DUPS_OK).create_consumer(QUEUE)
        assert consumer.fetch(PATIENCE_S, consumer.stops).body == b"1"
        consumer.confirm()
    elif way == "receive":
        receive(service.session(DUPS_OK).create_consumer(QUEUE), 1)
    else:
        ticks = threading.Event()
        service.session(DUPS_OK).create_consumer(QUEUE).set_listener(lambda _: ticks.wait(0.6))
        service.connection.start()
    until(lambda: service.left() == (0, 0))


def test_q11_a_small_flow_limit_makes_dups_ok_acknowledge_earlier(service):
    service.give(7)
    consumer = service.session(DUPS_OK).create_consumer(QUEUE, flow_limit=3)
    assert bodies(receive(consumer, 7)) == bodies(numbered(7))


def test_q11_dups_ok_acknowledges_after_an_idle_second(service):
    service.give(3)
    receive(service.session(DUPS_OK).create_consumer(QUEUE), 3)
    assert service.left() == (0, 3)
    until(lambda: service.left() == (0, 0))


def test_q11_a_listener_that_fails_in_mode_dups_ok_gets_its_message_again(service):
    found = SimpleQueue()

    def listener(message):
        found.put((message.body, message.headers.redelivered))
        if not message.headers.redelivered:
            raise ValueError("the first time")

    service.give(1)
    service.session(DUPS_OK).create_consumer(QUEUE).set_listener(listener)
    service.connection.start()
    assert [found.get(timeout=PATIENCE_S) for _ in range(2)] == [(b"1", False), (b"1", True)]
    service.connection.stop()
    assert service.left() == (0, 0)


def test_q12_what_was_fetched_in_mode_no_acknowledge_is_lost_and_that_is_logged(service, caplog):
    service.give(3)
    session = service.session(NO_ACKNOWLEDGE)
    receive(session.create_consumer(QUEUE), 1)
    session.close()
    assert service.left() == (0, 0)
    assert caplog.messages == ["consumer of queue:q: 2 messages are lost that were fetched in mode NO_ACKNOWLEDGE"]


def test_q16_a_message_of_a_topic_stays_until_all_subscriptions_have_it(service):
    session = service.session(CLIENT)
    first, second = [session.create_consumer(TOPIC, subscription=name) for name in ("a", "b")]
    service.give(1, destination=TOPIC)
    receive(first, 1)
    session.acknowledge()
    assert service.left(TOPIC) == (1, 0)
    receive(second, 1)
    session.acknowledge()
    assert service.left(TOPIC) == (0, 0)


def test_q17_what_is_recovered_comes_before_what_was_only_at_hand(service):
    service.give(4)
    session = service.session(CLIENT)
    consumer = session.create_consumer(QUEUE)
    receive(consumer, 2)
    session.recover()
    again = receive(consumer, 4)
    assert [(one.body, one.headers.redelivered) for one in again] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
        (b"4", False),
    ]


def test_q5_a_queue_is_read_by_priority(service):
    session = service.session()
    producer = session.create_producer(QUEUE)
    for body, priority in [(b"a", 4), (b"b", 9), (b"c", None)]:
        producer.send(Message(body), priority=priority)
    assert bodies(receive(session.create_consumer(QUEUE), 3)) == ["b", "a", "c"]


# --- rules Q13 and Q14: transactions ---


def test_q9_a_mode_may_be_given_by_its_name(service):
    session = service.session("TRANSACTED")
    session.create_producer(QUEUE).send(Message(b"1"))
    assert service.left() == (0, 0)
    session.commit()
    assert service.left() == (1, 0)


@FAULTS
def test_q19_a_message_of_a_lost_connection_makes_no_room_for_another(service):
    service.give(4)
    session = service.session(CLIENT)
    consumer = session.create_consumer(QUEUE, flow_limit=2)
    consumer.fetch(PATIENCE_S, consumer.stops)
    service.broker.drop_connections()
    session.recover()  # the connection is lost when this gives back what was fetched ahead
    consumer.confirm()
    session.acknowledge()
    receive(consumer, 2)
    with pytest.raises(UsageError, match="^E7502"):
        consumer.receive(0)


@pytest.fixture
def transacted(service):
    return service.session(TRANSACTED)


def test_q13_sends_and_acknowledgements_happen_at_the_commit(service, transacted):
    service.give(2)
    consumer, producer = transacted.create_consumer(QUEUE), transacted.create_producer("queue:out")
    receive(consumer, 2)
    ids = [producer.send(message) for message in numbered(2, first=10)]
    assert (service.left(), service.left("queue:out")) == ((0, 2), (0, 0))
    transacted.commit()
    assert (service.left(), service.left("queue:out")) == ((0, 0), (2, 0))
    arrived = receive(service.session().create_consumer("queue:out"), 2)
    assert [(one.body, one.headers.message_id) for one in arrived] == [(b"10", ids[0]), (b"11", ids[1])]


@pytest.mark.parametrize("end", ["commit", "rollback", "prepare"])
def test_q13_the_end_of_a_transaction_makes_room_for_the_next(service, transacted, end):
    service.give(6)
    consumer = transacted.create_consumer(QUEUE, flow_limit=2)
    for at in range(3):
        receive(consumer, 2)
        transacted.prepare(str(at)) if end == "prepare" else getattr(transacted, end)()
    assert service.left() == ((6, 0) if end == "rollback" else (0, 0))


def test_q13_a_rollback_unsends_and_gives_back(service, transacted):
    service.give(2)
    consumer, producer = transacted.create_consumer(QUEUE), transacted.create_producer("queue:out")
    receive(consumer, 1)
    producer.send(Message(b"x"))
    transacted.rollback()
    assert [(one.body, one.headers.redelivered) for one in receive(consumer, 2)] == [(b"1", True), (b"2", False)]
    transacted.commit()
    assert (service.left(), service.left("queue:out")) == ((0, 0), (0, 0))


@pytest.mark.parametrize("closes", ["session", "connection"])
def test_q13_closing_rolls_back(service, transacted, closes):
    service.give(1)
    receive(transacted.create_consumer(QUEUE), 1)
    transacted.create_producer("queue:out").send(Message(b"x"))
    {"session": transacted, "connection": service.connection}[closes].close()
    assert (service.left(), service.left("queue:out")) == ((1, 0), (0, 0))


def test_q13_a_closed_consumer_loses_nothing_of_the_transaction(service, transacted):
    service.give(2)
    consumer = transacted.create_consumer(QUEUE)
    receive(consumer, 1)
    consumer.close()
    assert service.left() == (1, 1)
    transacted.commit()
    assert service.left() == (1, 0)


def test_q13_what_is_rolled_back_since_a_message_is_refused_comes_before_what_was_only_at_hand(service, transacted):
    service.give(3)
    consumer, producer = transacted.create_consumer(QUEUE), transacted.create_producer("queue:out")
    receive(consumer, 1)
    producer.send(Message(b"x", destination="nonsense"))
    with pytest.raises(SendRejected):
        transacted.commit()
    assert bodies(receive(consumer, 3)) == ["1", "2", "3"]


def test_q13_a_message_that_is_refused_rolls_everything_back(service, transacted):
    service.give(1)
    consumer, producer = transacted.create_consumer(QUEUE), transacted.create_producer("queue:out")
    receive(consumer, 1)
    producer.send(Message(b"good"))
    producer.send(Message(b"bad", destination="nonsense"))
    with pytest.raises(SendRejected, match="^E8104 .* The transaction was rolled back: nothing was sent, and received"):
        transacted.commit()
    assert service.left("queue:out") == (0, 0)
    assert [(one.body, one.headers.redelivered) for one in receive(consumer, 1)] == [(b"1", True)]
    transacted.commit()
    assert service.left() == (0, 0)


@FAULTS
def test_q13_a_commit_that_cannot_reach_the_broker_is_a_rollback(service, transacted):
    service.give(1)
    consumer = transacted.create_consumer(QUEUE)
    receive(consumer, 1)
    transacted.create_producer("queue:out").send(Message(b"x"))
    service.broker.down = True
    with pytest.raises(ConnectionLost, match="^E7001 .* The transaction was rolled back"):
        transacted.commit()
    service.broker.down = False
    transacted.commit()
    assert service.left("queue:out") == (0, 0)
    assert bodies(receive(consumer, 1)) == ["1"]


@FAULTS
def test_q13_nothing_is_sent_in_answer_to_what_comes_again(service, transacted):
    """The connection is lost after a message was received and answered, and before the commit."""
    service.give(1)
    consumer, producer = transacted.create_consumer(QUEUE), transacted.create_producer("queue:out")
    receive(consumer, 1)
    producer.send(Message(b"answer"))
    service.broker.drop_connections()
    with pytest.raises(ConnectionLost):
        consumer.receive(0)
    with pytest.raises(ConnectionLost, match="^E7542 session: .* 1 messages .* The transaction was rolled back"):
        transacted.commit()
    receive(consumer, 1)
    producer.send(Message(b"answer"))
    transacted.commit()
    assert (service.left(), service.left("queue:out")) == ((0, 0), (1, 0))


@FAULTS
def test_q13_a_commit_in_doubt_says_so_and_nothing_else(service, transacted):
    def lose_answer(_work):
        raise ConnectionLost("E7518", "session", "the answer to the commit was lost")

    transacted.create_producer("queue:out").send(Message(b"x"))
    service.broker.after_settle = lose_answer
    with pytest.raises(ConnectionLost, match="^E7518 session: the answer to the commit was lost.$"):
        transacted.commit()


def test_q13_a_transaction_has_a_limit_and_what_it_has_can_be_committed():
    service = Service(tx_producer_max_num_msgs=3)
    session = service.session(TRANSACTED)
    producer = session.create_producer(QUEUE)
    for message in numbered(3):
        producer.send(message)
    for send_one in (producer.send, lambda message: producer.send_async(message, print)):
        with pytest.raises(UsageError, match="^E7544 session: the transaction has 3 messages already"):
            send_one(Message(b"4"))
    session.commit()
    producer.send(Message(b"4"))
    session.commit()
    assert service.left() == (4, 0)
    service.connection.close()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_q13_asynchronous_sends_belong_to_the_transaction(service, transacted, ends):
    completed = []
    producer = transacted.create_producer(QUEUE)
    for message in numbered(50):
        producer.send_async(message, lambda message, error: completed.append((message.body, error)))
    getattr(transacted, ends)()
    assert completed == [(message.body, None) for message in numbered(50)]
    assert service.left() == ((50, 0) if ends == "commit" else (0, 0))


def test_q13_time_to_live_and_delay_begin_with_the_send(service, transacted):
    producer = transacted.create_producer(QUEUE)
    producer.send(Message(b"lives"), time_to_live_ms=60_000)
    producer.send(Message(b"waits"), delivery_delay_ms=300)
    sent_ms = time.time() * 1000
    until(lambda: time.time() * 1000 > sent_ms + 301)
    transacted.commit()
    lives, waits = receive(service.session().create_consumer(QUEUE), 2)  # the second at once
    assert lives.headers.expiration < sent_ms + 60_300
    assert waits.headers.delivery_time is None


def test_q14_a_prepared_transaction_waits_until_somebody_ends_it(service, transacted):
    service.give(2)
    consumer, producer = transacted.create_consumer(QUEUE), transacted.create_producer("queue:out")
    for name in ("first", "second"):
        receive(consumer, 1)
        producer.send(Message(name.encode()))
        transacted.prepare(name)
    transacted.close()
    assert (service.left(), service.left("queue:out")) == ((0, 0), (0, 0))
    other = service.session()
    for _ in range(2):  # the same outcome again changes nothing
        other.resolve("first", commit=True)
        other.resolve("second", commit=False)
    assert rest(other, QUEUE) == [("2", True)]
    assert bodies(receive(other.create_consumer("queue:out"), 1)) == ["first"]
    for name, commit in [("first", False), ("third", True)]:
        with pytest.raises(UsageError, match=f"^E7520 transaction '{name}'"):
            other.resolve(name, commit=commit)


def test_q14_time_to_live_and_delay_of_a_prepared_message_have_begun(service, transacted):
    producer = transacted.create_producer(QUEUE)
    producer.send(Message(b"lives"), time_to_live_ms=60_000)
    producer.send(Message(b"late"), time_to_live_ms=50)
    producer.send(Message(b"waits"), delivery_delay_ms=500)
    transacted.prepare("name")
    prepared_ms = time.time() * 1000
    until(lambda: time.time() * 1000 > prepared_ms + 501)
    transacted.resolve("name", commit=True)
    consumer = service.session().create_consumer(QUEUE)
    lives, waits = receive(consumer, 2)  # both at once
    assert bodies([lives, waits]) == ["lives", "waits"]
    # Times are rounded to milliseconds; if they began with `resolve`, they would be 500 ms later.
    assert lives.headers.timestamp < prepared_ms + 250
    assert lives.headers.timestamp <= lives.headers.expiration < prepared_ms + 60_250
    assert waits.headers.delivery_time < prepared_ms + 750
    assert consumer.receive(0) is None


def test_q14_a_taken_name_is_refused_and_the_transaction_goes_on(service, transacted):
    service.give(1)
    producer = transacted.create_producer("queue:out")
    producer.send(Message(b"1"))
    transacted.prepare("name")
    receive(transacted.create_consumer(QUEUE), 1)
    producer.send(Message(b"2"))
    with pytest.raises(UsageError, match="^E7519 transaction 'name'"):
        transacted.prepare("name")
    transacted.commit()
    assert (service.left(), service.left("queue:out")) == ((0, 0), (1, 0))


def test_q14_emulated_transactions_are_not_prepared():
    connection = ConnectionFactory(Memory().broker.connection, emulate_transactions=True).create_connection()
    session = connection.create_session(TRANSACTED)
    with pytest.raises(UsageError, match="^E7543 session: emulated transactions cannot be prepared"):
        session.prepare("name")
    with pytest.raises(UsageError, match="^E7543 session: emulated transactions cannot be resolved"):
        session.resolve("name", commit=True)
    connection.close()


# --- rule Q8: subscriptions and client ids ---


def test_q8_a_client_id_is_that_of_one_connection(service):
    with service.connect(client_id="desk") as first:
        assert first.client_id == "desk"
        with pytest.raises(UsageError, match="^E7515 .*'desk'"):
            service.connect(client_id="desk")
    service.connect(client_id="desk").close()
    with pytest.raises(UsageError, match="^E7545 client id: its connector has no client ids"):
        ConnectionFactory(Memory().broker.connection).create_connection(client_id="desk")


def test_q8_a_durable_subscription_keeps_messages_and_has_one_consumer(service):
    with service.connect(client_id="desk") as connection:
        session = connection.create_session()
        consumer = session.create_durable_consumer(TOPIC, "news")
        with pytest.raises(UsageError, match="^E7516 .*topic:t: .*the subscription 'news'"):
            session.create_durable_consumer(TOPIC, "news")
        consumer.close()
        service.give(2, destination=TOPIC)
        assert bodies(receive(session.create_durable_consumer(TOPIC, "news"), 2)) == ["1", "2"]
    with pytest.raises(UsageError, match="^E7546 consumer of topic:t: a durable subscription for one .* client id"):
        service.session().create_durable_consumer(TOPIC, "news")


def test_q8_a_closed_consumer_makes_room_although_its_messages_are_not_settled():
    service = Service(client_id="desk")
    session = service.session(INDIVIDUAL)
    consumer = session.create_durable_consumer(TOPIC, "news")
    service.give(2, destination=TOPIC)
    (first,) = receive(consumer, 1)
    consumer.close()
    (second,) = receive(session.create_durable_consumer(TOPIC, "news"), 1)
    session.acknowledge(first)
    session.acknowledge(second)
    assert bodies([first, second]) == ["1", "2"]
    assert service.left(TOPIC) == (0, 0)
    service.connection.close()


def test_q8_a_consumer_without_subscription_gets_everything_while_it_lives(service):
    session = service.session()
    first, second = session.create_consumer(TOPIC), session.create_consumer(TOPIC, "n = 2")
    service.give(2, destination=TOPIC)
    assert bodies(receive(first, 2)) == ["1", "2"]
    assert bodies(receive(second, 1)) == ["2"]
    first.close()
    second.close()
    service.give(1, destination=TOPIC)
    assert service.left(TOPIC) == (0, 0)


@pytest.mark.parametrize("durable", [True, False])
def test_q8_consumers_share_a_subscription_and_only_a_durable_one_outlives_them(service, durable):
    session = service.session()
    create = session.create_shared_durable_consumer if durable else session.create_shared_consumer
    consumers = [create(TOPIC, "news", flow_limit=1) for _ in range(2)]
    service.give(2, destination=TOPIC)
    assert sorted(bodies(receive(one, 1)[0] for one in consumers)) == ["1", "2"]
    with pytest.raises(UsageError, match="^E7517 .*topic:t: .*selector"):
        create(TOPIC, "news", "n = 1")
    other = session.create_shared_consumer if durable else session.create_shared_durable_consumer
    with pytest.raises(UsageError, match="^E7516 .*topic:t: the subscription 'news' is "):
        other(TOPIC, "news")
    for consumer in consumers:
        consumer.close()
    service.give(1, destination=TOPIC)
    assert service.left(TOPIC) == ((1, 0) if durable else (0, 0))


@pytest.mark.parametrize("create", ["create_durable_consumer", "create_shared_consumer"])
def test_q8_other_connectors_refuse_kinds_that_they_do_not_have(create):
    session = Memory().session()
    with pytest.raises(UsageError, match="^E7546 consumer of topic:t: its connector has no subscriptions of this kind"):
        getattr(session, create)(TOPIC, "news")
    session.create_shared_durable_consumer(TOPIC, "news").close()


def test_s1_5_two_selectors_on_one_subscription_are_refused_by_the_connection_where_no_broker_does_it():
    memory = Memory()
    first = memory.session().create_consumer(TOPIC, "n = 1", subscription="s")
    other = memory.session()
    with pytest.raises(UsageError, match="^E7517 consumer of topic:t: a consumer of the subscription 's' uses another"):
        other.create_consumer(TOPIC, "n = 2", subscription="s")
    other.create_consumer(TOPIC, "n = 1", subscription="s").close()
    first.close()
    other.create_consumer(TOPIC, "n = 2", subscription="s").close()


# --- waits that another thread ends ---


@pytest.mark.parametrize("ends", ["stop", "connection", "session", "consumer"])
@pytest.mark.parametrize("kind", ["service", "memory"])
def test_s5_1_a_wait_is_ended_by_another_thread(kind, ends):
    world = Service() if kind == "service" else Memory()
    session = world.session()
    consumer = session.create_consumer(QUEUE)
    result = SimpleQueue()
    waiting = threading.Thread(target=lambda: result.put(consumer.receive()))
    waiting.start()
    closes = {"connection": world.connection.close, "session": session.close, "consumer": consumer.close}
    closes.get(ends, world.connection.stop)()
    if ends == "stop":  # it may have come before the wait
        world.connection.stop()
        until(lambda: world.connection.stop() or not waiting.is_alive())
    assert result.get(timeout=PATIENCE_S) is None
    waiting.join()
    if ends == "stop":
        assert consumer.receive(0) is None
    else:
        with pytest.raises(UsageError, match="^E7501"):
            consumer.receive(0)
    world.connection.close()


def test_s5_1_an_idle_listener_is_woken_by_a_message_and_by_the_end(service, monkeypatch):
    for module in (embedded.service, embedded.source):
        monkeypatch.setattr(module, "LOOK_S", 3600.0)
    found, idle, wait = SimpleQueue(), threading.Event(), Link.wait

    def waits(link, seen, _timeout_s):
        """For so long that it seems to be for ever."""
        idle.set()
        wait(link, seen, 3600.0)
        idle.clear()

    monkeypatch.setattr(Link, "wait", waits)
    service.session().create_consumer(QUEUE).set_listener(found.put)
    service.connection.start()
    assert idle.wait(PATIENCE_S)
    service.give(1)
    assert found.get(timeout=PATIENCE_S).body == b"1"
    assert idle.wait(PATIENCE_S)
    stopping = threading.Thread(target=service.connection.stop)
    stopping.start()
    stopping.join(PATIENCE_S)
    woken = not stopping.is_alive()
    service.give(1)  # wakes it otherwise
    assert woken


# --- exception listeners, temporary destinations, questions ---


def test_s5_1_an_exception_listener_is_told_of_a_lost_connection_and_may_close_the_connection():
    service, told, closed = Service(), SimpleQueue(), threading.Event()

    def listener(error):
        told.put(error)
        service.connection.close()
        closed.set()

    service.connection.set_exception_listener(listener)
    service.session().create_consumer(QUEUE).set_listener(print)
    service.connection.start()
    service.broker.down = True
    error = told.get(timeout=PATIENCE_S)
    assert isinstance(error, ConnectionLost)
    assert error.code == "E7001"
    assert closed.wait(PATIENCE_S)
    with pytest.raises(UsageError, match="^E7501"):
        service.session()


@FAULTS
def test_s5_1_an_exception_listener_that_fails_is_logged(service, caplog):
    told = threading.Event()

    def listener(_error):
        told.set()
        raise ValueError("a mistake of the program")

    service.connection.set_exception_listener(listener)
    service.session().create_consumer(QUEUE).set_listener(print)
    service.connection.start()
    service.broker.drop_connections()
    assert told.wait(PATIENCE_S)
    until(lambda: any("An exception listener failed" in message for message in caplog.messages))


def test_s1_9_a_temporary_queue_is_consumed_by_its_own_connection_alone(service):
    queue = service.session().create_temporary_queue()
    with service.connect() as stranger:
        session = stranger.create_session()
        producer = session.create_producer(queue)
        producer.send(Message(b"answer"))
        with pytest.raises(UsageError, match="^E7521 .*another connection"):
            session.create_consumer(queue)
        assert bodies(receive(service.session().create_consumer(queue), 1)) == ["answer"]
        service.connection.close()
        with pytest.raises(SendRejected, match="has ended"):
            producer.send(Message(b"late"))


def test_questions_that_cannot_be_asked_make_one_queue():
    connector = Unreachable()
    with ConnectionFactory(connector).create_connection() as connection:
        session = connection.create_session()
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                session.request("queue:unheard", Message(b"?"))
    assert len(connector.deleted) == 1


class Unreachable(Connector):
    """A connector that does not reach its broker, except to delete queues."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted = []

    def connect(self):
        raise ConnectionLost("E7001", "here", "the line is cut")

    def delete(self, destination):
        self.deleted.append(destination)


def test_a_question_has_a_new_queue_when_the_old_one_has_ended(tmp_path):
    service = EmbeddedService(f"sqlite:///{tmp_path}/broker.db")
    with service.connection as connection:
        session = connection.create_session()
        assert session.request("queue:unheard", Message(b"1"), 0) is None
        for part in (session._link.service, connection._client):  # as when the database ends all links
            part._access.close()
        with pytest.raises(ConnectionLost):
            session.request("queue:unheard", Message(b"2"), PATIENCE_S)
        assert session.request("queue:unheard", Message(b"3"), 0) is None
        queues = [message.headers.reply_to for message in session.create_browser("queue:unheard").enumerate()]
    assert queues[0] != queues[-1]


def test_a_transaction_asks_no_question(transacted):
    with pytest.raises(UsageError, match="^E7547 session: the question would be sent at the commit"):
        transacted.request(QUEUE, Message(b"?"))


# --- message ids and how messages are to be delivered ---


def test_q2_send_returns_the_id_that_the_consumer_sees(service):
    session = service.session()
    producer, another = session.create_producer(QUEUE), session.create_producer(QUEUE)
    ids = [producer.send(Message(b"1")), another.send(Message(b"2")), producer.send_async(Message(b"3"), print)]
    producer.close()
    arrived = receive(session.create_consumer(QUEUE), 3)
    assert [message.headers.message_id for message in arrived] == ids
    assert len(set(ids)) == 3
    assert all(one.startswith("ID:") for one in ids)


def test_a_call_goes_before_the_message_and_the_message_before_the_producer(service):
    session = service.session()
    producer = session.create_producer(QUEUE)
    producer.defaults = SendOptions(priority=1, time_to_live_ms=60_000, persistent=False)
    own = Message(b"", headers=Headers(priority=2))
    for message, options in [(Message(b""), {}), (own, {}), (own, {"priority": 3, "persistent": True})]:
        producer.send(message, **options)
    found = receive(session.create_consumer(QUEUE), 3)
    assert [(one.headers.priority, one.headers.persistent) for one in found] == [(3, True), (2, False), (1, False)]
    assert all(one.headers.time_to_live_ms == 60_000 for one in found)


BAD = [
    ("priority", 10),
    ("priority", -1),
    ("priority", True),
    ("priority", 4.5),
    ("time_to_live_ms", -1),
    ("time_to_live_ms", float("nan")),
    ("time_to_live_ms", 2**53 + 1),
    ("delivery_delay_ms", -1),
    ("delivery_delay_ms", "1"),
    ("persistent", 1),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_value_out_of_its_range_is_refused_before_anything_is_sent(service, name, value):
    producer = service.session().create_producer(QUEUE)
    expected = f"^E7540 producer of queue:q.{name}: .* is not allowed"
    with pytest.raises(UsageError, match=expected):
        producer.send(Message(b""), **{name: value})
    with pytest.raises(UsageError, match=expected):
        producer.send_async(Message(b""), print, **{name: value})
    with pytest.raises(UsageError, match=expected):
        producer.defaults = SendOptions(**{name: value})
    assert service.left() == (0, 0)


@pytest.mark.parametrize("timeout_s", [math.nan, "5", [1]])
def test_a_timeout_that_is_no_time_is_refused_before_anything_is_sent(service, timeout_s):
    session = service.session()
    consumer = session.create_consumer(QUEUE)
    with pytest.raises(UsageError, match="^E7540 consumer of queue:q.timeout_s: .* is not allowed"):
        consumer.receive(timeout_s)
    with pytest.raises(UsageError, match="^E7540 request.timeout_s: .* is not allowed"):
        session.request(QUEUE, Message(b""), timeout_s)
    assert service.left() == (0, 0)
    assert consumer.receive(-1) is None


@pytest.mark.parametrize("name", [None, "", 5, "a\0b"])
def test_a_subscription_without_a_name_is_refused(service, name):
    """Otherwise each of two consumers that are to share the messages of a topic would get all of them."""
    session = service.session()
    for create in (session.create_shared_consumer, session.create_shared_durable_consumer):
        with pytest.raises(UsageError, match="^E7503 consumer of topic:t"):
            create("topic:t", name)


@pytest.mark.parametrize("mode", ["auto", 5, None])
def test_an_unknown_mode_is_refused(service, mode):
    with pytest.raises(UsageError, match="^E7540 session.mode: .* is not allowed. One of AUTO, CLIENT, "):
        service.session(mode)


def test_what_would_expire_before_anybody_gets_it_is_refused(service):
    producer = service.session().create_producer(QUEUE)
    with pytest.raises(UsageError, match="^E7548 producer of queue:q: it lives 5 ms, and nobody gets it before 5 ms"):
        producer.send(Message(b"", headers=Headers(time_to_live_ms=5)), delivery_delay_ms=5)


def test_a_delayed_message_lets_others_pass(service):
    session = service.session()
    producer, consumer = session.create_producer(QUEUE), session.create_consumer(QUEUE)
    producer.send(Message(b"later"), delivery_delay_ms=3_600_000)
    producer.send(Message(b"now"))
    assert bodies(receive(consumer, 1)) == ["now"]
    assert consumer.receive(0) is None


def test_a_delayed_message_comes_when_its_time_has_come(service):
    session = service.session()
    producer, consumer = session.create_producer(QUEUE), session.create_consumer(QUEUE)
    producer.send(Message(b"later"), delivery_delay_ms=100)
    (later,) = receive(consumer, 1)
    assert time.time_ns() // 1_000_000 >= later.headers.delivery_time >= later.headers.timestamp + 100


# --- destinations that are not made by their use ---


def test_without_auto_create_only_what_was_created_is_used(tmp_path):
    options = {"store": f"sqlite:///{tmp_path}/broker.db", "auto_create": False}
    broker = EmbeddedConnection("c", ConnectionSettings(type="embedded", options=options))
    broker.create("queue:made")
    with ConnectionFactory(EmbeddedConnection, options).create_connection() as connection:
        session, transacted = connection.create_session(), connection.create_session(TRANSACTED)
        with pytest.raises(
            ConnectionLost, match="^E7010 queue:new: there is no such destination. Create it: correlator"
        ):
            session.create_consumer("queue:new")
        with pytest.raises(
            SendRejected, match="^E8101 .*there is no destination queue:new. Create it: correlator broker"
        ):
            session.create_producer("queue:new").send(Message(b"x"))
        for destination in ("queue:made", "queue:new"):
            transacted.create_producer(destination).send(Message(b"x"))
        with pytest.raises(SendRejected, match="^E8101"):
            transacted.commit()
        send(session, "queue:made", numbered(1))
        assert bodies(receive(session.create_consumer("queue:made"), 1)) == ["1"]
        assert session.create_consumer(session.create_temporary_queue()).receive(0) is None
    assert broker.queues() == ["queue:made", "queue:mq.sys.dmq"]


def test_without_auto_create_engines_wait_for_a_destination(tmp_path):
    options = {"store": f"sqlite:///{tmp_path}/broker.db", "auto_create": False}
    broker = EmbeddedConnection("c", ConnectionSettings(type="embedded", options=options))
    source = broker.source(ReceiverSettings(id="r", connection="c", destination="queue:q"))
    sink = broker.sink(SenderSettings(id="s", connection="c"))
    with pytest.raises(ConnectionLost, match="^E7010"):
        source.connect()
    sink.connect()
    (refused,) = sink.send(outgoing("queue:q", [b"x"]))
    assert refused.code == "E8101"
    broker.create("queue:q")
    source.connect()
    source.close()
    sink.close()
