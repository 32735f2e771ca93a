"""The part of the plugin that is imported only if an option or a fixture of crash tests is used."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from correlator.errors import CorrelatorError
from correlator.testing import files
from correlator.testing.crashtest import replay
from correlator.testing.crashtest.levels import known, opened, seconds
from correlator.testing.crashtest.runs import Level, RunPlan
from correlator.testing.crashtest.served import ENVIRONMENT, on_this_machine
from correlator.testing.schedule import Fault
from correlator.testing.worlds import World


def check_options(option: argparse.Namespace) -> None:
    """Check the options. A wrong one (E2423, E2425, E2426, E2435) raises pytest's usage error: the session ends."""
    try:
        if option.crash_level:
            known(option.crash_level)
        if option.crash_budget:
            seconds(option.crash_budget)
        if option.crash_store:
            on_this_machine(option.crash_store)
        if option.crash_replay:
            replay.read(Path(option.crash_replay))
    except CorrelatorError as error:
        raise pytest.UsageError(str(error)) from error


def database(config: pytest.Config) -> str | None:
    """Return the address of the database of level `broker`, from the option or the environment."""
    return config.option.crash_store or os.environ.get(ENVIRONMENT)


def worlds(request: pytest.FixtureRequest, level: str) -> Iterator[Callable[..., World]]:
    """Yield the factory of worlds that a fixture of the plugin returns. All worlds end with the test."""
    with ExitStack() as stack:
        levels: dict[Path, Level] = {}

        def make(config: str | Path, *, faults: Sequence[Fault] = (), seed: int = 1) -> World:
            file = config_file(request, config)
            if file not in levels:
                levels[file] = stack.enter_context(opened(level, file, database(request.config)))
            return stack.enter_context(levels[file].world(RunPlan(seed, tuple(faults))))

        yield make


def report(path: str, campaigns: Mapping[str, Any]) -> str:
    """Write the figures of campaigns as JSON. Return the error as text, "" if there is none."""
    try:
        files.write_json(Path(path), campaigns)
    except CorrelatorError as error:
        return str(error)
    return ""


def config_file(request: pytest.FixtureRequest, config: str | Path) -> Path:
    """Return the path of a configuration file: relative to the file of the test, or to the root
    directory of the tests.
    """
    beside: Path = request.path.parent / config
    return beside if beside.exists() else request.config.rootpath / config


def from_here(request: pytest.FixtureRequest, path: Path) -> str:
    """Return the path relative to the directory in which pytest was started, as the user would type it."""
    return os.path.relpath(path, request.config.invocation_params.dir)
