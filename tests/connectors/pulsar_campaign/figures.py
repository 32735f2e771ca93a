"""What rounds did, and whether that proves anything."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.connectors.pulsar_campaign.traffic import Control, Kind, Traffic


@dataclass(slots=True)
class Figures:
    """What rounds did.

    Attributes:
        kills: of each kind.
        kills_in_traffic: those with orders under way, of which some had come through since the last kill.
        under_way: orders under way at all kills of a kind together.
        connections_lost: seen by bridges that have ended in order, and those that a broker which is gone refused them.
        publisher_lost: the same, by the publisher.
        orders: begun.
        repeated: orders that the publisher sent again.
        duplicates: recognised by the receivers of bridges that have ended in order.
        counted_doubles: orders in the state beyond the first of each.
        stored_doubles: messages of the bridge in its topic beyond the first of each.
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
        """Those that a control must have."""
        return self.stored_doubles if control is Control.NO_DEDUPLICATION else self.counted_doubles

    def add_kill(self, kind: Kind, traffic: Traffic) -> None:
        """Something is about to be killed."""
        self.kills[kind] += 1
        self.kills_in_traffic[kind] += traffic.is_flowing
        self.under_way[kind] += traffic.board.under_way

    def add_traffic(self, traffic: Traffic) -> None:
        """A bridge and a publisher that have ended."""
        self.connections_lost += traffic.counters["connection_errors"]
        self.duplicates += traffic.counters["duplicates"]
        self.publisher_lost += traffic.publisher.connection_errors
        self.repeated += traffic.publisher.repeated

    def report(self) -> dict[str, Any]:
        """For a machine."""
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
        """One line."""
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
    """A campaign: what its rounds did, and what its controls did."""

    seed: int
    figures: Figures = field(default_factory=Figures)
    controls: dict[tuple[Kind, Control], Figures] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        """Of all rounds."""
        return [text for one in (self.figures, *self.controls.values()) for text in one.violations]

    @property
    def blind(self) -> list[str]:
        """Why it proves nothing, though it found nothing."""
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
        """For a machine."""
        return {
            "seed": self.seed,
            **self.figures.report(),
            "controls": {f"{kind}, {control}": figures.report() for (kind, control), figures in self.controls.items()},
            "seconds": round(self.seconds, 1),
            "violations": self.violations,
            "blind": self.blind,
        }

    def lines(self) -> list[str]:
        """For a reader."""
        return [
            *(f"VIOLATION: {text}" for text in self.violations),
            *(f"BLIND: {text}" for text in self.blind),
            *(f"control {control}: {figures.line()}" for (_, control), figures in self.controls.items()),
            f"seed {self.seed}: {self.figures.line()}, {len(self.violations)} violations, {self.seconds:.0f} s in all",
        ]
