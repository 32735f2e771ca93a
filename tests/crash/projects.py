"""Projects of users, made in a directory: a configuration file, a module with monitors, tests."""

import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from correlator.testing.crashtest.campaign import Result, campaign
from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.runs import Body, Level

INSTALLED = any(one.name == "correlator" for one in importlib.metadata.entry_points(group="pytest11"))
PYTEST = [
    sys.executable,
    "-W",
    "error",
    "-m",
    "pytest",
    "-q",
    *([] if INSTALLED else ["-p", "correlator.testing.plugin"]),
]
PATIENCE_S = 120
"""How long something may take that ends by itself, such as a campaign that finds what is wrong: machines may be busy."""
STRETCH_S = 1.5
MOST_STRETCHES = 40
ENOUGH_CRASHES = 5
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


@crash_test(config="engine.yaml", budget="10s")
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
def simulated(place: Path, code: str = TOTALS, engine: str = ENGINE) -> Iterator[Level]:
    """Level `sim` for a project that is made here."""
    with opened("sim", project(place, code, engine) / "engine.yaml") as level:
        yield level


def tried(place: Path, body: Body, code: str = TOTALS, engine: str = ENGINE) -> Result:
    """A campaign over a project that is made here, where something is wrong: the first failure ends it."""
    with simulated(place, code, engine) as level:
        return campaign(level, body, budget_s=PATIENCE_S, seed=1)


def assert_holds(place: Path, body: Body, code: str = TOTALS, engine: str = ENGINE) -> None:
    """As `assert_holds_at`, simulated."""
    with simulated(place, code, engine) as level:
        assert_holds_at(level, body)


def assert_holds_at(level: Level, body: Body, stretch_s: float = STRETCH_S) -> None:
    """Nothing is found in short campaigns until enough has gone wrong, however slow the machine is."""
    crashes = 0
    for seed in range(1, MOST_STRETCHES):
        result = campaign(level, body, budget_s=stretch_s, seed=seed)
        assert result.found is None, result.found.violated
        crashes += result.figures.crashes
        if crashes > ENOUGH_CRASHES:
            return
    raise AssertionError(f"{crashes} crashes")


def run_pytest(place: Path, *arguments: str, root: Path | None = None, **environment: str):
    """Another process; the project lies in a root directory of its own."""
    command = [*PYTEST, "--rootdir", str(root or place), *arguments]
    return subprocess.run(
        command,
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def screen(output: str) -> list[str]:
    """What a failed crash test shows of itself: from what is violated to the figures."""
    found = re.search(r"^\S+ violated .*?^  seed \d+, level .*?$", output, re.MULTILINE | re.DOTALL)
    assert found, output
    return found[0].splitlines()
