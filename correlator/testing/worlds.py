"""The interface of a crash test: a world with an engine that may die at any moment, and all that survives it.

The same test body runs at every level: simulated, as a process that is killed, over images of a disk that lost power,
over a real database. So a world offers only what all levels have.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, overload

import msgspec

from correlator.core.monitor import Monitor
from correlator.events import DeadLetter, Message

Publishable = Message | bytes | str | Mapping[str, Any] | msgspec.Struct
"""A message; or the body of one: bytes and text as they are, everything else as JSON."""


class Messages(Sequence[Message]):
    """Messages in the order in which they were published or sent; compares equal to another with the same bodies."""

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
        """The bodies, in order."""
        return [message.body for message in self._messages]

    def values(self, field: str) -> list[Any]:
        """One field of each body, which is a JSON object, in order; raises `KeyError` where it is missing."""
        return [msgspec.json.decode(message.body)[field] for message in self._messages]

    def ids(self) -> list[Any]:
        """The field `id` of each body, sorted: equal lists have lost nothing and doubled nothing."""
        return sorted(self.values("id"))


class World(Protocol):
    """The engine of a configuration file with its brokers, its store and the faults. Used by the thread of the test."""

    level: str

    def publish(self, destination: str, messages: Iterable[Publishable]) -> None:
        """Put messages into a destination that a receiver of the file reads, as another program would.

        A message without `uniqueMessageId` is given one, unless its receiver takes the id from elsewhere. Faults do not
        touch publishing. Raises `UsageError` E2420 for a destination that no receiver reads, E2421 for a body that
        cannot become a message, and for one message where a list of them belongs.
        """
        ...

    def run_until_quiet(self) -> None:
        """Run engines under faults, then without, until everything is handled, sent, confirmed and checkpointed.

        Waiting timers do not keep the world from being quiet. Raises `AssertionError` when it does not get there.
        """
        ...

    def published(self, destination: str) -> Messages:
        """All messages that were published to this destination."""
        ...

    def sent(self, sender: str) -> Messages:
        """The messages that the broker accepted from a sender, without repeats of the same unique id.

        A consumer that drops duplicates sees the same. AT_LEAST_ONCE senders stamp no ids: their repeats are included.
        Raises `UsageError` E2420 for a sender that is not in the file.
        """
        ...

    def state(self, monitor: type[Monitor] | str) -> list[dict[str, Any]]:
        """Attributes and tables of every living instance of a persistent monitor, as the last checkpoint holds them.

        In the order in which the instances were made, as plain values: a struct is a dict, a set a list, a `Decimal`
        text. Raises `UsageError` E2420 for a monitor without lasting state.
        """
        ...

    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters in the store."""
        ...

    def check(self) -> None:
        """Check the history of the run against the invariants of the configured modes.

        Raises `InvariantViolated` with the first violated invariant, or if published messages were not run yet.
        """
        ...
