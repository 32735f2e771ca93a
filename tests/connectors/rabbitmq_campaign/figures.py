"""What rounds did, and whether the state is what it must be."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.connectors.rabbitmq_campaign.lines import Line
from tests.connectors.rabbitmq_campaign.traffic import BOARD, Kind, Traffic


@dataclass(slots=True)
class Figures:
    """What rounds did.

    Attributes:
        kills: of the server.
        kills_in_traffic: those with orders under way and an engine connected.
        kills_amid_sends: those with orders that the publisher or the forwarding sender waited to have confirmed.
        under_way: orders under way at all kills together.
        cuts: of connections, by direction; "none" where too little passed, so that they were cut without a byte.
        cut_roles: the same, by whose connection it was.
        cuts_in_handshakes: those before any message could pass.
        silent_cuts: those that the server was not told of.
        connections_lost: seen by receivers and senders, and those that a server which is gone refused them.
        publisher_lost: the same, by the publisher.
        messages: orders begun.
        repeated: orders that the publisher sent again.
        redelivered: messages that came with the flag.
        duplicates: recognised by receivers.
        doubles: orders in the state beyond the first of each.
        seconds: all of them.
    """

    kills: int = 0
    kills_in_traffic: int = 0
    kills_amid_sends: int = 0
    under_way: int = 0
    cuts: Counter[str] = field(default_factory=Counter)
    cut_roles: Counter[str] = field(default_factory=Counter)
    cuts_in_handshakes: int = 0
    silent_cuts: int = 0
    connections_lost: int = 0
    publisher_lost: int = 0
    rounds: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    repeated: int = 0
    redelivered: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    doubles: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def cuts_in_use(self) -> int:
        """Cuts of connections at a byte, behind the handshake."""
        return self.cuts.total() - self.cuts["none"] - self.cuts_in_handshakes

    def faults(self, kind: Kind) -> int:
        """Of one kind."""
        return self.kills if kind is Kind.KILLS else self.cuts.total()

    def add_kill(self, traffic: Traffic) -> None:
        """The server is about to be killed."""
        self.kills += 1
        self.kills_in_traffic += bool(BOARD.under_way > 0 and traffic.connected)
        self.kills_amid_sends += bool(traffic.unconfirmed)
        self.under_way += BOARD.under_way

    def add_line(self, line: Line) -> None:
        """A line that was cut."""
        self.cuts.update(place.direction.value for place in line.places)
        self.cuts["none"] += line.idle_cuts
        self.cut_roles[line.role.value] += line.cuts
        self.silent_cuts += line.silent_cuts
        self.cuts_in_handshakes += sum(line.in_handshake(place) for place in line.places)

    def add_traffic(self, traffic: Traffic) -> None:
        """Engines and a publisher that have ended."""
        for engine in traffic.engines:
            for one in engine.receivers.values():
                self.redelivered += one.counters.redelivered
                self.duplicates[engine.settings.name] += one.counters.duplicates
                self.connections_lost += one.counters.connection_errors
            self.connections_lost += sum(one.counters.connection_errors for one in engine.senders.values())
        self.publisher_lost += traffic.publisher.connection_errors
        self.repeated += traffic.publisher.repeated

    def report(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "kills": self.kills,
            "kills_in_traffic": self.kills_in_traffic,
            "kills_amid_sends": self.kills_amid_sends,
            "orders_under_way_at_kills": self.under_way,
            "cuts": self.cuts.total(),
            "cuts_by_direction": dict(sorted(self.cuts.items())),
            "cuts_by_connection": dict(sorted(self.cut_roles.items())),
            "cuts_in_use": self.cuts_in_use,
            "cuts_in_handshakes": self.cuts_in_handshakes,
            "cuts_not_told_to_the_server": self.silent_cuts,
            "connections_lost_or_refused": {"engines": self.connections_lost, "publisher": self.publisher_lost},
            "rounds": dict(sorted(self.rounds.items())),
            "messages": self.messages,
            "repeated_by_publisher": self.repeated,
            "redelivered": self.redelivered,
            "duplicates_recognised": dict(sorted(self.duplicates.items())),
            "doubles": self.doubles,
            "seconds": round(self.seconds, 1),
        }

    def line(self) -> str:
        """One line."""
        under_way = self.under_way / max(self.kills, 1)
        ways = ", ".join(f"{count} {way}" for way, count in sorted(self.cuts.items()))
        duplicates = ", ".join(f"{count} {engine}" for engine, count in sorted(self.duplicates.items()))
        return (
            f"{self.kills} kills ({self.kills_in_traffic} in traffic, {self.kills_amid_sends} amid sends, "
            f"{under_way:.0f} orders under way), "
            f"{self.cuts.total()} cuts ({ways or 'none'}; {self.cuts_in_use} in use, "
            f"{self.cuts_in_handshakes} in handshakes, {self.silent_cuts} not told to the server), "
            f"connections lost or refused: {self.connections_lost} of engines, {self.publisher_lost} of the publisher; "
            f"{self.messages} orders, {self.repeated} sent again, "
            f"{self.redelivered} redelivered, duplicates recognised: {duplicates or 'none'}; {self.doubles} doubles, "
            f"{self.seconds:.0f} s"
        )


@dataclass(slots=True)
class Result:
    """A campaign: what its rounds did, and for each kind of fault what its control did."""

    seed: int
    figures: Figures = field(default_factory=Figures)
    controls: dict[Kind, Figures] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        """Of all rounds."""
        return [text for one in (self.figures, *self.controls.values()) for text in one.violations]

    @property
    def blind(self) -> list[str]:
        """Why it proves nothing, though it found nothing."""
        figures, found = self.figures, []
        if figures.kills > 2 * figures.kills_in_traffic:
            found.append(f"{figures.kills_in_traffic} of {figures.kills} kills met traffic")
        if figures.cuts.total() > 2 * figures.cuts_in_use:
            found.append(f"{figures.cuts_in_use} of {figures.cuts.total()} cuts met a connection in use")
        if (figures.kills or figures.cuts) and not figures.connections_lost:
            found.append("no engine has noticed a fault")
        found += [
            f"the control doubled nothing in {control.faults(kind)} {kind}: the check sees nothing"
            for kind, control in self.controls.items()
            if not control.doubles
        ]
        return found

    def report(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "seed": self.seed,
            **self.figures.report(),
            "controls": {kind.value: control.report() for kind, control in self.controls.items()},
            "seconds": round(self.seconds, 1),
            "violations": self.violations,
            "blind": self.blind,
        }

    def lines(self) -> list[str]:
        """For a reader."""
        return [
            *(f"VIOLATION: {text}" for text in self.violations),
            *(f"BLIND: {text}" for text in self.blind),
            *(f"control of {kind}: {control.line()}" for kind, control in self.controls.items()),
            f"seed {self.seed}: {self.figures.line()}, {len(self.violations)} violations, {self.seconds:.0f} s in all",
        ]
