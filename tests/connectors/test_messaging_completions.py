"""Asynchronous sends (rule S5.2): each message gets its completion, in order, whatever happens."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from connectors.messaging import ConnectionFactory
from correlator.errors import ConnectionLost, SendRejected, UsageError
from correlator.events import Message
from correlator.testing.contract import PATIENCE_S
from correlator.testing.memory import Faults
from tests.connectors.test_messaging import (
    BROKERS,
    Connector,
    Foreign,
    Memory,
    Refuses,
    bodies,
    numbered,
    rest,
    world_over,
)


@pytest.fixture(params=BROKERS)
def world(request):
    return world_over(request.param, request)


class Completed:
    """A completion that keeps its arguments and calls a further function."""

    def __init__(self, then=lambda message: None) -> None:
        self.messages = []
        self.errors = []
        self.threads = set()
        self._then = then

    def __call__(self, message, error):
        self.threads.add(threading.current_thread())
        self.messages.append(message)
        self.errors.append(error)
        self._then(message)

    @property
    def codes(self):
        return [error and error.code for error in self.errors]


class Held(Faults):
    """A broker that accepts no batch until `may_take` is set."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.may_take = threading.Event()

    def before_accept(self, sender, batch):
        self.reached.set()
        assert self.may_take.wait(PATIENCE_S)


def completing_threads():
    return [one for one in threading.enumerate() if one.name == "session completions"]


# --- over every broker ---


@pytest.mark.parametrize("closes", ["producer", "session", "connection"])
def test_s5_2_a_hundred_sends_and_a_close_are_a_hundred_completions(world, closes):
    queue, completed = world.queue(), Completed()
    with world.factory().create_connection() as connection:
        session = connection.create_session()
        producer = session.create_producer(queue)
        messages = numbered(100)
        for message in messages:
            producer.send_async(message, completed)
        {"producer": producer, "session": session, "connection": connection}[closes].close()
        assert len(completed.messages) == 100
        assert all(got is sent for got, sent in zip(completed.messages, messages, strict=True))
        assert completed.errors == [None] * 100
    with world.factory().create_connection() as connection:
        assert [body for body, _ in rest(connection.create_session(), queue)] == bodies(messages)
    assert completing_threads() == []


def test_s5_2_what_is_sent_afterwards_and_waited_for_comes_behind(world):
    queue, completed = world.queue(), Completed()
    with world.factory().create_connection() as connection:
        session = connection.create_session()
        producer = session.create_producer(queue)
        for message in numbered(9):
            producer.send_async(message, completed)
        producer.send(Message(b"10"))
        assert completed.errors == [None] * 9
        assert [body for body, _ in rest(session, queue)] == bodies(numbered(10))


# --- order, bound and threads ---


def test_s5_2_completions_come_in_the_order_of_all_producers_by_one_thread():
    memory, completed = Memory(), Completed()
    session = memory.session()
    producers = [session.create_producer(f"queue:{name}") for name in "abc"]
    messages = numbered(300)
    for number, message in enumerate(messages):
        producers[number * number % 7 % 3].send_async(message, completed)
    session.close()
    assert bodies(completed.messages) == bodies(messages)
    (thread,) = completed.threads
    assert thread is not threading.current_thread()


class KeepsToItself(Connector):
    """A connector whose sinks accept messages for their own destination only."""

    def sink(self, sender):
        own = KeepsToItself()
        own.destination = sender.destination
        return own

    def send(self, batch):
        assert {one.destination for one in batch} == {self.destination}
        return [None] * len(batch)


def test_each_producer_sends_its_own():
    completed = Completed()
    session = ConnectionFactory(KeepsToItself()).create_connection().create_session()
    producers = [session.create_producer(f"queue:{name}") for name in "ab"]
    for message in numbered(50):
        for producer in producers:
            producer.send_async(message, completed)
    session.close()
    assert completed.errors == [None] * 100


def test_no_more_than_a_thousand_are_outstanding():
    faults, completed = Held(), Completed()
    memory = Memory(faults=faults)
    producer = memory.session().create_producer("queue:q")
    messages = numbered(1001)
    for message in messages[:1000]:
        producer.send_async(message, completed)
    waiting = threading.Thread(target=producer.send_async, args=(messages[1000], completed))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    faults.may_take.set()
    waiting.join(PATIENCE_S)
    memory.connection.close()
    assert bodies(completed.messages) == bodies(memory.broker.received("queue:q")) == bodies(messages)


def test_close_waits_for_a_completion_that_runs():
    entered, may_return, history = threading.Event(), threading.Event(), []

    def busy(message, error):
        entered.set()
        assert may_return.wait(PATIENCE_S)
        history.append("completed")

    session = Memory().session()
    session.create_producer("queue:q").send_async(Message(b"x"), busy)
    assert entered.wait(PATIENCE_S)
    closing = threading.Thread(target=lambda: (session.close(), history.append("closed")))
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    may_return.set()
    closing.join(PATIENCE_S)
    assert history == ["completed", "closed"]


def test_who_waits_for_each_message_has_no_thread_for_completions():
    session = Memory().session()
    session.create_producer("queue:q").send(Message(b"x"))
    assert completing_threads() == []


def test_a_listener_sends_without_waiting():
    memory, completed = Memory(), Completed()
    session = memory.session()
    producer, arrived = session.create_producer("queue:out"), threading.Event()

    def listener(message):
        producer.send_async(message, completed)
        if message.body == b"50":
            arrived.set()

    session.create_consumer("queue:q").set_listener(listener)
    memory.connection.start()
    memory.broker.publish("queue:q", numbered(50))
    assert arrived.wait(PATIENCE_S)
    memory.connection.close()
    assert bodies(completed.messages) == bodies(memory.broker.received("queue:out")) == bodies(numbered(50))


# --- what goes wrong ---


def test_a_refused_message_fails_alone():
    memory, completed = Memory(faults=RefusesOne()), Completed()
    producer = memory.session().create_producer("queue:q")
    for body in (b"1", b"refused", b"2"):
        producer.send_async(Message(body), completed)
    memory.connection.close()
    assert completed.codes == [None, "E8102", None]
    assert isinstance(completed.errors[1], SendRejected)
    assert bodies(memory.broker.received("queue:q")) == ["1", "2"]


class RefusesOne(Refuses):
    def refused(self, sender, batch):
        return {at: "full" for at, one in enumerate(batch) if one.message.body == b"refused"}


def test_a_lost_connection_fails_all_that_are_outstanding_and_the_next_message_connects_anew():
    faults = LosesFirst()
    memory, completed = Memory(faults=faults), Completed()
    producer = memory.session().create_producer("queue:q")
    messages = numbered(300)
    for message in messages:
        producer.send_async(message, completed)
    faults.may_take.set()
    producer.send(Message(b"after"))
    memory.connection.close()
    assert bodies(completed.messages) == bodies(messages)
    assert completed.codes == ["E7001"] * 300
    assert {type(error) for error in completed.errors} == {ConnectionLost}
    arrived = bodies(memory.broker.received("queue:q"))
    assert arrived == [*bodies(messages)[: len(arrived) - 1], "after"]  # no gap


class LosesFirst(Held):
    """A broker that loses the connection when it has accepted half of the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = False

    def accepted_before_loss(self, sender, batch):
        first, self.lost = not self.lost, True
        return len(batch) // 2 if first else None


class FailsFor(Connector):
    """A connector whose sink fails once, with this error, for one destination."""

    def __init__(self, destination, error) -> None:
        super().__init__()
        self.destination, self.error = destination, error
        self.may_fail = threading.Event()
        self.sent = []

    def send(self, batch):
        if batch[0].destination == self.destination and self.error is not None:
            assert self.may_fail.wait(PATIENCE_S)
            error, self.error = self.error, None
            raise error
        self.sent += [one.message.body for one in batch]
        return [None] * len(batch)


def test_what_one_producer_loses_keeps_nothing_from_another():
    connector = FailsFor("queue:a", ConnectionLost("E7001", "here", "the line is cut"))
    session = ConnectionFactory(connector).create_connection().create_session()
    first, second = session.create_producer("queue:a"), session.create_producer("queue:b")
    completed = Completed()
    for producer, body in [(first, b"1"), (second, b"2"), (first, b"3"), (second, b"4")]:
        producer.send_async(Message(body), completed)
    connector.may_fail.set()
    session.close()
    outcome = dict(zip(bodies(completed.messages), completed.codes, strict=True))
    assert outcome == {"1": "E7001", "2": None, "3": "E7001", "4": None}
    assert connector.sent == [b"2", b"4"]


def test_whatever_a_connector_raises_is_told_and_close_returns():
    connector = FailsFor("queue:a", ValueError("a bug"))
    session = ConnectionFactory(connector).create_connection().create_session()
    connector.may_fail.set()
    completed = Completed()
    session.create_producer("queue:a").send_async(Message(b"x"), completed)
    session.close()
    assert [str(error) for error in completed.errors] == ["a bug"]


def test_a_completion_that_fails_is_logged_and_the_next_one_is_called(caplog):
    def fails(message):
        raise ValueError("the completion fails")

    completed = Completed(fails)
    session = Memory().session()
    producer = session.create_producer("queue:q")
    for message in numbered(3):
        producer.send_async(message, completed)
    session.close()
    assert completed.errors == [None] * 3
    assert caplog.messages == ["A completion failed: the completion fails"] * 3


def test_a_completion_uses_no_part_of_its_session_and_waits_for_none():
    memory, found = Memory(), []
    session = memory.session()
    producer, consumer = session.create_producer("queue:q"), session.create_consumer("queue:other")

    def completion(message, error):
        for call in [
            lambda: producer.send(message),
            lambda: producer.send_async(message, completion),
            lambda: consumer.receive(0),
            session.recover,
            lambda: consumer.set_listener(None),
            producer.close,
            consumer.close,
            session.close,
            memory.connection.stop,
            memory.connection.close,
        ]:
            with pytest.raises(UsageError) as refused:
                call()
            found.append(refused.value.code)

    producer.send_async(Message(b"x"), completion)
    session.close()
    assert found == ["E7505"] * 5 + ["E7506"] * 5


@pytest.mark.parametrize("earlier", [["1"], []], ids=["behind another one", "alone"])
def test_what_is_sent_while_the_session_closes_is_refused_or_completed(monkeypatch, earlier):
    """Another thread sends when the session has ended the thread of its completions."""
    memory, completed = Memory(), Completed()
    session = memory.session()
    producer = session.create_producer("queue:q")
    for body in earlier:
        producer.send_async(Message(body.encode()), completed)
    close = session._completions.close

    def close_and_send():
        close()
        with pytest.raises(UsageError, match="^E7501"):
            producer.send_async(Message(b"late"), completed)

    monkeypatch.setattr(session._completions, "close", close_and_send)
    session.close()
    assert bodies(completed.messages) == earlier
    assert completing_threads() == []


def test_a_consumer_and_its_session_are_closed_at_the_same_time(monkeypatch):
    """One thread closes the consumer while the other one, within `Session.close`, waits for completions."""
    session = Memory().session()
    consumer = session.create_consumer("queue:q")
    closes_session, closes_consumer, session_closed = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(session._completions, "close", lambda: (closes_session.set(), closes_consumer.wait(PATIENCE_S)))
    monkeypatch.setattr(consumer, "_on_close", lambda: (closes_consumer.set(), session_closed.wait(0.5)))
    with ThreadPoolExecutor(2) as threads:
        closing = threads.submit(lambda: (session.close(), session_closed.set()))
        assert closes_session.wait(PATIENCE_S)
        threads.submit(consumer.close).result(PATIENCE_S)
        closing.result(PATIENCE_S)


def test_two_threads_close_a_connection(monkeypatch):
    memory = Memory()
    first, _ = memory.session(), memory.session()
    close = first.close

    def close_and_let_another_thread_do_so():
        close()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(memory.connection.close).result(PATIENCE_S)

    with monkeypatch.context() as patch:
        patch.setattr(first, "close", lambda: (patch.undo(), close_and_let_another_thread_do_so()))
        memory.connection.close()
    assert memory.connection._sessions == {}


def test_what_cannot_be_sent_is_refused_at_once():
    producer = Memory().session().create_producer("queue:q")
    with pytest.raises(UsageError, match="^E7504"):
        producer.send_async("text", Completed())
    producer.close()
    with pytest.raises(UsageError, match="^E7501"):
        producer.send_async(Message(b"x"), Completed())


def test_a_foreign_message_is_given_back_as_it_was():
    memory, completed, foreign = Memory(), Completed(), Foreign("Grüße", {"n": 1})
    with memory.connection:
        memory.session().create_producer("queue:q").send_async(foreign, completed)
    assert completed.messages == [foreign]
    assert bodies(memory.broker.received("queue:q")) == ["Grüße"]
