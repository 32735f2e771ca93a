"""The pytest plugin: options, fixtures and the summary of crash tests. Loaded by its entry point."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from correlator.testing.crashtest import report
from correlator.testing.crashtest.decorator import RESULTS
from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.runs import Level, Plan
from correlator.testing.simulation.schedule import Fault
from correlator.testing.worlds import World

MakeWorld = Callable[..., World]
"""`make(config, *, faults=(), seed=1)`: a world of the file, in which exactly these faults strike."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of all crash tests."""
    group = parser.getgroup("crash tests")
    group.addoption("--crash-budget", metavar="DURATION", help="how long each level looks for a failure: 30s, 5m")
    group.addoption("--crash-seed", metavar="N", type=int, help="of everything that is drawn")
    group.addoption("--crash-level", metavar="LEVEL", help="run the tests of this level only")
    group.addoption("--crash-replay", metavar="FILE", help="repeat the failure that a replay file describes")
    group.addoption("--crash-points", action="store_true", help="list the fault points that were passed, with counts")
    group.addoption("--crash-report", metavar="FILE", help="write figures as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """A place for results."""
    config.stash[RESULTS] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other levels."""
    wanted = config.option.crash_level
    if wanted is None:
        return
    others = [one for one in items if _level(one) not in (None, wanted)]
    items[:] = [one for one in items if one not in others]
    config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A line for each test and level: a run in which nothing struck proves nothing, so that is counted too."""
    results = config.stash[RESULTS]
    if results:
        terminalreporter.section("crash tests")
    for test, result in results.items():
        terminalreporter.line(f"{test}: {result.figures.line()}")
        if config.option.crash_points:
            for point, count in sorted(result.reference.points.items()):
                terminalreporter.line(f"  {count:6} {point}")
    if config.option.crash_report:
        figures = {test: report.figures(result) for test, result in results.items()}
        report.write(Path(config.option.crash_report), figures)


@pytest.fixture
def correlator_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `sim` without a decorator; see `MakeWorld`."""
    yield from _worlds(request, "sim")


@pytest.fixture
def correlator_kill9_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `kill9`: engines are real processes."""
    yield from _worlds(request, "kill9")


def _worlds(request: pytest.FixtureRequest, name: str) -> Iterator[MakeWorld]:
    with ExitStack() as stack:
        levels: dict[Path, Level] = {}

        def make(config: str | Path, *, faults: Sequence[Fault] = (), seed: int = 1) -> World:
            path = request.config.rootpath / config
            if path not in levels:
                levels[path] = stack.enter_context(opened(name, path))
            return stack.enter_context(levels[path].world(Plan(seed, tuple(faults))))

        yield make


def _level(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("crash_level")
