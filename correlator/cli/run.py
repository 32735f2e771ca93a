"""`correlator run FILE`: runs an engine from its start to its end, and prints a table of what it did."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from correlator.cli.arguments import ConfigurationFile, LogLevel, Overrides
from correlator.cli.checks import check_connectors
from correlator.cli.failures import say, telling
from correlator.cli.loading import importable, load
from correlator.cli.output import write_table
from correlator.configuration.problems import Overridden
from correlator.errors import UsageError, quoted
from correlator.pipeline.processors import start_ahead
from correlator.pipeline.spec import PipelineFile
from correlator.runtime import logs
from correlator.secrets import is_secret_name, url_passwords
from correlator.storage.database import location
from correlator.storage.inspect import exists
from correlator.storage.reset import contents, reset
from correlator.storage.witness import witness_of


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator run` with `app`, the Typer application of all commands."""
    app.command()(run)


def run(
    file: ConfigurationFile,
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="Log messages of this level and above.")
    ] = LogLevel.INFO,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write the log as JSON, one object in each line.")
    ] = False,
    overrides: Overrides = None,
    client_options: Annotated[
        list[str] | None,
        typer.Option(
            "--client-option",
            metavar="NAME=VALUE",
            help="Set an environment variable for the client libraries of brokers and for Java. May be repeated.",
            show_default=False,
        ),
    ] = None,
    clear_state: Annotated[
        bool, typer.Option("--clear-state", help="Empty the store before the start; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Empty the store without asking.")] = False,
) -> None:
    """Run the engine of a configuration file.

    If every receiver has an end, such as a file that it does not follow, the command ends when all input is handled,
    sent and confirmed. Otherwise it runs until SIGTERM, SIGINT (Ctrl-C) or SIGHUP. It then stops orderly: it stops
    receiving, finishes what it has received, and exits with 143, 130 or 129. A second signal ends it at once, like a
    crash, and the next start recovers.

    Paths in FILE are relative to the working directory; modules that FILE names may lie beside it. The log goes to
    standard error, the table at the end to standard output.

    If the file has shares, the process is one of several members: it runs a part of the shares until it gets a signal.

    --clear-state deletes everything that the engine has kept. It asks first; without a terminal it needs --yes.
    """
    with telling():
        os.environ.update(_client_options(client_options or ()))
    with importable(file):
        loaded = load(file, [check_connectors], overrides or ())
        for warning in loaded.warnings:
            say(warning)
        with telling(loaded.secrets.redact):
            logs.configure(level=str(log_level), json=log_json, redact=loaded.secrets.redact)
            for one in loaded.overridden:
                before, after = _shown(one)
                log = logs.get_logger(setting=one.path, source="--set")
                log.info("a setting of the file is overridden", before=before, after=after)
            if clear_state and loaded.settings.shares is not None:
                todo = "For each share: correlator db reset FILE --share NUMBER"
                raise UsageError("E2060", str(file), "has shares, and --clear-state empties one store", "", todo)
            if clear_state and loaded.settings.store is not None:
                _clear(loaded.settings.store, loaded.settings, yes=yes)
            _tell_start(file, loaded.settings)
            if loaded.settings.shares is None:  # a member may have no share for long
                start_ahead(loaded.settings)
            running = importlib.import_module("correlator.cli.running")  # while the JVM starts
            rows, status = running.run(file, loaded)
    write_table("Done" if status == 0 else "Stopped", running.COLUMNS, rows)
    raise typer.Exit(status)


def _client_options(options: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` into environment variables by name. Raises `UsageError` E2031."""
    variables: dict[str, str] = {}
    for option in options:
        name, found, value = option.partition("=")
        if not (name and found) or "\0" in value:
            raise UsageError("E2031", "--client-option", f"{quoted(option)} is not NAME=VALUE")
        variables[name] = value
    return variables


def _tell_start(file: Path, settings: PipelineFile) -> None:
    """Log that the engine starts: the next line may come only when it runs, and nobody sees the progress line in the
    log of a service.
    """
    spark = {"spark": "takes about 20 s to start"} if settings.pipelines else {}
    logs.get_logger().info("starting", engine=settings.name, file=str(file), **spark)


def _shown(one: Overridden) -> tuple[str, str]:
    """Return both values for the log, without secrets."""
    values = ("the default" if one.before is None else one.before), one.after
    if is_secret_name(one.path) or any(url_passwords(value) for value in values):
        return "***", "***"
    return values


def _clear(store: str, settings: PipelineFile, *, yes: bool) -> None:
    """Empty the store; raises `UsageError` E2020 if nobody agreed."""
    witness = witness_of(settings.witness_directory, settings.name, store)
    loss = [one for one in contents(store) if one.rows] if exists(store) else []
    if not loss:
        if witness is not None:
            witness.unlink(missing_ok=True)  # somebody may have emptied the store in another way
        return
    for one in loss:
        messages = "" if one.messages is None else f", {one.messages} messages"
        say(f"would be lost: {one.table} {one.rows} rows{messages}")
    if not yes and not (sys.stdin.isatty() and _agreed(f"Empty {location(store)}? [y/N] ")):
        what = "is not empty: all of this would be lost"
        raise UsageError("E2020", location(store), what, "", "If you mean it: --yes")
    reset(store, witness)
    logs.get_logger().info("state cleared", store=location(store))


def _agreed(question: str) -> bool:
    """Ask on standard error: standard output carries results only."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
