"""A life of a process that a campaign kills: forked from one that has imported what it needs, and runs nothing else."""

import contextlib
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Any

PATIENCE_S = 120.0


class Life:
    """A process that runs an engine.

    Args:
        forking: makes the process.
        live: what runs in it. Its last positional argument is a connection: it sends something when the engine has
            begun, and ends when something comes.
        arguments: further arguments of `live`, before the connection.
        options: keyword arguments of `live`.
    """

    def __init__(
        self, forking: ForkServerContext, live: Callable[..., None], *arguments: object, **options: Any
    ) -> None:
        self._told, childs = forking.Pipe()
        self._process = forking.Process(target=live, args=(*arguments, childs), kwargs=options)
        self._process.start()
        childs.close()

    def begin(self) -> bool:
        """Wait until the engine has begun; false if the process has ended before."""
        try:
            return self._told.poll(PATIENCE_S) and bool(self._told.recv())
        except EOFError:
            self._process.join(PATIENCE_S)  # it is not yet dead when its end of the pipe is closed
            return False

    @property
    def is_alive(self) -> bool:
        """Whether the process lives."""
        return self._process.is_alive()

    def wait(self, within_s: float) -> None:
        """Wait until the process has ended, but no longer."""
        self._process.join(within_s)

    def kill(self) -> bool:
        """Kill the process; returns whether it had killed itself. It is an error if it has ended otherwise."""
        was_dead = not self.is_alive
        self._process.kill()
        status = self._end()
        assert status == -signal.SIGKILL, f"the process has ended by itself, with status {status}"
        return was_dead

    def stop(self) -> int | None:
        """Let the engine stop; returns the exit status."""
        with contextlib.suppress(OSError):
            self._told.send("stop")
        return self._end()

    def _end(self) -> int | None:
        self._process.join(PATIENCE_S)
        status = self._process.exitcode
        self._told.close()
        self._process.close()
        return status
