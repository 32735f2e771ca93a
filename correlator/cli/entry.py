"""The entry point of the installed command: the part that runs before and during the import of the slow modules.

A command that takes long shows its progress line at once. Ctrl-C ends the process without a message.
"""

import importlib
import os
import signal
import sys
from types import FrameType

from correlator.cli import progress


def main() -> None:
    """Run the command line. An interrupt during the imports ends the process without a message."""
    interrupts = signal.getsignal(signal.SIGINT)
    if interrupts is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    progress.begin(sys.argv)
    command = importlib.import_module("correlator.cli.main")
    signal.signal(signal.SIGINT, interrupts)
    command.main()


def _interrupted(number: int, _: FrameType | None) -> None:
    """Erase the progress line, and end in the way of a process that does not handle the signal."""
    if (line := progress.present()) is not None:
        line.abandon()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
