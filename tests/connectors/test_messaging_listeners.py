"""Listeners (rule S5.1): which thread calls them, when, and what happens when they fail."""

import logging
import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from connectors.file import FileConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from correlator.connector import Chunk
from correlator.errors import ConnectionLost, UsageError
from correlator.events import Message
from correlator.testing.contract import PATIENCE_S
from tests.connectors.test_messaging import (
    BROKERS,
    Connector,
    Memory,
    bodies,
    exit_code_of_child,
    numbered,
    receive,
    rest,
    send,
    world_over,
)

CLIENT = AcknowledgeMode.CLIENT


@pytest.fixture(params=BROKERS)
def world(request):
    return world_over(request.param, request)


@pytest.fixture
def connection(world):
    with world.factory().create_connection() as connection:
        yield connection


@pytest.fixture
def memory():
    memory = Memory()
    with memory.connection:
        yield memory


class Inbox:
    """A listener that keeps its messages and calls a further function."""

    def __init__(self, then=lambda message: None) -> None:
        self.threads = set()
        self._then = then
        self._messages = queue.Queue()

    def __call__(self, message):
        self.threads.add(threading.current_thread())
        try:
            self._then(message)
        finally:
            self._messages.put(message)

    def take(self, count):
        """Wait for `count` messages and return them."""
        return [self._messages.get(timeout=PATIENCE_S) for _ in range(count)]

    @property
    def empty(self):
        return self._messages.empty()


class Busy:
    """A listener that does not return until `may_return` is set."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.may_return = threading.Event()
        self.history = []

    def __call__(self, message):
        self.entered.set()
        assert self.may_return.wait(PATIENCE_S)
        self.history.append("returned")


def fails_once(message):
    """A listener that raises for a message that is not marked as redelivered."""
    if not message.headers or not message.headers.redelivered:
        raise ValueError("the listener fails")


def listening_threads():
    return [one for one in threading.enumerate() if one.name == "session listeners"]


# --- over every broker ---


def test_s5_1_nothing_is_delivered_before_the_start_and_all_of_it_afterwards(world, connection):
    destination = world.queue()
    sender, session = connection.create_session(), connection.create_session()
    consumer, inbox = session.create_consumer(destination), Inbox()
    consumer.set_listener(inbox)
    send(sender, destination, numbered(20))
    assert listening_threads() == []
    assert inbox.empty
    connection.start()
    assert bodies(inbox.take(20)) == bodies(numbered(20))
    connection.stop()
    send(sender, destination, numbered(2, first=21))
    assert listening_threads() == []
    assert inbox.empty
    connection.start()
    assert bodies(inbox.take(2)) == ["21", "22"]


def test_s5_1_stop_returns_only_when_no_listener_runs(world, connection):
    destination, busy = world.queue(), Busy()
    sender, session = connection.create_session(), connection.create_session()
    session.create_consumer(destination).set_listener(busy)
    connection.start()
    send(sender, destination, numbered(1))
    waits_for(connection.stop, busy)
    session.close()
    assert rest(sender, destination) == []  # what it was given is acknowledged


def waits_for(call, busy):
    """Check that the call returns only after the listener has returned."""
    assert busy.entered.wait(PATIENCE_S)

    def calling():
        call()
        busy.history.append("called")

    caller = threading.Thread(target=calling)
    caller.start()
    caller.join(0.1)
    assert caller.is_alive()
    busy.may_return.set()
    caller.join(PATIENCE_S)
    assert busy.history == ["returned", "called"]


def test_what_a_listener_failed_with_comes_again_in_mode_auto(world, connection, caplog):
    destination, inbox = world.queue(), Inbox(fails_once)
    sender, session = connection.create_session(), connection.create_session()
    session.create_consumer(destination).set_listener(inbox)
    send(sender, destination, numbered(1))
    connection.start()
    first, again = inbox.take(2)
    connection.stop()
    assert (first.body, again.body, again.headers.redelivered) == (b"1", b"1", True)
    (logged,) = [one for one in caplog.records if one.name == "connectors.messaging"]
    assert "the listener fails" in logged.message
    assert logged.levelno == logging.WARNING
    session.close()
    assert rest(sender, destination) == []


def test_a_listener_acknowledges_and_recovers_in_mode_client(world, connection):
    destination = world.queue()
    sender, session = connection.create_session(), connection.create_session(CLIENT)
    given = []

    def third_time_recovers(message):
        given.append(message)
        if len(given) == 3:
            session.recover()
        if len(given) == 6:
            session.acknowledge(message)

    inbox = Inbox(third_time_recovers)
    session.create_consumer(destination).set_listener(inbox)
    send(sender, destination, numbered(3))
    connection.start()
    inbox.take(6)
    assert [(one.body, bool(one.headers and one.headers.redelivered)) for one in given] == [
        *[(body, False) for body in (b"1", b"2", b"3")],
        *[(body, True) for body in (b"1", b"2", b"3")],
    ]
    connection.stop()
    session.close()
    assert rest(sender, destination) == []


def test_nothing_is_lost_or_doubled_by_stops_and_starts(world, connection):
    destination, inbox = world.queue(), Inbox()
    sender, session = connection.create_session(), connection.create_session()
    session.create_consumer(destination).set_listener(inbox)
    send(sender, destination, numbered(50))
    found = []
    for _ in range(5):
        connection.start()
        found += inbox.take(5)
        connection.stop()
    connection.start()
    while len(found) < 50:
        found += inbox.take(1)
    connection.stop()
    assert bodies(found) == bodies(numbered(50))
    session.close()
    assert rest(sender, destination) == []


# --- threads ---


def test_a_listener_whose_call_would_run_nothing_is_refused(memory):
    async def listener(message): ...

    session = memory.session(CLIENT)
    consumer, producer = session.create_consumer("queue:q"), session.create_producer("queue:q")
    with pytest.raises(UsageError, match=r"E4117 listener of consumer of queue:q: is 'async def'"):
        consumer.set_listener(listener)
    with pytest.raises(UsageError, match=r"E4117 completion of producer of queue:q: is 'async def'"):
        producer.send_async(numbered(1)[0], listener)


def test_what_cannot_be_called_is_refused(memory):
    session = memory.session(CLIENT)
    consumer, producer = session.create_consumer("queue:q"), session.create_producer("queue:q")
    with pytest.raises(UsageError, match=r"E7540 listener of consumer of queue:q: '5' is not allowed. A function"):
        consumer.set_listener(5)
    with pytest.raises(UsageError, match=r"E7540 completion of producer of queue:q: 'None' is not allowed"):
        producer.send_async(numbered(1)[0], None)
    with pytest.raises(UsageError, match=r"E7540 exception listener: 'log' is not allowed"):
        memory.connection.set_exception_listener("log")


def test_a_listener_that_hides_such_a_call_has_failed(memory, caplog):
    async def later(message): ...

    inbox = Inbox()
    session = memory.session()
    send(session, "queue:q", numbered(1))
    session.create_consumer("queue:q").set_listener(lambda message: (inbox(message), later(message))[1])
    with caplog.at_level(logging.WARNING):
        memory.connection.start()
        assert bodies(inbox.take(2)) == ["1", "1"]
        memory.connection.stop()
    assert "E4117 listener of consumer of queue:q" in caplog.text


@pytest.mark.parametrize("closes", ["consumer", "session", "connection"])
def test_s5_1_closing_waits_for_the_listener(world, connection, closes):
    destination, session, busy = world.queue(), connection.create_session(), Busy()
    consumer = session.create_consumer(destination)
    consumer.set_listener(busy)
    send(connection.create_session(), destination, numbered(2))
    connection.start()
    waits_for({"consumer": consumer, "session": session, "connection": connection}[closes].close, busy)
    assert listening_threads() == []
    with world.factory().create_connection() as other:
        assert [body for body, _ in rest(other.create_session(), destination)] == ["2"]


def test_a_consumer_is_closed_and_the_others_of_its_session_go_on(memory):
    session, inbox = memory.session(), Inbox()
    ends, stays = session.create_consumer("queue:ends"), session.create_consumer("queue:stays")
    ends.set_listener(Inbox())
    stays.set_listener(inbox)
    memory.connection.start()
    ends.close()
    for queue_ in ("queue:ends", "queue:stays"):
        memory.broker.publish(queue_, numbered(1))
    inbox.take(1)
    memory.connection.stop()
    assert memory.left("queue:ends") == (1, 0)


def test_s5_1_one_thread_calls_all_listeners_of_a_session_and_each_session_has_its_own(memory):
    first, second, other = Inbox(), Inbox(), Inbox()
    session = memory.session()
    session.create_consumer("queue:first").set_listener(first)
    session.create_consumer("queue:second").set_listener(second)
    memory.session().create_consumer("queue:other").set_listener(other)
    memory.connection.start()
    for queue_, inbox in [("queue:first", first), ("queue:second", second), ("queue:other", other)]:
        memory.broker.publish(queue_, numbered(3))
        inbox.take(3)
    assert first.threads == second.threads
    assert len(first.threads | other.threads) == 2
    assert threading.current_thread() not in first.threads | other.threads


def test_a_listener_that_is_set_after_the_start_is_called(memory):
    memory.connection.start()
    inbox = Inbox()
    memory.session().create_consumer("queue:q").set_listener(inbox)
    memory.broker.publish("queue:q", numbered(1))
    assert bodies(inbox.take(1)) == ["1"]


def test_a_session_with_listeners_belongs_to_their_thread_while_the_connection_is_started(memory):
    session = memory.session()
    consumer, producer = session.create_consumer("queue:q"), session.create_producer("queue:p")
    quiet, looking = session.create_consumer("queue:quiet"), session.create_browser("queue:q")
    (message,) = numbered(1)
    calls = [
        lambda: producer.send(message),
        lambda: quiet.receive(0),
        lambda: list(looking.enumerate()),
        lambda: session.acknowledge(message),
        session.recover,
        lambda: session.create_consumer("queue:x").close(),
        lambda: session.create_producer("queue:x").close(),
        lambda: session.create_browser("queue:x"),
        lambda: quiet.set_listener(None),
    ]
    inbox = Inbox(lambda message: [call() for call in calls])
    consumer.set_listener(inbox)
    for call in calls:
        call()  # it is not started
    memory.connection.start()
    for call in calls:
        with pytest.raises(UsageError, match="^E7505 .* its session has listeners, and belongs to their thread"):
            call()
    memory.broker.publish("queue:q", numbered(1))
    inbox.take(1)
    memory.connection.stop()
    for call in calls:
        call()
    assert len(memory.broker.received("queue:p")) == 3


@pytest.mark.parametrize("calls", ["session.close", "connection.close", "connection.stop"])
def test_what_waits_for_a_listener_is_refused_within_it(memory, calls):
    session = memory.session()
    call = {
        "session.close": session.close,
        "connection.close": memory.connection.close,
        "connection.stop": memory.connection.stop,
    }[calls]
    refusals = []

    def listener(message):
        with pytest.raises(UsageError) as refused:
            call()
        refusals.append(str(refused.value))

    inbox = Inbox(listener)
    session.create_consumer("queue:q").set_listener(inbox)
    memory.connection.start()
    memory.broker.publish("queue:q", numbered(2))
    inbox.take(2)  # it goes on
    assert all(refusal.startswith(f"E7506 {calls.split('.')[0]}: the call waits") for refusal in refusals)
    assert len(refusals) == 2


def test_a_listener_may_close_its_own_consumer_and_its_message_is_acknowledged(memory):
    consumer = memory.session().create_consumer("queue:q")
    inbox = Inbox(lambda message: consumer.close())
    consumer.set_listener(inbox)
    memory.broker.publish("queue:q", numbered(2))
    memory.connection.start()
    assert bodies(inbox.take(1)) == ["1"]
    memory.connection.stop()
    assert memory.left("queue:q") == (1, 0)
    assert memory.broker._ends == []  # the broker sends it nothing more


def test_a_listener_may_close_another_consumer_which_is_asked_no_more(memory, caplog):
    session = memory.session()
    other = session.create_consumer("queue:other")
    inbox = Inbox(lambda message: other.close())
    session.create_consumer("queue:q").set_listener(inbox)
    other.set_listener(Inbox())
    memory.broker.publish("queue:q", numbered(1))
    memory.connection.start()
    inbox.take(1)
    memory.connection.stop()
    memory.broker.publish("queue:other", numbered(1))
    assert memory.left("queue:other") == (1, 0)
    assert len(memory.broker._ends) == 1
    assert caplog.messages == []


def test_a_listener_may_ask_another_consumer_of_its_session(memory):
    """The listener sends a request, and receives the answer with the other consumer."""
    session = memory.session()
    answers, asked = session.create_consumer("queue:answers"), []
    inbox = Inbox(lambda message: asked.append(answers.receive(PATIENCE_S)))
    session.create_consumer("queue:q").set_listener(inbox)
    for queue_ in ("queue:answers", "queue:q"):
        memory.broker.publish(queue_, numbered(1))
    memory.connection.start()
    inbox.take(1)
    assert bodies(asked) == ["1"]


def test_a_consumer_with_a_listener_is_not_asked_until_it_has_none(memory):
    consumer = memory.session().create_consumer("queue:q")
    memory.broker.publish("queue:q", numbered(1))
    consumer.set_listener(Inbox())
    with pytest.raises(UsageError, match="^E7507 consumer of queue:q: it has a listener"):
        consumer.receive(0)
    consumer.set_listener(None)
    memory.connection.start()
    assert bodies(receive(consumer, 1)) == ["1"]
    assert listening_threads() == []


def test_a_listener_that_takes_itself_away_ends_the_thread(memory):
    consumer = memory.session().create_consumer("queue:q")
    inbox = Inbox(lambda message: consumer.set_listener(None))
    consumer.set_listener(inbox)
    memory.broker.publish("queue:q", numbered(2))
    memory.connection.start()
    inbox.take(1)
    for one in inbox.threads:
        one.join(PATIENCE_S)
    assert bodies(receive(consumer, 1)) == ["2"]


# --- failures ---


def test_a_listener_that_always_fails_keeps_nothing_from_other_consumers(memory):
    def fails(message):
        raise ValueError("the listener always fails")

    session, good = memory.session(), Inbox()
    poisoned = Inbox(fails)
    session.create_consumer("queue:poison").set_listener(poisoned)
    session.create_consumer("queue:q").set_listener(good)
    memory.broker.publish("queue:poison", numbered(2))
    memory.broker.publish("queue:q", numbered(50))
    memory.connection.start()
    assert bodies(good.take(50)) == bodies(numbered(50))
    assert bodies(poisoned.take(3)) == ["1", "1", "1"]
    memory.connection.stop()
    assert memory.left("queue:poison") == (2, 0)


def test_after_each_failure_the_pause_is_longer_until_a_message_is_taken(memory, caplog):
    failures = iter([True, True, True, False, True, False])

    def listener(message):
        if next(failures):
            raise ValueError("it fails")

    inbox = Inbox(listener)
    memory.session().create_consumer("queue:q").set_listener(inbox)
    memory.broker.publish("queue:q", numbered(2))
    memory.connection.start()
    assert bodies(inbox.take(6)) == ["1", "1", "1", "1", "2", "2"]
    pauses = [0.01, 0.02, 0.04, 0.01]
    assert caplog.messages == [f"consumer of queue:q, continues in {pause:g} s: it fails" for pause in pauses]
    times = [record.created for record in caplog.records]
    assert all(later - earlier >= pause for earlier, later, pause in zip(times, times[1:], pauses, strict=False))


def test_what_fails_in_mode_client_stays_and_the_next_follows(memory):
    inbox = Inbox(fails_once)
    session = memory.session(CLIENT)
    session.create_consumer("queue:q").set_listener(inbox)
    memory.broker.publish("queue:q", numbered(3))
    memory.connection.start()
    assert bodies(inbox.take(3)) == ["1", "2", "3"]
    memory.connection.stop()
    assert memory.left("queue:q") == (0, 3)
    session.recover()
    memory.connection.start()
    assert bodies(inbox.take(3)) == ["1", "2", "3"]


def test_a_listener_goes_on_when_its_broker_is_back(memory, caplog):
    inbox = Inbox()
    memory.session().create_consumer("queue:q").set_listener(inbox)
    memory.connection.start()
    memory.broker.publish("queue:q", numbered(1))
    inbox.take(1)
    told = threading.Event()
    caplog.handler.addFilter(lambda record: told.set() or True)
    memory.broker.down = True
    assert told.wait(PATIENCE_S)
    memory.broker.publish("queue:q", numbered(1, first=2))
    memory.broker.down = False
    assert bodies(inbox.take(1)) == ["2"]
    assert caplog.messages[0].startswith("consumer of queue:q, continues in 0.01 s: E7001")
    assert caplog.records[0].exc_info[0] is ConnectionLost


def test_a_listener_that_would_end_its_thread_has_failed(memory, caplog):
    first = []

    def exits(message):
        if not first:
            first.append(message)
            sys.exit("done")

    inbox = Inbox(exits)
    memory.session().create_consumer("queue:q").set_listener(inbox)
    memory.broker.publish("queue:q", numbered(1))
    memory.connection.start()
    assert bodies(inbox.take(2)) == ["1", "1"]
    memory.connection.stop()
    assert caplog.messages == ["consumer of queue:q, continues in 0.01 s: done"]
    assert memory.left("queue:q") == (0, 0)


def test_listeners_go_on_when_the_close_of_another_consumer_is_interrupted(memory, monkeypatch):
    session, inbox = memory.session(), Inbox()
    session.create_consumer("queue:q").set_listener(inbox)
    other = session.create_consumer("queue:other")
    memory.connection.start()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(other, "end", interrupt)
        other.close()
    memory.broker.publish("queue:q", numbered(1))
    assert bodies(inbox.take(1)) == ["1"]


class Endless(Connector):
    """A connector whose source has messages without end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def receive(self, max_messages, timeout_s):
        self.begun.set()
        return Chunk([Message(b"x")], [object()])

    def acknowledge(self, tokens):
        pass


@pytest.fixture
def endless():
    with ConnectionFactory(Endless()).create_connection() as connection:
        yield connection, connection.create_session().create_consumer("topic:t", "n = 1", subscription="s")


def test_receive_ends_in_time_though_messages_that_are_not_selected_come_without_end(endless):
    _, consumer = endless
    assert consumer.receive(0.05) is None


def test_stop_ends_a_receive_though_messages_that_are_not_selected_come_without_end(endless):
    connection, consumer = endless
    with ThreadPoolExecutor(1) as thread:
        receiving = thread.submit(consumer.receive)
        assert consumer._intake.source.begun.wait(PATIENCE_S)
        connection.stop()
        assert receiving.result(PATIENCE_S) is None


def test_stop_ends_listeners_though_messages_that_are_not_selected_come_without_end(endless):
    connection, consumer = endless
    consumer.set_listener(Inbox())
    connection.start()
    assert consumer._intake.source.begun.wait(PATIENCE_S)
    connection.stop()
    assert listening_threads() == []


def test_a_connection_is_closed_though_another_thread_starts_it_meanwhile(memory, monkeypatch):
    session = memory.session()
    session.create_consumer("queue:q").set_listener(Inbox())
    memory.connection.start()
    ask_to_stop = session._listening.ask_to_stop
    monkeypatch.setattr(session._listening, "ask_to_stop", lambda: (ask_to_stop(), memory.connection.start()))
    closing = threading.Thread(target=memory.connection.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert listening_threads() == []


def test_a_child_that_a_listener_forks_may_close_everything(memory):
    session, codes = memory.session(), []

    def forks(message):
        codes.append(exit_code_of_child(lambda: (consumer.close(), session.close(), memory.connection.close())))

    consumer, inbox = session.create_consumer("queue:q"), Inbox(forks)
    consumer.set_listener(inbox)
    memory.broker.publish("queue:q", numbered(1))
    memory.connection.start()
    inbox.take(1)
    assert codes == [0]


def test_what_is_not_selected_of_a_topic_is_left_out(memory):
    inbox = Inbox()
    session = memory.session()
    session.create_consumer("topic:t", "n > 1", subscription="s").set_listener(inbox)
    memory.broker.publish("topic:t", numbered(3))
    memory.connection.start()
    assert bodies(inbox.take(2)) == ["2", "3"]
    memory.connection.stop()
    assert memory.left("topic:t") == (0, 0)


def test_a_file_is_given_to_its_end_and_the_thread_ends(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    inbox = Inbox()
    with ConnectionFactory(FileConnection, {"path": str(tmp_path)}).create_connection() as connection:
        connection.create_session().create_consumer("queue:a.jsonl", subscription="reader").set_listener(inbox)
        connection.start()
        assert bodies(inbox.take(2)) == ['{"n": 1}', '{"n": 2}']
        for one in inbox.threads:
            one.join(PATIENCE_S)
        assert listening_threads() == []


def test_a_closed_connection_is_not_started_or_stopped(memory):
    memory.connection.close()
    for call in (memory.connection.start, memory.connection.stop):
        with pytest.raises(UsageError, match="^E7501 connection"):
            call()
    memory.connection.close()
