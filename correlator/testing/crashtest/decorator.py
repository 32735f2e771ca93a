"""`@crash_test`: makes a pytest test of a body that runs in a world."""

import functools
import inspect
import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from correlator.testing.crashtest import replay, report
from correlator.testing.crashtest.campaign import Figures, Result, campaign
from correlator.testing.crashtest.levels import opened, seconds
from correlator.testing.crashtest.runs import Body, Level, Plan
from correlator.testing.worlds import World

BUDGET = "20s"
DIRECTORY = ".crash"
"""Where failures leave their replay files, below the root directory of the tests."""
RESULTS = pytest.StashKey[dict[str, Result]]()
"""Results of this session by the id of the test."""


class CrashReplayWarning(UserWarning):
    """A replay file was made with something else."""


def crash_test(
    *, config: str | Path, levels: Sequence[str] = ("sim",), budget: str = BUDGET, seed: int = 1
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test again and again, each time with other faults, until it fails or the budget is used up.

    The test function takes a `world` (`correlator.testing.World`) and any fixtures; these are made once, the world anew
    for each run. It is called first without faults, then with one fault at each place where one can strike alone,
    then with drawn ones. Its own assertions, `world.check()` and whatever it raises are what can fail.

    Args:
        config: the configuration file, relative to the root directory of the tests.
        levels: `sim` (simulated) and `kill9` (real processes); each becomes a test of its own.
        budget: how long each level may look for a failure, such as `20s` or `5m`; `--crash-budget` takes its place.
        seed: of what is drawn; `--crash-seed` takes its place.

    Raises, when the test runs: `UsageError` for a level, budget or destination that is not there, and
    `InvalidConfiguration` for a file with mistakes.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        wanted = {name: one for name, one in inspect.signature(function).parameters.items() if name != "world"}

        @functools.wraps(function)
        def test(*, request: pytest.FixtureRequest, crash_level: str, **fixtures: Any) -> None:
            options, root = request.config.option, request.config.rootpath
            given = {**fixtures, "request": request} if "request" in wanted else fixtures

            def body(world: World) -> None:
                function(**given, world=world)

            with opened(crash_level, root / config) as level:
                if options.crash_replay:
                    _repeat(level, body, Path(options.crash_replay), root / config)
                else:
                    budget_s = seconds(options.crash_budget or budget)
                    chosen = seed if options.crash_seed is None else options.crash_seed
                    result = campaign(level, body, budget_s=budget_s, seed=chosen)
                    _tell(request, result, root / config)

        names = dict.fromkeys(("request", "crash_level", *wanted))
        shown = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])
        vars(test).update(__signature__=shown)  # what pytest is to ask for
        marked: Callable[..., None] = pytest.mark.parametrize("crash_level", list(levels))(test)
        return marked

    return decorate


def _repeat(level: Level, body: Body, file: Path, config: Path) -> None:
    """The run of a replay file; what speaks against the file is a warning."""
    again = replay.read(file)
    if doubts := again.doubts(config):
        warnings.warn(doubts, CrashReplayWarning, stacklevel=2)
    if again.level != level.name:
        pytest.skip(f"the replay file is for level {again.level}")
    outcome = level.run(body, Plan(again.seed, tuple(again.faults)))
    if outcome.violated is not None:
        figures = Figures(level.name)
        figures.add(outcome)
        result = Result(figures=figures, reference=outcome, found=outcome, shrunk=outcome)
        pytest.fail(report.failure(result, f"pytest --crash-replay={file}"), pytrace=False)


def _tell(request: pytest.FixtureRequest, result: Result, config: Path) -> None:
    """Keep figures for the summary and the report, and fail when something was found."""
    test = request.node.nodeid
    request.config.stash[RESULTS][test] = result
    if result.shrunk is not None:
        kept = replay.write(request.config.rootpath / DIRECTORY, config, test, result.figures.level, result.shrunk)
        shown = kept.relative_to(request.config.rootpath)
        again = f"pytest {shlex.quote(test)} --crash-replay={shown}"
        pytest.fail(report.failure(result, again), pytrace=False)
