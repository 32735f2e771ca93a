"""Commands as processes of their own that begin cheaply: forked from one that has imported what most of them need.

Only what a process does before its first line of ours is missing: tests of that start a command by `subprocess`.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from correlator.cli import main
from tests.forking import forking

PATIENCE_S = 900
PREPARED = (
    *(command.module for command in main.COMMANDS),
    "connectors.embedded",
    "connectors.file",
    "correlator.cli.entry",
    "correlator.runtime.engine",
    "correlator.storage.migrate",
    "correlator.storage.postgres",
    "correlator.storage.sqlite",
    "correlator.testing.crashtest.decorator",
    "correlator.testing.crashtest.levels",
    "correlator.testing.crashtest.session",
    "pytest",
)
INTERPRETER = ("PYTHON", "LC_", "LANG")
"""Variables that an interpreter reads when it begins."""

_BEGAN = dict(os.environ)
_context = forking(*PREPARED)


class _Descriptor:
    """A file descriptor that goes to the new process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _detached, (DupFd(self._number),)


def _detached(descriptor: Any) -> int:
    number: int = descriptor.detach()
    return number


def can_fork(variables: Mapping[str, str]) -> bool:
    """Whether a process with these variables can be forked: its interpreter has begun with those of the tests."""
    changed = {name for name, _ in variables.items() ^ _BEGAN.items()}
    return not any(name.startswith(INTERPRETER) for name in changed)


def start(
    command: Callable[[], object],
    arguments: Sequence[str],
    cwd: Path | str,
    variables: Mapping[str, str],
    out: int,
    err: int,
) -> BaseProcess:
    """Start a function that uses `sys.argv` as a command does, with these descriptors for its standard streams."""
    process = _context.Process(
        target=_be, args=(command, list(arguments), str(cwd), dict(variables), _Descriptor(out), _Descriptor(err))
    )
    process.start()
    return process


def run(
    command: Callable[[], object],
    arguments: Sequence[str],
    cwd: Path | str,
    variables: Mapping[str, str],
    *,
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run such a function to its end; its status and what it has written, to both streams `together` or to each."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(command, arguments, cwd, variables, out.fileno(), (out if together else err).fileno())
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired([*arguments], PATIENCE_S, _written(out), _written(err))
        status = process.exitcode
        process.close()
        return subprocess.CompletedProcess([*arguments], status, _written(out), _written(err))


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _be(
    command: Callable[[], object], arguments: list[str], cwd: str, variables: dict[str, str], out: int, err: int
) -> None:
    """The new process."""
    # The process that it is forked from ignores interrupts if it was begun where they are ignored, as by `nohup`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ours, standard in ((out, 1), (err, 2)):
        os.dup2(ours, standard)
        os.close(ours)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    sys.argv = arguments
    time.tzset()
    command()
