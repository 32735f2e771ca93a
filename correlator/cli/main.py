"""The entry point: finds the command, refuses what the command line itself makes wrong, and turns errors into a status.

A command's module is imported only when it is called (`version` must not wait for a database driver); of the others
only the summary in `COMMANDS` is needed, for the help.
"""

import importlib
import io
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

import typer

from correlator.cli.failures import telling
from correlator.cli.output import Unfailing
from correlator.errors import UsageError, quoted
from correlator.runtime import logs


class Command(NamedTuple):
    """A command: its module has a function `add_to(app)` that registers it under this name."""

    name: str
    module: str
    summary: str


COMMANDS = (
    Command("run", "correlator.cli.run", "Run the engine of a configuration file."),
    Command("lint", "correlator.cli.lint", "Check configuration files without opening anything."),
    Command("plan", "correlator.cli.plan", "Compare a configuration file with what its store holds."),
    Command("doctor", "correlator.cli.doctor", "Ask the brokers of a file what they would do to its messages."),
    Command("test", "correlator.cli.inline_tests", "Run the tests that stand in a pipeline file."),
    Command("crashtest", "correlator.testing.command", "Kill the engine of a file, and check its guarantees."),
    Command("inspect", "correlator.cli.inspect", "Show what a store holds; an engine may be running on it."),
    Command("browse", "correlator.cli.browse", "Show messages of a queue without removing them."),
    Command("publish", "correlator.cli.publish", "Put the lines of a file into a queue or topic."),
    Command("deadletter", "correlator.cli.deadletter", "List, show, replay or discard dead letters."),
    Command("dup", "correlator.cli.dup", "Tell what the duplicate detection knows of an id."),
    Command("replay", "correlator.cli.replay", "Do again what an engine did, from its input log."),
    Command("db", "correlator.cli.db", "Upgrade, check, copy or empty the database of a store."),
    Command("explain", "correlator.cli.explain", "Explain an error code, or what a configuration promises."),
    Command("version", "correlator.cli.version", "Show versions."),
)
REPEATABLE = ("--set", "--client-option", "--messages")
"""Options that may be given more than once."""
_BY_NAME = {command.name: command for command in COMMANDS}


def main() -> None:
    """Run the command line of this process, and end it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without our characters is no reason to fail
    sys.stderr = Unfailing(sys.stderr)
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    logs.configure(level="WARNING")
    try:
        with telling():
            _refuse_mistakes(arguments)
            # A command returns nothing; what ends one early (`--help`, `typer.Exit`) comes back as its status.
            return _app(arguments)(list(arguments), prog_name="correlator", standalone_mode=False) or 0
    except typer.Exit as end:
        return end.exit_code


def _app(arguments: Sequence[str]) -> typer.Typer:
    """The parser with the called command; of the others only name and summary."""
    app = typer.Typer(
        help="correlator: an event-driven, reliable bridge engine.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_group)
    for command in COMMANDS:
        if arguments and arguments[0] == command.name:
            importlib.import_module(command.module).add_to(app)
        else:
            app.command(command.name, help=command.summary)(_not_called)
    return app


def _group() -> None:
    """correlator: an event-driven, reliable bridge engine."""


def _not_called() -> None:
    """Stands for a command in the help of all."""


def _refuse_mistakes(arguments: Sequence[str]) -> None:
    """What the parser does not refuse, or not in our words."""
    if not arguments:
        sys.stderr.write(_short_help())
        raise typer.Exit(2)
    name = arguments[0]
    if not name.startswith("-") and name not in _BY_NAME:
        near = get_close_matches(name, _BY_NAME, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Commands: {', '.join(_BY_NAME)}"
        raise UsageError("E2001", "correlator", f"unknown command {quoted(name)}", hint)
    _refuse_repeated(arguments)


def _refuse_repeated(arguments: Sequence[str]) -> None:
    """An option that is given twice: which one was meant, nobody knows."""
    seen: set[str] = set()
    for argument in arguments:
        if argument == "--":
            return
        option = argument.partition("=")[0]
        if option.startswith("--") and option in seen and option not in REPEATABLE:
            raise UsageError("E2006", f"correlator {arguments[0]}", f"option {quoted(option)} is given twice")
        seen.add(option)


def _short_help() -> str:
    lines = [f"  {command.name:<11} {command.summary}" for command in COMMANDS]
    usage = "Usage: correlator COMMAND …\n\n"
    return usage + "\n".join(lines) + "\n\nMore about a command: correlator COMMAND --help\n"
