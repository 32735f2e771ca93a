"""Figures of rounds, and whether they prove anything."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.connectors.pulsar_campaign.traffic import Control, Kind, Traffic


@dataclass(slots=True)
class Figures:
    """Figures of the rounds of one kind.

    Attributes:
        kills: number of kills of each kind.
        kills_in_traffic: number of kills with orders under way, after some had come through since the last kill.
        under_way: sum of the orders under way at each kill of a kind.
        connections_lost: number of lost and refused connections of bridges that have ended in order.
        publisher_lost: number of lost and refused connections of the publisher.
        orders: number of orders that were begun.
        repeated: number of orders that the publisher sent again.
        duplicates: number of duplicates that receivers of bridges have recognised, if the bridges ended in order.
        counted_doubles: number of orders in the state beyond the first of each.
        stored_doubles: number of messages of the bridge in its topic beyond the first of each.
        seconds: all of them.
    """

    kills: Counter[Kind] = field(default_factory=Counter)
    kills_in_traffic: Counter[Kind] = field(default_factory=Counter)
    under_way: Counter[Kind] = field(default_factory=Counter)
    connections_lost: int = 0
    publisher_lost: int = 0
    rounds: int = 0
    orders: int = 0
    repeated: int = 0
    duplicates: int = 0
    counted_doubles: int = 0
    stored_doubles: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def doubles(self, control: Control) -> int:
        """The doubles that a control must have."""
        return self.stored_doubles if control is Control.NO_DEDUPLICATION else self.counted_doubles

    def add_kill(self, kind: Kind, traffic: Traffic) -> None:
        """Count a kill, right before it."""
        self.kills[kind] += 1
        self.kills_in_traffic[kind] += traffic.is_flowing
        self.under_way[kind] += traffic.board.under_way

    def add_traffic(self, traffic: Traffic) -> None:
        """Add the figures of a bridge and a publisher that have ended."""
        self.connections_lost += traffic.counters["connection_errors"]
        self.duplicates += traffic.counters["duplicates"]
        self.publisher_lost += traffic.publisher.connection_errors
        self.repeated += traffic.publisher.repeated

    def report(self) -> dict[str, Any]:
        """The figures as values for a JSON report."""
        return {
            "kills": dict(self.kills),
            "kills_in_traffic": dict(self.kills_in_traffic),
            "orders_under_way_at_kills": dict(self.under_way),
            "connections_lost_or_refused": {"bridge": self.connections_lost, "publisher": self.publisher_lost},
            "rounds": self.rounds,
            "orders": self.orders,
            "repeated_by_publisher": self.repeated,
            "duplicates_recognised": self.duplicates,
            "counted_doubles": self.counted_doubles,
            "stored_doubles": self.stored_doubles,
            "seconds": round(self.seconds, 1),
        }

    def line(self) -> str:
        """The figures as one line of text."""
        kills = ", ".join(
            f"{count} {kind} ({self.kills_in_traffic[kind]} in traffic, {self.under_way[kind] / count:.0f} orders under way)"
            for kind, count in self.kills.items()
        )
        return (
            f"{kills or 'no kills'}; connections lost or refused: {self.connections_lost} of the bridge, "
            f"{self.publisher_lost} of the publisher; {self.orders} orders, {self.repeated} sent again, "
            f"duplicates recognised: {self.duplicates}; {self.counted_doubles} counted twice, "
            f"{self.stored_doubles} stored twice, {self.seconds:.0f} s"
        )


@dataclass(slots=True)
class Result:
    """The result of a campaign: the figures of its rounds and of its controls."""

    seed: int
    figures: Figures = field(default_factory=Figures)
    controls: dict[tuple[Kind, Control], Figures] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        """The violations of all rounds."""
        return [text for one in (self.figures, *self.controls.values()) for text in one.violations]

    @property
    def blind(self) -> list[str]:
        """The reasons why the campaign proves nothing although it found no violation."""
        kills, met = self.figures.kills, self.figures.kills_in_traffic
        found = [f"{met[kind]} of {count} {kind} met traffic" for kind, count in kills.items() if count > 2 * met[kind]]
        if kills[Kind.BROKER] and not self.figures.connections_lost:
            found.append("the bridge has noticed no kill of the broker")
        found += [
            f"the control {control} doubled nothing in {figures.kills[kind]} {kind}: the check sees nothing"
            for (kind, control), figures in self.controls.items()
            if not figures.doubles(control)
        ]
        return found

    def report(self) -> dict[str, Any]:
        """The result as values for a JSON report."""
        return {
            "seed": self.seed,
            **self.figures.report(),
            "controls": {f"{kind}, {control}": figures.report() for (kind, control), figures in self.controls.items()},
            "seconds": round(self.seconds, 1),
            "violations": self.violations,
            "blind": self.blind,
        }

    def lines(self) -> list[str]:
        """The result as lines of text."""
        return [
            *(f"VIOLATION: {text}" for text in self.violations),
            *(f"BLIND: {text}" for text in self.blind),
            *(f"control {control}: {figures.line()}" for (_, control), figures in self.controls.items()),
            f"seed {self.seed}: {self.figures.line()}, {len(self.violations)} violations, {self.seconds:.0f} s in all",
        ]
