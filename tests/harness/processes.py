"""How the harness starts processes that import it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The root directory of the project, which has the product and the tests."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that can import the harness in any directory, with these variables added."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}
