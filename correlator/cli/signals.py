"""Signals of a run: the first asks for an orderly stop, a second one ends the process at once."""

import os
import signal
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from correlator.runtime.signals import signals_to

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """Takes SIGTERM, SIGINT and SIGHUP while it is entered, in the main thread; one that is ignored stays so (nohup).

    Attributes:
        received: the first one. The handler only notes it: it may interrupt code that holds any lock.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._taken = ExitStack()

    def __enter__(self) -> Self:
        numbers = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        self._taken.enter_context(signals_to(self._note, numbers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken.close()

    @property
    def exit_status(self) -> int:
        """What a shell expects of a program that a signal has ended; 0 without one."""
        return 128 + self.received if self.received is not None else 0

    def _note(self, number: int) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number)
