"""How the harness starts processes that import it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Of the project: product and tests."""


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that finds the harness in whatever directory it runs, with these variables added."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}
