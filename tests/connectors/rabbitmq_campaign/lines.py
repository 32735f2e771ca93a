"""Proxies for the connections of the pipeline, which cut them at drawn bytes."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping

from correlator.testing.network import AtByte, CutConnection, Direction, FaultProxy, Injection, NetworkFault
from tests.connectors.campaign.board import Stalled
from tests.connectors.rabbit import opened, receiver, sender
from tests.connectors.rabbitmq_campaign.traffic import RabbitSite, Role, Round

LONGEST_UNCUT_S = 2.0
HANDSHAKES_CUT = 0.2
SILENT_CUTS = 0.1
"""The server is not told of these until the round has had its cuts, and keeps what it has delivered as under way."""
MUCH, LITTLE = 15_000, 300
"""Bytes behind the handshake within which a cut falls: where messages go, and where their answers go."""


class Line:
    """A proxy for one connection of the pipeline; it cuts each connection at a byte drawn before the connection began.

    Args:
        role: owner of the connection.
        port: port of the server.
        handshake: number of bytes in each direction before messages flow.
        times: number of cuts.
        rng: draws directions and bytes.
    """

    def __init__(
        self, role: Role, port: int, handshake: Mapping[Direction, int], times: int, rng: random.Random
    ) -> None:
        self.role = role
        self.proxy = FaultProxy(port)
        self.idle_cuts = 0
        self._handshake = handshake
        self._times = times
        self._rng = rng
        self._injections: list[Injection] = []
        if times:
            self._at(1)

    @property
    def cuts(self) -> int:
        """The number of all cuts."""
        return self.idle_cuts + len(self.places)

    @property
    def places(self) -> list[AtByte]:
        """The places of the cuts."""
        places = (one.fault.place for one in self._injections if one.fired)
        return [place for place in places if isinstance(place, AtByte)]

    @property
    def silent_cuts(self) -> int:
        """The number of cuts that the server was not told of."""
        return sum(one.fired for one in self._injections if one.fault.action == CutConnection(upstream=False))

    def in_handshake(self, place: AtByte) -> bool:
        """Whether a cut at this place was too early to lose a message."""
        return place.after <= self._handshake[place.direction]

    def cut_often(self, look: Callable[[], None], enough: Callable[[], bool], patience_s: float) -> None:
        """Wait until there were enough cuts; cuts a connection at once if too few bytes pass through it.

        Raises `Stalled`, or the error of `look`.
        """
        number, last, deadline = 1, -1, 0.0
        while self.cuts < self._times and not enough():
            if self.cuts != last:
                last, deadline = self.cuts, time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise Stalled(f"{self.role}: no connection that could be cut")
            look()
            if self._at(number).wait(LONGEST_UNCUT_S) or self.proxy.connections > number:
                number += 1
            else:
                number = self.proxy.connections + 1
                self.idle_cuts += min(1, self.proxy.cut())
        self.proxy.heal()

    def _at(self, number: int) -> Injection:
        """The cut of connection `number`; the cuts of the next connections wait already."""
        while len(self._injections) < number + 2:
            place = self._draw(len(self._injections) + 1)
            cut = CutConnection(upstream=self._rng.random() >= SILENT_CUTS)
            self._injections.append(self.proxy.inject(NetworkFault(place, cut)))
        return self._injections[number - 1]

    def _draw(self, connection: int) -> AtByte:
        direction = self._rng.choice(list(Direction))
        handshake = self._handshake[direction]
        much = self.role.sends == (direction is Direction.REQUEST)
        if self._rng.random() < HANDSHAKES_CUT:
            after = self._rng.randint(1, handshake)
        else:
            after = handshake + self._rng.randint(1, MUCH if much else LITTLE)
        return AtByte(direction=direction, after=after, connection=connection)


@contextlib.contextmanager
def lines(place: RabbitSite, this: Round, rng: random.Random) -> Iterator[list[Line]]:
    """One line for each connection, with its share of the cuts."""
    made: list[Line] = []
    shares = [len(range(at, this.faults, len(Role))) for at in range(len(Role))]
    try:
        for role, times in zip(Role, shares, strict=True):
            own = random.Random(f"{rng.random()} {role}")
            made.append(Line(role, place.rabbit.port, handshake_of(place, this, role), times, own))
        yield made
    finally:
        for line in made:
            line.proxy.close()


def handshake_of(place: RabbitSite, this: Round, role: Role) -> dict[Direction, int]:
    """The number of bytes that pass until a connection can be used. It declares the queue, too."""
    queue = place.queues[role in (Role.FORWARDING_SENDER, Role.COUNTING_RECEIVER)]
    with FaultProxy(place.rabbit.port) as proxy:
        connection = place.rabbit.connection(port=proxy.port, queue_type=this.queue_type)
        end = connection.sink(sender(queue)) if role.sends else connection.source(receiver(queue))
        with opened(end):
            return {direction: proxy.passed(direction) for direction in Direction}
