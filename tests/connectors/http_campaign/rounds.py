"""Rounds of kills, each with a fresh store and a fresh service."""

import contextlib
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from correlator.storage.inspect import dead_letters
from tests.connectors.campaign import command
from tests.connectors.campaign.clients import Clients
from tests.connectors.campaign.life import PATIENCE_S
from tests.connectors.http_campaign import bridge, service
from tests.connectors.http_campaign.bridge import PLACES
from tests.connectors.web import serving
from tests.forking import forking
from tests.servers import free_port
from tests.waiting import wait_until

FORKING = forking("connectors.http", bridge.__name__, service.__name__)
KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL = 25, 12
LAST_CALL = 12


@dataclass
class Figures:
    """What rounds of one kind have found.

    Attributes:
        kills: processes that killed themselves, by the place.
        orders: orders that clients were told to be stored.
        repeats: requests of clients beyond the first of an order.
        repeated_calls: calls of the service beyond the first of an order.
        doubles: orders that the service has stored more than once.
        seconds: duration.
        violations: what is wrong.
    """

    kills: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    repeats: int = 0
    repeated_calls: int = 0
    doubles: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Result(command.Result):
    """The result of a campaign."""

    seed: int
    figures: Figures = field(default_factory=Figures)
    controls: dict[str, Figures] = field(default_factory=dict)

    @property
    def violations(self) -> Sequence[str]:
        """The violations that the campaign found."""
        return [*self.figures.violations, *(one for control in self.controls.values() for one in control.violations)]

    @property
    def blind(self) -> Sequence[str]:
        """The reasons why the campaign proves nothing although it found no violation."""
        if not self.controls:
            return ["no control ran"]
        return [
            f"kills of the {who}: the control stored nothing twice"
            for who, one in self.controls.items()
            if not one.doubles
        ]

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        one = self.figures
        places = ", ".join(f"{number} {place}" for place, number in one.kills.items())
        return [
            f"seed {self.seed}: {sum(one.kills.values())} kills ({places})",
            f"{one.orders} orders, {one.repeats} requests repeated by clients, {one.repeated_calls} calls repeated",
            f"{one.doubles} orders stored twice, {len(one.violations)} violations, {one.seconds:.0f} s",
            *(
                f"control: {control.doubles} orders stored twice after {sum(control.kills.values())} kills of the {who}"
                for who, control in self.controls.items()
            ),
            *self.violations,
            *self.blind,
        ]


def _clients(port: int, *, is_control: bool) -> Clients:
    """Clients whose orders have keys, except in the control."""
    return Clients(port, _body, (lambda _, __: "") if is_control else (lambda number, _: f"order {number}"))


def _body(number: int) -> bytes:
    return b"order %d" % number


def one_round(
    directory: Path, figures: Figures, chance: random.Random, kills: int, *, is_control: bool = False
) -> None:
    """Kill lives of the engine while orders come, let one go on to the end, and compare the service with the orders."""
    directory.mkdir()
    begun, port = time.monotonic(), free_port()
    with serving(deduplicates=True) as web:
        clients = _clients(port, is_control=is_control)
        for _ in range(kills):
            place = chance.choice(PLACES)
            process, told = _life(
                directory, port, web.url, (place, chance.randint(1, LAST_CALL)), is_control=is_control
            )
            _expect_death(process)
            told.close()
            figures.kills[place] += 1
        last = _life(directory, port, web.url, None, is_control=is_control)
        _end(clients, last, figures, lambda: [call.body.decode() for call in list(web.stored)])
        bodies = [call.body.decode() for call in web.stored]
        figures.repeated_calls += len(web.calls) - len({call.body for call in web.calls})
    _compare(directory, figures, clients, bodies, is_control=is_control)
    figures.seconds += time.monotonic() - begun


def one_round_of_the_service(
    directory: Path, figures: Figures, chance: random.Random, kills: int, *, is_control: bool = False
) -> None:
    """Kill the service while one engine sends to it, and compare what it has stored with the orders."""
    directory.mkdir()
    begun, port, port_of_service = time.monotonic(), free_port(), free_port()
    path = directory / "service.db"

    def started(kill: tuple[service.Place, int] | None) -> Any:
        process = FORKING.Process(target=service.serve, args=(path, port_of_service, kill))
        process.start()
        return process

    clients = _clients(port, is_control=is_control)
    engine = _life(directory, port, f"http://127.0.0.1:{port_of_service}", None, is_control=is_control)
    for _ in range(kills):
        place = chance.choice(service.PLACES)
        _expect_death(started((place, chance.randint(1, LAST_CALL))))
        figures.kills[place] += 1
    last = started(None)
    wait_until(path.exists, PATIENCE_S)
    _end(clients, engine, figures, lambda: service.stored(path))
    last.kill()
    last.join(PATIENCE_S)
    bodies, calls = service.stored(path), service.called(path)
    figures.repeated_calls += len(calls) - len(set(calls))
    _compare(directory, figures, clients, bodies, is_control=is_control)
    figures.seconds += time.monotonic() - begun


def _life(
    directory: Path, port: int, url: str, kill: tuple[bridge.Place, int] | None, *, is_control: bool
) -> tuple[Any, Any]:
    """Start an engine; returns its process, and what tells it to end."""
    told, childs = FORKING.Pipe()
    process = FORKING.Process(
        target=bridge.live, args=(directory, port, url, kill, childs), kwargs={"is_control": is_control}
    )
    process.start()
    childs.close()
    return process, told


def _expect_death(process: Any) -> None:
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL, f"a process ended with {process.exitcode}"


def _end(clients: Clients, last: tuple[Any, Any], figures: Figures, bodies: Callable[[], Sequence[str]]) -> None:
    """Let the clients end, wait until the service has all their orders, and stop the last engine."""
    process, told = last
    clients.end()
    wait_until(lambda: set(bodies()) >= set(clients.names), PATIENCE_S)
    told.send("stop")
    process.join(PATIENCE_S)
    told.close()
    if process.exitcode:
        figures.violations.append(f"the last life ended with {process.exitcode}")


def _compare(directory: Path, figures: Figures, clients: Clients, bodies: Sequence[str], *, is_control: bool) -> None:
    """Compare what the service has stored with the orders that clients were told to be stored."""
    counts = Counter(bodies)
    figures.orders += len(clients.stored)
    figures.repeats += clients.repeats
    figures.violations += clients.failures
    doubles = [name for name, count in counts.items() if count > 1]
    figures.doubles += len(doubles)
    if not is_control:
        figures.violations += [f"{name} is there {counts[name]} times" for name in doubles]
    figures.violations += [f"{name} was never sent" for name in set(counts) - set(clients.names)]
    figures.violations += [
        f"dead letter: {one.letter.reason}" for one in dead_letters(f"sqlite:///{directory}/engine.db")
    ]
    if not figures.violations:
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)


def campaign(
    directory: Path, *, kills: int, service_kills: int, seed: int, say: Callable[[str], None] = lambda _: None
) -> Result:
    """Run rounds with so many kills together, and a control of each kind.

    Args:
        directory: a round leaves its directory there if something is wrong.
        kills: number of kills of the engine.
        service_kills: number of kills of the service.
        seed: of all that is chosen.
        say: prints a line about a round.
    """
    result, chance = Result(seed), random.Random(seed)
    for name, number, round_ in (("engine", kills, one_round), ("service", service_kills, one_round_of_the_service)):
        if number:
            control = result.controls[name] = Figures()
            round_(directory / f"control-{name}", control, chance, min(number, KILLS_OF_A_CONTROL), is_control=True)
        for begin in range(0, number, KILLS_OF_A_ROUND):
            round_(directory / f"{name}-{begin}", result.figures, chance, min(KILLS_OF_A_ROUND, number - begin))
            say(f"{sum(result.figures.kills.values())} kills, {result.figures.orders} orders, {result.violations}")
    return result
