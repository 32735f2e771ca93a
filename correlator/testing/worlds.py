"""The interface of a crash test: a world with an engine that may die at any moment, and everything that survives it.

The same test body runs at every level: in a simulation, with processes that are killed, with a disk that loses power,
and with a real database. So a world offers only operations that all levels have.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, overload

import msgspec

from correlator.core.monitor import Monitor
from correlator.events import DeadLetter, Message

Publishable = Message | bytes | str | Mapping[str, Any] | msgspec.Struct
"""A message, or its body: bytes and text as they are, every other type as JSON."""


class Messages(Sequence[Message]):
    """Messages in the order in which they were published or sent; equal if the bodies and their order are equal."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = tuple(messages)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Self: ...
    def __getitem__(self, at: int | slice) -> Message | Self:
        return type(self)(self._messages[at]) if isinstance(at, slice) else self._messages[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages) and self.bodies() == other.bodies()

    def __hash__(self) -> int:
        return hash(tuple(self.bodies()))

    def __repr__(self) -> str:
        return f"Messages({self.bodies()!r})"

    def bodies(self) -> list[bytes]:
        """Return the body of each message, in the order of the messages."""
        return [message.body for message in self._messages]

    def values(self, field: str) -> list[Any]:
        """Return the value of one field of each body, in order.

        Every body must be a JSON object. Raises `KeyError` if one lacks the field, `msgspec.DecodeError` if one is no
        JSON.
        """
        return [msgspec.json.decode(message.body)[field] for message in self._messages]

    def ids(self) -> list[Any]:
        """Return the field `id` of each body, sorted. If two such lists are equal, no message is lost and none is
        repeated.

        Raises as `values`.
        """
        return sorted(self.values("id"))


class World(Protocol):
    """The engine of a configuration file with its brokers, its store and the faults of one run.

    A crash test gets it as an argument. Only the thread of the test may call its methods.

    Attributes:
        level: the name of the level: `sim`, `kill9`, `power` or `broker`.
    """

    level: str

    def publish(self, destination: str, messages: Iterable[Publishable]) -> None:
        """Put messages into a destination from which a receiver of the file receives, as another program would.

        Each message without the property `uniqueMessageId` gets one, unless its receiver takes the id from elsewhere.
        Faults do not affect publishing.

        Args:
            destination: the name in the file, logical or physical. If several connections have a physical name, put
                `CONNECTION:` before it.
            messages: a list or another iterable of messages or bodies.

        Raises:
            UsageError: E2420, no receiver receives from the destination; E2421, a body cannot become a message, or
                `messages` is one message instead of a list.
        """
        ...

    def run_until_quiet(self) -> None:
        """Run engines under faults, then without faults, until everything is handled, sent, confirmed and checkpointed.

        The world is quiet even if timers wait. Raises `InvariantViolated`, an `AssertionError`, if it does not become
        quiet.
        """
        ...

    def published(self, destination: str) -> Messages:
        """Return all messages that the test has published to this destination, in order.

        Raises `UsageError` E2420 for a destination from which no receiver receives.
        """
        ...

    def sent(self, sender: str) -> Messages:
        """Return the messages that the broker accepted from a sender, in order.

        Of messages with the same unique id from an EXACTLY_ONCE sender, only the first is included: a consumer that
        drops duplicates sees the same. The messages of other senders include repeats. Raises `UsageError` E2420 for a
        sender that is not in the file.
        """
        ...

    def state(self, monitor: type[Monitor] | str) -> list[dict[str, Any]]:
        """Return attributes and tables of every living instance of a persistent monitor, as the last checkpoint holds
        them.

        One dict for each instance, in the order in which the instances were made. The values are plain: a struct is a
        dict, a set is a list, a `Decimal` is text.

        Args:
            monitor: the class of the monitor, or its name in the store.

        Raises:
            UsageError: E2420, the monitor is not persistent, or no persistent monitor has this name.
        """
        ...

    def dead_letters(self) -> list[DeadLetter]:
        """Return all dead letters in the store, oldest first."""
        ...

    def check(self) -> None:
        """Check the history of the run against the invariants of the configured reliability modes.

        Raises `InvariantViolated` with the first violated invariant. It also raises it (G7) if `run_until_quiet` was
        not called after the last `publish`.
        """
        ...
