"""A client of the embedded service, by its sessions; the argument is the URL of the store.

Further commands, with names of modes as words:

    produce_in COUNT BATCH MODE persistent|non_persistent
    consume_in COUNT BATCH MODE
    threads COUNT THREADS     send singly, from so many sessions with a thread each
    drain BATCH               receive until nothing comes; answers when it began and when the last came, and how many
    offers MODE               whether the connector has sessions of this mode: 1 or 0
    listen COUNT              begin to listen with so many sessions, to a queue each; answers 0
"""

import sys
from collections.abc import Callable
from functools import partial
from threading import Barrier, Event, Thread

from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, Connection, ConnectionFactory, Consumer, Producer, Session
from correlator.errors import UsageError
from correlator.events import Headers, Message
from tests.benchmarks.service.clients import BODY, QUEUE, Answer, delay_ms, now, pause, serve, timed_body

DESTINATION = f"queue:{QUEUE}"
SILENCE_S = 2.5
"""After this time without a message a queue counts as empty: longer than a consumer keeps unused messages from others."""
_TIMEOUT_S = 60.0
_CONFIRMED = Message(BODY, headers=Headers(persistent=True))
_FLEETING = Message(BODY, headers=Headers(persistent=False))
_BY_ONE = frozenset({AcknowledgeMode.CLIENT, AcknowledgeMode.CLIENT_CUMULATIVE})
"""Modes in which the acknowledgement of the last message covers all."""
SETTLED_BY_PROGRAM = _BY_ONE | {AcknowledgeMode.CLIENT_INDIVIDUAL, AcknowledgeMode.TRANSACTED}
"""In all other modes a session settles by itself."""


def produce_in(connection: Connection, count: int, batch: int, mode: str, delivery: str = "persistent") -> Answer:
    """A batch of a session with transactions is a transaction, else messages that are sent without waiting for each.

    It ends when the broker has all messages, also those that were sent without waiting.
    """
    message = _CONFIRMED if delivery == "persistent" else _FLEETING
    with connection.create_session(AcknowledgeMode(mode)) as session:
        producer = session.create_producer(DESTINATION)
        begin = now()
        for done in range(0, count, batch):
            size = min(batch, count - done)
            if session.acknowledge_mode is AcknowledgeMode.TRANSACTED:
                for _ in range(size):
                    producer.send(message)
                session.commit()
            elif batch == 1:
                producer.send(message)
            else:
                _send_together(producer, message, size)
        producer.close()
        return begin, now()


def _send_together(producer: Producer, message: Message, size: int) -> None:
    """Return when all are confirmed."""
    last = Event()
    failed: list[Exception] = []

    def completed(is_last: bool, _: object, error: Exception | None) -> None:
        if error is not None:
            failed.append(error)
        if is_last:
            last.set()

    for number in range(1, size + 1):
        producer.send_async(message, partial(completed, number == size))
    assert last.wait(_TIMEOUT_S)
    assert not failed, failed


def consume_in(connection: Connection, count: int, batch: int, mode: str) -> Answer:
    """The messages of a batch are settled together."""
    with connection.create_session(AcknowledgeMode(mode)) as session:
        consumer = session.create_consumer(DESTINATION)
        begin = now()
        for done in range(0, count, batch):
            taken = [_received(consumer) for _ in range(min(batch, count - done))]
            settle(session, AcknowledgeMode(mode), taken)
        return begin, now()


def settle(session: Session, mode: AcknowledgeMode, taken: list[Message]) -> None:
    """What the program does in this mode when it has handled a batch."""
    if mode is AcknowledgeMode.TRANSACTED:
        session.commit()
    elif mode in _BY_ONE:
        session.acknowledge(taken[-1])
    elif mode in SETTLED_BY_PROGRAM:
        for message in taken:
            session.acknowledge(message)


def _received(consumer: Consumer) -> Message:
    message = consumer.receive(_TIMEOUT_S)
    assert message is not None, "no message came"
    return message


def drain(connection: Connection, batch: int) -> Answer:
    """As a consumer among others: nobody knows how many messages each of them gets."""
    mode = batched(connection) if batch > 1 else AcknowledgeMode.AUTO
    with connection.create_session(mode) as session:
        consumer = session.create_consumer(DESTINATION)
        begin = end = now()
        count = 0
        taken: list[Message] = []
        while message := consumer.receive(SILENCE_S):
            end = now()
            count += 1
            taken.append(message)
            if len(taken) == batch:
                settle(session, mode, taken)
                taken = []
        if taken:
            settle(session, mode, taken)
        return begin, end, count


def threads(connection: Connection, count: int, number: int) -> Answer:
    """All begin together."""
    ready = Barrier(number + 1)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with connection.create_session() as session:
                producer = session.create_producer(DESTINATION)
                ready.wait()
                for _ in range(count // number):
                    producer.send(_CONFIRMED)
        except BaseException as error:  # noqa: BLE001  # the main thread reports it
            failed.append(error)
            ready.abort()

    workers = [Thread(target=work) for _ in range(number)]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = now()
    for worker in workers:
        worker.join()
    assert not failed, failed
    return begin, now()


def pace(connection: Connection, count: int, gap_ms: int) -> Answer:
    """Single persistent messages."""
    with connection.create_session() as session:
        producer = session.create_producer(DESTINATION)
        for _ in range(count):
            pause(gap_ms)
            producer.send(Message(timed_body(), headers=Headers(persistent=True)))
    return (0,)


def delays(connection: Connection, count: int, _: int) -> Answer:
    """Each is acknowledged after its delay was taken."""
    found = []
    with connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(DESTINATION)
        for _ in range(count):
            message = _received(consumer)
            found.append(delay_ms(message.body))
            session.acknowledge(message)
    return found


def listen(connection: Connection, count: int) -> Answer:
    """The sessions end with the process."""
    for number in range(count):
        connection.create_session().create_consumer(f"queue:idle {number}").set_listener(lambda _: None)
    connection.start()
    return (0,)


def offers(connection: Connection, mode: str) -> Answer:
    """Whether there are such sessions, without any option of the factory."""
    try:
        connection.create_session(AcknowledgeMode(mode)).close()
    except UsageError:
        return (0,)
    return (1,)


def batched(connection: Connection) -> AcknowledgeMode:
    """The mode for batches: that of transactions where the connector has them."""
    has_transactions = offers(connection, AcknowledgeMode.TRANSACTED) == (1,)
    return AcknowledgeMode.TRANSACTED if has_transactions else AcknowledgeMode.CLIENT


def produce(connection: Connection, count: int, batch: int) -> Answer:
    """As the clients of all peers."""
    return produce_in(connection, count, batch, batched(connection) if batch > 1 else AcknowledgeMode.AUTO)


def consume(connection: Connection, count: int, batch: int) -> Answer:
    """As the clients of all peers."""
    return consume_in(connection, count, batch, batched(connection) if batch > 1 else AcknowledgeMode.AUTO)


def main() -> None:
    """Serve one broker."""
    commands: list[Callable[..., Answer]] = [produce, consume, pace, delays]
    commands += [produce_in, consume_in, threads, drain, offers, listen]
    with ConnectionFactory(EmbeddedConnection, {"store": sys.argv[1]}).create_connection() as connection:
        # Messages that are not persistent end when nobody has the broker open, so it stays open between two commands.
        connection.create_session().create_producer("queue:open")
        serve({command.__name__: partial(command, connection) for command in commands})


if __name__ == "__main__":
    main()
