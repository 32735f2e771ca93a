"""Rounds of kills, each with a fresh store and a fresh service."""

import contextlib
import http.client
import itertools
import multiprocessing
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from correlator.storage.inspect import dead_letters
from tests.connectors.http_campaign import bridge
from tests.connectors.http_campaign.bridge import PLACES
from tests.connectors.web import post, serving
from tests.servers import free_port
from tests.waiting import wait_until

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["connectors.http", bridge.__name__])
KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL = 25, 12
CLIENTS = 4
LAST_CALL = 12
PAUSE_S = 0.01
PATIENCE_S = 120.0


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

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    orders: int = 0
    repeats: int = 0
    repeated_calls: int = 0
    doubles: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Result:
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
        return [] if self.control.doubles else ["the control stored nothing twice"]

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        one = self.figures
        places = ", ".join(f"{number} {place}" for place, number in one.kills.items())
        return [
            f"seed {self.seed}: {sum(one.kills.values())} kills ({places})",
            f"{one.orders} orders, {one.repeats} requests repeated by clients, {one.repeated_calls} calls repeated",
            f"{one.doubles} orders stored twice, {len(one.violations)} violations, {one.seconds:.0f} s",
            f"control: {self.control.doubles} orders stored twice after {sum(self.control.kills.values())} kills",
            *self.violations,
            *self.blind,
        ]

    def report(self) -> Mapping[str, Any]:
        """The result as values for a JSON report."""
        return asdict(self)


class Clients:
    """Send orders from several threads, each again until it is answered 202."""

    def __init__(self, port: int, *, has_keys: bool) -> None:
        self._address = "127.0.0.1", port
        self._has_keys = has_keys
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.stored: list[str] = []
        self.repeats = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Begin no further order, and wait until all are stored."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "an order is not stored"

    def _send(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                name = f"order {next(self._numbers)}"
            tries = 0
            while not self._is_stored(name):
                tries += 1
                time.sleep(PAUSE_S)
            with self._lock:
                self.stored.append(name)
                self.repeats += tries

    def _is_stored(self, name: str) -> bool:
        headers = {"Idempotency-Key": name} if self._has_keys else {}
        try:
            got = post(self._address, "/orders", name.encode(), headers)
        except (OSError, http.client.HTTPException):
            return False
        if got.status not in (202, 503, 404):
            self.failures.append(f"{name}: {got.status} {got.text}")
        return got.status == 202


def one_round(
    directory: Path, figures: Figures, chance: random.Random, kills: int, *, is_control: bool = False
) -> None:
    """Kill lives while orders come, let one go on to the end, and compare what the service has with the orders."""
    directory.mkdir()
    begun, port = time.monotonic(), free_port()
    with serving(deduplicates=True) as service:
        clients = Clients(port, has_keys=not is_control)

        def life(kill: tuple[bridge.Place, int] | None) -> tuple[Any, Any]:
            told, childs = FORKING.Pipe()
            process = FORKING.Process(
                target=bridge.live,
                args=(directory, port, service.url, kill, childs),
                kwargs={"is_control": is_control},
            )
            process.start()
            childs.close()
            return process, told

        for _ in range(kills):
            place = chance.choice(PLACES)
            process, told = life((place, chance.randint(1, LAST_CALL)))
            process.join(PATIENCE_S)
            assert process.exitcode == -signal.SIGKILL, f"a life ended with {process.exitcode}"
            told.close()
            figures.kills[place] += 1
        process, told = life(None)
        clients.end()
        wait_until(lambda: {call.body.decode() for call in list(service.stored)} >= set(clients.stored), PATIENCE_S)
        told.send("stop")
        process.join(PATIENCE_S)
        told.close()
        if process.exitcode:
            figures.violations.append(f"the last life ended with {process.exitcode}")
        counts = Counter(call.body.decode() for call in service.stored)
        figures.repeated_calls += len(service.calls) - len({call.body for call in service.calls})
    figures.orders += len(clients.stored)
    figures.repeats += clients.repeats
    figures.violations += clients.failures
    doubles = [name for name, count in counts.items() if count > 1]
    figures.doubles += len(doubles)
    if not is_control:
        figures.violations += [f"{name} is there {counts[name]} times" for name in doubles]
    figures.violations += [f"{name} was never sent" for name in set(counts) - set(clients.stored)]
    figures.violations += [
        f"dead letter: {one.letter.reason}" for one in dead_letters(f"sqlite:///{directory}/engine.db")
    ]
    figures.seconds += time.monotonic() - begun
    if not figures.violations:
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)


def campaign(directory: Path, *, kills: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Result:
    """Run rounds with so many kills together, and a control.

    Args:
        directory: a round leaves its directory there if something is wrong.
        kills: number of kills.
        seed: of all that is chosen.
        say: prints a line about a round.
    """
    result, chance = Result(seed), random.Random(seed)
    one_round(directory / "control", result.control, chance, min(kills, KILLS_OF_A_CONTROL), is_control=True)
    for number in range(0, kills, KILLS_OF_A_ROUND):
        one_round(directory / f"round-{number}", result.figures, chance, min(KILLS_OF_A_ROUND, kills - number))
        say(f"{sum(result.figures.kills.values())} kills, {result.figures.orders} orders, {result.violations}")
    return result
