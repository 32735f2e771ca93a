"""Runs the command as its users do: in another process, with captured streams, on a terminal if wanted."""

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from correlator.cli import entry
from tests import forked

COMMAND = str(Path(sys.executable).with_name("correlator"))
PATIENCE_S = 180


def run(*arguments: str | bytes, cwd: Path | str, env: Mapping[str, str | None] | None = None, **options: Any):
    """One command to its end: a `CompletedProcess` with text; `env` changes variables, `None` removes one.

    It runs in a process that is forked, and in a new one where its streams or its interpreter are special.
    """
    variables = environment(env or {})
    if not options and forked.can_fork(variables):
        return forked.run(entry.main, [COMMAND, *map(os.fsdecode, arguments)], cwd, variables)
    with start(*arguments, cwd=cwd, env=env, **options) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(*arguments: str | bytes, cwd: Path | str, env: Mapping[str, str | None] | None = None, **options: Any):
    """A command that goes on."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options
    return subprocess.Popen(
        [COMMAND, *arguments], cwd=cwd, env=environment(env or {}), text=True, errors="replace", **streams
    )


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    values = {**os.environ, **changes}
    return {name: value for name, value in values.items() if value is not None}


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Read standard error up to the line that holds the text; a process that never says it is ended."""
    assert process.stderr is not None
    seen = []
    patience = threading.Timer(PATIENCE_S, process.kill)
    patience.start()
    try:
        for line in process.stderr:
            seen.append(line)
            if text in line:
                return "".join(seen)
    finally:
        patience.cancel()
    raise AssertionError(f"ended without {text!r}: {''.join(seen)}")


def on_terminal(*arguments: str, cwd: Path, env: Mapping[str, str | None] | None = None) -> str:
    """What a command shows on a terminal. It runs in a process that is forked."""
    master, slave = pty.openpty()
    variables = environment({"TERM": "xterm", "COLUMNS": "200", **(env or {})})
    assert forked.can_fork(variables)
    process = forked.start(_at_a_terminal, [COMMAND, *arguments], cwd, variables, slave, slave)
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and select.select([master], [], [], PATIENCE_S)[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        shown += piece
    os.close(master)
    process.join(PATIENCE_S)
    assert process.exitcode == 0, shown
    return shown.decode()


def _at_a_terminal() -> None:
    """A command whose standard streams are those of a new interpreter: the forked ones were made for a file."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    entry.main()


def assert_fails(result: subprocess.CompletedProcess[str], code: str, status: int, *texts: str) -> None:
    """One message that begins with the code, the exit status, nothing on standard output, no traceback."""
    lines = result.stderr.strip().split("\n")
    assert any(line.startswith(f"{code} ") for line in lines), result.stderr
    for text in texts:
        assert text in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert (result.returncode, result.stdout) == (status, "")


def write(path: Path, lines: Sequence[str]) -> Path:
    """A private file, as configurations should be."""
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path
