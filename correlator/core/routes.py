"""The destinations of requests that contexts make: senders, channels and receivers. All contexts share them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue
from correlator.errors import UsageError, quoted

Acknowledge = Callable[[], None]


def nothing_left() -> None:
    """Acknowledge nothing: the batch is gone with its receiver, or this is a replay."""


def nothing_suspended(receiver: str) -> UsageError:
    """Return the error (E7101) for an acknowledgement without a suspended batch."""
    return UsageError("E7101", f"receiver {receiver}", "no batch is suspended, or it is acknowledged")


def _no_outbox(_sender: str) -> Outbox | None:
    return None


def _unknown(_sender: str) -> int | None:
    return None


class Routes:
    """Where the sends of contexts go, and what contexts may ask of receivers. All contexts share one object.

    Whoever changes a dictionary replaces it, so readers in other threads need no lock. Contexts change the channels,
    too, one context at a time under the lock `changing`.

    Args:
        default_outbox: makes a default sender that is not in `outboxes`, and returns its outbox; `None` if there is no
            such default sender.
        woken: called after a handler has sent to another context or to a BEST_EFFORT sender.
        next_flush: returns the number of the next flush request.
        outstanding: returns how many messages of a sender its broker has not confirmed; `None` if there is no such
            sender.
        changing: the lock that is held during each change.

    Attributes:
        outboxes: the outboxes by id of the sender.
        closing: senders that are being removed: nothing can be sent to them.
        channels: for each channel, the queues of the contexts that receive it.
        resume: for each APP_CONTROLLED receiver, a function that takes the name of the requesting context. It returns
            the call that acknowledges the suspended batch, or raises `UsageError` E7101 or E7102.
        grant: for each receiver with flow control, a function that takes the number of the last message that the
            receiver may deliver.
    """

    def __init__(
        self,
        *,
        default_outbox: Callable[[str], Outbox | None] = _no_outbox,
        woken: Callable[[], None] = lambda: None,
        next_flush: Callable[[], int] = lambda: 0,
        outstanding: Callable[[str], int | None] = _unknown,
        changing: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.default_outbox = default_outbox
        self.woken = woken
        self.next_flush = next_flush
        self.outstanding = outstanding
        self.outboxes: dict[str, Outbox] = {}
        self.closing: frozenset[str] = frozenset()
        self.channels: dict[str, list[InputQueue]] = {}
        self.resume: dict[str, Callable[[str], Acknowledge]] = {}
        self.grant: dict[str, Callable[[int], None]] = {}
        self._changing = changing or nullcontext()

    def unsendable(self, where: str, sender: str) -> UsageError:
        """Return the refusal of a send: E8002 for a sender that is being removed, otherwise E8001."""
        if sender in self.closing:
            return UsageError("E8002", where, f"sender {quoted(sender)} is being removed")
        known = ", ".join(sorted(self.outboxes)) or "none"
        return UsageError("E8001", where, f"no sender {quoted(sender)}", f"Senders: {known}")

    def subscribe(self, channel: str, queue: InputQueue) -> None:
        """Let a context receive a channel. Any thread may call it."""
        with self._changing:
            self.channels = {**self.channels, channel: [*self.channels.get(channel, ()), queue]}

    def unsubscribe(self, channel: str, queue: InputQueue) -> None:
        """End the delivery of a channel to a context. Any thread may call it."""
        with self._changing:
            channels = dict(self.channels)
            others = [one for one in channels.pop(channel) if one is not queue]
            self.channels = {**channels, channel: others} if others else channels
