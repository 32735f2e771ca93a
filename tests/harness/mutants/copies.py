"""Copies of the product and its tests, each with at most one mutant at a time. The original never changes.

Every command in a copy runs in a new process with limits on time, memory and files, since a mutant may loop for ever.
"""

import compileall
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.harness.processes import ROOT

MEMORY_KIB = 6_000_000
FILE_BLOCKS = 2_000_000
"""The size of the largest file that a mutant may write, in blocks of 512 bytes."""
OUTPUT_BYTES = 200_000
_COPIED = ("correlator", "connectors", "tests", "pyproject.toml")
_BOUNDED = f'ulimit -v {MEMORY_KIB}; ulimit -f {FILE_BLOCKS}; ulimit -S -t "$0"; exec "$@"'
_AHEAD_NS = 10 * 10**9


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        status: the exit status, as in `subprocess`; `None` if the process ran out of time.
        output: the end of its output.
        seconds: its duration.
    """

    status: int | None
    output: str
    seconds: float


class Copy:
    """One copy of the project.

    Args:
        directory: an empty directory, which the caller removes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in _COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, directory / name)
        compileall.compile_dir(directory, quiet=2)

    @contextlib.contextmanager
    def holding(self, file: str, source: str) -> Iterator[None]:
        """Within the block, a file has another text.

        Python recognises compiled modules by time and size of their source. So the file gets a new time with the
        mutant, and its old time when the original is back.
        """
        path = self.directory / file
        original, modified_ns = path.read_text(encoding="utf-8"), path.stat().st_mtime_ns
        try:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(modified_ns, modified_ns + _AHEAD_NS))
            yield
        finally:
            path.write_text(original, encoding="utf-8")
            os.utime(path, ns=(modified_ns, modified_ns))

    def run(self, arguments: Sequence[str], *, cpu_s: int, wall_s: float) -> Ended:
        """Run Python with these arguments in the copy. If the time is up, end the process and all its children."""
        command = ["/bin/sh", "-c", _BOUNDED, str(cpu_s), sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.directory), "PYTHONDONTWRITEBYTECODE": "1"}
        written = self.directory / "output.txt"
        begin = time.monotonic()
        with written.open("wb") as output:
            process = subprocess.Popen(  # the interpreter of this process
                command,
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = _wait(process, wall_s)
        if status == -signal.SIGXCPU:
            status = None
        return Ended(status, _end_of(written), time.monotonic() - begin)


def _wait(process: subprocess.Popen[bytes], wall_s: float) -> int | None:
    try:
        return process.wait(wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - OUTPUT_BYTES))
        return file.read().decode(errors="replace")
