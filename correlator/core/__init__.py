"""The decisions of the engine. This package has no I/O, threads, clock, randomness or logging: time and ids are
arguments.
"""
