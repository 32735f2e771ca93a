"""Rounds of kills, each with a fresh place of objects, store and queue."""

import contextlib
import gzip
import io
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from correlator.storage.inspect import dead_letters
from tests.connectors.campaign import command
from tests.connectors.campaign.life import PATIENCE_S, Life
from tests.connectors.campaign.orders import Orders
from tests.connectors.campaign.verdict import counts_in
from tests.connectors.objects_campaign import engine
from tests.connectors.objects_campaign.engine import FOLDER, MISFIT, NAME, QUEUE, READ, Setting
from tests.connectors.places import BucketPlace, FolderPlace, Place
from tests.forking import forking
from tests.s3_server import GatewayServer, S3Server
from tests.servers import running
from tests.waiting import wait_until

FORKING = forking("connectors.embedded", "connectors.objects", engine.__name__)
KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL = 25, 10
LONGEST_LIFE_S = 0.8
LAST_CALL, LAST_CALL_OF_A_CONTROL = 120, 12
MOST_PUBLISHED = 150
AT_A_CALL = 0.5
PUBLISHED = 20
PAUSE_S = 0.02
LOOK_S = 0.2
SETTLED_S = 1.0
"""A repeat may follow the last order."""


@dataclass
class Figures:
    """What rounds of one kind have found.

    Attributes:
        kills: processes that were killed.
        server_kills: kills of the server while a process lived.
        at_a_call: those that killed themselves at a call that changes something.
        waiting: kills while orders were under way.
        orders: orders that were published.
        objects: objects that were made.
        stored: orders in them.
        refused: orders that became dead letters.
        doubles: orders in objects beyond the first of each.
        repeats: orders that were read beyond the first time.
        seconds: duration.
        violations: what is wrong.
    """

    kills: int = 0
    server_kills: int = 0
    at_a_call: int = 0
    waiting: int = 0
    orders: int = 0
    objects: int = 0
    stored: int = 0
    refused: int = 0
    doubles: int = 0
    repeats: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Result(command.Result):
    """The result of a campaign."""

    place: str
    seed: int
    figures: Figures = field(default_factory=Figures)
    controls: dict[str, Figures] = field(default_factory=lambda: {"sender": Figures(), "receiver": Figures()})

    @property
    def violations(self) -> Sequence[str]:
        """The violations that the campaign found."""
        return [one for figures in (self.figures, *self.controls.values()) for one in figures.violations]

    @property
    def blind(self) -> Sequence[str]:
        """The reasons why the campaign proves nothing although it found no violation."""
        found = [] if self.controls["sender"].doubles else ["the control of the sender stored nothing twice"]
        return (
            found if self.controls["receiver"].repeats else [*found, "the control of the receiver read nothing twice"]
        )

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        one, sender, receiver = self.figures, self.controls["sender"], self.controls["receiver"]
        return [
            (
                f"{self.place}, seed {self.seed}: {one.kills} kills, {one.waiting} of them while orders were under way, "
                f"{one.at_a_call} at a call that changes something, {one.server_kills} after a kill of the server"
            ),
            f"{one.orders} orders: {one.stored} in {one.objects} objects, {one.refused} dead letters",
            f"{one.doubles} stored twice, {one.repeats} read twice, {len(one.violations)} violations, {one.seconds:.0f} s",
            f"control of the sender: {sender.doubles} stored twice after {sender.kills} kills",
            f"control of the receiver: {receiver.repeats} read twice after {receiver.kills} kills",
            *self.violations,
            *self.blind,
        ]


def campaign(
    directory: Path,
    place: str,
    *,
    kills: int,
    seed: int,
    program: Path | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Result:
    """Run the controls, then rounds until there were enough kills. A violation ends the campaign.

    Args:
        directory: a round leaves its directory there if something is wrong.
        place: `folder` or `bucket`.
        kills: number of kills.
        seed: of all that is chosen.
        program: the binary of a server of buckets; each kill then follows a kill of this server.
        say: prints a line about a round.
    """
    result = Result(place, seed)
    with contextlib.ExitStack() as stack:
        gateway = None if program is None else stack.enter_context(running(GatewayServer(program)))
        endpoint = None if gateway is None else gateway.endpoint
        server = stack.enter_context(S3Server(endpoint)) if place == "bucket" else None
        for control in result.controls:
            rng = random.Random(f"{seed} {control}")
            one_round(directory / control, result, rng, KILLS_OF_A_CONTROL, server, control=control)
        seeds = count(1)
        while result.figures.kills < kills and not result.violations:
            most = min(KILLS_OF_A_ROUND, kills - result.figures.kills)
            number = next(seeds)
            rng = random.Random(f"{seed} {number}")
            one_round(directory / f"round{number}", result, rng, most, server, gateway)
            say(f"round {number}: {result.figures.kills} kills, {result.figures.orders} orders")
    return result


def one_round(
    directory: Path,
    result: Result,
    rng: random.Random,
    kills: int,
    server: S3Server | None,
    gateway: GatewayServer | None = None,
    *,
    control: str = "",
) -> None:
    """One round: all its kills, a life without a kill, and the comparison. Without a violation nothing is left of it."""
    figures = result.controls[control] if control else result.figures
    directory.mkdir(mode=0o700)
    place: Place = FolderPlace(directory / "place") if server is None else BucketPlace(server, directory / "state")
    ending = rng.choice((".jsonl", ".jsonl.gz", ".parquet"))
    setting = Setting(directory, place.options, ending, "keep" if control else rng.choice(("keep", "move")), control)
    begin = time.monotonic()
    publisher = Orders(directory, QUEUE)
    try:
        for end in [_end(rng, is_control=bool(control)) for _ in range(kills)]:
            if gateway is None:
                _one_life(setting, publisher, rng, figures, end)
            else:
                _one_life_of_both(setting, place, publisher, figures, gateway)
            figures.waiting += len(set(_stored(place, ending))) < publisher.orders - publisher.orders // MISFIT
        status = _last_lives(setting, place, publisher.orders)
    finally:
        publisher.close()
    found = _compare(setting, place, publisher.orders, figures)
    if status:
        found.append(f"the last life ended with status {status}")
    figures.violations += [f"{directory.name} ({ending}, {setting.after}): {one}" for one in found]
    figures.seconds += time.monotonic() - begin
    if not found:
        shutil.rmtree(directory)


def _end(rng: random.Random, *, is_control: bool) -> tuple[int, float]:
    """Draw how a life ends: at a call (see `engine.arm`), and at the latest after so many seconds."""
    if is_control:
        return rng.choice((-1, 1)) * rng.randint(1, LAST_CALL_OF_A_CONTROL), PATIENCE_S
    kill = rng.choice((-1, 1)) * rng.randint(1, LAST_CALL) if rng.random() < AT_A_CALL else 0
    return kill, PATIENCE_S if kill else LONGEST_LIFE_S * rng.random()


def _one_life(
    setting: Setting, publisher: Orders, rng: random.Random, figures: Figures, end: tuple[int, float]
) -> None:
    """Start the engine, publish while it lives, and kill it."""
    kill, end_s = end
    most = publisher.orders + MOST_PUBLISHED
    publisher.publish(PUBLISHED)
    life = Life(FORKING, engine.live, setting, kill)
    began = life.begin()
    deadline = time.monotonic() + end_s
    while began and life.is_alive and time.monotonic() < deadline:
        if publisher.orders < most:
            publisher.publish(rng.randint(1, PUBLISHED))
        time.sleep(PAUSE_S)
    figures.at_a_call += life.kill()
    figures.kills += 1


def _one_life_of_both(
    setting: Setting, place: Place, publisher: Orders, figures: Figures, gateway: GatewayServer
) -> None:
    """Start the engine, kill its server while orders are under way, and kill the engine when it goes on."""
    publisher.publish(PUBLISHED)
    life = Life(FORKING, engine.live, setting, 0)
    life.begin()
    publisher.publish(PUBLISHED)
    time.sleep(PAUSE_S)
    gateway.kill()
    figures.server_kills += 1
    gateway.start()
    before = len(place.names())
    publisher.publish(PUBLISHED)
    wait_until(lambda: len(place.names()) > before or not life.is_alive, PATIENCE_S)
    life.kill()
    figures.kills += 1


def _last_lives(setting: Setting, place: Place, orders: int) -> int | None:
    """Let the engine go on until each order that fits is in an object and was read, or until nothing moves any more.

    Returns the last exit status.
    """
    wanted = orders - orders // MISFIT
    before, moved = -1, time.monotonic()
    while True:
        life = Life(FORKING, engine.live, setting, 0)
        life.begin()
        deadline = time.monotonic() + PATIENCE_S
        while life.is_alive and len(set(_stored(place, setting.ending))) < wanted and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        life.wait(SETTLED_S)
        status = life.stop()
        read = len(_state(setting)[1])
        if read > before:
            before, moved = read, time.monotonic()
        if status or read >= wanted or time.monotonic() > moved + PATIENCE_S:
            return status


def _state(setting: Setting) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The number of each order, and how often each was read, as the state of the engine has them."""
    state = counts_in(f"sqlite:///{setting.directory}/engine.db", NAME)
    read = {name.removeprefix(READ): times for name, times in state.items() if name.startswith(READ)}
    return {name: number for name, number in state.items() if not name.startswith(READ)}, read


def _stored(place: Place, ending: str) -> Sequence[tuple[str, int]]:
    """The orders of all objects, with their numbers."""
    found: list[tuple[str, int]] = []
    for name in place.names():
        if name.startswith(f"{FOLDER}/") and name.endswith(ending):
            with contextlib.suppress(FileNotFoundError):  # moved since it was listed
                found += [(row["order_name"], row["number"]) for row in _rows(place.get(name), ending)]
    return found


def _rows(content: bytes, ending: str) -> Sequence[Any]:
    if ending == ".parquet":
        rows: Sequence[Any] = pq.ParquetFile(io.BytesIO(content)).read().to_pylist()
        return rows
    lines = gzip.decompress(content) if ending == ".jsonl.gz" else content
    return [msgspec.json.decode(line) for line in lines.splitlines()]


def _compare(setting: Setting, place: Place, orders: int, figures: Figures) -> list[str]:
    """Compare the objects, what was read and the dead letters with the state of the engine."""
    stored = Counter(_stored(place, setting.ending))
    numbers, read = _state(setting)
    wanted = {(name, number) for name, number in numbers.items() if number % MISFIT}
    letters = dead_letters(f"sqlite:///{setting.directory}/engine.db")
    dead = Counter(one.letter.message.body.split(b'"')[3].decode() for one in letters)
    misfits = {name for name, number in numbers.items() if not number % MISFIT}
    doubles, repeats = stored.total() - len(stored), sum(read.values()) - len(read)
    figures.orders += orders
    figures.objects += sum(name.endswith(setting.ending) for name in place.names())
    figures.stored += stored.total()
    figures.refused += dead.total()
    figures.doubles += doubles
    figures.repeats += repeats
    found = []
    if len(numbers) != orders:
        found.append(f"{orders} orders were published, and the state has {len(numbers)}")
    if set(stored) != wanted:
        found.append(f"missing: {sorted(wanted - set(stored))[:20]}, foreign: {sorted(set(stored) - wanted)[:20]}")
    if read.keys() != {name for name, _ in wanted}:
        found.append(f"{len(wanted)} orders fit, and {len(read)} were read")
    if doubles and setting.control != "sender":
        found.append(f"stored twice: {[order for order, times in stored.items() if times > 1][:20]}")
    if repeats and not setting.control:
        found.append(f"read twice: {[name for name, times in read.items() if times > 1][:20]}")
    if (set(dead) != misfits or dead.total() != len(misfits)) and not setting.control:
        found.append(f"dead letters: {len(dead)} orders, {dead.total()} letters, {len(misfits)} misfits")
    return found
