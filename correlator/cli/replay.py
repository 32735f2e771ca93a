"""`correlator replay`: repeats what an engine did, from its input log, without opening a connection."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from correlator.cli.arguments import LogConfiguration, Share
from correlator.cli.loading import importable, load_engine
from correlator.cli.output import write_table
from correlator.errors import RecoveryRefused, UsageError, quoted
from correlator.runtime.comparison import line_of
from correlator.runtime.replay import Output, Replayed, replay

COLUMNS = ("log", "ended", "events", "timers", "checkpoints", "outputs", "dead letters", "last checkpoint", "digest")


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator replay` with `app`, the Typer application of all commands."""
    app.command("replay")(replay_log)


def replay_log(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Input log of one life of an engine.", show_default=False)],
    config: LogConfiguration = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the sent messages to this file, as lines of JSON.", show_default=False
        ),
    ] = None,
    expect: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Fail if the sent messages differ from the messages in this file.", show_default=False
        ),
    ] = None,
    share: Share = None,
    allow_connections: Annotated[bool, typer.Option("--allow-connections", hidden=True)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Repeat what an engine did in one life: the same monitors get the same inputs at the same engine times.

    The command fails if the content of a checkpoint differs from the recorded life. It sends nothing, and opens no
    connection and no store. Without --config it looks for modules in the working directory.
    """
    if allow_connections:
        raise UsageError(
            "E2042",
            "correlator replay",
            "connections cannot be allowed: the replayed messages were received and sent already",
            "A replay opens none",
            "Leave --allow-connections out; publish a message that should be sent once more",
        )
    if out is not None and expect is not None and out.resolve() == expect.resolve():
        raise UsageError(
            "E2004",
            "correlator replay --out",
            f"{quoted(str(out))} is the same file as --expect, and would be overwritten before the comparison",
            "",
            "Give --out another file",
        )
    with importable(config or Path("-")):
        settings = None if config is None else load_engine(config, share=share).settings
        replayed = replay(log, settings)
    if out is not None:
        _write(out, replayed.outputs)
    if expect is not None:
        _refuse_others(expect, replayed.outputs)
    write_table("Replayed", COLUMNS, [_row(log, replayed)], as_json=json)


def _row(log: Path, replayed: Replayed) -> Sequence[object]:
    return (
        str(log),
        replayed.failure or ("in order" if replayed.in_order else "killed"),
        replayed.events,
        replayed.timers,
        replayed.checkpoints,
        len(replayed.outputs),
        len(replayed.dead_letters),
        replayed.number,
        replayed.digest.hex(),
    )


def _write(path: Path, outputs: Sequence[Output]) -> None:
    try:
        with path.open("wb") as file:
            for output in outputs:
                file.write(msgspec.json.encode(line_of(output)) + b"\n")
    except OSError as error:
        raise UsageError("E2041", str(path), f"cannot be written: {error.strerror}") from error


def _refuse_others(path: Path, outputs: Sequence[Output]) -> None:
    """Raise `RecoveryRefused` E2044 at the first difference from the expected messages."""
    try:
        wanted = [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]
    except OSError as error:
        raise UsageError("E2041", str(path), f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError("E2041", str(path), f"is not JSON lines: {error}") from error
    lines = (msgspec.json.decode(msgspec.json.encode(line_of(output))) for output in outputs)
    for number, (expected, found) in enumerate(itertools.zip_longest(wanted, lines), 1):
        if expected != found:
            raise RecoveryRefused(
                "E2044",
                f"{path}:{number}",
                f"expected {quoted(_text(expected))}, the replay gave {quoted(_text(found))}",
            )


def _text(line: Any) -> str:
    return "nothing" if line is None else msgspec.json.encode(line).decode()
