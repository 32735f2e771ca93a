"""The project's own test machinery: campaigns, the application that they run, and deliberate bugs that they must find.

What users test their applications with is `correlator.testing`, which knows nothing of this package. The commands run
from the root of the project: `python -m tests.harness.simulation`, `kill9`, `power`, `mutants`, `mutants.automatic`.
"""
