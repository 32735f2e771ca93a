"""The roles of the processes of a run: they use the broker with the calls of a program."""

import itertools
import os
import random
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.messaging.connection import Connection
from connectors.messaging.consumer import Consumer
from connectors.messaging.holdings import Holdings
from connectors.messaging.producer import Producer
from connectors.messaging.session import Session
from correlator.connector import Place
from correlator.errors import CorrelatorError, UsageError
from correlator.events import Message
from tests.harness.service import topology
from tests.harness.service.journal import Copy, Got, Journal, Sending, now

FLOW = 20
WAITS_S = (0.0, 0.0, 0.01, 0.05)
DMQ = "correlator_dmq_"
LISTENS_S = 0.3
Mode = AcknowledgeMode
READING = (Mode.AUTO, Mode.CLIENT, Mode.CLIENT_CUMULATIVE, Mode.CLIENT_INDIVIDUAL, Mode.DUPS_OK)


class Worker:
    """The means of one process.

    Args:
        store: the address of the broker.
        life: the number of the process.
        journal: receives the events of the process.
        rng: makes all random decisions.
        steps: number of steps of its role.
    """

    def __init__(self, store: str, life: int, journal: Journal, rng: random.Random, steps: int) -> None:
        self.store = store
        self.life = life
        self.journal = journal
        self.rng = rng
        self.steps = steps
        self.place = ""
        self.op = 0
        self._named = 0
        self._sent = 0

    def factory(self, client_id: str | None = None) -> ConnectionFactory:
        """Make a factory whose sessions wait for room only for a moment."""
        options = {"store": self.store, "ack_timeout_ms": topology.FLOW_TIMEOUT_MS}
        return ConnectionFactory(EmbeddedConnection, options, client_id=client_id, flow_limit=FLOW)

    def connect(self, client_id: str | None = None) -> Connection:
        """Make a connection of a program."""
        return self.factory(client_id).create_connection()

    def new_name(self) -> str:
        """Return a new name, which no other message and no other transaction has."""
        self._named += 1
        return f"{self.life}.{self._named}"

    def sending(self, destination: str, *, plain: bool = False) -> Sending:
        """Make a message to a destination with random headers; with `plain` it is persistent and has no times."""
        rng = self.rng
        lives_ms = delay_ms = 0
        if destination == topology.TIMED:
            lives_ms = rng.choice((0, 0, 30, 80, 60_000))
            delay_ms = rng.choice((0, 0, 20)) if lives_ms != 30 else 0
        self._sent += 1
        persistent = plain or rng.random() < 0.8
        priority = rng.choice((4, 4, 4, 0, 9))
        return Sending(self.new_name(), destination, persistent, priority, lives_ms, delay_ms, self._sent % 2 == 0)

    def send(self, producer: Producer, one: Sending) -> str:
        """Send a message with its random headers."""
        return producer.send(_message(one), **_headers(one))

    def sent(self, producer: Producer, one: Sending) -> None:
        """Do the same as `send`, with events in the journal."""
        self.journal.do(self.journal.ask("send", [one]), lambda: self.send(producer, one))

    def watch(self) -> None:
        """Note each message at the moment when its session delivers it."""
        hand, worker = Holdings.hand, self

        def noted(self: Holdings, message: Message, intake: Any, token: Any) -> Message:
            worker.got(message, str(self.mode))
            return hand(self, message, intake, token)

        Holdings.hand = noted  # type: ignore[method-assign]

    def got(self, message: Message, mode: str) -> None:
        """Note that a session delivers a message."""
        headers, properties = message.headers, message.properties
        assert headers is not None
        subscription = str(properties.get(f"{DMQ}subscription", ""))
        origin = str(properties.get(f"{DMQ}destination", ""))
        self.journal.add(
            Got(
                now(),
                self.life,
                self.op,
                mode,
                self.place,
                name_of(message),
                headers.message_id or "",
                headers.redelivered,
                headers.delivery_count,
                str(properties.get(f"{DMQ}undelivered_reason", "")),
                topology.place_of(origin, subscription) if subscription else origin,
                int(str(properties.get(f"{DMQ}delivery_count", 0))),
            )
        )

    def receive(self, consumer: Consumer, place: str, wait_s: float) -> Message | None:
        """Receive a message, and note the call."""
        self.place, self.op = place, self.journal.ask("receive", name=place)
        try:
            message = consumer.receive(wait_s)
        except CorrelatorError as error:
            self.journal.answer(self.op, error.code)
            raise
        self.journal.answer(self.op)
        return message

    def opened(self, open_: Callable[[], Consumer], place: str, codes: Sequence[str]) -> Consumer | None:
        """Make a consumer, and note the call; return `None` if the broker refuses it with one of these codes."""
        op = self.journal.ask("open", name=place)
        try:
            consumer = open_()
        except UsageError as error:
            self.journal.answer(op, error.code)
            if error.code in codes:
                return None
            raise
        self.journal.answer(op)
        return consumer

    def give_back(self, session: Session, *, closes: bool) -> None:
        """Recover, roll back, or close the session, and note the call."""
        op = self.journal.ask("return", name="close" if closes else "")
        if closes:
            session.close()
        elif session.acknowledge_mode is Mode.TRANSACTED:
            session.rollback()
        else:
            session.recover()
        self.journal.answer(op)


def name_of(message: Message) -> str:
    """Return the name of a received message."""
    return message.body.decode()


def commits(transaction: str) -> bool:
    """Return whether to commit a prepared transaction; its name decides, so that all processes that
    resolve it agree.
    """
    return zlib.crc32(transaction.encode()) % 2 == 0


def _message(one: Sending) -> Message:
    return Message(one.name.encode(), {"even": one.is_even})


def _headers(one: Sending) -> dict[str, Any]:
    return {
        "priority": one.priority,
        "persistent": one.persistent,
        "time_to_live_ms": one.lives_ms,
        "delivery_delay_ms": one.delay_ms,
    }


# --- senders ---


def send(worker: Worker) -> None:
    """Send with and without waiting for the broker, to queues with and without limits and to a topic."""
    targets = [topology.PLAIN, topology.DEPOT, topology.WASTE, topology.TIMED, topology.NEWS, *topology.LIMITED]
    send_to(worker, targets)


def feed(worker: Worker) -> None:
    """Send to the queue from which transactions take messages."""
    send_to(worker, [topology.IN, topology.PREPARED_IN], plain=True)


def send_plainly(worker: Worker) -> None:
    """Send to one queue."""
    send_to(worker, [topology.PLAIN], plain=True)


def send_in_order(worker: Worker) -> None:
    """Send to the queue that has one active consumer and backups."""
    send_to(worker, [topology.ORDERED], plain=True)


def send_to(worker: Worker, targets: Sequence[str], *, plain: bool = False) -> None:
    """Send with and without waiting for the broker, to random ones of these destinations."""
    with worker.connect() as connection:
        session = connection.create_session()
        producers: dict[str, Producer] = {}
        for _ in range(worker.steps):
            target = worker.rng.choice(targets)
            if target not in producers:
                producers[target] = session.create_producer(target)
            if worker.rng.random() < 0.25:
                for _ in range(worker.rng.randint(2, 6)):
                    _send_async(worker, producers[target], worker.sending(target, plain=plain))
            else:
                worker.sent(producers[target], worker.sending(target, plain=plain))


def _send_async(worker: Worker, producer: Producer, one: Sending) -> None:
    op = worker.journal.ask("send", [one])
    ids: list[str] = []

    def done(_: object, error: Exception | None) -> None:
        worker.journal.answer(op, error.code if isinstance(error, CorrelatorError) else "", ids)

    ids.append(producer.send_async(_message(one), done, **_headers(one)))


def send_in_transactions(worker: Worker) -> None:
    """Send to several destinations in one transaction."""
    with worker.connect() as connection:
        session = connection.create_session(Mode.TRANSACTED)
        producers = {
            target: session.create_producer(target) for target in (topology.OUT, topology.NEWS, topology.PLAIN)
        }
        refusing = session.create_producer("queue:reject")
        for _ in range(max(1, worker.steps // 3)):
            sends = [worker.sending(target, plain=True) for target in worker.rng.sample(sorted(producers), 2)]
            for one in sends:
                worker.send(producers[one.destination], one)
            if worker.rng.random() < 0.2:
                more = worker.sending("queue:reject", plain=True)
                worker.send(refusing, more)
                sends.append(more)
            worker.journal.do(worker.journal.ask("commit", sends), session.commit)


# --- receivers ---


def consume(worker: Worker) -> None:
    """Receive from a random queue in a random mode."""
    queues = (topology.PLAIN, topology.PLAIN, topology.OUT, topology.DEPOT, topology.WASTE, topology.TIMED)
    place = worker.rng.choice((*queues, *topology.LIMITED, topology.PREPARED_OUT))
    with worker.connect() as connection:
        _consume(worker, connection, place, lambda session: session.create_consumer(place), ())


def consume_lazily(worker: Worker) -> None:
    """Receive from the queue that most processes send to, in mode DUPS_OK."""
    with worker.connect() as connection:
        place = topology.PLAIN
        _consume(worker, connection, place, lambda s: s.create_consumer(place), (), modes=(Mode.DUPS_OK,))


def listen(worker: Worker) -> None:
    """Let a listener handle the messages of a queue. It sometimes fails, and gets the message again."""
    place = worker.rng.choice((topology.PLAIN, topology.OUT, topology.DEPOT))
    enough = threading.Event()
    left = itertools.count(worker.steps, -1)

    def on_message(message: Message) -> None:
        worker.got(message, "LISTENER")
        if worker.rng.random() < 0.1:
            worker.journal.answer(worker.journal.ask("return"))
            raise Tired
        if next(left) <= 0:
            enough.set()

    with worker.connect() as connection:
        session = connection.create_session()
        consumer = worker.opened(lambda: session.create_consumer(place), place, ())
        assert consumer is not None
        worker.place = place
        consumer.set_listener(on_message)
        connection.start()
        enough.wait(LISTENS_S)
        connection.stop()


class Tired(Exception):
    """The error of a listener."""


def consume_in_order(worker: Worker) -> None:
    """Be the active consumer, or a backup."""
    with worker.connect() as connection:
        place = topology.ORDERED
        _consume(worker, connection, place, lambda session: session.create_consumer(place), ("E7514",), once=True)


def consume_shared(worker: Worker) -> None:
    """Receive from a shared durable subscription of the topic, with or without a selector."""
    one = worker.rng.choice([one for one in topology.DURABLES if one.shared])
    place = topology.place_of(topology.NEWS, one.name)
    with worker.connect() as connection:
        _consume(
            worker,
            connection,
            place,
            lambda session: session.create_shared_durable_consumer(topology.NEWS, one.name, one.selector),
            (),
        )


def consume_own(worker: Worker) -> None:
    """Be the only consumer of the durable subscription of a client id."""
    try:
        connection = worker.connect(topology.CLIENT_ID)
    except UsageError as error:
        if error.code == "E7515":
            return
        raise
    with connection:
        place = topology.place_of(topology.NEWS, "own")
        _consume(
            worker,
            connection,
            place,
            lambda session: session.create_durable_consumer(topology.NEWS, "own"),
            (),
            once=True,
        )


def consume_passing(worker: Worker) -> None:
    """Receive from a subscription that ends with its consumers."""
    with worker.connect() as connection:
        if worker.rng.random() < 0.5:
            place = topology.place_of(topology.NEWS, f"~{worker.life}")
            _consume(worker, connection, place, lambda s: s.create_consumer(topology.NEWS), (), once=True)
        else:
            place = topology.place_of(topology.NEWS, "passing")
            _consume(worker, connection, place, lambda s: s.create_shared_consumer(topology.NEWS, "passing"), ())


def _consume(
    worker: Worker,
    connection: Connection,
    place: str,
    open_: Callable[[Session], Consumer],
    codes: Sequence[str],
    *,
    once: bool = False,
    modes: Sequence[Mode] = READING,
) -> None:
    rng = worker.rng
    mode = rng.choice(modes)
    session = connection.create_session(mode)
    consumer = worker.opened(lambda: open_(session), place, codes)
    held: list[tuple[Message, Copy]] = []
    for _ in range(worker.steps * 2):
        if consumer is None:
            return
        message = worker.receive(consumer, place, rng.choice(WAITS_S))
        if message is not None and mode.is_client:
            held.append((message, (place, name_of(message))))
        what = rng.random()
        if held and (what < 0.3 or len(held) >= FLOW - 2):
            _acknowledge(worker, session, mode, held)
        elif what < 0.36:
            worker.give_back(session, closes=False)
            held.clear()
        elif what < 0.38 and not once:
            worker.give_back(session, closes=True)
            held.clear()
            session = connection.create_session(mode)
            consumer = worker.opened(lambda: open_(session), place, codes)  # noqa: B023
    worker.give_back(session, closes=True)


def _acknowledge(worker: Worker, session: Session, mode: Mode, held: list[tuple[Message, Copy]]) -> None:
    at = worker.rng.randrange(len(held))
    covered = {Mode.CLIENT: held[:], Mode.CLIENT_CUMULATIVE: held[: at + 1]}.get(mode, [held[at]])
    op = worker.journal.ask("acknowledge", settles=[copy for _, copy in covered])
    worker.journal.do(op, lambda: session.acknowledge(held[at][0]))
    held[:] = [one for one in held if one not in covered]


# --- transactions ---


def take_and_send(worker: Worker) -> None:
    """Move messages from a queue to another queue and to the topic, in transactions."""
    with worker.connect() as connection:
        session = connection.create_session(Mode.TRANSACTED)
        consumer = worker.opened(lambda: session.create_consumer(topology.IN), topology.IN, ())
        assert consumer is not None
        producers = {target: session.create_producer(target) for target in (topology.OUT, topology.NEWS)}
        for _ in range(worker.steps):
            settles = _take(worker, consumer, topology.IN)
            sends = [worker.sending(worker.rng.choice(sorted(producers)), plain=True) for _ in settles]
            for one in sends:
                worker.send(producers[one.destination], one)
            if worker.rng.random() < 0.15:
                worker.give_back(session, closes=False)
            else:
                worker.journal.do(worker.journal.ask("commit", sends, settles), session.commit)
        worker.give_back(session, closes=True)


def _take(worker: Worker, consumer: Consumer, place: str) -> list[Copy]:
    settles: list[Copy] = []
    for _ in range(worker.rng.randint(1, 4)):
        message = worker.receive(consumer, place, worker.rng.choice(WAITS_S))
        if message is not None:
            settles.append((place, name_of(message)))
    return settles


def prepare(worker: Worker) -> None:
    """Prepare transactions, and resolve some of them."""
    with worker.connect() as connection:
        session = connection.create_session(Mode.TRANSACTED)
        consumer = worker.opened(lambda: session.create_consumer(topology.PREPARED_IN), topology.PREPARED_IN, ())
        assert consumer is not None
        producer = session.create_producer(topology.PREPARED_OUT)
        for _ in range(worker.steps):
            settles = _take(worker, consumer, topology.PREPARED_IN)
            sends = [worker.sending(topology.PREPARED_OUT, plain=True) for _ in range(worker.rng.randint(1, 2))]
            for one in sends:
                worker.send(producer, one)
            name = worker.new_name()
            op = worker.journal.ask("prepare", sends, settles, name, commits=commits(name))
            worker.journal.do(op, lambda: session.prepare(name))  # noqa: B023
            if worker.rng.random() < 0.5:
                resolved(worker, session, name)
        worker.give_back(session, closes=True)


def resolve(worker: Worker) -> None:
    """Resolve transactions that other processes have prepared."""
    with worker.connect() as connection:
        session = connection.create_session()
        for _ in range(worker.steps):
            names = [one.name for one in topology.connection(worker.store).administration().transactions()]
            if names:
                resolved(worker, session, worker.rng.choice(names))


def resolved(worker: Worker, session: Session, name: str) -> str:
    """End a prepared transaction as its name says, and note this in the journal."""
    op = worker.journal.ask("resolve", name=name, commits=commits(name))
    return worker.journal.do(op, lambda: session.resolve(name, commit=commits(name)))


# --- others ---


def administer(worker: Worker) -> None:
    """Move, purge, and look at the broker."""
    administration = topology.connection(worker.store).administration()
    for _ in range(max(2, worker.steps // 3)):
        what = worker.rng.random()
        if what < 0.5:
            op = worker.journal.ask("move", name=topology.DEPOT)
            worker.journal.do(op, lambda: administration.move(topology.DEPOT, topology.ARCHIVE, None, None))
        elif what < 0.8:
            op = worker.journal.ask("purge", name=topology.WASTE)
            worker.journal.do(op, lambda: administration.purge(Place(topology.WASTE)))
        else:
            administration.destinations()
            administration.consumers(None)


def use_temporaries(worker: Worker) -> None:
    """Make temporary destinations, and exchange messages with itself over them."""
    with worker.connect() as connection:
        session = connection.create_session()
        for _ in range(max(2, worker.steps // 3)):
            place = session.create_temporary_queue()
            producer = session.create_producer(place)
            consumer = worker.opened(lambda: session.create_consumer(place), place, ())  # noqa: B023
            assert consumer is not None
            one = worker.sending(place)
            worker.sent(producer, one)
            worker.receive(consumer, place, 1.0)
            consumer.close()
            if worker.rng.random() < 0.5:
                session.delete_temporary(place)


def keep_open(worker: Worker, ready: int, until: int) -> None:
    """Keep the broker open until the other end of a pipe is closed."""
    with worker.connect() as connection:
        session = connection.create_session()
        session.create_producer(topology.PLAIN)
        os.write(ready, b".")
        with suppress(OSError):
            os.read(until, 1)


Role = Callable[[Worker], None]
Cast = Mapping[Role, int]
ROLES: Cast = {
    send: 5,
    send_plainly: 1,
    feed: 3,
    send_in_order: 2,
    send_in_transactions: 2,
    consume: 6,
    consume_lazily: 1,
    listen: 2,
    consume_in_order: 3,
    consume_shared: 2,
    consume_own: 2,
    consume_passing: 1,
    take_and_send: 4,
    prepare: 4,
    resolve: 1,
    administer: 2,
    use_temporaries: 1,
}
"""The roles, and how often processes have them."""
