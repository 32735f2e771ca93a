"""The brokers of a run, which live in the oracle: what goes wrong with them, and what they put into the history."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from correlator.events import Message, Outgoing
from correlator.testing.memory import MemoryBroker
from correlator.testing.simulation.history import History, Kind, Published, Sent
from correlator.testing.simulation.recorder import BrokerFaults, pid
from correlator.testing.simulation.scenario import Scenario
from correlator.testing.simulation.schedule import Schedule
from correlator.testing.simulation.world import Parcel

LONGEST_DOWN_MS = 40
Known = Callable[[str, str, Message], Published]
"""What the history says of a message that comes to a destination of a connection."""


class Brokers:
    """One broker for each connection. Used by the oracle's thread alone.

    Args:
        scenario: of the run.
        schedule: what goes wrong.
        history: what happened.
        known: needed where a sender puts messages where a receiver reads.

    Attributes:
        life: who acts.
        forgetful: whether an acknowledgement was lost without a word: only a new connection brings its messages again.
        stirred: whether there may be something to receive that was not there when it was last looked at.
        accepted: everything that was taken from each sender.
    """

    def __init__(self, scenario: Scenario, schedule: Schedule, history: History, known: Known | None) -> None:
        self.life = 0
        self.stirred = False
        self.forgetful = False
        self.accepted: dict[str, list[Outgoing]] = {}
        self._scenario = scenario
        self._schedule = schedule
        self._history = history
        self._known = known
        self._holder: dict[tuple[str, str], int] = {}
        self._destinations: dict[tuple[str, str], None] = {}
        self._down_until: float | None = None
        self.of = {
            name: MemoryBroker(
                features=features,
                faults=BrokerFaults(self._strikes, schedule, features, scenario.refused_for_ever),
                names=known is not None,
                on_event=partial(self._happened, name),
            )
            for name, features in scenario.brokers.items()
        }
        self._subscribe()

    def publish(self, parcels: Iterable[Parcel]) -> None:
        """Put messages where receivers read."""
        for one in parcels:
            self._destinations[one.connection, one.destination] = None
            self._history.add(0, "published", self._scenario.label(one.connection, one.destination), (one.published,))
            self.of[one.connection].publish(one.destination, [one.message])

    def meddle(self) -> None:
        """A broker goes down or comes back, lines are cut."""
        if self._down_until is not None:
            if time.monotonic() >= self._down_until:
                self._set_down(down=False)
        elif self._strikes("broker.down"):
            self._set_down(down=True)
        if self._strikes("broker.cut"):
            self.cut()

    def heal(self) -> None:
        """Nothing goes wrong from now on."""
        self._schedule.on = False
        self._set_down(down=False)
        self.cut()

    def cut(self) -> None:
        """Cut every line, as a network does."""
        for broker in self.of.values():
            broker.drop_connections()
        self.forgetful = False
        self.stirred = True

    def left(self) -> dict[str, int]:
        """What is still there for receivers, by destination."""
        counts = {
            self._scenario.label(connection, name): self.of[connection].unacknowledged(name)
            + self.of[connection].waiting(name)
            for connection, name in self._destinations
        }
        return {name: count for name, count in counts.items() if count}

    def _subscribe(self) -> None:
        """Durable subscriptions exist before the first message, or a topic would lose it as topics do."""
        settings = self._scenario.settings
        for receiver in settings.receivers:
            destination = settings.destinations.get(receiver.destination, receiver.destination)
            self.of[receiver.connection].destination(destination).subscription(receiver.id)
            self._destinations[receiver.connection, destination] = None

    def _strikes(self, kind: str) -> bool:
        struck = self._schedule.strikes(kind)
        if struck:
            self._history.add(self.life, "fault", kind)
            self.forgetful = self.forgetful or kind == "ack.silent"
        return struck

    def _set_down(self, *, down: bool) -> None:
        milliseconds = self._schedule.detail("broker.down", LONGEST_DOWN_MS)
        self._down_until = time.monotonic() + milliseconds / 1000 if down else None
        for broker in self.of.values():
            broker.down = down
        self.stirred = True

    def _happened(self, connection: str, kind: Kind, endpoint: str, destination: str, messages: Sequence[Any]) -> None:
        """The broker tells (`memory.OnEvent`)."""
        if kind == "published":
            self.stirred = True
        elif kind in ("accepted", "refused"):
            self._history.add(self.life, kind, endpoint, tuple(_sent(one) for one in messages))
            if kind == "accepted":
                self.accepted.setdefault(endpoint, []).extend(messages)
                self._came_round(connection, destination, messages)
        else:
            self._moved(kind, endpoint, tuple(pid(one) for one in messages))

    def _moved(self, kind: Kind, endpoint: str, pids: tuple[str, ...]) -> None:
        """Messages are with a receiver, or no more."""
        life = self.life
        if kind == "delivered":
            self._holder.update(((endpoint, one), life) for one in pids)
        elif kind == "returned":
            self.stirred = True
            life = self._holder.get((endpoint, pids[0]), life) if pids else life
        self._history.add(life, kind, endpoint, pids)

    def _came_round(self, connection: str, destination: str, sent: Sequence[Outgoing]) -> None:
        """What a sender has put where a receiver of the same engine reads."""
        if (connection, destination) in self._destinations and self._known is not None:
            self.stirred = True
            known = tuple(self._known(connection, destination, one.message) for one in sent)
            self._history.add(0, "published", self._scenario.label(connection, destination), known)


def _sent(one: Outgoing) -> Sent:
    unique_id = one.message.properties.get("uniqueMessageId", "")
    return Sent(one.source, one.sequence, one.destination, one.message.body, str(unique_id))
