"""`correlator receiver`, `sender`, `checkpoint`, `loglevel`, `events`: tell a running engine what to do, and follow it.

Each command sends a request to the control socket of the engine (docs/control.md).
"""

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from correlator.cli.arguments import ConfigurationFile, LogLevel, Overrides, Share
from correlator.cli.asking import ask, place_of
from correlator.cli.output import shown, write_json, write_line, write_table
from correlator.configuration import read_file
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.control.protocol import (
    LONGEST_WAIT_S,
    AskSettings,
    Drain,
    Follow,
    Pause,
    Resume,
    SetLevel,
    TakeCheckpoint,
)

FOLLOW_S = 10.0
"""Seconds that one request for events waits."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, max=LONGEST_WAIT_S, help="Wait at most this long."),
]
PartId = Annotated[str, typer.Argument(metavar="ID", help="Id of the receiver or sender.", show_default=False)]


class Act(StrEnum):
    """An order for a receiver or sender."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"


ActName = Annotated[Act, typer.Argument(metavar="pause|resume|drain", help="The order.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Register the commands with `app`, the Typer application of all commands."""
    app.command()(receiver)
    app.command()(sender)
    app.command()(checkpoint)
    app.command()(loglevel)
    app.command()(settings)
    app.command()(events)


def receiver(
    file: ConfigurationFile,
    part: PartId,
    act: ActName,
    timeout: Timeout = 60.0,
    json: Json = False,
    share: Share = None,
    overrides: Overrides = None,
) -> None:
    """Pause, resume or drain a receiver of the running engine.

    pause: it finishes its present batch and begins no further batch. resume: it goes on. drain: it pauses, and the
    command waits until all messages that it has taken are handled, in a checkpoint, and acknowledged; exit status 1 if
    that takes longer than --timeout. A pause ends with the engine.
    """
    _act("receiver", _place(file, overrides, share), part, act, timeout, as_json=json)


def sender(
    file: ConfigurationFile,
    part: PartId,
    act: ActName,
    timeout: Timeout = 60.0,
    json: Json = False,
    share: Share = None,
    overrides: Overrides = None,
) -> None:
    """Pause, resume or drain a sender of the running engine.

    pause: it sends no further batch, and its messages wait. resume: it goes on. drain: the command waits for a moment
    at which all of its messages are confirmed or dead letters; exit status 1 if that takes longer than --timeout. A
    pause ends with the engine.
    """
    _act("sender", _place(file, overrides, share), part, act, timeout, as_json=json)


def checkpoint(
    file: ConfigurationFile,
    timeout: Timeout = 60.0,
    json: Json = False,
    share: Share = None,
    overrides: Overrides = None,
) -> None:
    """Let the running engine take a checkpoint now; returns when the checkpoint is durable.

    If the last checkpoint holds everything already, there is nothing to do. Exit status 1 if it takes longer than
    --timeout.
    """
    counters = ask(_place(file, overrides, share), TakeCheckpoint(timeout), timeout)
    if json:
        write_json(counters)
    else:
        write_line(f"durable; checkpoints since the start: {counters['taken']}")


def loglevel(
    file: ConfigurationFile,
    level: Annotated[LogLevel, typer.Argument(case_sensitive=False, metavar="LEVEL", show_default=False)],
    logger: Annotated[
        str | None,
        typer.Option("--logger", metavar="NAME", help="A logger of Python's logging, as pika.", show_default=False),
    ] = None,
    json: Json = False,
    share: Share = None,
    overrides: Overrides = None,
) -> None:
    """Let the log of the running engine show lines of LEVEL and above: DEBUG, INFO, WARNING or ERROR.

    With --logger, let it show the lines of a library that the engine uses. Both last until the end of the process.
    """
    wanted: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = level.value
    answer = ask(_place(file, overrides, share), SetLevel(wanted, logger))
    if json:
        write_json(answer)
    else:
        write_line(f"{answer['logger'] or 'log'}: {answer['before']} -> {answer['level']}")


def settings(
    file: ConfigurationFile,
    defaults: Annotated[bool, typer.Option("--defaults", help="Also show settings that have their defaults.")] = False,
    json: Json = False,
    share: Share = None,
    overrides: Overrides = None,
) -> None:
    """Show the settings with which the running engine works, whatever the file says now, and where each comes from.

    The source is the place in a file, the command line, the code of a program, or the default. Secrets are ***. The
    command also shows the level of the log and the versions of libraries. With --json it shows all settings.
    """
    told = ask(_place(file, overrides, share), AskSettings())
    if json:
        write_json(told)
        return
    rows = [tuple(one.values()) for one in told["settings"] if defaults or one["source"] != "default"]
    write_table("Settings in use", ("part", "name", "value", "source"), rows)
    write_line(f"log level: {told['log_level'] or 'set by the program'}")
    write_line(f"versions: {', '.join(f'{name} {version}' for name, version in told['versions'].items())}")


def events(
    file: ConfigurationFile,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C or the end of the engine.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object in each line.")] = False,
    share: Share = None,
    overrides: Overrides = None,
) -> None:
    """Show the last changes of state of the running engine: connections, pauses, checkpoints, dead letters, errors."""
    place = _place(file, overrides, share)
    after = None
    while True:
        wait = FOLLOW_S if follow and after is not None else 0.0
        news = ask(place, Follow(after, wait), wait)
        if news["missed"]:
            write_line(_json_of({"event": "missed"}) if json else "… some events are lost")
        for event in news["events"]:
            write_line(_json_of(event) if json else _text_of(event))
        if not news["open"] or not (news["events"] or follow):
            return
        after = news["after"]


def _place(file: Path, overrides: list[str] | None, share: int | None) -> Sequence[Path]:
    return place_of(file, read_file(file, PipelineFile, overrides=overrides or ()).settings, share)


def _act(
    kind: Literal["receiver", "sender"], place: Sequence[Path], part: str, act: Act, timeout: float, *, as_json: bool
) -> None:
    match act:
        case Act.PAUSE:
            told = ask(place, Pause(kind, part))
        case Act.RESUME:
            told = ask(place, Resume(kind, part))
        case Act.DRAIN:
            told = ask(place, Drain(kind, part, timeout), timeout)
    if as_json:
        write_json(told)
        return
    paused = "paused" if told.get("paused") else "not paused"
    done = "drained, " if act is Act.DRAIN else ""
    left = told.get("state") if kind == "receiver" else f"{told.get('outstanding')} messages wait"
    write_line(f"{kind} {part}: {done}{paused} ({left})")


def _json_of(event: dict[str, Any]) -> str:
    return msgspec.json.encode(event).decode()


def _text_of(event: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event["time"]))
    values = {name: shown(value) for name, value in event.items() if name not in ("id", "time", "event")}
    return " ".join((at, event["event"], *(f"{name}={value}" for name, value in values.items() if value)))
