"""Rounds of kills, each with a fresh table, store and queue."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec
from deltalake import DeltaTable

from connectors.lake import read
from connectors.lake.places import DATA
from connectors.lake.plain import all_entries
from correlator.storage.inspect import dead_letters
from tests.connectors.campaign import command
from tests.connectors.campaign.life import PATIENCE_S, Life
from tests.connectors.campaign.orders import Orders
from tests.connectors.campaign.verdict import counts_in
from tests.connectors.delta import delta_rows
from tests.connectors.lake_campaign import bridge
from tests.connectors.lake_campaign.bridge import MISFIT, NAME, QUEUE, TABLE
from tests.forking import forking

FORKING = forking("connectors.embedded", "connectors.lake", bridge.__name__)
KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL = 25, 10
LONGEST_LIFE_S = 0.6
LAST_CALL = 60
AT_A_CALL = 0.5
PUBLISHED = 20
PAUSE_S = 0.02
SETTLED_S = 1.0
"""A repeat may follow the last row."""


@dataclass
class Figures:
    """What rounds of one kind have found.

    Attributes:
        kills: processes that were killed.
        at_a_call: those that killed themselves at a call that writes a file of the lake.
        waiting: kills while orders were under way.
        orphans: kills that left a data file which the log does not name.
        orders: orders that were published.
        rows: rows that the tables hold.
        refused: orders that became dead letters.
        commits: commits of the tables.
        doubles: rows beyond the first of an order.
        seconds: duration.
        violations: what is wrong.
    """

    kills: int = 0
    at_a_call: int = 0
    waiting: int = 0
    orphans: int = 0
    orders: int = 0
    rows: int = 0
    refused: int = 0
    commits: int = 0
    doubles: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Result(command.Result):
    """The result of a campaign."""

    form: str
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
        return [
            f"format {self.form}, seed {self.seed}: {one.kills} kills, {one.waiting} of them while orders were under way",
            f"{one.at_a_call} kills at a call that writes a file; {one.orphans} left a data file without a commit",
            f"{one.orders} orders: {one.rows} rows in {one.commits} commits, {one.refused} dead letters",
            f"{one.doubles} rows stored twice, {len(one.violations)} violations, {one.seconds:.0f} s",
            f"control: {self.control.doubles} rows stored twice after {self.control.kills} kills",
            *self.violations,
            *self.blind,
        ]


def _life(directory: Path, form: str, *, kill: int = 0, is_control: bool = False) -> Life:
    """Begin a life of the bridge."""
    return Life(FORKING, bridge.live, directory, form, kill, is_control=is_control)


def campaign(
    directory: Path, form: str, *, kills: int, seed: int, say: Callable[[str], object] = lambda _: None
) -> Result:
    """Run the control, then rounds until there were enough kills. A violation ends the campaign."""
    result = Result(form, seed)
    seeds = count(1)
    one_round(directory / "control", result, random.Random(f"{seed} 0"), KILLS_OF_A_CONTROL, is_control=True)
    while result.figures.kills < kills and not result.violations:
        most = min(KILLS_OF_A_ROUND, kills - result.figures.kills)
        number = next(seeds)
        one_round(directory / f"round{number}", result, random.Random(f"{seed} {number}"), most)
        say(f"round {number}: {result.figures.kills} kills, {result.figures.orders} orders")
    return result


def one_round(directory: Path, result: Result, rng: random.Random, kills: int, *, is_control: bool = False) -> None:
    """One round: all its kills, a life without a kill, and the comparison. Without a violation nothing is left of it.

    A control needs no further kill when a row is there twice.
    """
    figures = result.control if is_control else result.figures
    directory.mkdir(mode=0o700)
    begin = time.monotonic()
    publisher = Orders(directory, QUEUE)
    orphans: set[str] = set()
    try:
        for end in [_end(rng) for _ in range(kills)]:
            _one_life(directory, result.form, publisher, rng, figures, end, control=is_control)
            orphans = _look(directory, result.form, publisher.orders, orphans, figures)
            if is_control and _doubles(_rows(directory / "lake" / TABLE, result.form)):
                break
        status = _last_life(directory, result.form, publisher.orders, control=is_control)
    finally:
        publisher.close()
    found = _compare(directory, result.form, publisher.orders, figures, is_control=is_control)
    if status:
        found.append(f"the last life ended with status {status}")
    figures.violations += [f"{directory.name}: {one}" for one in found]
    figures.seconds += time.monotonic() - begin
    if not found:
        shutil.rmtree(directory)


def _end(rng: random.Random) -> tuple[int, float]:
    """Draw how a life ends: at a call (see `bridge.live`), and at the latest after so many seconds."""
    kill = rng.choice((-1, 1)) * rng.randint(1, LAST_CALL) if rng.random() < AT_A_CALL else 0
    return kill, PATIENCE_S if kill else LONGEST_LIFE_S * rng.random()


def _one_life(
    directory: Path,
    form: str,
    publisher: Orders,
    rng: random.Random,
    figures: Figures,
    end: tuple[int, float],
    *,
    control: bool,
) -> None:
    """Start the bridge, publish as long as it lives, and kill it."""
    kill, end_s = end
    publisher.publish(PUBLISHED)
    life = _life(directory, form, kill=kill, is_control=control)
    began = life.begin()
    deadline = time.monotonic() + end_s
    while began and life.is_alive and time.monotonic() < deadline:
        publisher.publish(rng.randint(1, PUBLISHED))
        time.sleep(PAUSE_S)
    figures.at_a_call += life.kill()
    figures.kills += 1


def _look(directory: Path, form: str, orders: int, orphans: set[str], figures: Figures) -> set[str]:
    """Note what a kill has left; returns the data files that the log does not name."""
    table = directory / "lake" / TABLE
    named = _named(table, form)
    there = {path.name for path in (table / DATA).glob("*/*.parquet")} - named
    figures.orphans += bool(there - orphans)
    figures.waiting += _stored(table, form) < orders - orders // MISFIT
    return there


def _last_life(directory: Path, form: str, orders: int, *, control: bool) -> int | None:
    """Let the bridge go on until the table has a row for each order that fits; returns its exit status."""
    life = _life(directory, form, is_control=control)
    life.begin()
    table, wanted = directory / "lake" / TABLE, orders - orders // MISFIT
    deadline = time.monotonic() + PATIENCE_S
    while life.is_alive and _stored(table, form) < wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(SETTLED_S)
    return life.stop()


def _named(table: Path, form: str) -> set[str]:
    """The data files that the log names."""
    try:
        if form == "delta":
            return {uri.rpartition("/")[2] for uri in DeltaTable(table).file_uris()}
        return {Path(file.path).name for entry in all_entries("campaign", table) for file in entry.files}
    except Exception:
        if not (table / "_columns.json").exists() and not any(table.glob("_delta_log/*.json")):
            return set()  # killed before it had made the table
        raise


def _stored(table: Path, form: str) -> int:
    """The number of rows, according to the log."""
    if not _named(table, form):
        return 0
    if form == "delta":
        return DeltaTable(table).count()
    return sum(file.rows for entry in all_entries("campaign", table) for file in entry.files)


def _rows(table: Path, form: str) -> Counter[tuple[str, int]]:
    """How often the table has each order, with its number."""
    if not _named(table, form):
        return Counter()
    rows = delta_rows(table) if form == "delta" else read(table)
    return Counter(zip(rows["order_name"].to_pylist(), rows["number"].to_pylist(), strict=True))


def _doubles(rows: Counter[tuple[str, int]]) -> int:
    """The number of rows beyond the first of each order."""
    return rows.total() - len(rows)


def _compare(directory: Path, form: str, orders: int, figures: Figures, *, is_control: bool) -> list[str]:
    """Compare the table and the dead letters with the state of the engine."""
    table = directory / "lake" / TABLE
    rows = _rows(table, form)
    state = counts_in(f"sqlite:///{directory}/engine.db", NAME)
    wanted = {(name, number) for name, number in state.items() if number % MISFIT}
    letters = dead_letters(f"sqlite:///{directory}/engine.db")
    dead = Counter(msgspec.json.decode(one.letter.message.body)["order_name"] for one in letters)
    misfits = {name for name, number in state.items() if not number % MISFIT}
    doubles = _doubles(rows)
    figures.orders += orders
    figures.rows += rows.total()
    figures.refused += dead.total()
    figures.doubles += doubles
    figures.commits += len(_named(table, form))
    found = []
    if len(state) != orders:
        found.append(f"{orders} orders were published, and the state has {len(state)}")
    if set(rows) != wanted:
        found.append(f"the table lacks {sorted(wanted - set(rows))[:20]}, and has {sorted(set(rows) - wanted)[:20]}")
    if doubles and not is_control:
        found.append(f"rows that are there twice: {[row for row, times in rows.items() if times > 1][:20]}")
    if (set(dead) != misfits or dead.total() != len(misfits)) and not is_control:
        found.append(f"dead letters: {len(dead)} orders, {dead.total()} letters, {len(misfits)} misfits")
    return found
