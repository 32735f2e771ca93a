"""The history of a test, recorded outside the engine, and the invariants that it must satisfy, whatever was killed
when.

Levels and campaigns write a `history`; the invariants read nothing else. To add an invariant, write a function in the
module of its subject.
"""
