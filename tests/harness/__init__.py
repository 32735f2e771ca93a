"""The project's own test machinery: campaigns, the application that they run, and deliberate bugs that they must find.

Users test their applications with `correlator.testing`, which does not depend on this package. Run the commands from
the root directory of the project: `python -m tests.harness.simulation`, `kill9`, `power`, `mutants`,
`mutants.automatic`.
"""
