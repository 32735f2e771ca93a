"""The plan and the outcome of one run of a test body, and the interface of a level."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from correlator.errors import UsageError
from correlator.testing.invariants.catalogue import InvariantViolated, Violation
from correlator.testing.invariants.history import History
from correlator.testing.schedule import Fault
from correlator.testing.worlds import World

Body = Callable[[World], None]
"""What a test does in a world. It is called once for each run, and must not depend on what earlier calls left."""

TEST = "test"
"""The id of a failure that the test body itself has found."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        seed: of everything that is drawn.
        faults: exactly these, in order; `None` draws them from the seed.
        shares: in how many parts messages are published, one for each life, at levels with real processes; drawn with
            the faults.
    """

    seed: int
    faults: tuple[Fault, ...] | None = None
    shares: int = 1


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        plan: what was asked for, with the shares that were drawn.
        violated: why it failed, `None` when it did not.
        faults: those that struck, in order: a plan with exactly these repeats the run as far as the level is
            deterministic.
        told: the same for people, parallel to `faults`.
        points: how often each named fault point was passed while faults could strike.
        crashes: engines that died.
        history: what was recorded outside of the engines.
        kept: directory with the store and what else is worth a look, of a failed run at a level with files.
    """

    plan: RunPlan
    violated: Violation | None
    faults: Sequence[Fault] = ()
    told: Sequence[str] = ()
    points: Mapping[str, int] = field(default_factory=dict)
    crashes: int = 0
    history: History
    kept: Path | None = None

    def forget(self) -> None:
        """Remove the directory that a failed run kept."""
        if self.kept is not None:
            shutil.rmtree(self.kept)
            self.kept = None


def judge(body: Body, world: World) -> Violation | None:
    """Run the body in a world, and return why it failed; raises `UsageError` if it names unknown destinations or parts.

    `SystemExit` counts as well: what a handler raises besides our own errors goes through a simulated engine.
    """
    try:
        body(world)
    except InvariantViolated as error:
        return error.violation
    except AssertionError as error:
        return Violation(TEST, "what the test asserts", str(error) or "an assertion without a text")
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever is raised under faults is what was found
        return Violation(TEST, f"{type(error).__name__} was raised", str(error))
    return None


class Level(Protocol):
    """A way to run a body: `sim`, `kill9`, `power`, `broker`.

    Attributes:
        name: as the command line says it.
        deterministic: whether equal plans make equal histories.
    """

    name: str
    deterministic: bool

    def run(self, body: Body, plan: RunPlan) -> Outcome:
        """Run the body once in a new world; raises only what a user of the harness has done wrong (`UsageError`)."""
        ...

    def world(self, plan: RunPlan) -> AbstractContextManager[World]:
        """A new world; leaving the block ends its processes."""
        ...

    def singles(self, reference: Outcome) -> Iterator[tuple[Fault, ...]]:
        """For each place that the run without faults passed, a schedule with one fault there."""
        ...

    def close(self) -> None:
        """End what the level keeps between runs (servers, child processes)."""
        ...
