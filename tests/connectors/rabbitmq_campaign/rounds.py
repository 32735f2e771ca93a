"""Rounds of kills and of cuts, each with fresh queues and stores."""

import contextlib
import functools
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pika

from correlator import Reliability
from correlator.errors import CorrelatorError
from tests.connectors.campaign.board import Stalled
from tests.connectors.campaign.verdict import counts_in, judge
from tests.connectors.rabbitmq_campaign.figures import Figures, Result
from tests.connectors.rabbitmq_campaign.lines import lines
from tests.connectors.rabbitmq_campaign.traffic import BOARD, Kind, RabbitSite, Role, Round, Traffic
from tests.rabbit_server import RabbitServer

PATIENCE_S = 150.0
"""Nothing may stand still for longer."""
MOST_BEFORE_KILL = 150
YOUNGEST_S = 3.0
"""Age of queues at their first kill: RabbitMQ (3.10) writes the name of a quorum queue to disk half a second after its
declaration; killed before that, it begins the queue anew, empty and without a leader, whatever it had confirmed."""
KILLS_OF_A_ROUND, CUTS_OF_A_ROUND = 10, 50
KILLS_OF_A_CONTROL, CUTS_OF_A_CONTROL = 20, 200
MOST_RUNS = 3


def campaign(
    rabbit: RabbitServer,
    directory: Path,
    *,
    kills: int,
    cuts: int,
    seed: int,
    say: Callable[[str], object] = lambda _: None,
    patience_s: float = PATIENCE_S,
) -> Result:
    """Run rounds until there were enough kills and cuts, each kind with its control. A violation ends it.

    Stores of a round with a violation are left in its directory, with the log of the server.

    Args:
        rabbit: the server that is killed; nobody else may use it.
        directory: place of the stores.
        kills: number of kills of the server.
        cuts: number of cuts of connections.
        seed: seed of everything that is drawn.
        say: called with a line about each round.
        patience_s: longest time without a new order.
    """
    result = Result(seed)
    begin = time.monotonic()
    for number, this in enumerate(plan(result, kills, cuts)):
        figures = result.controls.setdefault(this.kind, Figures()) if this.is_control else result.figures
        made = directory / f"round{number}"
        made.mkdir()
        place = RabbitSite(
            rabbit=rabbit, directory=made, queues=(rabbit.queue(), rabbit.queue()), patience_s=patience_s
        )
        one_round(place, this, figures)
        if figures.violations:
            shutil.copytree(rabbit.directory / "log", made / "log")
        else:
            shutil.rmtree(made)
        result.seconds = time.monotonic() - begin
        say(
            f"{result.seconds:6.0f} s {this}: {figures.faults(this.kind)} {this.kind} so far, {figures.messages} orders"
        )
        if result.violations:
            break
    return result


def plan(result: Result, kills: int, cuts: int) -> Iterator[Round]:
    """The rounds in order, by kind of queue; the control of a kind comes before its rounds."""
    types = itertools.cycle(("classic", "quorum"))
    numbers = itertools.count()
    wanted = {
        Kind.CUTS: (cuts, CUTS_OF_A_ROUND, CUTS_OF_A_CONTROL),
        Kind.KILLS: (kills, KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL),
    }
    for kind, (faults, at_once, of_control) in wanted.items():
        if faults:
            seed, queue_type = f"{result.seed} {next(numbers)}", next(types)
            yield Round(
                seed=seed, kind=kind, faults=of_control, queue_type=queue_type, counting=Reliability.AT_LEAST_ONCE
            )
        while (left := faults - result.figures.faults(kind)) > 0:
            seed, queue_type = f"{result.seed} {next(numbers)}", next(types)
            yield Round(seed=seed, kind=kind, faults=min(left, at_once), queue_type=queue_type)


def one_round(place: RabbitSite, this: Round, figures: Figures) -> None:
    """One round with fresh queues and stores: all its faults, and the comparison at its end."""
    begin = time.monotonic()
    rng = random.Random(this.seed)
    BOARD.clear()
    trouble: list[str] = []
    try:
        strike = kill_often if this.kind is Kind.KILLS else cut_often
        strike(place, this, rng, figures)
        for _ in range(MOST_RUNS):
            if not waiting(place):
                break
            run_undisturbed(place, this, rng, figures)
        else:
            trouble.append(f"both engines leave something in the queues: {waiting(place)}")
    except (Stalled, CorrelatorError) as error:
        trouble.append(f"{type(error).__name__}: {error}")
    counts = counts_in(place.store("counting"), "counting")
    verdict = judge(counts, BOARD.begun)
    figures.rounds[this.queue_type] += 1
    figures.messages += BOARD.begun
    figures.doubles += verdict.doubles
    found = trouble + verdict.violations(may_double=this.is_control)
    if verdict.lost:
        forwarded = [name for name in verdict.lost if BOARD.forwards[name]]
        with contextlib.suppress(pika.exceptions.AMQPError):
            found.append(f"{len(forwarded)} of those that are lost had been forwarded; in the queues: {waiting(place)}")
    figures.violations += [f"{this}: {text}" for text in found]
    figures.seconds += time.monotonic() - begin


def kill_often(place: RabbitSite, this: Round, rng: random.Random, figures: Figures) -> None:
    """Kill the server and start it again, each time after a drawn number of orders has come to a drawn place."""
    traffic = Traffic(place, this, dict.fromkeys(Role, place.rabbit.port), rng)
    try:
        with traffic.flowing():
            old_enough = time.monotonic() + YOUNGEST_S
            traffic.wait_until(lambda: time.monotonic() > old_enough)
            for _ in range(this.faults):
                where = rng.choice(("confirmed", "forwarded", "counted"))
                goal = getattr(BOARD, where) + rng.randint(1, MOST_BEFORE_KILL)
                traffic.wait_until(functools.partial(BOARD.has_come_to, where, goal))
                figures.add_kill(traffic)
                place.rabbit.restart()
                if this.enough():
                    break
    finally:
        figures.add_traffic(traffic)


def cut_often(place: RabbitSite, this: Round, rng: random.Random, figures: Figures) -> None:
    """Cut every connection again and again, until there were enough cuts."""
    with lines(place, this, rng) as all_lines:
        traffic = Traffic(place, this, {line.role: line.proxy.port for line in all_lines}, rng)
        try:
            with traffic.flowing(), ThreadPoolExecutor(len(all_lines)) as pool:
                cutting = [
                    pool.submit(line.cut_often, traffic.look, this.enough, place.patience_s) for line in all_lines
                ]
                for one in cutting:
                    one.result()
        finally:
            figures.add_traffic(traffic)
            for line in all_lines:
                figures.add_line(line)


def run_undisturbed(place: RabbitSite, this: Round, rng: random.Random, figures: Figures) -> None:
    """Let the same engines go on without faults, with one more order after all earlier ones."""
    traffic = Traffic(place, this, dict.fromkeys(Role, place.rabbit.port), rng)
    traffic.publisher.finish()
    with traffic.flowing():
        pass
    figures.add_traffic(traffic)


def waiting(place: RabbitSite) -> dict[str, int]:
    """The number of messages in each queue that is not empty, while nobody consumes."""
    with place.rabbit.channel() as channel:
        counts = {queue: channel.queue_declare(queue, passive=True).method.message_count for queue in place.queues}
    return {queue: count for queue, count in counts.items() if count}
