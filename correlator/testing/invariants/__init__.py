"""What happened, told from outside of the engine, and what must be true of it, whatever was killed when.

Levels and campaigns write a `history`; the invariants read nothing else. A new invariant is a function in the module of
its subject.
"""
