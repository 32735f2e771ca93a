"""The common part of the worlds of all levels: publishing, and questions about the history."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from correlator.core.monitor import Monitor
from correlator.events import Outgoing
from correlator.testing.crashtest.configured import Configured
from correlator.testing.invariants.catalogue import InvariantViolated, Violation
from correlator.testing.invariants.history import History
from correlator.testing.invariants.violations import violations
from correlator.testing.simulation.brokers import Parcel
from correlator.testing.worlds import Messages, Publishable


class ConfiguredWorld(ABC):
    """The `worlds.World` of one run of a configuration file. Each level defines how engines run in it.

    Args:
        configured: the file under test.

    Attributes:
        restless: the sentence of invariant G7 for a run that does not come to rest.
    """

    restless: str

    def __init__(self, configured: Configured) -> None:
        self._configured = configured
        self._published: dict[tuple[str, str], list[Parcel]] = {}
        self._quiet = False

    def publish(self, destination: str, messages: Iterable[Publishable]) -> None:
        """Put messages into a destination, as `worlds.World.publish`. The world is not quiet any more."""
        place = self._configured.place(destination)
        there = self._published.setdefault(place, [])
        parcels = [
            Parcel(*place, self._configured.known(*place, message), message)
            for message in self._configured.messages(place, messages, len(there) + 1)
        ]
        there.extend(parcels)
        self._hand_over(parcels)
        self._quiet = False

    def run_until_quiet(self) -> None:
        """Run engines of this level until nothing is left to do, as `worlds.World.run_until_quiet`."""
        self._run()
        self._quiet = True

    def published(self, destination: str) -> Messages:
        """All messages that the test has published to this destination, as `worlds.World.published`."""
        return Messages(one.message for one in self._published.get(self._configured.place(destination), ()))

    def sent(self, sender: str) -> Messages:
        """The messages that the broker accepted from a sender, as `worlds.World.sent`."""
        return self._configured.sent(sender, self._accepted().get(sender, ()))

    def state(self, monitor: type[Monitor] | str) -> list[dict[str, Any]]:
        """The state of each living instance of a persistent monitor in the last checkpoint, as `worlds.World.state`."""
        return self._configured.state(monitor, self._held())

    def check(self) -> None:
        """Check the history of the run against the invariants, as `worlds.World.check`; raises `InvariantViolated`."""
        if not self._quiet:
            what = "'check' was called before 'run_until_quiet', or after more was published"
            raise InvariantViolated(Violation("G7", self.restless, what))
        for found in violations(self._history()):
            raise InvariantViolated(found)

    @abstractmethod
    def _hand_over(self, parcels: Sequence[Parcel]) -> None:
        """Pass the messages on to the brokers."""

    @abstractmethod
    def _run(self) -> None:
        """Run engines until everything is quiet. Raises `InvariantViolated` if they do not get there."""

    @abstractmethod
    def _history(self) -> History:
        """Return the history of the run so far."""

    @abstractmethod
    def _accepted(self) -> Mapping[str, Sequence[Outgoing]]:
        """Return the messages that brokers have accepted, by sender."""

    @abstractmethod
    def _held(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the state of monitors in the store, as `inspection.state_of_disk` returns it."""
