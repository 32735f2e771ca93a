"""The entry point of the installed command: lets Ctrl-C end the process at once while the modules are imported."""

import importlib
import signal


def main() -> None:
    """Run the command line. An interrupt during the imports ends the process without a message."""
    interrupts = signal.getsignal(signal.SIGINT)
    if interrupts is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = importlib.import_module("correlator.cli.main")
    signal.signal(signal.SIGINT, interrupts)
    command.main()
