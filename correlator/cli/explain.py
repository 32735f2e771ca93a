"""`correlator explain CODE`: one sentence for each code that a message may begin with."""

from typing import Annotated

import typer

from correlator.cli.codes import CODES, FAMILIES
from correlator.cli.output import write_line
from correlator.errors import UsageError, quoted

_SEVERITIES = {"E": "error", "W": "warning", "I": "hint"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(explain)


def explain(code: Annotated[str, typer.Argument(metavar="CODE", help="Such as E1020.", show_default=False)]) -> None:
    """Explain an error code."""
    known = code.upper()
    if known not in CODES:
        raise UsageError("E2010", quoted(code), "no such code", "Codes look like E1020, W1401")
    write_line(f"{known} ({FAMILIES[known[1]]} {_SEVERITIES[known[0]]}): {CODES[known]}")
