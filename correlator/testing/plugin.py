"""The pytest plugin: options, fixtures and the summary of crash tests.

pytest loads it by its entry point at every start. So it imports nothing but pytest; an option or a fixture that needs
more imports it.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from correlator.testing.worlds import World

PROPERTY = "crash test"
"""The property of a test's report that holds the figures of the test's campaign."""
MakeWorld = Callable[..., "World"]
"""`make(config, *, faults=(), seed=1)` makes a world of a configuration file, in which exactly these faults strike.

`config` is relative to the file of the test or to the root directory of the tests. The world ends with the test. Raises
`UsageError` and `ConfigError` for mistakes in the file.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of all crash tests."""
    group = parser.getgroup("crash tests")
    group.addoption("--crash-budget", metavar="DURATION", help="how long each level looks for a failure: 30s, 5m")
    group.addoption("--crash-seed", metavar="N", type=int, help="the seed of all random choices")
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
    """Check the options, and register the summary. A wrong option ends pytest with a usage error."""
    option = config.option
    if option.crash_budget or option.crash_level or option.crash_store or option.crash_replay:
        _session().check_options(option)
    config.pluginmanager.register(Summary(), "correlator crash tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the crash tests of other levels than `--crash-level`."""
    wanted = config.option.crash_level
    if wanted is None:
        return
    others = [one for one in items if _level(one) not in (None, wanted)]
    items[:] = [one for one in items if _level(one) in (None, wanted)]
    config.hook.pytest_deselected(items=others)


@pytest.fixture
def correlator_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `sim`, for tests without `@crash_test`; see `MakeWorld`."""
    yield from _session().worlds(request, "sim")


@pytest.fixture
def correlator_kill9_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `kill9`, where engines are real processes; see `MakeWorld`."""
    yield from _session().worlds(request, "kill9")


@pytest.fixture
def correlator_power_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `power`, where the disk loses power when an engine is killed; see `MakeWorld`."""
    yield from _session().worlds(request, "power")


@pytest.fixture
def correlator_broker_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of level `broker`, with a store in the database of `--crash-store`; see `MakeWorld`."""
    yield from _session().worlds(request, "broker")


class Summary:
    """Collects the figures of campaigns from the reports of tests, which may run in other processes."""

    def __init__(self) -> None:
        self._campaigns: dict[str, dict[str, Any]] = {}
        self._problem = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the figures of a test that has run."""
        if report.when == "call":
            self._campaigns.update((report.nodeid, did) for name, did in report.user_properties if name == PROPERTY)  # type: ignore[misc]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report of `--crash-report`. If this fails, the session fails."""
        path = session.config.option.crash_report
        if path and (problem := _session().report(path, self._campaigns)):
            self._problem = problem
            session.exitstatus = session.exitstatus or pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Print one line for each test and level, with the number of runs without faults, which prove nothing."""
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
