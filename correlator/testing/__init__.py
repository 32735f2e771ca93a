"""Test tools for users: crash tests, a broker in memory, the contract of connectors. Not for production.

Names are loaded when they are first used: pytest loads the plugin in this package at every start, and `crash_test`
needs pytest, which the rest of the package does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from correlator.testing.crashtest.decorator import crash_test
    from correlator.testing.invariants.catalogue import InvariantViolated
    from correlator.testing.worlds import Messages, World

_HOMES = {
    "InvariantViolated": "correlator.testing.invariants.catalogue",
    "Messages": "correlator.testing.worlds",
    "World": "correlator.testing.worlds",
    "crash_test": "correlator.testing.crashtest.decorator",
}

__all__ = ["InvariantViolated", "Messages", "World", "crash_test"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'correlator.testing' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
