"""What users test with: crash tests, a broker in memory, the contract of connectors; never in production."""

from typing import TYPE_CHECKING, Any

from correlator.testing.crashtest.runs import InvariantViolated
from correlator.testing.worlds import Messages, World

if TYPE_CHECKING:
    from correlator.testing.crashtest.decorator import crash_test

__all__ = ["InvariantViolated", "Messages", "World", "crash_test"]


def __getattr__(name: str) -> Any:
    """`crash_test` needs pytest; whoever uses the rest of the package does not."""
    if name == "crash_test":
        from correlator.testing.crashtest.decorator import crash_test  # noqa: PLC0415

        return crash_test
    raise AttributeError(name)
