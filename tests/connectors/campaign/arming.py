"""What a process that a campaign kills changes in itself: calls at which it dies, and the control of its sender."""

import itertools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from correlator.errors import SendRejected
from correlator.events import Outgoing


class Arming:
    """Lets the process kill itself before or behind a call.

    Args:
        kill: the number of the call; 0 for none; with a negative number the process kills itself behind that call.
    """

    def __init__(self, kill: int) -> None:
        self._kill = kill
        self._calls = itertools.count(1)
        self._here = threading.local()

    def count_within(self, owner: type[Any], *methods: str) -> None:
        """Let only the calls count that are made within these methods of a class."""
        for name in methods:
            setattr(owner, name, self._within(getattr(owner, name)))

    def arm(self, owner: Any, *names: str) -> None:
        """Let the calls of these functions of a module or class count."""
        for name in names:
            setattr(owner, name, self._armed(getattr(owner, name)))

    def _within(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            self._here.is_on = True
            try:
                return call(*arguments)
            finally:
                self._here.is_on = False

        return counting

    def _armed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            number = next(self._calls) if getattr(self._here, "is_on", False) else 0
            if number == self._kill != 0:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*arguments, **options)
            finally:
                if number == -self._kill != 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        return counted


def forget_the_source(sink_type: type[Any]) -> None:
    """Give the messages that sinks of this class send in this life a source of its own."""
    send = sink_type.send

    def renamed(sink: Any, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        sink._sends_again = False
        own = [msgspec.structs.replace(out, source=f"{out.source}:{os.getpid()}") for out in batch]
        results: Sequence[SendRejected | None] = send(sink, own)
        return results

    sink_type.send = renamed
