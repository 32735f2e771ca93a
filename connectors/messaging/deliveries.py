"""The acknowledgement modes of sessions, and the messages that a session holds."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from correlator.errors import ConnectionLost
from correlator.events import Message

if TYPE_CHECKING:
    from connectors.messaging.intake import Intake

LAZY_AFTER = 10
"""Number of messages after which the session acknowledges in mode DUPS_OK."""


class AcknowledgeMode(StrEnum):
    """Who acknowledges the messages of a session."""

    AUTO = "AUTO"
    """The session acknowledges: each message right before `receive` returns it, or when its listener has returned."""
    CLIENT = "CLIENT"
    """The program acknowledges: `Session.acknowledge` covers all messages that the session has received, later ones
    included."""
    CLIENT_CUMULATIVE = "CLIENT_CUMULATIVE"
    """The program acknowledges: `Session.acknowledge` of a message also covers all messages that the session received
    before."""
    CLIENT_INDIVIDUAL = "CLIENT_INDIVIDUAL"
    """The program acknowledges: `Session.acknowledge` covers this message alone."""
    DUPS_OK = "DUPS_OK"
    """The session acknowledges ten messages at once. It acknowledges fewer after an idle second, and when a consumer,
    session or connection is closed or stopped."""
    NO_ACKNOWLEDGE = "NO_ACKNOWLEDGE"
    """The session acknowledges messages as soon as it fetches them, before the program gets them."""
    TRANSACTED = "TRANSACTED"
    """The program acknowledges: `Session.commit` covers all messages that the session has received since the last
    `commit` or `rollback`, and sends the messages that the session was given since then."""

    @property
    def is_client(self) -> bool:
        """Whether the program acknowledges by `Session.acknowledge`."""
        return self in (AcknowledgeMode.CLIENT, AcknowledgeMode.CLIENT_CUMULATIVE, AcknowledgeMode.CLIENT_INDIVIDUAL)

    @property
    def is_automatic(self) -> bool:
        """Whether a session settles a message by itself when its listener has returned or failed."""
        return self in (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK)


class Delivery(NamedTuple):
    """A message that the program has got and not acknowledged, with its source and its token."""

    message: Message
    intake: "Intake"
    token: Any


class Unacknowledged:
    """The unacknowledged deliveries of all consumers of a session, in the order of receipt. This class does no I/O.

    It compares messages by identity: two messages of equal content are different deliveries.
    """

    def __init__(self) -> None:
        self.forgotten = 0
        """Number of deliveries that were lost with their connections since the last `take_all`."""
        self._deliveries: OrderedDict[int, Delivery] = OrderedDict()

    def __len__(self) -> int:
        """Number of deliveries."""
        return len(self._deliveries)

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Add deliveries. Their messages are kept, so that no other object gets the same `id`."""
        self._deliveries.update((id(delivery.message), delivery) for delivery in deliveries)

    def take(self, message: Message) -> list[Delivery]:
        """Remove the delivery of this message, and return it; return nothing if it is no longer held."""
        delivery = self._deliveries.pop(id(message), None)
        return [] if delivery is None else [delivery]

    def take_through(self, message: Message) -> list[Delivery]:
        """Remove and return the deliveries of this message and of all older ones; nothing if it is no longer held."""
        taken: list[Delivery] = []
        if id(message) in self._deliveries:
            while not taken or taken[-1].message is not message:
                taken.append(self._deliveries.popitem(last=False)[1])
        return taken

    def take_all(self, message: Message | None = None) -> list[Delivery]:
        """Remove and return all deliveries; nothing if a message is given that is no longer held."""
        if message is not None and id(message) not in self._deliveries:
            return []
        taken = list(self._deliveries.values())
        self._deliveries.clear()
        self.forgotten = 0
        return taken

    def forget(self, intake: "Intake") -> None:
        """Remove the deliveries of a source, whose messages the broker redelivers."""
        for delivery in [one for one in self._deliveries.values() if one.intake is intake]:
            del self._deliveries[id(delivery.message)]
            self.forgotten += 1


def by_intake(deliveries: Sequence[Delivery]) -> dict["Intake", list[Any]]:
    """Return the tokens of deliveries, by source."""
    tokens: dict[Intake, list[Any]] = {}
    for delivery in deliveries:
        tokens.setdefault(delivery.intake, []).append(delivery.token)
    return tokens


def settle(deliveries: Sequence[Delivery], how: Callable[["Intake", Sequence[Any]], None]) -> None:
    """Acknowledge or reject deliveries. If one consumer has lost its connection, those of the others are settled
    nevertheless.

    Raises:
        ConnectionLost: the messages of one consumer are redelivered; all others are settled.
    """
    lost: ConnectionLost | None = None
    for intake, tokens in by_intake(deliveries).items():
        try:
            how(intake, tokens)
        except ConnectionLost as error:
            lost = error
    if lost is not None:
        raise lost
