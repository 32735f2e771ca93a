"""Counts, records, and fails the system calls by which a process changes files, or kills the process at one of them.

`library` interposes the calls in a process that was started with it; `trace` reads the recorded calls.
"""
