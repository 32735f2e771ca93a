"""Levels by name, and durations as text, for pytest and the command line."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from correlator.cli.loading import importable
from correlator.configuration.words import did_you_mean
from correlator.errors import UsageError, quoted
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.killed import Kill9
from correlator.testing.crashtest.powered import Powered
from correlator.testing.crashtest.runs import Level
from correlator.testing.crashtest.served import Broker
from correlator.testing.crashtest.simulated import Simulated

LEVELS: Mapping[str, Callable[[Configured], Level]] = {
    "sim": Simulated,
    "kill9": Kill9,
    "power": Powered,
    "broker": Broker,
}
"""The factory of each level, by its name."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def known(name: str) -> Callable[[Configured], Level]:
    """Return the factory of a level. Raises `UsageError` E2425 for an unknown name."""
    if name not in LEVELS:
        hint = did_you_mean(name, LEVELS) or ""
        raise UsageError("E2425", "level", f"{quoted(name)} is not a level", f"Levels: {', '.join(LEVELS)}", hint)
    return LEVELS[name]


@contextlib.contextmanager
def opened(name: str, config: Path, database: str | None = None) -> Iterator[Level]:
    """Open a level for a configuration file. The modules beside the file are importable within the block.

    Args:
        name: the name of the level.
        config: the configuration file.
        database: the address of a PostgreSQL database, which level `broker` needs.

    Raises:
        UsageError: E2425, unknown level; and the errors of the level.
        InvalidConfiguration: the file has mistakes.
        ConfigError: a class that the file names cannot be imported.
    """
    make = known(name)
    with importable(config):
        level = make(Configured(config, database))
        try:
            yield level
        finally:
            level.close()


def seconds(budget: str) -> float:
    """Return the seconds of a duration such as `60s`, `5m` or `1h`. Raises `UsageError` E2426 for other texts."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        value = float(budget[:-1]) * UNITS[budget[-1:]]
        if 0 < value < float("inf"):
            return value
    raise UsageError("E2426", "budget", f"{quoted(budget)} is not a duration", "Examples: 30s, 5m, 1h")
