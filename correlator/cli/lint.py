"""`correlator lint FILE…`: prints all problems of configuration files, without opening a connection or a store."""

import re
from pathlib import Path
from typing import Annotated

import typer

from correlator.cli.checks import check_and_hint, check_pipeline_steps
from correlator.cli.codes import SEVERITIES
from correlator.cli.effects import check_effects
from correlator.cli.loading import importable, load
from correlator.cli.output import write_json, write_line
from correlator.configuration import InvalidConfiguration
from correlator.errors import ConfigError, CorrelatorError

_WHERE = re.compile(r"(?P<file>.*?):(?P<line>\d+):(?P<column>\d+)(?: (?P<path>.*))?", re.DOTALL)


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator lint` with `app`, the Typer application of all commands."""
    app.command()(lint)


def lint(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Configuration files to check.", show_default=False)
    ],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list with an object for each finding.")] = False,
) -> None:
    """Check configuration files, and print every error, warning and hint with its line and column.

    Exits with 2 if there is an error, and with 0 otherwise. The command imports the modules that the files name, which
    may lie beside the file. It opens no connection and no store, and does not start Spark.
    """
    findings = [finding for file in files for finding in _findings(file)]
    if json:
        write_json([_as_json(finding) for finding in findings])
    else:
        for finding in findings:
            for line in str(finding).split("\n"):
                write_line(line)
    if any(finding.code.startswith("E") for finding in findings):
        raise typer.Exit(ConfigError.exit_status)


def _findings(file: Path) -> list[CorrelatorError]:
    """Return the errors and warnings of a file in the order of their places."""
    try:
        with importable(file):
            found: list[CorrelatorError] = list(
                load(file, [check_and_hint, check_effects, check_pipeline_steps]).warnings
            )
    except InvalidConfiguration as error:
        found = [*(ConfigError(*problem.args) for problem in error.problems), *error.warnings]
    return sorted(found, key=_place)


def _place(finding: CorrelatorError) -> tuple[int, int]:
    match = _WHERE.fullmatch(finding.where)
    return (int(match["line"]), int(match["column"])) if match else (0, 0)


def _as_json(finding: CorrelatorError) -> dict[str, object]:
    match = _WHERE.fullmatch(finding.where)
    return {
        "severity": SEVERITIES[finding.code[0]],
        "code": finding.code,
        "file": match["file"] if match else finding.where,
        "line": int(match["line"]) if match else None,
        "column": int(match["column"]) if match else None,
        "path": (match["path"] or "") if match else "",
        "what": finding.what,
        "allowed": finding.allowed,
        "todo": finding.todo,
    }
