"""Invariants of the project's own application. They use the state of its monitors, and what these report.

This package enters them into the catalogue of `correlator.testing.invariants`, after those that hold for every
application. They find no violation in the history of another application, because `Setup.told` is false there.
"""

from correlator.testing.invariants.violations import violations
from tests.harness.simulation.invariants import changes, churn, monitors, receiving, sending

__all__ = ["GROUPS", "violations"]

GROUPS = (monitors, receiving, sending, churn, changes)
"""The modules that fill the catalogue when they are imported."""
