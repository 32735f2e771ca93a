"""The signals of `run`: the first signal asks for an orderly stop, a second signal ends the process at once."""

import os
import signal
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from correlator.cli import progress
from correlator.runtime.signals import signals_to

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """Handles SIGTERM, SIGINT and SIGHUP while its block runs, in the main thread.

    A signal that the process ignores stays ignored, as with `nohup`.

    Attributes:
        received: the first signal, or `None`. The handler does nothing but set it, because it may interrupt code that
            holds a lock.
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
        """128 plus the number of the signal, as shells expect; 0 without a signal."""
        return 128 + self.received if self.received is not None else 0

    def _note(self, number: int) -> None:
        if self.received is not None:
            if (line := progress.present()) is not None:
                line.abandon()
            os._exit(128 + number)
        self.received = signal.Signals(number)
