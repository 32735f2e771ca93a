"""Limits of destinations of the embedded broker: what is refused, what waits, what makes room, and exactness."""

import threading
import time

import pytest

from connectors.embedded import rooms, sink
from connectors.embedded.composing import Composer
from connectors.embedded.sql import Function, Sql
from correlator.connector import TAKES_NOTHING, Subscriber, Work
from correlator.errors import ConnectionLost, SendRejected
from correlator.settings import SenderSettings
from tests.connectors.embedded import (
    DEAD,
    QUEUE,
    TOPIC,
    Broker,
    address,
    bodies,
    bodies_of,
    connected,
    message,
    outgoing,
    receiver,
)

OUT = "queue:out"
DEADLINE_S = 30.0


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def broker(request, tmp_path):
    broker = Broker(address(request, tmp_path), ack_timeout_ms=200)
    yield broker
    broker.close()


def codes(results):
    return [result and result.code for result in results]


def size_of(text, **headers):
    """The bytes that a message counts."""
    return len(Composer("x", lasting=True, passing=True).compose(outgoing(message(text, **headers))[0]).content)


def engine_sink(broker, destination=QUEUE):
    made = broker.connection.sink(SenderSettings(id="s", connection="c", destination=destination))
    return connected(broker.opened(made))


# --- REJECT_NEWEST ---


def test_a_full_queue_refuses_the_newest(broker):
    broker.connection.create(QUEUE, {"max_num_msgs": 2})
    assert codes(broker.send("a", "b", "c")) == [None, None, "E8108"]
    source = broker.plain()
    source.acknowledge(source.receive(1, 0.0).tokens)
    assert codes(broker.send("d", "e")) == [None, "E8108"]
    assert bodies_of(broker, QUEUE) == ["b", "d"]
    assert bodies_of(broker, DEAD) == []  # refused is not dead
    assert broker.tally() == (2, 0)


def test_held_delayed_and_prepared_messages_count(broker):
    broker.connection.create(QUEUE, {"max_num_msgs": 3})
    session = broker.session()
    source = broker.source(session)
    broker.send("prepared", "held", message("delayed", delivery_delay_ms=600_000))
    session.prepare("t", Work([(source, source.receive(1, 0.0).tokens)], []))
    assert bodies(source.receive(1, 0.0)) == ["held"]
    assert codes(broker.send("x")) == ["E8108"]
    session.resolve("t", commit=True)
    assert codes(broker.send("x")) == [None]


def test_bytes_are_limited_and_a_smaller_message_may_still_fit(broker):
    broker.connection.create(QUEUE, {"max_total_msg_bytes": 3 * size_of("a")})
    assert codes(broker.send("a", "b" * 300, "b", "c", "d")) == [None, "E8106", None, None, "E8108"]
    assert bodies_of(broker, QUEUE) == ["a", "b", "c"]


@pytest.mark.parametrize("behavior", ["REJECT_NEWEST", "FLOW_CONTROL", "REMOVE_OLDEST", "REMOVE_LOW_PRIORITY"])
@pytest.mark.parametrize("name", ["max_per_msg_bytes", "max_total_msg_bytes"])
def test_a_message_that_is_too_large_at_all_is_refused_and_none_goes_for_it(broker, behavior, name):
    broker.connection.create(QUEUE, {name: 200, "limit_behavior": behavior})
    assert codes(broker.send("a", "x" * 300, "b")) == [None, "E8106", None]
    assert bodies_of(broker, QUEUE) == ["a", "b"]
    assert bodies_of(broker, DEAD) == []


def test_what_is_not_persistent_is_dropped_and_counted(broker):
    broker.connection.create(QUEUE, {"max_num_msgs": 1})
    broker.plain("queue:keeps the broker open")
    assert codes(broker.send("a", message("b", persistent=False), message("c", persistent=False))) == [None] * 3
    assert bodies_of(broker, QUEUE) == ["a"]
    assert broker.count("SELECT dropped FROM broker_destination WHERE name = 'queue:work'") == 2


def test_a_message_counts_once_until_its_last_subscription_is_done(broker):
    session = broker.session("me")
    broker.connection.create(TOPIC, {"max_num_msgs": 1})
    kinds = [Subscriber(name, durable=True, shared=False) for name in ("one", "other")]
    one, other = (broker.subscriber(session, kind) for kind in kinds)
    for expected in ([None], ["E8108"]):
        assert codes(broker.send("x", destination=TOPIC)) == expected
    one.acknowledge(one.receive(1, 0.0).tokens)
    assert codes(broker.send("y", destination=TOPIC)) == ["E8108"]
    other.acknowledge(other.receive(1, 0.0).tokens)
    assert codes(broker.send("y", destination=TOPIC)) == [None]


def test_what_no_subscription_wants_needs_no_room(broker):
    session = broker.session("me")
    broker.connection.create(TOPIC, {"max_num_msgs": 1})
    broker.subscriber(session, Subscriber("s", durable=True, shared=False), selector="n = 1")
    assert codes(broker.send(message("1", {"n": 1}), message("2", {"n": 2}), destination=TOPIC)) == [None, None]
    assert codes(broker.send(message("1", {"n": 1}), destination=TOPIC)) == ["E8108"]


def test_expired_messages_take_no_room(broker):
    broker.connection.create(QUEUE, {"max_num_msgs": 1})
    broker.send(message("gone", time_to_live_ms=1))
    deadline = time.monotonic() + DEADLINE_S
    while codes(broker.send("x")) != [None]:
        assert time.monotonic() < deadline
    assert (bodies_of(broker, QUEUE), bodies_of(broker, DEAD)) == (["x"], ["gone"])


# --- transactions ---


def test_a_transaction_makes_room_for_what_it_sends(broker):
    broker.connection.create(QUEUE, {"max_num_msgs": 1})
    broker.send("a")
    session = broker.session()
    source = broker.source(session)
    session.settle(Work([(source, source.receive(1, 0.0).tokens)], outgoing("b")))
    assert bodies_of(broker, QUEUE) == ["b"]


@pytest.mark.parametrize("behavior", ["REJECT_NEWEST", "FLOW_CONTROL"])
def test_a_transaction_that_finds_no_room_does_nothing(broker, behavior):
    broker.connection.create(OUT, {"max_num_msgs": 1, "limit_behavior": behavior})
    broker.send("a")
    broker.send("x", destination=OUT)
    session = broker.session()
    source = broker.source(session)
    held = source.receive(1, 0.0)
    with pytest.raises(SendRejected, match="^E8108"):
        session.settle(Work([(source, held.tokens)], outgoing("b", destination=OUT)))
    assert (bodies_of(broker, QUEUE), bodies_of(broker, OUT)) == (["a"], ["x"])
    source.acknowledge(held.tokens)  # it is still held


def test_a_transaction_larger_than_the_limit_does_not_wait(broker):
    unlimited = Broker(broker.store)  # it would wait for ever
    broker.connection.create(OUT, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    session = broker.opened(unlimited.client().session())
    with pytest.raises(SendRejected, match="sends more than queue:out may hold"):
        session.settle(Work([], outgoing("a", "b", destination=OUT)))
    unlimited.close()


def test_a_prepared_transaction_stays_prepared_while_there_is_no_room(broker):
    broker.connection.create(OUT, {"max_num_msgs": 1})
    broker.send("x", destination=OUT)
    session = broker.session()
    session.prepare("t", Work([], outgoing("y", destination=OUT)))
    with pytest.raises(SendRejected, match="^E8108"):
        session.resolve("t", commit=True)
    source = broker.plain(OUT)
    source.acknowledge(source.receive(1, 0.0).tokens)
    session.resolve("t", commit=True)
    assert bodies_of(broker, OUT) == ["y"]


# --- FLOW_CONTROL ---


def in_thread(call):
    """Run a call in a thread; returns the thread, and the list that gets its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_a_sender_waits_for_room_and_is_woken(broker, monkeypatch):
    monkeypatch.setattr(rooms, "_LOOK_S", DEADLINE_S)  # only a wake-up ends the wait in time
    waiting = Broker(broker.store)
    broker.connection.create(QUEUE, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    source = broker.plain()
    broker.send("a")
    waits = threading.Event()
    wait = rooms.Rooms.wait
    monkeypatch.setattr(rooms.Rooms, "wait", lambda self, *more: (waits.set(), wait(self, *more))[1])
    thread, results = in_thread(lambda: waiting.send("b", "c"))
    assert waits.wait(DEADLINE_S)
    assert bodies_of(broker, QUEUE) == ["a"]
    for expected in "abc":
        chunk = source.receive(1, DEADLINE_S)
        assert bodies(chunk) == [expected]
        source.acknowledge(chunk.tokens)
    thread.join(DEADLINE_S / 2)
    assert codes(results[0]) == [None, None]
    waiting.close()


@pytest.mark.parametrize("persistent", [True, False])
def test_a_sender_waits_no_longer_than_its_timeout_and_nothing_is_stored(broker, persistent):
    broker.connection.create(QUEUE, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    broker.plain("queue:keeps the broker open")
    (stored, refused) = broker.send("a", message("b", persistent=persistent))
    assert stored is None
    assert str(refused).startswith("E8108 senders.s message 2: queue:work had no room within 200 ms")
    assert bodies_of(broker, QUEUE) == ["a"]


def test_a_transaction_waits_for_room(broker):
    waiting = Broker(broker.store)
    broker.connection.create(OUT, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    broker.send("a", destination=OUT)
    source = broker.plain(OUT)
    session = waiting.session()
    thread, results = in_thread(lambda: session.settle(Work([], outgoing("b", destination=OUT))))
    for expected in "ab":
        chunk = source.receive(1, DEADLINE_S)
        assert bodies(chunk) == [expected]
        source.acknowledge(chunk.tokens)
    thread.join(DEADLINE_S)
    assert results == [None]
    waiting.close()


def test_a_sender_finds_out_by_itself_that_a_limit_was_raised(broker):
    waiting = Broker(broker.store)
    broker.connection.create(QUEUE, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    broker.send("a")
    thread, results = in_thread(lambda: waiting.send("b"))
    broker.connection.update(QUEUE, {"max_num_msgs": 2})
    thread.join(DEADLINE_S)
    assert codes(results[0]) == [None]
    waiting.close()


# --- engines ---


@pytest.mark.parametrize("behavior", ["REJECT_NEWEST", "FLOW_CONTROL"])
def test_an_engine_is_held_up_and_loses_and_repeats_nothing(broker, monkeypatch, behavior):
    """A refusal would be final for an engine, since the broker takes a later try for a repeat."""
    monkeypatch.setattr(sink, "PATIENCE_S", 0.05)
    broker.connection.create(QUEUE, {"max_num_msgs": 2, "limit_behavior": behavior})
    source, sender = broker.plain(), engine_sink(broker)
    batch = outgoing(*"abcde", source="engine")
    got = []
    for _ in range(3):
        if len(got) < 3:
            with pytest.raises(ConnectionLost, match=f"^{TAKES_NOTHING} .*queue:work can hold no more messages"):
                sender.send(batch)
            sender.connect()
        else:
            assert codes(sender.send(batch)) == [None] * 5
        chunk = source.receive(9, 0.0)
        got += bodies(chunk)
        source.acknowledge(chunk.tokens)
    assert got == list("abcde")


# --- REMOVE_OLDEST and REMOVE_LOW_PRIORITY ---


def reasons(broker):
    found = broker.connection.browse(DEAD, 99)
    return sorted((m.body.decode(), m.properties["correlator_dmq_undelivered_reason"]) for m in found)


@pytest.mark.parametrize("use_dmq", [True, False])
@pytest.mark.parametrize("limit", ["max_num_msgs", "max_total_msg_bytes"])
def test_the_oldest_make_room(broker, limit, use_dmq):
    most = 3 if limit == "max_num_msgs" else 3 * size_of("a")
    broker.connection.create(QUEUE, {limit: most, "limit_behavior": "REMOVE_OLDEST", "use_dmq": use_dmq})
    broker.send(message("a", priority=4), "b")
    assert codes(broker.send("c", "d", "e")) == [None] * 3
    assert bodies_of(broker, QUEUE) == ["c", "d", "e"]
    assert reasons(broker) == ([("a", "OLDEST"), ("b", "OLDEST")] if use_dmq else [])
    assert codes(broker.send(*"vwxyz")) == [None] * 5  # more than there may be: also new ones go
    assert bodies_of(broker, QUEUE) == ["x", "y", "z"]
    assert broker.tally()[1] == 0
    assert broker.count() == 3 + (7 if use_dmq else 0)


@pytest.mark.parametrize("use_dmq", [True, False])
@pytest.mark.parametrize("limit", ["max_num_msgs", "max_total_msg_bytes"])
def test_the_lowest_priority_makes_room_the_newcomer_included(broker, limit, use_dmq):
    most = 3 if limit == "max_num_msgs" else 3 * size_of("p5", priority=5)
    broker.connection.create(QUEUE, {limit: most, "limit_behavior": "REMOVE_LOW_PRIORITY", "use_dmq": use_dmq})
    first = [message("p5", priority=5), message("p1", priority=1), message("P5", priority=5)]
    assert codes(broker.send(*first)) == [None] * 3
    assert codes(broker.send(message("n0", priority=0))) == [None]
    assert bodies_of(broker, QUEUE) == ["p5", "P5", "p1"]
    assert codes(broker.send(message("n9", priority=9), message("n5", priority=5))) == [None] * 2
    assert bodies_of(broker, QUEUE) == ["n9", "P5", "n5"]
    expected = [("n0", "LOW_PRIORITY"), ("p1", "LOW_PRIORITY"), ("p5", "LOW_PRIORITY")]
    assert reasons(broker) == (expected if use_dmq else [])
    assert broker.tally()[1] == 0


@pytest.mark.parametrize("behavior", ["REMOVE_OLDEST", "REMOVE_LOW_PRIORITY"])
def test_what_somebody_holds_does_not_go(broker, behavior):
    broker.connection.create(QUEUE, {"max_num_msgs": 2, "limit_behavior": behavior})
    broker.send("a", "b")
    source = broker.plain()
    assert bodies(source.receive(1, 0.0)) == ["a"]
    assert codes(broker.send("c")) == [None]
    assert bodies_of(broker, QUEUE) == ["a", "c"]
    assert bodies(source.receive(1, 0.0)) == ["c"]
    assert codes(broker.send("d")) == ["E8108"]  # all are held
    assert reasons(broker) == [("b", "OLDEST" if behavior == "REMOVE_OLDEST" else "LOW_PRIORITY")]


def test_nothing_goes_for_a_message_that_does_not_come_in(broker):
    sizes = {text: size_of(text) for text in ("a", "b" * 50, "c" * 100)}
    broker.connection.create(QUEUE, {"max_total_msg_bytes": sum(sizes.values()), "limit_behavior": "REMOVE_OLDEST"})
    broker.send("c" * 100, "b" * 50, "a")
    assert len(broker.plain().receive(1, 0.0).messages) == 1
    assert codes(broker.send("d" * 100)) == ["E8108"]
    assert len(bodies_of(broker, QUEUE)) == 3
    assert bodies_of(broker, DEAD) == []


@pytest.mark.parametrize("held", [True, False])
def test_a_message_of_a_topic_goes_only_if_no_subscription_holds_it(broker, held):
    session = broker.session("me")
    broker.connection.create(TOPIC, {"max_num_msgs": 2, "limit_behavior": "REMOVE_OLDEST"})
    kinds = [Subscriber(name, durable=True, shared=False) for name in ("one", "other")]
    one, other = (broker.subscriber(session, kind) for kind in kinds)
    broker.send("a", "b", destination=TOPIC)
    if held:
        assert bodies(other.receive(1, 0.0)) == ["a"]
    broker.send("c", destination=TOPIC)
    assert bodies(one.receive(9, 0.0)) == (["a", "c"] if held else ["b", "c"])
    gone = "b" if held else "a"
    assert reasons(broker) == [(gone, "OLDEST")] * 2  # one for each subscription
    names = {m.properties["correlator_dmq_subscription"] for m in broker.connection.browse(DEAD, 9)}
    assert names == {"one", "other"}
    assert broker.tally()[1] == 0


def test_victims_stay_if_the_send_is_rolled_back(broker):
    broker.connection.create(QUEUE, {"max_num_msgs": 1, "limit_behavior": "REMOVE_OLDEST"})
    broker.connection.create("queue:z", {"max_num_msgs": 1})
    broker.send("a")
    broker.send("x", destination="queue:z")
    sends = [*outgoing("b"), *outgoing("y", destination="queue:z")]
    with pytest.raises(SendRejected):
        broker.session().settle(Work([], sends))
    assert (bodies_of(broker, QUEUE), bodies_of(broker, DEAD)) == (["a"], [])


# --- concurrency ---


@pytest.mark.parametrize("most", [100, 1000])
@pytest.mark.parametrize("behavior", ["REJECT_NEWEST", "REMOVE_OLDEST"])
def test_the_limit_is_exact_whoever_sends(broker, behavior, most):
    """In the lower half of a limit senders of PostgreSQL share the destination; in the upper half they take turns."""
    broker.connection.create(QUEUE, {"max_num_msgs": most, "limit_behavior": behavior, "use_dmq": False})
    sent = [0] * 4
    barrier = threading.Barrier(4)

    def send(at):
        client = broker.connection.attach(None)
        session = client.session()
        sender = connected(session.sink(SenderSettings(id="s", connection="c", destination=QUEUE)))
        barrier.wait()
        for _ in range(most // 20):
            results = sender.send(outgoing(*"1234567"))
            sent[at] += results.count(None)
        session.close()
        client.close()

    threads = [threading.Thread(target=send, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broker.count() == most
    assert broker.tally() == (most, 0)
    assert sum(sent) == (most if behavior == "REJECT_NEWEST" else 28 * (most // 20))


def test_consumers_and_senders_at_a_limit_never_lock_each_other_out(broker):
    """Each transaction takes one message of a full topic and sends one, while victims go."""
    broker.connection.create(TOPIC, {"max_num_msgs": 5, "limit_behavior": "REMOVE_OLDEST"})
    names = ("one", "other")
    for name in names:
        broker.plain(TOPIC, name=name).close()
    broker.send(*"abcde", destination=TOPIC)
    failures, taken = [], []

    def work(name):
        client = broker.connection.attach(None)
        session = client.session()
        try:
            source = connected(session.source(receiver(TOPIC, name)))
            for number in range(20):
                chunk = source.receive(1, 0.0)
                session.settle(Work([(source, chunk.tokens)], outgoing(f"{number}", destination=TOPIC)))
                taken.append(len(chunk.tokens))
        except Exception as error:  # noqa: BLE001  # whatever it is, the test shows it
            failures.append(error)
        finally:
            session.close()
            client.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in names * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(taken) > 0
    assert broker.tally()[1] == 0


# --- statements ---


def test_limits_cost_no_statement_while_there_is_room(broker, monkeypatch):
    """A send and a receive execute as many statements with limits as before there were any."""
    broker.connection.create(QUEUE, {"max_num_msgs": 10**6, "max_total_msg_bytes": "1000m"})
    session = broker.session()
    sender = connected(session.sink(SenderSettings(id="s", connection="c", destination=QUEUE)))
    source = broker.source(session)
    sender.send(outgoing("warm"))
    source.acknowledge(source.receive(1, 0.0).tokens)
    executions = []
    execute, call_function = Sql._execute, Function.call
    monkeypatch.setattr(Sql, "_execute", lambda self, *more: (executions.append(self), execute(self, *more))[1])
    monkeypatch.setattr(Function, "call", lambda self, *more: (executions.append(self), call_function(self, *more))[1])

    def executed(call):
        executions.clear()
        call()
        return len(executions)

    on_sqlite = session._access.is_sqlite
    held = []
    assert executed(lambda: sender.send(outgoing("a", "b"))) == (5 if on_sqlite else 3)
    assert executed(lambda: held.extend(source.receive(9, 0.0).tokens)) == (3 if on_sqlite else 1)
    assert executed(lambda: source.acknowledge(held)) == (3 if on_sqlite else 1)
