"""Results on standard output: a table on a terminal, plain lines with tabs elsewhere, JSON when asked for."""

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from correlator.errors import UsageError, printable

CLOSED_STATUS = 141
"""As of a program that SIGPIPE ended: nobody reads on, which is no error (`| head`)."""
_LONGEST_TEXT = 200

Row = Sequence[object]


class Unfailing:
    """Standard error that nobody may be reading any more: writing to it must never stop an engine.

    Where it is closed from the beginning, messages go nowhere; without this they would go to standard output.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or Path(os.devnull).open("w")  # noqa: SIM115  # as long as the process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def is_terminal() -> bool:
    """Whether results are read by a person."""
    return sys.stdout is not None and sys.stdout.isatty()


def write_line(text: str) -> None:
    """One line of a result."""
    _write(f"{printable(text)}\n")


def write_json(value: object) -> None:
    """A result as JSON, indented."""
    _write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def write_table(title: str, columns: Sequence[str], rows: Iterable[Row], *, as_json: bool = False) -> None:
    """A result of several rows; JSON gives one object for each, with the columns as names."""
    if as_json:
        write_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif is_terminal():
        _write(_drawn(title, columns, rows))
    else:
        lines = [columns, *(list(map(shown, row)) for row in rows)]
        _write("".join("\t".join(line) + "\n" for line in lines))


def shown(value: object) -> str:
    """A value as one cell: on one line, without control characters; bytes as text where they are text."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return printable(f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value))


def shortened(text: str) -> str:
    """A text that fits into a table."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _drawn(title: str, columns: Sequence[str], rows: Iterable[Row]) -> str:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold")  # never cut: a person may want to copy it
    for row in rows:
        table.add_row(*(Text(shown(value), justify="right" if _is_number(value) else "left") for value in row))
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _write(text: str) -> None:
    """Raises `typer.Exit` when nobody reads on, `UsageError` E2013 when it cannot be written for another reason."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError as error:
        _give_up_output()
        raise typer.Exit(CLOSED_STATUS) from error
    except OSError as error:
        _give_up_output()
        raise UsageError("E2013", "standard output", f"cannot be written: {error.strerror}") from error


def _give_up_output() -> None:
    """What is still buffered would fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
