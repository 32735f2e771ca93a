"""The entry point: finds the command, refuses mistakes of the command line, and turns errors into an exit status.

The module of a command is imported only when the command is called, so that `version` does not wait for a database
driver. The help of all commands needs only the summaries in `COMMANDS`.
"""

import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

import typer

from correlator.cli import progress
from correlator.cli.failures import telling
from correlator.cli.output import Unfailing
from correlator.errors import UsageError, quoted
from correlator.runtime import logs


class Command(NamedTuple):
    """A command: its module has a function `add_to(app)` that registers all commands of the module by their names."""

    name: str
    module: str
    summary: str


COMMANDS = (
    Command("create", "correlator.cli.create", "Make a project that runs, with its test."),
    Command("run", "correlator.cli.run", "Run the engine of a configuration file."),
    Command("lint", "correlator.cli.lint", "Check configuration files."),
    Command("plan", "correlator.cli.plan", "Show which changes of a file the next start would accept."),
    Command("doctor", "correlator.cli.doctor", "Check the brokers for settings that stop messages or lose them."),
    Command("status", "correlator.cli.status", "Show what a running engine does."),
    Command("receiver", "correlator.cli.control", "Pause, resume or drain a receiver of a running engine."),
    Command("sender", "correlator.cli.control", "Pause, resume or drain a sender of a running engine."),
    Command("checkpoint", "correlator.cli.control", "Let a running engine take a checkpoint now."),
    Command("loglevel", "correlator.cli.control", "Change the level of the log of a running engine."),
    Command("settings", "correlator.cli.control", "Show the settings with which a running engine works."),
    Command("events", "correlator.cli.control", "Show the last changes of state of a running engine."),
    Command("test", "correlator.cli.inline_tests", "Run the tests of a pipeline file, without a broker."),
    Command("crashtest", "correlator.testing.command", "Kill the engine of a file again and again, and check it."),
    Command("bench", "correlator.testing.bench", "Measure how fast the engine of a file could go here."),
    Command("shares", "correlator.cli.shares", "Show which process runs which share."),
    Command("package", "correlator.cli.package", "Write the modules that the workers of a Spark cluster need."),
    Command("inspect", "correlator.cli.inspect", "Show what a store holds."),
    Command("browse", "correlator.cli.browse", "Show messages of a queue without removing them."),
    Command("broker", "correlator.cli.broker", "Administer a broker: destinations, consumers, messages, transactions."),
    Command("outbox", "correlator.cli.outbox", "Make the table into which your program writes messages."),
    Command("publish", "correlator.cli.publish", "Send the lines of a file to a queue or topic."),
    Command("deadletter", "correlator.cli.deadletter", "List, show, replay or discard dead letters."),
    Command("dup", "correlator.cli.dup", "Show why duplicate detection would drop an id."),
    Command("replay", "correlator.cli.replay", "Repeat what an engine did, from its input log."),
    Command("rerun", "correlator.cli.rerun", "Show what changed code would do with the inputs of an input log."),
    Command(
        "lineage", "correlator.cli.lineage", "Show what caused a send, and what came of a message, from an input log."
    ),
    Command("db", "correlator.cli.db", "Upgrade, check, back up or empty a store."),
    Command("explain", "correlator.cli.explain", "Explain an error code, or the guarantees of a file."),
    Command("version", "correlator.cli.version", "Show the versions of correlator and of what it uses."),
)
REPEATABLE = ("--set", "--client-option", "--messages")
"""Options that may be repeated."""
_BY_NAME = {command.name: command for command in COMMANDS}


def main() -> None:
    """Run the command line of this process, and end it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # the locale may lack characters of correlator's texts
    sys.stderr = Unfailing(sys.stderr)
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    logs.configure(level="WARNING")
    try:
        with telling():
            _refuse_mistakes(arguments)
            # A command returns nothing; `--help` and `typer.Exit` end it early and return a status.
            return _app(arguments)(list(arguments), prog_name="correlator", standalone_mode=False) or 0
    except typer.Exit as end:
        return end.exit_code
    finally:
        progress.end()


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Make the parser: it has the called command, and the names and summaries of the other commands."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_group)
    called = _BY_NAME.get(arguments[0]) if arguments else None
    if called is not None:
        importlib.import_module(called.module).add_to(app)
    for command in COMMANDS:
        if called is None or command.module != called.module:
            app.command(command.name, help=command.summary)(_not_called)
    return app


def _group() -> None:
    """Receive messages from brokers, keep state about them, and send messages: an event-driven, reliable bridge engine.

    Documentation of a command: correlator COMMAND --help. Meaning of an error code: correlator explain CODE.
    """


def _not_called() -> None:
    """A placeholder for a command in the help of all commands."""


def _refuse_mistakes(arguments: Sequence[str]) -> None:
    """Refuse mistakes that the parser accepts, or for which it has other texts than correlator."""
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
    """Refuse an option that is given twice: nobody knows which value was meant."""
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
    return usage + "\n".join(lines) + "\n\nFor the options of a command: correlator COMMAND --help\n"
