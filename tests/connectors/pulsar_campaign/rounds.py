"""Rounds of kills, each with fresh topics and a fresh store."""

import functools
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from connectors.pulsar.destinations import QUEUE_SUBSCRIPTION
from correlator.errors import CorrelatorError
from tests.connectors.campaign.board import Board, Stalled
from tests.connectors.campaign.verdict import counts_in, judge
from tests.connectors.pulsar_campaign.bridge import NAME, SOURCE, TARGET
from tests.connectors.pulsar_campaign.figures import Figures, Result
from tests.connectors.pulsar_campaign.storage import stored_in
from tests.connectors.pulsar_campaign.traffic import (
    BridgeEnded,
    Control,
    Kind,
    PulsarSite,
    Round,
    Traffic,
    fresh_place,
)
from tests.pulsar_server import PulsarServer

PATIENCE_S = 150.0
"""Nothing may stand still for longer."""
MOST_BEFORE_KILL = 150
AT_ONCE = 0.1
"""Of the kills of the bridge do not wait for an order that has come through."""
KILLS_OF_A_ROUND = {Kind.BROKER: 10, Kind.BRIDGE: 30}
KILLS_OF_A_CONTROL = 20
MOST_RUNS = 3


def campaign(
    pulsar: PulsarServer,
    directory: Path,
    *,
    kills: int,
    process_kills: int,
    seed: int,
    say: Callable[[str], object] = lambda _: None,
    patience_s: float = PATIENCE_S,
) -> Result:
    """Run rounds until there were enough kills, each kind with its controls; a violation ends the campaign.

    The store of a round with a violation is left in its directory, with the logs of bridge and broker.

    Args:
        pulsar: the broker that is killed; nobody else may use it.
        directory: place of the stores.
        kills: number of kills of the broker.
        process_kills: number of kills of the bridge.
        seed: seed of everything that is drawn.
        say: called with a line about each round.
        patience_s: longest time without a new order.
    """
    result = Result(seed)
    begin = time.monotonic()
    for number, this in enumerate(plan(seed, {Kind.BRIDGE: process_kills, Kind.BROKER: kills})):
        figures = result.figures
        if this.control is not None:
            figures = result.controls.setdefault((this.kind, this.control), Figures())
        made = directory / f"round{number}"
        made.mkdir()
        one_round(fresh_place(pulsar, this, made, patience_s), this, figures)
        if figures.violations:
            shutil.copy(pulsar.directory / "output", made / "broker.log")
        else:
            shutil.rmtree(made)
        result.seconds = time.monotonic() - begin
        say(f"{result.seconds:6.0f} s {this}: {figures.kills[this.kind]} {this.kind} so far, {figures.orders} orders")
        if result.violations:
            break
    return result


def plan(seed: int, wanted: dict[Kind, int]) -> Iterator[Round]:
    """The rounds in order; the controls of a kind come before its rounds."""
    seeds = (f"{seed} {number}" for number in itertools.count())
    for kind, kills in wanted.items():
        for control in Control if kills else ():
            yield Round(seed=next(seeds), kind=kind, kills=KILLS_OF_A_CONTROL, control=control)
        for first in range(0, kills, KILLS_OF_A_ROUND[kind]):
            yield Round(seed=next(seeds), kind=kind, kills=min(kills - first, KILLS_OF_A_ROUND[kind]))


def one_round(place: PulsarSite, this: Round, figures: Figures) -> None:
    """One round: all its kills, and the comparison at its end."""
    begin = time.monotonic()
    rng = random.Random(this.seed)
    board = Board()
    trouble: list[str] = []
    try:
        kill_often(place, this, rng, figures, board)
        for _ in range(MOST_RUNS):
            if not unacknowledged(place):
                break
            run_undisturbed(place, this, rng, figures, board)
        else:
            trouble.append(f"the bridge has not acknowledged {unacknowledged(place)} messages")
    except (Stalled, BridgeEnded, CorrelatorError) as error:
        trouble.append(f"{type(error).__name__}: {error}")
    found = trouble + differences(place, this, figures, board)
    figures.violations += [f"{this}: {text}" for text in found]
    figures.seconds += time.monotonic() - begin


def kill_often(place: PulsarSite, this: Round, rng: random.Random, figures: Figures, board: Board) -> None:
    """Kill the broker or the bridge and start it again, each time after a drawn number of orders."""
    traffic = Traffic(place, this, rng, board)
    kill = place.pulsar.restart if this.kind is Kind.BROKER else traffic.bridge.restart
    try:
        with traffic.flowing():
            for _ in range(this.kills):
                goal = 0 if this.kind is Kind.BRIDGE and rng.random() < AT_ONCE else rng.randint(1, MOST_BEFORE_KILL)
                traffic.wait_until(functools.partial(traffic.has_brought, goal))
                figures.add_kill(this.kind, traffic)
                traffic.strike(kill)
                if this.control and board.doubled:
                    break
    finally:
        figures.add_traffic(traffic)


def run_undisturbed(place: PulsarSite, this: Round, rng: random.Random, figures: Figures, board: Board) -> None:
    """Let the bridge go on without kills, with one more order after all earlier ones."""
    traffic = Traffic(place, this, rng, board)
    traffic.publisher.finish()
    with traffic.flowing():
        pass
    figures.add_traffic(traffic)


def unacknowledged(place: PulsarSite) -> int:
    """The number of messages that the broker would deliver to the next bridge."""
    return int(place.pulsar.subscriptions(SOURCE, place.namespace)[QUEUE_SUBSCRIPTION]["msgBacklog"])


def differences(place: PulsarSite, this: Round, figures: Figures, board: Board) -> list[str]:
    """Compare the state of the bridge, and the content of both topics, with the orders that were begun."""
    state = judge(counts_in(place.store, NAME), board.begun)
    outbound = stored_in(place.pulsar.url, place.topic(TARGET))
    inbound = stored_in(place.pulsar.url, place.topic(SOURCE))
    figures.rounds += 1
    figures.orders += board.begun
    figures.counted_doubles += state.doubles
    figures.stored_doubles += outbound.repeats
    texts = {
        "in the state": state.violations(may_double=this.control is Control.AT_LEAST_ONCE),
        "stored for the bridge": judge(inbound.orders, board.begun).violations(may_double=not this.deduplication),
        "stored by the bridge": judge(outbound.orders, board.begun).violations(may_double=this.control is not None)
        + outbound.violations(may_repeat=not this.deduplication),
    }
    return [f"{where}: {text}" for where, found in texts.items() for text in found]
