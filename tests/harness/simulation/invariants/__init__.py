"""Invariants of the project's own application. They use the state of its monitors, and what these report.

This package enters them into the catalogue of `correlator.testing.invariants`, after those that hold for every
application. They find no violation in the history of another application: `Setup.told` is false there, and it has none
of the records that only this application makes.
"""

from correlator.testing.invariants.violations import violations
from tests.harness.simulation.invariants import changes, churn, monitors, receiving, sending

__all__ = ["GROUPS", "violations"]

GROUPS = (monitors, receiving, sending, churn, changes)
"""The modules that fill the catalogue when they are imported."""
