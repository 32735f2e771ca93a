"""Runs a campaign as a command."""

import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from correlator.testing.files import write_json


class Result(Protocol):
    """The result of a campaign. A class that inherits from this one gets its report."""

    @property
    def violations(self) -> Sequence[str]:
        """The violations that the campaign found."""

    @property
    def blind(self) -> Sequence[str]:
        """The reasons why the campaign proves nothing although it found no violation."""

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""

    def report(self) -> Mapping[str, Any]:
        """The result as values for a JSON report: all attributes."""
        report: Mapping[str, Any] = msgspec.to_builtins(self)  # `asdict` breaks a Counter
        return report


def carry_out(broker: str, report: Path | None, campaign: Callable[[Path, Callable[[str], None]], Result]) -> int:
    """Run a campaign in a directory, and keep the directory if the campaign leaves something in it.

    Args:
        broker: name of the broker, for the name of the directory.
        report: file for the report.
        campaign: gets the directory, and a function that prints a line about a round.

    Returns the exit status: 1 on a violation, and when nothing is proved.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    logging.disable(logging.CRITICAL)  # clients tell of each lost connection
    directory = Path(tempfile.mkdtemp(prefix=f"correlator-{broker}-campaign-"))
    try:
        result = campaign(directory, _say)
    finally:
        if not any(directory.iterdir()):
            directory.rmdir()
    for line in result.lines():
        _say(line)
    if directory.exists():
        _say(f"stores of the engines and the log of the server: {directory}")
    if report is not None:
        write_json(report, result.report())
    return 1 if result.violations or result.blind else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
