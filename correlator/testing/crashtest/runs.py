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
"""A test body. It is called once for each run, with a new world, and must not depend on earlier calls."""

TEST = "test"
"""The id of a failure that the test body itself has found."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        seed: determines all random choices.
        faults: exactly the faults that strike, in order; `None` chooses them at random from the seed.
        shares: at levels with real processes, the number of parts in which messages are published, one part for each
            life. If the faults are random, this number is random, too.
    """

    seed: int
    faults: tuple[Fault, ...] | None = None
    shares: int = 1


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        plan: the plan, with the random number of shares.
        violated: the failure, `None` if there is none.
        faults: the faults that struck, in order. A plan with exactly these faults repeats the run, as far as the level
            is deterministic.
        told: a text for each of the faults, in the same order.
        points: how often each named fault point was passed while faults could strike.
        crashes: engines that died.
        history: the record of the run, made outside of the engines.
        kept: at levels with files, the directory that a failed run keeps, with store and log.
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
        """Remove the directory that a failed run has kept."""
        if self.kept is not None:
            shutil.rmtree(self.kept)
            self.kept = None


def judge(body: Body, world: World) -> Violation | None:
    """Run the body in a world, and return the failure, `None` if there is none.

    `SystemExit` is a failure, too: a simulated engine lets exceptions of handlers pass that are not the product's own.
    Raises `UsageError` if the body names unknown destinations or parts.
    """
    try:
        body(world)
    except InvariantViolated as error:
        return error.violation
    except AssertionError as error:
        return Violation(TEST, "what the test asserts", str(error) or "an assertion without a text")
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # every exception under faults is a finding
        return Violation(TEST, f"{type(error).__name__} was raised", str(error))
    return None


class Level(Protocol):
    """A level, the way to run a body: `sim`, `kill9`, `power` or `broker`.

    Attributes:
        name: the name on the command line.
        deterministic: whether equal plans make equal histories.
    """

    name: str
    deterministic: bool

    def run(self, body: Body, plan: RunPlan) -> Outcome:
        """Run the body once in a new world. Raises `UsageError` for mistakes of the user, and no other errors."""
        ...

    def world(self, plan: RunPlan) -> AbstractContextManager[World]:
        """Make a new world. Leaving the block ends its processes."""
        ...

    def singles(self, reference: Outcome) -> Iterator[tuple[Fault, ...]]:
        """Yield, for each place that the run without faults has passed, the faults of a plan with one fault there."""
        ...

    def close(self) -> None:
        """End the servers and child processes that the level keeps between runs."""
        ...
