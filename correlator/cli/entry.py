"""What the installed command runs first: all else is imported with Ctrl-C meaning what it means to a process."""

import importlib
import signal


def main() -> None:
    """Run the command line; an interrupt while it is still being imported ends the process without a word."""
    interrupts = signal.getsignal(signal.SIGINT)
    if interrupts is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = importlib.import_module("correlator.cli.main")
    signal.signal(signal.SIGINT, interrupts)
    command.main()
