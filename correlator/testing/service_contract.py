"""The contract of message services; `correlator.testing.contract` has the contract of all connectors.

`service_checks_for(world)` returns the checks for a world that declares `is_service`. A world that does not declare it
although its connection is a `MessageService` fails `check_a_message_service_declares_itself` of the general contract.
"""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from correlator.connector import (
    Chunk,
    MessageService,
    Prefetching,
    ServiceClient,
    ServiceSession,
    Sink,
    Source,
    Subscriber,
    Work,
)
from correlator.errors import ConnectionLost, CorrelatorError, SendRejected, UsageError
from correlator.events import Headers, Message
from correlator.testing.contract import (
    EMPTY_S,
    PATIENCE_S,
    Check,
    ContractWorld,
    bodies,
    outgoing,
    receiver,
    sender,
    take,
    tokens,
)

_service_checks: list[Check] = []


def service_checks_for(world: ContractWorld | type) -> list[Check]:
    """Return the checks of message services, if the world or its class declares that its connector is one."""
    return list(_service_checks) if getattr(world, "is_service", False) else []


def _check(check: Check) -> Check:
    _service_checks.append(check)
    return check


class _Program:
    """A program with one connection to the service. Leaving the block closes everything."""

    def __init__(self, world: ContractWorld, client_id: str | None = None) -> None:
        self.connection = world.connection()
        assert isinstance(self.connection, MessageService), "the connection is no MessageService"
        self.client: ServiceClient = self.connection.attach(client_id)
        self.session: ServiceSession = self.client.session()
        self._ends: list[Source | Sink] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end.close()
        self.session.close()
        self.client.close()
        self.connection.close()

    def source(self, destination: str, kind: Subscriber | None = None, **settings: Any) -> Source:
        """Make a source and connect it."""
        settings = {"max_batch_size": 1000, **settings}
        made = receiver(destination, **settings)
        source = self.session.source(made) if kind is None else self.session.subscriber(made, kind)
        self._ends.append(source)
        source.connect()
        return source

    def send(self, destination: str, *contents: bytes | Message) -> None:
        """Send messages outside of transactions."""
        sink = self.session.sink(sender(destination))
        self._ends.append(sink)
        sink.connect()
        assert not any(sink.send(outgoing(destination, contents))), "refused"


def _taken(source: Source, count: int) -> list[Chunk]:
    chunks = take(source, count)
    assert sum(len(chunk.messages) for chunk in chunks) == count, f"{len(bodies(chunks))} of {count} messages came"
    return chunks


def _left(program: _Program, destination: str) -> list[bytes]:
    """Take all messages that wait in a queue, and return their bodies."""
    source = program.source(destination)
    chunk = source.receive(1000, EMPTY_S)
    source.acknowledge(chunk.tokens)
    return [message.body for message in chunk.messages]


def _refused(kind: type[CorrelatorError], code: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert error.code == code or not code, f"{error.code} in place of {code}"  # noqa: PT017
        return
    raise AssertionError(f"no {kind.__name__} {code}")


def _flags(chunks: Sequence[Chunk]) -> list[tuple[bytes, bool, int]]:
    messages = [message for chunk in chunks for message in chunk.messages]
    headers = [message.headers or Headers() for message in messages]
    return [(one.body, its.redelivered, its.delivery_count) for one, its in zip(messages, headers, strict=True)]


# Transactions.


@_check
def check_a_transaction_acknowledges_and_sends(world: ContractWorld) -> None:
    """After `settle` the acknowledged messages are gone, and the sent ones are there, in order and with their ids."""
    first, second, out = (world.destination() for _ in range(3))
    with _Program(world) as program:
        program.send(first, b"1", b"2")
        program.send(second, b"3")
        sources = [program.source(first), program.source(second)]
        chunks = [_taken(sources[0], 2), _taken(sources[1], 1)]
        named, other = outgoing(out, [b"a", b"b"])
        sends = [msgspec.structs.replace(named, message_id="ID:contract-1"), other]
        program.session.settle(Work([(one, tokens(got)) for one, got in zip(sources, chunks, strict=True)], sends))
        for source in sources:
            source.close()
        (arrived,) = _taken(program.source(out), 2)
        assert [message.body for message in arrived.messages] == [b"a", b"b"]
        assert (arrived.messages[0].headers or Headers()).message_id == "ID:contract-1"
        assert (_left(program, first), _left(program, second)) == ([], [])


@_check
def check_a_transaction_with_a_refused_message_does_nothing(world: ContractWorld) -> None:
    """If the broker refuses one message, nothing is sent or acknowledged, and the held messages stay held."""
    refused = world.refused()
    if refused is None:
        return
    queue, out = world.destination(), world.destination()
    with _Program(world) as program:
        program.send(queue, b"1")
        source = program.source(queue)
        chunks = _taken(source, 1)
        work = Work([(source, tokens(chunks))], [*outgoing(out, [b"a"]), refused])
        _refused(SendRejected, "", lambda: program.session.settle(work))
        assert _left(program, out) == []
        assert not source.receive(1, 0.0).messages, "a held message came again"
        program.session.settle(Work([(source, tokens(chunks))], []))
        source.close()
        assert _left(program, queue) == []


@_check
def check_a_transaction_of_messages_that_are_held_no_more_does_nothing(world: ContractWorld) -> None:
    """Messages of an earlier connection cannot be settled: they are redelivered, so `settle` must send nothing."""
    queue, out = world.destination(), world.destination()
    with _Program(world) as program:
        program.send(queue, b"1")
        source = program.source(queue)
        chunks = _taken(source, 1)
        source.connect()
        work = Work([(source, tokens(chunks))], outgoing(out, [b"a"]))
        _refused(ConnectionLost, "", lambda: program.session.settle(work))
        source.close()
        assert _left(program, out) == []
        assert _left(program, queue) == [b"1"]


@_check
def check_a_prepared_transaction_is_committed(world: ContractWorld) -> None:
    """Prepared work is invisible, survives its session, and happens at `resolve`, once."""
    queue, out, name = world.destination(), world.destination(), uuid.uuid4().hex
    with _Program(world) as program:
        program.send(queue, b"1", b"2")
        source = program.source(queue)
        chunks = _taken(source, 1)
        program.session.prepare(name, Work([(source, tokens(chunks))], outgoing(out, [b"a"])))
        _refused(UsageError, "E7519", lambda: program.session.prepare(name, Work([], [])))
    with _Program(world) as program:
        assert (_left(program, queue), _left(program, out)) == ([b"2"], [])
        for _ in range(2):
            program.session.resolve(name, commit=True)
        assert (_left(program, queue), _left(program, out)) == ([], [b"a"])
        _refused(UsageError, "E7520", lambda: program.session.resolve(name, commit=False))
        _refused(UsageError, "E7520", lambda: program.session.resolve(f"{name}?", commit=True))


@_check
def check_a_prepared_transaction_is_undone(world: ContractWorld) -> None:
    """`resolve(commit=False)` sends nothing, and the broker redelivers its messages, marked as such."""
    queue, out, name = world.destination(), world.destination(), uuid.uuid4().hex
    with _Program(world) as program:
        program.send(queue, b"1")
        source = program.source(queue)
        chunks = _taken(source, 1)
        program.session.prepare(name, Work([(source, tokens(chunks))], outgoing(out, [b"a"])))
        program.session.resolve(name, commit=False)
        assert [(body, again) for body, again, _ in _flags(_taken(source, 1))] == [(b"1", True)]
        assert _left(program, out) == []


# Prefetching.


@_check
def check_what_is_released_was_never_seen(world: ContractWorld) -> None:
    """`release` and `reject` keep the place of a message; only `reject` counts as a delivery."""
    queue = world.destination()
    with _Program(world) as program:
        program.send(queue, b"1", b"2", b"3")
        source = program.source(queue)
        assert isinstance(source, Prefetching), "the source is not Prefetching"
        held = tokens(_taken(source, 3))
        source.reject(held[:1])
        source.release(held[1:])
        assert _flags(_taken(source, 3)) == [(b"1", True, 2), (b"2", False, 1), (b"3", False, 1)]


@_check
def check_a_cancelled_source_takes_nothing_and_keeps_what_it_holds(world: ContractWorld) -> None:
    """After `cancel` other sources get the rest, and the held messages can still be settled."""
    queue = world.destination()
    with _Program(world) as program:
        program.send(queue, b"1", b"2")
        source = program.source(queue)
        assert isinstance(source, Prefetching), "the source is not Prefetching"
        held = tokens(take(source, 1, 1))
        source.cancel()
        assert not source.receive(1, 0.0).messages, "a cancelled source took a message"
        assert _left(program, queue) == [b"2"]
        source.acknowledge(held)
        source.close()
        assert _left(program, queue) == []


@_check
def check_the_highest_priority_comes_first(world: ContractWorld) -> None:
    """Messages are received by priority, and with equal priority in the order in which they were sent."""
    queue = world.destination()
    with _Program(world) as program:
        given = [(b"1", 4), (b"2", 9), (b"3", None), (b"4", 0), (b"5", 9)]
        program.send(queue, *(Message(body, headers=Headers(priority=priority)) for body, priority in given))
        assert bodies(_taken(program.source(queue), 5)) == [b"2", b"5", b"1", b"3", b"4"]


@_check
def check_a_wait_is_ended_by_a_message(world: ContractWorld) -> None:
    """`wait` returns when a message has arrived since `look`, also if it arrived before `wait`."""
    queue = world.destination()
    with _Program(world) as program, _Program(world) as other:
        source = program.source(queue)
        for early in (True, False):
            seen = program.session.look()
            assert not source.receive(1, 0.0).messages
            if early:
                other.send(queue, b"x")
                _waits_shortly(program.session, seen)
            else:
                sending = threading.Thread(target=other.send, args=(queue, b"x"))
                sending.start()
                _waits_shortly(program.session, seen)
                sending.join()
            source.acknowledge(tokens(_taken(source, 1)))


@_check
def check_a_wait_is_ended_by_another_thread(world: ContractWorld) -> None:
    """`wake` ends the present wait, and if there is none, the next one."""
    with _Program(world) as program:
        program.source(world.destination())
        program.session.wake()
        _waits_shortly(program.session, program.session.look())
        waking = threading.Timer(EMPTY_S, program.session.wake)
        waking.start()
        _waits_shortly(program.session, program.session.look())
        waking.join()


def _waits_shortly(session: ServiceSession, seen: int) -> None:
    begin = time.monotonic()
    session.wait(seen, 2 * PATIENCE_S)
    assert time.monotonic() - begin < PATIENCE_S, "nothing ended the wait"


@_check
def check_another_source_takes_the_place_of_a_cancelled_one(world: ContractWorld) -> None:
    """After `cancel` an unshared subscription has room for another consumer, and the held messages stay held."""
    topic, kind = world.destination("topic"), Subscriber("alone", durable=True, shared=False)
    with _Program(world, uuid.uuid4().hex) as program:
        source = program.source(topic, kind)
        assert isinstance(source, Prefetching), "the source is not Prefetching"
        program.send(topic, b"1", b"2")
        held = tokens(take(source, 1, 1))
        source.cancel()
        other = program.source(topic, kind)
        assert bodies(_taken(other, 1)) == [b"2"]
        source.acknowledge(held)
        source.close()
        assert not other.receive(1, EMPTY_S).messages, "an acknowledged message came again"


# Clients and subscriptions.


@_check
def check_a_client_id_is_that_of_one_client(world: ContractWorld) -> None:
    """The service refuses a second client with the same id until the first one is closed."""
    name = uuid.uuid4().hex
    with _Program(world, name):
        _refused(UsageError, "E7515", lambda: _Program(world, name))
    with _Program(world, name):
        pass


@_check
def check_durable_subscriptions_keep_messages(world: ContractWorld) -> None:
    """A durable subscription keeps messages without consumers; any other ends with its last consumer."""
    topic = world.destination("topic")
    with _Program(world, uuid.uuid4().hex) as program:
        kinds = [
            Subscriber("unshared", durable=True, shared=False),
            Subscriber("shared", durable=True, shared=True),
            Subscriber("fleeting", durable=False, shared=True),
            Subscriber("", durable=False, shared=False),
        ]
        for kind in kinds:
            program.source(topic, kind).close()
        program.send(topic, b"1")
        sources = [program.source(topic, kind) for kind in kinds]
        program.send(topic, b"2")
        assert [bodies(_taken(one, 2)) for one in sources[:2]] == [[b"1", b"2"]] * 2
        assert [bodies(_taken(one, 1)) for one in sources[2:]] == [[b"2"]] * 2


@_check
def check_kinds_of_subscriptions_allow_their_consumers(world: ContractWorld) -> None:
    """An unshared subscription has one consumer; kind and selector of a subscription stay as long as it exists."""
    topic = world.destination("topic")
    with _Program(world, uuid.uuid4().hex) as program:
        alone = Subscriber("alone", durable=True, shared=False)
        shared = Subscriber("shared", durable=True, shared=True)
        program.source(topic, alone)
        _refused(UsageError, "E7516", lambda: program.source(topic, alone))
        sources = [program.source(topic, shared, selector="n = 1", max_batch_size=1) for _ in range(2)]
        _refused(UsageError, "E7517", lambda: program.source(topic, shared, selector="n = 2"))
        _refused(UsageError, "E7516", lambda: program.source(topic, shared._replace(durable=False), selector="n = 1"))
        program.send(topic, *(Message(str(n).encode(), {"n": n % 2}) for n in range(4)))
        assert sorted(body for one in sources for body in bodies(_taken(one, 1))) == [b"1", b"3"]
        for source in sources:
            source.close()
        for selector in ("n = 2", None):
            _refused(UsageError, "E7517", lambda: program.source(topic, shared, selector=selector))  # noqa: B023
        again = program.source(topic, shared, selector="n = 1")
        assert sorted(bodies(_taken(again, 2))) == [b"1", b"3"], "another selector changed the subscription"


@_check
def check_temporary_destinations_end_with_their_client(world: ContractWorld) -> None:
    """Any client may send to a temporary queue, only its own client consumes; after its end a send fails."""
    with _Program(world) as stranger:
        with _Program(world) as program:
            queue, other = program.client.create_temporary("queue"), program.client.create_temporary("queue")
            assert queue != other
            stranger.send(queue, b"1")
            _refused(UsageError, "", lambda: stranger.source(queue))
            assert bodies(_taken(program.source(queue), 1)) == [b"1"]
            _refused(UsageError, "E7513", lambda: program.client.delete_temporary(queue))
            program.client.delete_temporary(other)
        sink = stranger.session.sink(sender(None))
        sink.connect()
        for name in (queue, other):
            assert isinstance(sink.send(outgoing(name, [b"late"]))[0], SendRejected), "a late message was accepted"
        sink.close()
