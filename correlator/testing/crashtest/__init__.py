"""Crash tests of application code: a test body runs again and again, each time with other faults, until a run fails."""
