"""`correlator run FILE`: runs an engine from its start to its end, and prints a table of what it did."""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from correlator.cli import progress
from correlator.cli.arguments import ConfigurationFile, LogLevel, Overrides
from correlator.cli.checks import check_connectors
from correlator.cli.failures import say, telling
from correlator.cli.loading import directory_of, importable, load
from correlator.cli.output import Row, write_table
from correlator.cli.signals import StopSignals
from correlator.cli.systemd import Heart, notify
from correlator.cli.watching import Watcher, watcher
from correlator.configuration import Loaded
from correlator.configuration.problems import Overridden
from correlator.errors import UsageError, printable, quoted
from correlator.pipeline.runner import build_engine
from correlator.pipeline.spec import PipelineFile
from correlator.runtime import logs
from correlator.runtime.engine import Engine
from correlator.runtime.member import Member
from correlator.runtime.status import PIPELINE_TIMES, PipelineCounters, Status
from correlator.secrets import is_secret_name, url_passwords
from correlator.settings import EngineSettings
from correlator.storage.database import location
from correlator.storage.inspect import exists
from correlator.storage.reset import contents, reset
from correlator.storage.witness import witness_of

TICK_S = 0.1
COLUMNS = (
    "part",
    "received",
    "duplicates dropped",
    "dead letters",
    "sent",
    "checkpoints",
    "in/s",
    "out/s",
)


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
            run_it = _run if loaded.settings.shares is None else _run_member
            rows, status = run_it(file, loaded, watcher())
    write_table("Done" if status == 0 else "Stopped", COLUMNS, rows)
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


def _run(file: Path, loaded: Loaded[PipelineFile], shown: Watcher) -> tuple[list[Row], int]:
    """Run the engine; returns the rows of the table and the exit status."""
    with StopSignals() as signals:
        engine = build_engine(loaded.settings, [directory_of(file)], loaded.places)
        seconds = _drive(engine, signals, shown)
        status = engine.status()
        for name, did in status.pipelines.items():
            log = logs.get_logger(pipeline=name, batches=did.batches, received=did.received, sent=did.sent)
            log.info("time of a pipeline", **_times(did), commit_s=round(status.checkpoints.total_duration_s, 3))
        logs.get_logger().info("ended", seconds=round(seconds, 3))
        return _rows(status, seconds), signals.exit_status


def _run_member(file: Path, loaded: Loaded[PipelineFile], _: Watcher) -> tuple[list[Row], int]:
    """Run a member until a signal comes; returns the rows of the table, one for each share, and the exit status."""

    def make(settings: EngineSettings, **more: Any) -> Engine:
        assert isinstance(settings, PipelineFile)
        return build_engine(settings, [directory_of(file)], **more)

    with StopSignals() as signals, Member(loaded.settings, make_engine=make) as member:
        began = time.monotonic()
        notify("READY=1")
        heart = Heart(
            lambda: [engine.writer for engine in member.engines.values() if engine.writer is not None],
            lambda: f"runs {len(member.engines)} of the shares",
        )
        while signals.received is None and member.failure is None:
            if (line := progress.present()) is not None:
                line.show(f"running {len(member.engines)} of the shares")
            heart.beat()
            time.sleep(TICK_S)
        notify("STOPPING=1")
        if signals.received is not None:
            logs.get_logger().info("stopping", signal=signals.received.name)
    member.raise_failure()
    seconds = time.monotonic() - began
    logs.get_logger().info("ended", seconds=round(seconds, 3))
    every = [(f"share {number}", did) for number, did in sorted(member.totals.items())]
    total = sum((did for _, did in every), Counter())
    return [_row_of(name, did, seconds) for name, did in (*every, ("total", total))], signals.exit_status


def _state(status: Status) -> str:
    """One line for `systemctl status`."""
    reasons = status.not_ready()
    totals = status.totals()
    figures = ", ".join(f"{name} {totals[name]}" for name in ("received", "sent", "dead letters"))
    return printable(f"{f'not ready: {reasons[0]}' if reasons else 'ready'}; {figures}")


def _row_of(name: str, totals: Mapping[str, int], seconds: float) -> Row:
    figures = (totals.get(column, 0) for column in COLUMNS[1:6])
    return (name, *figures, _rate(totals.get("received", 0), seconds), _rate(totals.get("sent", 0), seconds))


def _drive(engine: Engine, signals: StopSignals, shown: Watcher) -> float:
    """Recover, run, and stop in order; returns the seconds since the end of recovery.

    A separate thread waits for the end of the engine, so that this thread can check signals and figures.
    """
    heart = Heart(lambda: [] if engine.writer is None else [engine.writer], lambda: _state(engine.status()))
    with engine:
        began = time.monotonic()
        logs.get_logger().info("running", receivers=len(engine.receivers), senders=len(engine.senders))
        notify("READY=1")
        waiting = _Waiting(engine)
        waiting.start()
        asked = False
        while waiting.is_alive():
            if signals.received is not None and not asked:
                asked = True
                logs.get_logger().info("stopping", signal=signals.received.name)
                engine.request_stop()
            waiting.join(TICK_S)
            heart.beat()
            shown.tick(engine.status())
        notify("STOPPING=1")
        waiting.raise_failure()
    engine.raise_failure()
    return time.monotonic() - began


class _Waiting(threading.Thread):
    """Waits for the end of a running engine, and keeps the error that it raised."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="waiting")
        self._engine = engine
        self._error: Exception | None = None

    def run(self) -> None:
        """Wait for the end. An engine without receivers works only by timers and has no end."""
        try:
            if self._engine.receivers:
                self._engine.run_until_ended()
            else:
                self._engine.run_forever()
        except Exception as error:  # noqa: BLE001  # raised again in the main thread
            self._error = error

    def raise_failure(self) -> None:
        """Raise the error of the engine, if there is one."""
        if self._error is not None:
            raise self._error


def _rows(status: Status, seconds: float) -> list[Row]:
    rows: list[Row] = []
    for name, (_, got) in status.receivers.items():
        counts = (got.received, got.duplicates, got.dead_letters)
        rows.append((f"receiver {name}", *counts, None, None, _rate(got.received, seconds), None))
    for name, (_, gave, _) in status.senders.items():
        rate = _rate(gave.sent, seconds)
        rows.append((f"sender {name}", None, None, gave.dead_letters, gave.sent, None, None, rate))
    for name, did in status.pipelines.items():
        rates = _rate(did.received, seconds), _rate(did.sent, seconds)
        rows.append((f"pipeline {name}", did.received, None, did.dead_letters, did.sent, None, *rates))
    return [*rows, _row_of("total", status.totals(), seconds)]


def _times(did: PipelineCounters) -> dict[str, float]:
    return {item: round(getattr(did, item), 3) for item in PIPELINE_TIMES}


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 1)
