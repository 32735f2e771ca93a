"""Empties the broker at the end of a run with the calls of a program, so that the judge knows what was there."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from connectors.embedded.link import open_link
from connectors.embedded.sweeping import Round
from connectors.messaging import AcknowledgeMode
from connectors.messaging.consumer import Consumer
from connectors.messaging.session import Session
from tests.harness.service import roles, topology
from tests.harness.service.journal import Born, Ended, Journal, appending, now
from tests.harness.service.life import JOURNAL
from tests.harness.service.roles import Worker

PATIENCE_S = 10.0
MOST_HELD = 15
_LEFT = (
    "SELECT count(*) FROM broker_delivery d JOIN broker_subscription s ON s.id = d.subscription"
    " JOIN broker_destination n ON n.id = s.destination WHERE n.name = :name AND s.name = :subscription"
)


def drain(directory: Path, store: str, life: int, names: Sequence[str]) -> None:
    """End the prepared transactions with these names, then receive all messages.

    The journal notes the messages as received by the process with the number `life`.
    """
    journal = Journal(appending(directory / JOURNAL), life)
    journal.add(Born(now(), life, "drain"))
    worker = Worker(store, life, journal, random.Random(), 0)
    worker.watch()
    with worker.connect(topology.CLIENT_ID) as desk, worker.connect() as connection:
        own = desk.create_session(AcknowledgeMode.CLIENT)
        session = connection.create_session(AcknowledgeMode.CLIENT)
        for name in names:
            roles.resolved(worker, session, name)
        for queue in topology.QUEUES:
            _empty(worker, session, queue, lambda: session.create_consumer(queue))  # noqa: B023
        for one in topology.DURABLES:
            place = topology.place_of(topology.NEWS, one.name)
            if one.shared:
                _empty(
                    worker,
                    session,
                    place,
                    lambda: session.create_shared_durable_consumer(topology.NEWS, one.name, one.selector),  # noqa: B023
                )
            else:
                _empty(worker, own, place, lambda: own.create_durable_consumer(topology.NEWS, one.name))  # noqa: B023
        tidy(store)
        _empty(worker, session, topology.DEAD, lambda: session.create_consumer(topology.DEAD))
    tidy(store)
    journal.add(Ended(now(), life))


def _empty(worker: Worker, session: Session, place: str, open_: Callable[[], Consumer]) -> None:
    consumer = worker.opened(open_, place, ())
    assert consumer is not None
    deadline = time.monotonic() + PATIENCE_S
    held = []
    while True:
        message = worker.receive(consumer, place, 0.0)
        if message is not None:
            held.append((place, roles.name_of(message)))
        if held and (message is None or len(held) >= MOST_HELD):
            worker.journal.do(worker.journal.ask("acknowledge", settles=held), session.acknowledge)
            held = []
        if message is None:
            if not _left(worker.store, place):
                break
            if time.monotonic() > deadline:
                worker.journal.answer(worker.journal.ask("stuck", name=place))
                break
            threading.Event().wait(0.01)  # for delayed messages
    consumer.close()


def _left(store: str, place: str) -> int:
    """Return the number of messages in a place."""
    name, _, subscription = place.partition("/")
    with topology.connection(store)._looking() as connection:
        statement = _LEFT.replace(":name", f"'{name}'").replace(":subscription", f"'{subscription}'")
        return int(connection.exec_driver_sql(statement).scalar_one())


def tidy(store: str) -> None:
    """Run one round of the sweeper, which removes what dead processes have left."""
    link = open_link(store)
    try:
        Round(link, lambda _: False).run()
    finally:
        link.close()
