"""The brokers of a run. They survive its engines, and record in the history what they do."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from correlator.events import UNIQUE_ID, Message, Outgoing
from correlator.selector import Selector
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.history import History, Kind, Published, Sent
from correlator.testing.memory import MemoryBroker
from correlator.testing.schedule import Schedule
from correlator.testing.simulation.recorder import BrokerFaults, pid
from correlator.testing.simulation.scenario import Scenario

Known = Callable[[str, str, Message], Published]
"""Returns the history's record of a message that reaches a destination of a connection."""


class Parcel(NamedTuple):
    """A message on its way to a destination of a connection, and its record in the history."""

    connection: str
    destination: str
    published: Published
    message: Message


class Brokers:
    """One broker for each connection. Used by one thread, which steps or serves the engines.

    Args:
        scenario: the scenario of the run.
        schedule: decides which faults strike.
        history: gets a record of everything that happens at the brokers.
        strikes: returns whether a kind of fault strikes now, and records it.
        acting: returns the life that acts now.
        clock: returns seconds.
        known: needed if a sender sends to a destination that a receiver of the same engine reads.

    Attributes:
        of: the broker of each connection.
        accepted: all messages that the brokers have accepted from each sender.
    """

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        history: History,
        *,
        strikes: Callable[[str], bool],
        acting: Callable[[], int],
        clock: Callable[[], float],
        known: Known | None,
    ) -> None:
        self.accepted: dict[str, list[Outgoing]] = {}
        self._scenario = scenario
        self._history = history
        self._acting = acting
        self._known = known
        self._holder: dict[tuple[str, str], int] = {}
        self._destinations: dict[tuple[str, str], None] = {}
        self._selectors: dict[tuple[str, str], Sequence[Selector]] = {}
        self._owed: dict[str, set[str]] = {}
        beside = Facts(history).beside
        self.of = {
            name: MemoryBroker(
                features=features,
                orders={one: facts.order for one, facts in scenario.setup.receivers.items()},
                faults=BrokerFaults(strikes, schedule, features, self.owes, beside, scenario.refused_for_ever),
                names=known is not None,
                on_event=partial(self._happened, name),
                clock=clock,
            )
            for name, features in scenario.brokers.items()
        }
        self._subscribe()

    def publish(self, parcel: Parcel) -> None:
        """Put a message into a destination that receivers read."""
        connection, destination, published, message = parcel
        self._destinations[connection, destination] = None
        self._history.add(0, "published", self._scenario.label(connection, destination), (published,))
        self.of[connection].publish(destination, [message])

    def owes(self, receiver: str) -> bool:
        """Return whether a receiver has lost messages with its line and not acknowledged all of them since."""
        return bool(self._owed.get(receiver))

    def cut(self) -> None:
        """Cut every line, as a network may do."""
        for broker in self.of.values():
            broker.drop_connections()

    def set_down(self, *, down: bool) -> None:
        """Let all brokers go down, or come back."""
        for broker in self.of.values():
            broker.down = down

    def left(self) -> dict[str, int]:
        """Return how many messages brokers still hold for receivers, by destination; without empty destinations."""
        counts = {
            self._scenario.label(connection, name): self.of[connection].unacknowledged(name)
            + self.of[connection].waiting(name, self._selectors.get((connection, name), ()))
            for connection, name in self._destinations
        }
        return {name: count for name, count in counts.items() if count}

    def _subscribe(self) -> None:
        """Make durable subscriptions before the first message, since a topic delivers no earlier messages to a
        subscription.

        Also note the selectors of each queue of which no receiver takes all messages.
        """
        settings = self._scenario.settings
        found: dict[tuple[str, str], list[Selector | None]] = {}
        for receiver in settings.receivers:
            destination = settings.destinations.get(receiver.destination, receiver.destination)
            self.of[receiver.connection].destination(destination).subscription(receiver.subscription)
            self._destinations[receiver.connection, destination] = None
            if destination.startswith("queue:"):
                selector = Selector.optional(receiver.selector, receiver.id)
                found.setdefault((receiver.connection, destination), []).append(selector)
        for place, selectors in found.items():
            if None not in selectors:
                self._selectors[place] = [one for one in selectors if one is not None]

    def _happened(self, connection: str, kind: Kind, endpoint: str, destination: str, messages: Sequence[Any]) -> None:
        """Record what a broker reports (`memory.OnEvent`); published messages are in the history already."""
        if kind in ("accepted", "refused"):
            self._history.add(self._acting(), kind, endpoint, tuple(_sent(one) for one in messages))
            if kind == "accepted":
                self.accepted.setdefault(endpoint, []).extend(messages)
                if self._is_read(connection, destination):
                    self._came_round(connection, destination, messages)
        elif kind != "published":
            self._moved(kind, endpoint, tuple(pid(one) for one in messages))

    def _moved(self, kind: Kind, endpoint: str, pids: tuple[str, ...]) -> None:
        """Record that messages were delivered, acknowledged or returned."""
        life = self._acting()
        if kind == "delivered":
            self._holder.update(((endpoint, one), life) for one in pids)
        elif kind == "acknowledged":
            self._owed.get(endpoint, set()).difference_update(pids)
        elif kind == "returned":  # a cut, which happens outside any life, may have caused it
            self._owed.setdefault(endpoint, set()).update(pids)
            life = self._holder.get((endpoint, pids[0]), life) if pids else life
        self._history.add(life, kind, endpoint, pids)

    def _is_read(self, connection: str, destination: str) -> bool:
        """Return whether a receiver of the same engine reads this destination."""
        return (connection, destination) in self._destinations

    def _came_round(self, connection: str, destination: str, sent: Sequence[Outgoing]) -> None:
        """Record messages that a sender has sent to a destination that a receiver of the same engine reads."""
        assert self._known is not None
        known = tuple(self._known(connection, destination, one.message) for one in sent)
        self._history.add(0, "published", self._scenario.label(connection, destination), known)


class SimulatedBrokers(Brokers):
    """The brokers of a simulated run. Between two steps of the engines they may go down, and lines may be cut.

    Args: as `Brokers`.

    Attributes:
        published: number of published messages that no engine sent.
    """

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        history: History,
        *,
        strikes: Callable[[str], bool],
        acting: Callable[[], int],
        clock: Callable[[], float],
        known: Known | None,
    ) -> None:
        super().__init__(scenario, schedule, history, strikes=strikes, acting=acting, clock=clock, known=known)
        self.published = 0
        self._schedule = schedule
        self._strikes = strikes
        self._clock = clock
        self._down_until: float | None = None

    @property
    def back_at(self) -> float | None:
        """The time at which brokers that are down come back; `None` if they are not down."""
        return self._down_until

    def publish(self, parcel: Parcel) -> None:
        """Put a message into a destination that receivers read."""
        self.published += 1
        super().publish(parcel)

    def meddle(self) -> None:
        """Let brokers go down or come back, and cut lines, as the schedule says."""
        if self._down_until is not None:
            if self._clock() >= self._down_until:
                self._down_until = None
                self.set_down(down=False)
        elif self._strikes("broker.down"):
            self._down_until = self._clock() + self._schedule.detail("broker.down", 20) / 10
            self.set_down(down=True)
        if self._strikes("broker.cut"):
            self.cut()

    def heal(self) -> None:
        """Bring all brokers back for good, with new connections."""
        self._down_until = None
        self.set_down(down=False)
        self.cut()


def _sent(one: Outgoing) -> Sent:
    unique_id = one.message.properties.get(UNIQUE_ID, "")
    return Sent(one.source, one.sequence, one.destination, one.message.body, str(unique_id))
