"""`@crash_test`: makes a pytest test of a test body that runs in worlds."""

import functools
import inspect
import itertools
import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from correlator.errors import CorrelatorError, UsageError
from correlator.testing.crashtest import replay, report
from correlator.testing.crashtest.campaign import Result, campaign, repeated
from correlator.testing.crashtest.levels import opened, seconds
from correlator.testing.crashtest.runs import Body, Level
from correlator.testing.crashtest.session import config_file, database, from_here
from correlator.testing.plugin import PROPERTY
from correlator.testing.worlds import World

BUDGET = "20s"
DIRECTORY = ".crash"
"""The directory for the replay files of failures, below the root directory of the tests."""
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class CrashReplayWarning(UserWarning):
    """The configuration, the test or the version of the product has changed since a replay file was made."""


def crash_test(
    *, config: str | Path, levels: Sequence[str] = ("sim",), budget: str = BUDGET, seed: int = 1
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test again and again, each time with other faults, until a run fails or the budget is used up.

    The test is a function or a method with an argument `world` (`correlator.testing.World`). It may use fixtures:
    pytest makes them once, while each run gets a new world. The first run has no faults. The following runs have a
    single fault each, at one place after another, for at most half of the budget. The other runs have random faults. A
    run fails by an assertion of the test, by `world.check()`, or by any other exception. The test may be skipped in its
    first run only.

    Args:
        config: the configuration file, relative to the file of the test or to the root directory of the tests.
        levels: each level becomes a test of its own: `sim` (simulated), `kill9` (real processes), `power` (real
            processes, and the disk loses power when one is killed), `broker` (real processes over a real PostgreSQL
            server, whose connections are cut).
        budget: how long each level looks for a failure, such as `20s` or `5m`; `--crash-budget` overrides it.
        seed: determines all random choices; `--crash-seed` overrides it.

    The test fails without any run if the function is not a body of a crash test (E2436), if a level is unknown (E2425),
    if the budget is not a duration (E2426), or if the configuration file has mistakes. It fails in its first run if it
    names unknown destinations or senders (E2420), and after the last run if no fault has struck (E2437). A failed run
    prints the violation and the command that repeats it.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(function).parameters
        keywords = inspect.Parameter.VAR_KEYWORD
        own = [one for name, one in parameters.items() if name not in ("world", "request") and one.kind is not keywords]

        mistake = _mistake(function, levels)

        @functools.wraps(function)
        def test(*of_class: Any, request: pytest.FixtureRequest, crash_level: str, **fixtures: Any) -> None:
            if "request" in parameters:
                fixtures["request"] = request
            body = _body(functools.partial(function, *of_class, **fixtures))
            file = config_file(request, config)
            try:
                if mistake is not None:
                    raise mistake
                if not hasattr(request.config.option, "crash_store"):
                    todo = "Run pytest with -p correlator.testing.plugin"
                    raise UsageError("E2438", "pytest", "the plugin of crash tests is not loaded", "", todo)
                with opened(crash_level, file, database(request.config)) as level:
                    result = _run(request, level, body, file, budget, seed)
            except CorrelatorError as error:
                refused = str(error)
            else:
                _tell(request, result, file)
                return
            pytest.fail(refused, pytrace=False)  # outside of `except`, so that pytest shows this error only

        asked = [inspect.Parameter(name, _KEYWORD) for name in ("request", "crash_level")]
        vars(test).update(__signature__=inspect.Signature([*own, *asked]))  # the arguments that pytest has to supply
        of_each = list(levels) if mistake is None else ["sim"]
        marked: Callable[..., None] = pytest.mark.parametrize("crash_level", of_each)(test)
        return marked

    return decorate


def _body(function: Callable[..., None]) -> Body:
    """Return the function to call for each world. A skip is allowed in the first run only: later it
    would hide a failure.
    """
    calls = itertools.count(1)

    def body(world: World) -> None:
        first = next(calls) == 1
        try:
            function(world=world)
        except pytest.fail.Exception as error:
            raise AssertionError(str(error)) from error
        except pytest.skip.Exception as error:
            if first:
                raise
            raise AssertionError(f"pytest.skip was called, but not in the run without faults: {error}") from error

    return body


def _mistake(function: Callable[..., None], levels: Sequence[str]) -> UsageError | None:
    """Return the mistake for which the function cannot be called once for each run, or a wrong level;
    `None` if all is well.
    """
    where = f"crash test {function.__name__}"
    if isinstance(levels, str) or not levels or len(set(levels)) < len(levels):
        return UsageError("E2425", where, f"levels={levels!r} are not levels", 'A list of names, each once: ["sim"]')
    world = inspect.signature(function).parameters.get("world")
    if world is None or world.kind is inspect.Parameter.POSITIONAL_ONLY:
        return UsageError("E2436", where, "it has no argument 'world'", "def test(world): …")
    if any(is_other(function) for is_other in (inspect.iscoroutinefunction, inspect.isgeneratorfunction)):
        return UsageError(
            "E2436", where, "it is asynchronous, or a generator", "A function that is done when it returns"
        )
    return None


def _run(request: pytest.FixtureRequest, level: Level, body: Body, config: Path, budget: str, seed: int) -> Result:
    """Run a campaign, or the plan of a replay file; warn if the replay file does not fit."""
    option = request.config.option
    if not option.crash_replay:
        budget_s = seconds(option.crash_budget or budget)
        return campaign(level, body, budget_s=budget_s, seed=seed if option.crash_seed is None else option.crash_seed)
    again = replay.read(Path(option.crash_replay))
    if again.level != level.name:
        pytest.skip(f"the replay file is for level {again.level}")
    if doubts := again.doubts(config, request.node.nodeid):
        warnings.warn(doubts, CrashReplayWarning, stacklevel=2)
    return repeated(level, body, again.plan)


def _tell(request: pytest.FixtureRequest, result: Result, config: Path) -> None:
    """Keep the figures for summary and report, and fail the test if a run has failed."""
    request.node.user_properties.append((PROPERTY, report.figures(result)))
    if result.shrunk is None:
        if result.figures.runs == result.figures.without_fault and not request.config.option.crash_replay:
            what = f"no fault struck, so nothing is proven ({result.figures.line()})"
            todo = "Publish messages and call world.run_until_quiet(), or give it a longer budget"
            pytest.fail(str(UsageError("E2437", f"crash test {request.node.name}", what, "", todo)), pytrace=False)
        return
    nodeid, level = request.node.nodeid, result.figures.level
    try:
        kept = replay.write(request.config.rootpath / DIRECTORY, config, nodeid, level, result.shrunk)
    except CorrelatorError as error:
        again = str(error)
    else:
        test = f"{from_here(request, request.path)}::{nodeid.partition('::')[2]}"
        again = f"pytest {shlex.quote(test)} --crash-replay={shlex.quote(from_here(request, kept))}"
    pytest.fail(report.failure(result, again), pytrace=False)
