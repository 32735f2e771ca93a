"""Projects of users, made in a directory: a configuration file, a module with monitors, tests."""

import contextlib
import importlib.metadata
import itertools
import os
import random
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from correlator.testing.crashtest import campaign as campaigns
from correlator.testing.crashtest.campaign import Result
from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.runs import Body, Level, RunPlan
from correlator.testing.worlds import World
from tests import forked

INSTALLED = any(one.name == "correlator" for one in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = [] if INSTALLED else ["-p", "correlator.testing.plugin"]
ALREADY_IMPORTED = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
PATIENCE_S = 600
"""How long something may take that ends by itself: machines may be busy."""
SINGLES, DRAWN = 20, 20
"""In how many runs a single fault strikes, and in how many drawn ones do."""
ENOUGH_CRASHES = 5
MOST_RUNS = 2_000
"""Runs within which a campaign finds what is wrong, however slow the machine is; with those that shrink it."""
SHRINK_S = 1.0
"""A failure is shrunk no longer, as these tests look at what is violated and not at the number of faults."""
ENGINE = """
name: orders
store: sqlite:///orders.db
connections:
  local: {type: embedded}
receivers:
  - {id: orders, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "app:Order"}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: EXACTLY_ONCE}
monitors:
  - {type: "app:Totals"}
"""
EVENTS = """
from correlator import *


@event
class Order:
    id: int
    kind: str = ""


@event
class Bill:
    id: int
    total: int = 0
"""
TOTALS = """
class Totals(Monitor, persistent=True):
    total: int = 0

    @on(Order)
    def order(self, order):
        self.total += 1
        self.send(Bill(id=order.id, total=self.total), to="bills")
"""
FORGETFUL = """
class Totals(Monitor, persistent=True):
    def __init__(self, **attributes):
        super().__init__(**attributes)
        self.total = 0  # without an annotation it is in no checkpoint

    @on(Order)
    def order(self, order):
        self.total += 1
        self.send(Bill(id=order.id, total=self.total), to="bills")
"""
TEST = """
from correlator.testing import crash_test


@crash_test(config="engine.yaml", budget="300s")
def test_orders(world):
    world.publish("queue:orders", [{"id": n} for n in range(20)])
    world.run_until_quiet()
    world.check()
    assert world.sent("bills").values("total") == list(range(1, 21))
"""


def project(place: Path, code: str = TOTALS, engine: str = ENGINE, **files: str) -> Path:
    """`engine.yaml` and `app.py`, which begins with `EVENTS`; a file `name.py` for each other argument."""
    files = {"app": EVENTS + textwrap.dedent(code), **files}
    for name, text in files.items():
        (place / f"{name}.py").write_text(textwrap.dedent(text))
    (place / "engine.yaml").write_text(engine)
    (place / "engine.yaml").chmod(0o600)
    return place


@contextlib.contextmanager
def simulated(place: Path, code: str = TOTALS, engine: str = ENGINE, **files: str) -> Iterator[Level]:
    """Level `sim` for a project that is made here."""
    with opened("sim", project(place, code, engine, **files) / "engine.yaml") as level:
        yield level


def tried(
    place: Path, body: Body, code: str = TOTALS, engine: str = ENGINE, *, singles: bool = True, **files: str
) -> Result:
    """A campaign over a project that is made here, where something is wrong: the first failure ends it.

    Without `singles` it tries one single fault only, where no single fault shows what is wrong.
    """
    with simulated(place, code, engine, **files) as level, pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaigns, "SHRINK_S", SHRINK_S)
        if not singles:
            patch.setattr(campaigns, "SINGLES_SHARE", 0.0)
        return searched(level, body)


def searched(level: Level, body: Body, most_runs: int = MOST_RUNS) -> Result:
    """A campaign where something is wrong: it ends at the first failure, or fails after as many runs as are enough."""
    runs = itertools.count(1)

    def counted(world: World) -> None:
        if next(runs) > most_runs:
            pytest.fail(f"{most_runs} runs have found nothing")
        body(world)

    return campaigns.campaign(level, counted, budget_s=sys.float_info.max, seed=1)


def assert_holds(place: Path, body: Body, code: str = TOTALS, engine: str = ENGINE) -> None:
    """As `assert_holds_at`, simulated."""
    with simulated(place, code, engine) as level:
        assert_holds_at(level, body)


def assert_holds_at(level: Level, body: Body, singles: int = SINGLES, drawn: int = DRAWN) -> None:
    """Nothing is found by the plans of a campaign: as many of them as are asked for, however slow the machine is."""
    whole = level.run(body, RunPlan(1, (), campaigns.SHARES))
    assert whole.violated is None, whole.violated
    places = list(level.singles(whole))
    alone = random.Random(1).sample(places, min(singles, len(places)))
    crashes = 0
    for plan in (
        *(RunPlan(1, faults, campaigns.SHARES) for faults in alone),
        *(RunPlan(seed) for seed in range(2, 2 + drawn)),
    ):
        outcome = level.run(body, plan)
        assert outcome.violated is None, (plan, outcome.violated)
        crashes += outcome.crashes
    assert crashes > ENOUGH_CRASHES


def run_pytest(place: Path, *arguments: str, root: Path | None = None, **environment: str):
    """Another process; the project lies in a root directory of its own."""
    command = ["pytest", "-q", "-W", ALREADY_IMPORTED, *PLUGIN, "--rootdir", str(root or place), *arguments]
    return forked.run(_strict_pytest, command, place, {**os.environ, **environment})


def _strict_pytest() -> None:
    """As `python -W error -m pytest` in a process of its own, which has imported more than that."""
    sys.warnoptions.append("error")
    warnings.simplefilter("error")
    sys.path.insert(0, "")
    sys.exit(pytest.main(sys.argv[1:]))


def screen(output: str) -> list[str]:
    """What a failed crash test shows of itself: from what is violated to the figures."""
    found = re.search(r"^\S+ violated .*?^  seed \d+, level .*?$", output, re.MULTILINE | re.DOTALL)
    assert found, output
    return found[0].splitlines()
