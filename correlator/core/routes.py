"""Where what monitors send goes: shared by all contexts."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue
from correlator.errors import UsageError

Acknowledge = Callable[[], None]


def nothing_left() -> None:
    """What acknowledges a batch that is gone with its receiver, or that is only replayed."""


def nothing_suspended(receiver: str) -> UsageError:
    """The refusal of an acknowledgement (E7101)."""
    return UsageError("E7101", f"receiver {receiver}", "no batch is suspended, or it is acknowledged")


class Routes:
    """Where sends go, shared by all contexts: senders by id, contexts by channel, and who may acknowledge what.

    Changed by replacing whole dictionaries, so that readers in other threads need no lock; channels also by contexts,
    one at a time under `changing`.

    `resume` gives for each receiver what its suspended batch is acknowledged by, to the context that asks by its name.
    """

    def __init__(self) -> None:
        self.outboxes: dict[str, Outbox] = {}
        self.default_outbox: Callable[[str], Outbox | None] = lambda _: None
        self.channels: dict[str, list[InputQueue]] = {}
        self.resume: dict[str, Callable[[str], Acknowledge]] = {}
        self.grant: dict[str, Callable[[int], None]] = {}
        self.woken: Callable[[], None] = lambda: None
        self.next_flush: Callable[[], int] = lambda: 0
        self.outstanding: Callable[[str], int | None] = lambda _: None
        self.closing: frozenset[str] = frozenset()
        self.changing: AbstractContextManager[Any] = nullcontext()

    def subscribe(self, channel: str, queue: InputQueue) -> None:
        """Have a context receive a channel; any thread."""
        with self.changing:
            self.channels = {**self.channels, channel: [*self.channels.get(channel, ()), queue]}

    def unsubscribe(self, channel: str, queue: InputQueue) -> None:
        """No longer have a context receive a channel; any thread."""
        with self.changing:
            channels = dict(self.channels)
            others = [one for one in channels.pop(channel) if one is not queue]
            self.channels = {**channels, channel: others} if others else channels
