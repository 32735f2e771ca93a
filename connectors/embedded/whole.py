"""Stores messages for several destinations in one transaction: all of them, or none."""

from collections.abc import Sequence

from sqlalchemy import Connection

from connectors.embedded import sending
from connectors.embedded.composing import Composer
from connectors.embedded.limits import NoRoom, Refusal
from connectors.embedded.sending import NoSuchDestination, Terms
from connectors.embedded.storing import NewMessage
from correlator.errors import SendRejected
from correlator.events import Outgoing

Sends = Sequence[tuple[Outgoing, NewMessage]]
"""Messages that are sent together, with their stored form."""


def store_all(connection: Connection, sends: Sends, terms: Terms, composer: Composer) -> None:
    """Store the messages in a transaction, which the caller must roll back after an error.

    Raises:
        SendRejected: the broker refuses a message.
        NoRoom: a destination is full, and its limit behavior lets senders wait.
        Crowded: the transaction must be done again.
    """
    wanted: dict[str, list[tuple[Outgoing, NewMessage]]] = {}
    for out, entry in sends:
        wanted.setdefault(out.destination, []).append((out, entry))
    if terms.makes:
        sending.make_missing(connection, wanted)
    # Sorted by name, so that two senders never wait for each other's destinations.
    for destination in sorted(wanted):
        outs, entries = zip(*wanted[destination], strict=True)
        try:
            verdict = sending.store(connection, destination, entries, terms)
        except NoSuchDestination as error:
            raise composer.gone(outs[0]) from error
        if verdict is not None:
            for at, refusal in sorted(verdict.refused.items()):
                raise composer.limited(outs[at], refusal)
            if verdict.waiting:
                raise NoRoom(destination)


def no_room(full: NoRoom, sends: Sends, refusal: Refusal, composer: Composer) -> SendRejected:
    """Make the error of the first message for a destination that has stayed full."""
    first = next(out for out, _ in sends if out.destination == full.name)
    return composer.limited(first, refusal)
