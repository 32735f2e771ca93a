"""Compiles all test files and what they import once, before the workers start.

Workers import the same files in the same order at the same time: each of them would compile every test file, and rewrite
its assertions, by itself. With PYTHONDONTWRITEBYTECODE so would each of the thousands of processes that tests start.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROCESSES = os.cpu_count() or 1
_NOT_FOR_COMPILING = ("PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE")


def compile_once(arguments: Sequence[str]) -> None:
    """Fill the caches of Python and pytest with the files that these arguments of pytest name.

    A file that cannot be imported is left to the workers, which report it.
    """
    named = [Path(argument.partition("::")[0]) for argument in arguments]
    files = sorted({file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))})
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_COMPILING}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n", "0"]
    running = [
        subprocess.Popen([*command, *part], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for part in (list(map(str, files[start::PROCESSES])) for start in range(PROCESSES))
        if part
    ]
    for process in running:
        process.wait()
