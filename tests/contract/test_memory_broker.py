"""The broker in memory, as a tool of tests: its faults have their effects, and its history is complete."""

import pytest

from correlator.connector import Features, Order
from correlator.errors import ConfigError, ConnectionLost
from correlator.events import Message
from correlator.settings import ConnectionSettings
from correlator.testing.clock import ManualClock
from correlator.testing.contract import outgoing, receiver, sender
from correlator.testing.memory import Faults, MemoryBroker

LOST = ConnectionLost("E7001", "test", "cut by the test")


def connected_source(broker):
    source = broker.connection().source(receiver("queue:a"))
    source.connect()
    return source


def connected_sink(broker):
    sink = broker.connection().sink(sender("queue:a"))
    sink.connect()
    return sink


def contents(messages):
    return [message.body for message in messages]


def test_an_acknowledgement_that_never_arrives() -> None:
    class Cut(Faults):
        def before_acknowledge(self, receiver, messages):
            raise LOST

    broker = MemoryBroker(faults=Cut())
    broker.publish("queue:a", [Message(b"1")])
    source = connected_source(broker)
    with pytest.raises(ConnectionLost):
        source.acknowledge(source.receive(1, 0.0).tokens)
    assert broker.unacknowledged("queue:a") == 1
    source.connect()
    assert contents(source.receive(1, 0.0).messages) == [b"1"]


def test_an_acknowledgement_that_is_lost_without_a_word() -> None:
    class Lost(Faults):
        def loses_acknowledgement(self, receiver, messages):
            return True

    broker = MemoryBroker(faults=Lost())
    broker.publish("queue:a", [Message(b"1")])
    source = connected_source(broker)
    source.acknowledge(source.receive(1, 0.0).tokens)
    broker.drop_connections()
    with pytest.raises(ConnectionLost):
        source.receive(1, 0.0)
    source.connect()
    assert contents(source.receive(1, 0.0).messages) == [b"1"]


def test_an_answer_to_an_acknowledgement_that_is_lost() -> None:
    class Cut(Faults):
        def after_acknowledge(self, receiver, messages):
            raise LOST

    broker = MemoryBroker(faults=Cut())
    broker.publish("queue:a", [Message(b"1")])
    source = connected_source(broker)
    with pytest.raises(ConnectionLost):
        source.acknowledge(source.receive(1, 0.0).tokens)
    source.connect()
    assert not source.receive(1, 0.0).messages
    assert broker.waiting("queue:a") == broker.unacknowledged("queue:a") == 0


def test_messages_that_arrive_twice() -> None:
    class Twice(Faults):
        def repeated(self, receiver, messages):
            return [0]

    broker = MemoryBroker(features=Features(order=Order.ANY), faults=Twice())
    broker.publish("queue:a", [Message(b"1"), Message(b"2")])
    assert contents(connected_source(broker).receive(5, 0.0).messages) == [b"1", b"2", b"1"]


@pytest.mark.parametrize(
    ("order", "again"), [(Order.ANY, [b"3", b"1", b"2", b"4"]), (Order.PLACE, [b"1", b"2", b"3", b"4"])]
)
def test_messages_of_a_lost_line_come_again_when_it_is_noticed(order, again) -> None:
    class Late(Faults):
        def noticed_after(self, receiver, messages):
            return 3.0

    clock = ManualClock()
    broker = MemoryBroker(features=Features(order=order), faults=Late(), clock=clock.monotonic)
    broker.publish("queue:a", [Message(b"%d" % number) for number in range(1, 5)])
    source = connected_source(broker)
    source.receive(2, 0.0)
    broker.drop_connections()
    source.connect()
    assert broker.waiting("queue:a") == 4
    chunks = [source.receive(1, 0.0)]
    clock.advance(3.0)
    chunks += [source.receive(1, 0.0) for _ in range(3)]
    assert [body for chunk in chunks for body in contents(chunk.messages)] == again


def test_a_part_of_what_is_there() -> None:
    class Parts(Faults):
        def at_most(self, receiver, messages):
            return 2

    broker = MemoryBroker(faults=Parts())
    broker.publish("queue:a", [Message(b"1"), Message(b"2"), Message(b"3")])
    source = connected_source(broker)
    assert [contents(source.receive(5, 0.0).messages) for _ in range(2)] == [[b"1", b"2"], [b"3"]]


def test_who_waits_gets_what_a_lost_line_held_as_soon_as_it_is_noticed() -> None:
    class Late(Faults):
        def noticed_after(self, receiver, messages):
            return 0.01

    broker = MemoryBroker(features=Features(), faults=Late())
    broker.publish("queue:a", [Message(b"1")])
    source = connected_source(broker)
    source.receive(1, 0.0)
    source.connect()
    assert contents(source.receive(1, 30.0).messages) == [b"1"]


def test_receivers_may_differ_in_their_order() -> None:
    broker = MemoryBroker(features=Features(), orders={"alone": Order.POSITION})
    broker.connection().source(receiver("queue:a", "shared")).connect()
    broker.connection().source(receiver("queue:a", "alone")).connect()
    with pytest.raises(ConnectionLost):
        broker.connection().source(receiver("queue:a", "alone")).connect()


@pytest.mark.parametrize("stored", [0, 1, 2])
def test_a_confirm_that_is_lost(stored) -> None:
    class Cut(Faults):
        def accepted_before_loss(self, sender, batch):
            return stored

    broker = MemoryBroker(faults=Cut())
    sink = connected_sink(broker)
    with pytest.raises(ConnectionLost):
        sink.send(outgoing("queue:a", [b"1", b"2"]))
    with pytest.raises(ConnectionLost):
        sink.send([])
    assert contents(broker.received("queue:a")) == [b"1", b"2"][:stored]


def test_messages_that_are_refused() -> None:
    class Refuse(Faults):
        def refused(self, sender, batch):
            return {1: "poison"}

    broker = MemoryBroker(faults=Refuse())
    results = connected_sink(broker).send(outgoing("queue:a", [b"1", b"2", b"3"]))
    assert [result and result.code for result in results] == [None, "E8102", None]
    assert contents(broker.received("queue:a")) == [b"1", b"3"]


def test_a_broker_that_is_down() -> None:
    broker = MemoryBroker()
    source, sink = connected_source(broker), connected_sink(broker)
    broker.down = True
    for call in (source.connect, sink.connect, lambda: source.receive(1, 0.0), lambda: sink.send([])):
        with pytest.raises(ConnectionLost):
            call()
    broker.publish("queue:a", [Message(b"1")])
    broker.down = False
    source.connect()
    assert contents(source.receive(1, 0.0).messages) == [b"1"]


def test_the_history() -> None:
    events = []
    broker = MemoryBroker(on_event=lambda *event: events.append((*event[:3], len(event[3]))))
    source, sink = connected_source(broker), connected_sink(broker)
    sink.send(outgoing("queue:a", [b"1", b"2"], "life"))
    broker.publish("queue:a", [Message(b"3")])
    source.reject(source.receive(1, 0.0).tokens)
    source.acknowledge([*source.receive(1, 0.0).tokens, *source.receive(5, 0.0).tokens])
    assert events == [
        ("accepted", "giver", "queue:a", 2),
        ("published", "", "queue:a", 1),
        ("delivered", "taker", "queue:a", 1),
        ("returned", "taker", "queue:a", 1),
        ("delivered", "taker", "queue:a", 1),
        ("delivered", "taker", "queue:a", 2),
        ("acknowledged", "taker", "queue:a", 3),
    ]


def test_there_are_no_options() -> None:
    with pytest.raises(ConfigError, match="E1020"):
        MemoryBroker().connection("m", ConnectionSettings(type="memory", options={"x": 1}))
