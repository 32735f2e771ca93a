"""How a campaign is run as a command."""

import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog

from correlator.testing.files import write_json


class Result(Protocol):
    """What a campaign found."""

    @property
    def violations(self) -> Sequence[str]:
        """What is wrong."""

    @property
    def blind(self) -> Sequence[str]:
        """Why nothing is proved."""

    def lines(self) -> Sequence[str]:
        """For a reader."""

    def report(self) -> Mapping[str, Any]:
        """For a machine."""


def carry_out(broker: str, report: Path | None, campaign: Callable[[Path, Callable[[str], None]], Result]) -> int:
    """Run a campaign in a directory that stays where it leaves something there.

    Args:
        broker: its name, for the directory.
        report: file for the report.
        campaign: gets the directory, and what it tells of its rounds with.

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
