"""The pytest plugin: options, fixtures and the summary of crash tests. Loaded by its entry point at every start.

pytest loads it at every start, so it imports nothing but pytest; the rest when an option or a fixture needs it.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from correlator.testing.worlds import World

PROPERTY = "crash test"
"""The property of a test's report that holds the figures of its campaign."""
MakeWorld = Callable[..., "World"]
"""`make(config, *, faults=(), seed=1)`: a world of the file, in which exactly these faults strike."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of all crash tests."""
    group = parser.getgroup("crash tests")
    group.addoption("--crash-budget", metavar="DURATION", help="how long each level looks for a failure: 30s, 5m")
    group.addoption("--crash-seed", metavar="N", type=int, help="the seed of all drawn faults")
    group.addoption("--crash-level", metavar="LEVEL", help="run the tests of this level only")
    group.addoption(
        "--crash-store",
        metavar="URL",
        help="the PostgreSQL database of level broker, on this machine; also CORRELATOR_CRASH_STORE",
    )
    group.addoption("--crash-replay", metavar="FILE", help="repeat the failure that a replay file describes")
    group.addoption("--crash-points", action="store_true", help="list the fault points that were passed, with counts")
    group.addoption("--crash-report", metavar="FILE", help="write figures as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse wrong options, and register the summary."""
    option = config.option
    if option.crash_budget or option.crash_level or option.crash_store or option.crash_replay:
        _session().check_options(option)
    config.pluginmanager.register(Summary(), "correlator crash tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect crash tests of other levels than `--crash-level`."""
    wanted = config.option.crash_level
    if wanted is None:
        return
    others = [one for one in items if _level(one) not in (None, wanted)]
    items[:] = [one for one in items if _level(one) in (None, wanted)]
    config.hook.pytest_deselected(items=others)


@pytest.fixture
def correlator_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `sim` without a decorator; see `MakeWorld`."""
    yield from _session().worlds(request, "sim")


@pytest.fixture
def correlator_kill9_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `kill9`: engines are real processes."""
    yield from _session().worlds(request, "kill9")


@pytest.fixture
def correlator_power_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `power`: with an engine that is killed, its disk loses what it may."""
    yield from _session().worlds(request, "power")


@pytest.fixture
def correlator_broker_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `broker`, in the database of `--crash-store`."""
    yield from _session().worlds(request, "broker")


class Summary:
    """Collects the figures of campaigns from the reports of tests, which may come from other processes."""

    def __init__(self) -> None:
        self._campaigns: dict[str, dict[str, Any]] = {}
        self._problem = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has run."""
        if report.when == "call":
            self._campaigns.update((report.nodeid, did) for name, did in report.user_properties if name == PROPERTY)  # type: ignore[misc]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report; a session whose report is missing has failed."""
        path = session.config.option.crash_report
        if path and (problem := _session().report(path, self._campaigns)):
            self._problem = problem
            session.exitstatus = session.exitstatus or pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Print a line for each test and level, which also counts runs without a fault, since they prove nothing."""
        if self._campaigns:
            terminalreporter.section("crash tests")
        for test, did in self._campaigns.items():
            terminalreporter.line(f"{test}: {did['line']}")
            if config.option.crash_points:
                for point, count in sorted(did["passed"].items()):
                    terminalreporter.line(f"  {count:6} {point}")
        if self._problem:
            terminalreporter.line(self._problem, red=True)


def _session() -> Any:
    return importlib.import_module("correlator.testing.crashtest.session")


def _level(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("crash_level")
