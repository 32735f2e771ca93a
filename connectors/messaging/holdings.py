"""What a session holds: the sources of its consumers, and the messages that it has to settle."""

import copy
import time
from contextlib import suppress
from typing import Any

from connectors.messaging.deliveries import LAZY_AFTER, AcknowledgeMode, Delivery, Unacknowledged, settle
from connectors.messaging.intake import IDLE_S, Intake
from correlator.errors import ConnectionLost
from correlator.events import Message


class Holdings:
    """The sources of a session and its unsettled messages, which stay with the session when a consumer is closed.

    The caller of each method holds the lock of the session.

    Attributes:
        mode: the mode of the session.
        unacknowledged: the messages that the program has got and that are not settled.
        intakes: the sources of its consumers.
    """

    def __init__(self, mode: AcknowledgeMode) -> None:
        self.mode = mode
        self.unacknowledged = Unacknowledged()
        self.intakes: list[Intake] = []
        self._last_use = 0.0

    def hand(self, message: Message, intake: Intake, token: Any) -> Message:
        """Note that the program gets a message, and acknowledge it if the mode says so; return the object for the
        program.

        Does not raise `ConnectionLost`: then it is unknown whether the broker has the acknowledgement, and the program
        had better get the message twice than never.
        """
        if self.mode in (AcknowledgeMode.AUTO, AcknowledgeMode.NO_ACKNOWLEDGE):
            self.keep(message, intake, token)
            return message
        own = copy.copy(message)  # an object for this delivery alone, even if a source returns one object twice
        self.keep(own, intake, token)
        return own

    def keep(self, own: Message, intake: Intake, token: Any) -> None:
        """Do the same as `hand`, but give the program the object itself instead of a copy."""
        if self.mode in (AcknowledgeMode.AUTO, AcknowledgeMode.NO_ACKNOWLEDGE):
            with suppress(ConnectionLost):
                intake.acknowledge([token])
            return
        self.unacknowledged.add([Delivery(own, intake, token)])
        self._last_use = time.monotonic()
        if self.mode is AcknowledgeMode.DUPS_OK and len(self.unacknowledged) >= min(LAZY_AFTER, intake.limit):
            self.acknowledge_lazily()

    def acknowledge_lazily(self) -> None:
        """In mode DUPS_OK, acknowledge all messages that the program has got. Does not raise `ConnectionLost`."""
        if self.mode is AcknowledgeMode.DUPS_OK:
            with suppress(ConnectionLost):
                settle(self.unacknowledged.take_all(), Intake.acknowledge)

    @property
    def is_idle_work(self) -> bool:
        """Return whether `tidy` will have something to settle if the program stays idle."""
        lazy = self.mode is AcknowledgeMode.DUPS_OK and len(self.unacknowledged) > 0
        return lazy or any(intake.fetched for intake in self.intakes)

    def tidy(self, now: float) -> None:
        """Settle what an idle program leaves unsettled: messages of mode DUPS_OK, and messages that
        were fetched ahead.
        """
        if now - self._last_use >= IDLE_S:
            self.acknowledge_lazily()
        for intake in self.intakes:
            with suppress(ConnectionLost):
                intake.give_back_idle(now)

    def close(self) -> None:
        """Acknowledge in mode DUPS_OK; then close all sources, which gives back the remaining messages."""
        self.acknowledge_lazily()
        for delivery in self.unacknowledged.take_all():
            delivery.intake.close()  # the source of a consumer that was already closed
        for intake in self.intakes:
            intake.close()
        self.intakes.clear()
