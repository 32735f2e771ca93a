"""Replay files: a failure that can be repeated, in another process, on another day."""

import hashlib
import importlib.metadata
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from correlator.errors import UsageError, quoted
from correlator.testing.crashtest.runs import Outcome
from correlator.testing.simulation.schedule import Fault


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what it was made with.

    Attributes:
        correlator: version of the product.
        config: digest of the configuration file.
        test: what was run: the id of a test, or the file of a command.
        level: name of the level.
        seed: of the plan.
        faults: of the plan.
        violated: id of what it violates.
    """

    correlator: str
    config: str
    test: str
    level: str
    seed: int
    faults: Sequence[Fault]
    violated: str

    def doubts(self, config: Path) -> str:
        """Why the plan may not mean the same any more; "" when nothing speaks against it."""
        now = _version()
        if self.correlator != now:
            return f"recorded with {self.correlator}, running {now}: the schedule may not mean the same"
        if self.config != _digest(config):
            return f"recorded with another content of {config}: the schedule may not mean the same"
        return ""


def write(directory: Path, config: Path, test: str, level: str, outcome: Outcome) -> Path:
    """Keep a failure in a file of its own; equal failures share one. Returns its path."""
    assert outcome.violated is not None
    replay = Replay(
        correlator=_version(),
        config=_digest(config),
        test=test,
        level=level,
        seed=outcome.plan.seed,
        faults=outcome.faults,
        violated=outcome.violated.id,
    )
    content = msgspec.json.format(msgspec.json.encode(replay))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{hashlib.sha256(content).hexdigest()[:8]}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content + b"\n")
    return path


def read(path: Path) -> Replay:
    """A replay file; raises `UsageError` E2423 for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Replay)
    except OSError as error:
        raise UsageError("E2423", quoted(path), f"cannot be read: {error.strerror}", "A replay file") from error
    except msgspec.DecodeError as error:
        raise UsageError(
            "E2423", quoted(path), f"is not a replay file: {error}", "What a failure has written"
        ) from error


def _version() -> str:
    return importlib.metadata.version("correlator")


def _digest(config: Path) -> str:
    return hashlib.sha256(config.read_bytes()).hexdigest()[:16]
