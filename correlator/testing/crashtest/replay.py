"""Replay files, from which another process repeats a failure."""

import contextlib
import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import msgspec

from correlator.errors import UsageError, quoted
from correlator.testing import files
from correlator.testing.crashtest.runs import Outcome, RunPlan
from correlator.testing.schedule import Fault


class SavedFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a failed run, with the versions and files on which it depends.

    Attributes:
        correlator: the version of the product.
        config: a digest of the configuration file.
        test: the id of the test, or the arguments of the command.
        level: the name of the level.
        seed: the seed of the plan.
        faults: the faults of the plan.
        shares: the shares of the plan.
        violated: the id of the violated invariant.
    """

    correlator: str
    config: str
    test: str
    level: str
    seed: int
    faults: Sequence[Fault]
    shares: int
    violated: str

    @property
    def plan(self) -> RunPlan:
        """Return the plan that repeats the failed run: its seed, its faults and its shares."""
        return RunPlan(self.seed, tuple(self.faults), self.shares)

    def doubts(self, config: Path, test: str) -> str:
        """Return why the plan may lead to another run than the one that failed; "" if there is no reason.

        Args:
            config: the present configuration file.
            test: the id of the test that runs, or the arguments of the command.
        """
        now = _version()
        if self.correlator != now:
            return f"recorded with {self.correlator}, running {now}: the faults may strike at other places"
        if self.config != _digest(config):
            return f"recorded with another content of {config}: the faults may strike at other places"
        if self.test != test:
            return f"recorded by {self.test}, this is {test}: the faults may strike at other places"
        return ""


def write(directory: Path, config: Path, test: str, level: str, outcome: Outcome) -> Path:
    """Write a failure to a file of its own and return its path; equal failures share a file.

    Raises:
        UsageError: E2424, the file cannot be written.
    """
    assert outcome.violated is not None
    replay = SavedFailure(
        correlator=_version(),
        config=_digest(config),
        test=test,
        level=level,
        seed=outcome.plan.seed,
        faults=outcome.faults,
        shares=outcome.plan.shares,
        violated=outcome.violated.id,
    )
    path = directory / f"{hashlib.sha256(files.as_json(replay)).hexdigest()[:8]}.json"
    with contextlib.suppress(OSError):  # `write` reports the error
        directory.mkdir(mode=0o700, exist_ok=True)
    files.write_json(path, replay)
    return path


def read(path: Path) -> SavedFailure:
    """Read a replay file. Raises `UsageError` E2423 for any other file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SavedFailure)
    except (OSError, msgspec.DecodeError) as error:
        what = f"is not a replay file: {error.strerror if isinstance(error, OSError) else error}"
        raise UsageError(
            "E2423", quoted(str(path)), what, "", "Name one that a failed crash test has written"
        ) from error


def _version() -> str:
    return importlib.metadata.version("correlator")


def _digest(config: Path) -> str:
    return hashlib.sha256(config.read_bytes()).hexdigest()[:16]
