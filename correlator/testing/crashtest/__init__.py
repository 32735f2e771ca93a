"""Crash tests of application code: one test body, run again and again with other faults, until one breaks it."""
