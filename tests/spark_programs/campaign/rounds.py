"""Rounds of kills, each with a fresh broker and a fresh query."""

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from connectors.embedded import EmbeddedConnection
from connectors.messaging import ConnectionFactory
from correlator.storage.database import parse
from tests.connectors.campaign import command
from tests.spark_programs.campaign.query import AFTER, BEFORE, QUEUE, ROWS, run, source_of

KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL = 20, 4
WITHOUT_CHECKPOINT = 0.2
"""After how many kills the query first starts without its checkpoint directory."""
_REFUSED = re.compile(r"E8111 producer copies: belongs to the query (\S+), and .* takeover=(\S+)\.")


@dataclass
class Figures:
    """What rounds of one kind have found.

    Attributes:
        kills: processes that died at the point that was drawn.
        after: those that died between the transaction and the commit log of Spark.
        drivers: those that were drivers.
        refused: starts without the checkpoint directory, all of which were refused.
        rows: rows that were written.
        doubles: rows in the queue beyond the first of each number.
        seconds: duration.
        violations: what is wrong.
    """

    kills: int = 0
    after: int = 0
    drivers: int = 0
    refused: int = 0
    rows: int = 0
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
        reasons = []
        if not self.figures.after:
            reasons.append("no process died between the transaction and the commit log")
        if not self.control.doubles:
            reasons.append("the control stored nothing twice")
        return reasons

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        one = self.figures
        return [
            f"seed {self.seed}: {one.kills} kills, {one.after} between the transaction and the commit log of Spark",
            f"{one.drivers} kills of a driver with its JVM",
            f"{one.refused} starts without the checkpoint directory, all refused",
            f"{one.rows} rows: {one.doubles} stored twice, {len(one.violations)} violations, {one.seconds:.0f} s",
            f"control: {self.control.doubles} of {self.control.rows} rows twice after {self.control.kills} kills",
            *self.violations,
            *self.blind,
        ]


def campaign(
    spark: SparkSession,
    directory: Path,
    fresh: Callable[[], str] | None,
    *,
    kills: int,
    drivers: int = 0,
    seed: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Kill so many processes, `drivers` of them drivers.

    Args:
        spark: runs the queries whose driver lives on.
        directory: for the rounds; holds nothing afterwards, except for rounds with a violation.
        fresh: makes an empty database for each broker; `None` for files.
        kills: how many kills.
        drivers: how many of them end a driver.
        seed: decides the points.
        say: gets a line about each round.
    """
    result = Result(seed)
    chance = random.Random(seed)
    number = 0
    while result.figures.kills < kills and not result.violations:
        number += 1
        size = min(KILLS_OF_A_ROUND, kills - result.figures.kills)
        of_drivers = -(-(drivers - result.figures.drivers) * size // (kills - result.figures.kills))
        before = result.figures.kills
        one_round(spark, directory / f"round-{number}", fresh, result.figures, chance, size, drivers=of_drivers)
        say(f"round {number}: {result.figures.kills - before} kills, {len(result.violations)} violations")
        if result.figures.kills == before:
            result.figures.violations.append("a round killed nothing")
    one_round(
        spark, directory / "control", fresh, result.control, chance, min(kills, KILLS_OF_A_CONTROL), is_control=True
    )
    return result


def one_round(
    spark: SparkSession,
    place: Path,
    fresh: Callable[[], str] | None,
    figures: Figures,
    chance: random.Random,
    kills: int,
    *,
    drivers: int = 0,
    is_control: bool = False,
) -> None:
    """Kill each batch of a query once, and look at the queue when all rows are written."""
    began = time.monotonic()
    url = fresh() if fresh else f"sqlite:///{place}/broker.db"
    _prepare(place, url, chance, kills, drivers, is_control=is_control)
    spark.dataSource.register(source_of(place, is_control=is_control))
    for _ in range(2 * kills + 2):
        if is_done := _life(spark, place):
            break
        if not is_control and (place / "checkpoint").exists() and chance.random() < WITHOUT_CHECKPOINT:
            _start_without_checkpoint(spark, place, figures)
    if not is_done:
        figures.violations.append(f"{place}: the query did not come to its end")
    died = [json.loads(path.read_text()) for path in place.glob("killed-*")]
    figures.kills += len(died)
    figures.after += sum(one["point"] == AFTER for one in died)
    figures.drivers += sum(one["driver"] for one in died)
    _judge(place, url, figures, kills + 1, is_control=is_control)
    figures.seconds += time.monotonic() - began
    if not figures.violations:
        shutil.rmtree(place)


def _prepare(place: Path, url: str, chance: random.Random, kills: int, drivers: int, *, is_control: bool) -> None:
    """Make the files that the query reads, and those that say where it dies."""
    (place / "in").mkdir(parents=True)
    address = parse(url)
    broker = {"store": address.set(password=None).render_as_string(), "password": address.password}
    if address.password is None:
        broker = {"store": url}
    (place / "broker").write_text(json.dumps(broker))
    of_drivers = set(chance.sample(range(kills), drivers))
    for batch in range(kills + 1):
        rows = "".join(f'{{"n": {batch * ROWS + at}}}\n' for at in range(ROWS))
        (place / "in" / f"{batch:04}.json").write_text(rows)
        if batch < kills:
            point = AFTER if is_control else chance.choice((BEFORE, AFTER))
            (place / f"kill-{batch}").write_text(json.dumps({"point": point, "driver": batch in of_drivers}))


def _life(spark: SparkSession, place: Path) -> bool:
    """Run the query until it is killed; returns whether it came to its end.

    The next kill decides whether the driver is this process or one that dies.
    """
    waiting = sorted(place.glob("kill-*"), key=lambda path: int(path.name.partition("-")[2]))
    if waiting and json.loads(waiting[0].read_text())["driver"]:
        with (place / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.spark_programs.campaign.query", str(place)]
            done = subprocess.run(command, start_new_session=True, stdout=log, stderr=log, check=False, timeout=300)
        return done.returncode == 0
    return _run(spark, place, place / "checkpoint") is None


def _run(spark: SparkSession, place: Path, checkpoint: Path) -> Exception | None:
    try:
        run(spark, place, json.loads((place / "broker").read_text()), checkpoint)
    except Exception as error:  # noqa: BLE001  # it was killed; otherwise the queue shows what is wrong
        return error
    return None


def _start_without_checkpoint(spark: SparkSession, place: Path, figures: Figures) -> None:
    """Start the query as if somebody had removed its checkpoint directory, unless nothing is stored yet."""
    stored = any(json.loads(path.read_text())["point"] == AFTER for path in place.glob("killed-*"))
    if not stored:
        return
    aside = [path.rename(path.with_name(f"aside-{path.name}")) for path in place.glob("kill-*")]
    error = _run(spark, place, place / "other-checkpoint")
    for path in aside:
        path.rename(path.with_name(path.name.removeprefix("aside-")))
    shutil.rmtree(place / "other-checkpoint")
    query = json.loads((place / "checkpoint" / "metadata").read_text())["id"]
    told = _REFUSED.search(str(error))
    if told is None or told.groups() != (query, query):
        figures.violations.append(f"{place}: a query without its checkpoint directory was not refused: {error}")
    figures.refused += 1


def _judge(place: Path, url: str, figures: Figures, batches: int, *, is_control: bool) -> None:
    found = Counter(int(body) for body in _bodies(url))
    expected = set(range(batches * ROWS))
    figures.rows += len(expected)
    doubles = sum(found.values()) - len(found)
    figures.doubles += doubles
    if lost := sorted(expected - found.keys()):
        figures.violations.append(f"{place}: rows were lost: {lost[:10]}")
    if unknown := sorted(found.keys() - expected):
        figures.violations.append(f"{place}: rows that nobody wrote: {unknown[:10]}")
    if doubles and not is_control:
        figures.violations.append(f"{place}: {doubles} rows were stored twice")


def _bodies(url: str) -> list[bytes]:
    with ConnectionFactory(EmbeddedConnection, {"store": url}).create_connection() as connection:
        consumer = connection.create_session().create_consumer(QUEUE)
        found = []
        while (message := consumer.receive(timeout_s=0)) is not None:
            found.append(message.body)
        return found
