"""Figures of rounds, and whether they prove anything."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.connectors.rabbitmq_campaign.lines import Line
from tests.connectors.rabbitmq_campaign.traffic import BOARD, Kind, Traffic


@dataclass(slots=True)
class Figures:
    """Figures of the rounds of one kind.

    Attributes:
        kills: number of kills of the server.
        kills_in_traffic: number of kills with orders under way and an engine connected.
        kills_amid_sends: number of kills while the publisher or the forwarding sender waited for confirms.
        under_way: sum of the orders under way at each kill.
        cuts: number of cuts of connections, by direction; "none" for cuts not at a byte, since too few bytes passed.
        cut_roles: number of cuts of connections, by owner of the connection.
        cuts_in_handshakes: number of cuts before any message could pass.
        silent_cuts: number of cuts that the server did not notice.
        connections_lost: number of lost and refused connections of receivers and senders.
        publisher_lost: number of lost and refused connections of the publisher.
        messages: number of orders that were begun.
        repeated: number of orders that the publisher sent again.
        redelivered: number of messages that came with the flag.
        duplicates: number of duplicates that receivers have recognised.
        doubles: number of orders in the state beyond the first of each.
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
        """The number of cuts of connections at a byte after the handshake."""
        return self.cuts.total() - self.cuts["none"] - self.cuts_in_handshakes

    def faults(self, kind: Kind) -> int:
        """The number of faults of one kind."""
        return self.kills if kind is Kind.KILLS else self.cuts.total()

    def add_kill(self, traffic: Traffic) -> None:
        """Count a kill of the server, right before it."""
        self.kills += 1
        self.kills_in_traffic += bool(BOARD.under_way > 0 and traffic.connected)
        self.kills_amid_sends += bool(traffic.unconfirmed)
        self.under_way += BOARD.under_way

    def add_line(self, line: Line) -> None:
        """Add the cuts of a line."""
        self.cuts.update(place.direction.value for place in line.places)
        self.cuts["none"] += line.idle_cuts
        self.cut_roles[line.role.value] += line.cuts
        self.silent_cuts += line.silent_cuts
        self.cuts_in_handshakes += sum(line.in_handshake(place) for place in line.places)

    def add_traffic(self, traffic: Traffic) -> None:
        """Add the figures of engines and a publisher that have ended."""
        for engine in traffic.engines:
            for one in engine.receivers.values():
                self.redelivered += one.counters.redelivered
                self.duplicates[engine.settings.name] += one.counters.duplicates
                self.connections_lost += one.counters.connection_errors
            self.connections_lost += sum(one.counters.connection_errors for one in engine.senders.values())
        self.publisher_lost += traffic.publisher.connection_errors
        self.repeated += traffic.publisher.repeated

    def report(self) -> dict[str, Any]:
        """The figures as values for a JSON report."""
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
        """The figures as one line of text."""
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
    """The result of a campaign: the figures of its rounds, and for each kind of fault those of its control."""

    seed: int
    figures: Figures = field(default_factory=Figures)
    controls: dict[Kind, Figures] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        """The violations of all rounds."""
        return [text for one in (self.figures, *self.controls.values()) for text in one.violations]

    @property
    def blind(self) -> list[str]:
        """The reasons why the campaign proves nothing although it found no violation."""
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
        """The result as values for a JSON report."""
        return {
            "seed": self.seed,
            **self.figures.report(),
            "controls": {kind.value: control.report() for kind, control in self.controls.items()},
            "seconds": round(self.seconds, 1),
            "violations": self.violations,
            "blind": self.blind,
        }

    def lines(self) -> list[str]:
        """The result as lines of text."""
        return [
            *(f"VIOLATION: {text}" for text in self.violations),
            *(f"BLIND: {text}" for text in self.blind),
            *(f"control of {kind}: {control.line()}" for kind, control in self.controls.items()),
            f"seed {self.seed}: {self.figures.line()}, {len(self.violations)} violations, {self.seconds:.0f} s in all",
        ]
