"""Rounds of kills, each with fresh topics and a fresh store."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from tests.connectors.campaign import command
from tests.connectors.campaign.life import PATIENCE_S, Life
from tests.connectors.campaign.verdict import counts_in
from tests.connectors.kafka_campaign import bridge
from tests.connectors.kafka_campaign.bridge import LARGEST_SENT, NAME, PLACES, Death
from tests.forking import forking
from tests.kafka_server import KafkaServer
from tests.waiting import wait_until

FORKING = forking(bridge.__name__)
KILLS_OF_A_ROUND, BROKER_KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL = 24, 10, 8
LONGEST_LIFE_S = 3.0
AT_A_PLACE = 0.75
PUBLISHED = 3 * LARGEST_SENT
LAST_TRANSACTION = 3
SLOWEST_COMMIT_S = 0.01
LOOK_S = 0.1


@dataclass
class Figures:
    """What rounds of one kind have found.

    Attributes:
        kills: processes that were killed, by place; "any" for those that were killed from outside.
        broker_kills: how often the broker was killed.
        waiting: kills while orders were under way.
        orders: orders that were published.
        stored: messages that readers of committed messages see.
        aborted: messages that they do not see.
        doubles: messages beyond the first of an order.
        seconds: duration.
        violations: what is wrong.
    """

    kills: Counter[str] = field(default_factory=Counter)
    broker_kills: int = 0
    waiting: int = 0
    orders: int = 0
    stored: int = 0
    aborted: int = 0
    doubles: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Result(command.Result):
    """The result of a campaign."""

    seed: int
    figures: Figures = field(default_factory=Figures)
    control: Figures = field(default_factory=Figures)

    @property
    def violations(self) -> Sequence[str]:
        """The violations that the campaign found."""
        return self.figures.violations + self.control.violations

    @property
    def blind(self) -> Sequence[str]:
        """The reasons why the campaign proves nothing although it found no violation."""
        found = [] if self.control.doubles else ["the control stored nothing twice"]
        if self.figures.kills and not self.figures.aborted:
            found.append("no kill has left a transaction that was aborted")
        return found

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        one = self.figures
        places = ", ".join(f"{number} {place}" for place, number in sorted(one.kills.items()))
        return [
            f"seed {self.seed}: {one.kills.total()} kills of the bridge ({places}), {one.broker_kills} of the broker",
            f"{one.waiting} kills while orders were under way",
            f"{one.orders} orders: {one.stored} messages stored, {one.aborted} aborted",
            f"{one.doubles} stored twice, {len(one.violations)} violations, {one.seconds:.0f} s",
            f"control: {self.control.doubles} stored twice after {self.control.kills.total()} kills",
            *self.violations,
            *self.blind,
        ]


@dataclass
class Site:
    """The place of a round: a directory for the store, and two topics."""

    kafka: KafkaServer
    directory: Path
    topics: tuple[str, str]
    orders: int = 0

    def publish(self, number: int) -> None:
        """Publish so many orders."""
        first = self.orders
        self.kafka.publish(self.topics[0], *[{"value": b"%d" % n} for n in range(first, first + number)])
        self.orders += number

    def life(self, death: Death | None = None, *, is_control: bool) -> Life:
        """Begin a life of the bridge."""
        return Life(FORKING, bridge.live, self.directory, self.kafka.servers, self.topics, death, is_control=is_control)

    def stored(self) -> list[dict[str, Any]]:
        """What readers of committed messages see."""
        records = self.kafka.records(self.topics[1], settled=False)
        return [msgspec.json.decode(one.value() or b"") for one in records]


def campaign(
    kafka: KafkaServer,
    directory: Path,
    *,
    kills: int,
    broker_kills: int,
    seed: int,
    say: Callable[[str], object] = lambda _: None,
) -> Result:
    """Run the control, then rounds until there were enough kills. A violation ends the campaign."""
    result = Result(seed)
    figures = result.figures
    seeds = count(1)
    rng = random.Random(f"{seed} 0")
    one_round(kafka, directory / "control", result.control, rng, KILLS_OF_A_CONTROL, is_control=True)
    while not result.violations and (figures.kills.total() < kills or figures.broker_kills < broker_kills):
        number = next(seeds)
        rng = random.Random(f"{seed} {number}")
        most = min(KILLS_OF_A_ROUND, kills - figures.kills.total())
        if most > 0:
            one_round(kafka, directory / f"round{number}", figures, rng, most)
        else:
            most = min(BROKER_KILLS_OF_A_ROUND, broker_kills - figures.broker_kills)
            one_round(kafka, directory / f"round{number}", figures, rng, 0, broker_kills=most)
        say(f"round {number}: {figures.kills.total()} + {figures.broker_kills} kills, {figures.orders} orders")
    return result


def one_round(
    kafka: KafkaServer,
    directory: Path,
    figures: Figures,
    rng: random.Random,
    kills: int,
    *,
    broker_kills: int = 0,
    is_control: bool = False,
) -> None:
    """One round: all its kills, a life without a kill, and the comparison. Without a violation nothing is left of it."""
    directory.mkdir(mode=0o700)
    begin = time.monotonic()
    site = Site(kafka, directory, (kafka.topic(), kafka.topic()))
    for death in _deaths(rng, kills, is_control=is_control):
        _one_life(site, death, rng, figures, is_control=is_control)
    site.publish(PUBLISHED)
    last = site.life(is_control=is_control)
    last.begin()
    for _ in range(broker_kills):
        _kill_broker(site, rng, figures)
    wait_until(lambda: len({one["order"] for one in site.stored()}) == site.orders, PATIENCE_S, LOOK_S)
    status = last.stop()
    found = _compare(site, figures, is_control=is_control)
    if status:
        found.append(f"the last life ended with status {status}")
    figures.violations += [f"{directory.name}: {one}" for one in found]
    figures.seconds += time.monotonic() - begin
    if not found:
        shutil.rmtree(directory)


def _deaths(rng: random.Random, kills: int, *, is_control: bool) -> list[Death | None]:
    """Draw how lives end: each place as often as the others; `None` for a kill from outside. A control dies behind
    commits, where the engine does not know yet what it has sent.
    """
    if is_control:
        return [Death("committed", rng.randint(1, LAST_TRANSACTION)) for _ in range(kills)]
    places = [PLACES[at % len(PLACES)] if rng.random() < AT_A_PLACE else "" for at in range(kills)]
    rng.shuffle(places)
    return [
        Death(place, rng.randint(1, LAST_TRANSACTION), rng.random() * SLOWEST_COMMIT_S) if place else None
        for place in places
    ]


def _one_life(site: Site, death: Death | None, rng: random.Random, figures: Figures, *, is_control: bool) -> None:
    """Start the bridge with orders to send, and kill it if it does not kill itself."""
    site.publish(PUBLISHED)
    life = site.life(death, is_control=is_control)
    life.begin()
    life.wait(PATIENCE_S / 6 if death else LONGEST_LIFE_S * rng.random())
    at_its_place = life.kill()
    figures.kills[death.place if death and at_its_place else "any"] += 1
    figures.waiting += len(site.stored()) < site.orders


def _kill_broker(site: Site, rng: random.Random, figures: Figures) -> None:
    """Kill the broker while orders are under way, after some have come through since it was last killed."""
    before = len(site.stored())
    site.publish(rng.randint(PUBLISHED, 10 * PUBLISHED))
    wait_until(lambda: len(site.stored()) > before, PATIENCE_S, LOOK_S)
    figures.waiting += len(site.stored()) < site.orders
    site.kafka.restart()
    figures.broker_kills += 1


def _compare(site: Site, figures: Figures, *, is_control: bool) -> list[str]:
    """Compare the topic with the state of the engine."""
    stored = [(one["order"], one["number"]) for one in site.stored()]
    everything = len(site.kafka.records(site.topics[1], committed=False))
    state = counts_in(f"sqlite:///{site.directory}/engine.db", NAME)
    wanted = sorted(state.items(), key=lambda item: item[1])
    times = Counter(stored)
    doubles = times.total() - len(times)
    figures.orders += site.orders
    figures.stored += len(stored)
    figures.aborted += everything - len(stored)
    figures.doubles += doubles
    found = []
    if set(state) != {str(number) for number in range(site.orders)}:
        found.append(f"{site.orders} orders were published, and the state has {len(state)}")
    if is_control:
        return found
    if doubles:
        found.append(f"stored twice: {[one for one, number in times.items() if number > 1][:20]}")
    if stored != wanted:
        lacking = sorted(set(wanted) - set(stored))[:20]
        found.append(f"the topic lacks {lacking}, or has another order than the state")
    return found
