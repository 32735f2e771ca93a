"""Writes results to standard output: a table on a terminal, lines with tabs elsewhere, or JSON."""

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
"""Exit status of a program that SIGPIPE ended: the reader has closed the pipe, which is no error (`| head`)."""
_LONGEST_TEXT = 200

Row = Sequence[object]


class Unfailing:
    """Wraps standard error so that writing never fails: an engine must not stop because nobody reads its log.

    If standard error is closed from the beginning, messages are dropped. Without this they would go to standard output.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or Path(os.devnull).open("w")  # noqa: SIM115  # as long as the process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text; an error is ignored."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush; an error is ignored."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def write_line(text: str) -> None:
    """Write one line of a result."""
    _write(f"{printable(text)}\n")


def write_json(value: object) -> None:
    """Write a result as indented JSON."""
    _write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def write_table(title: str, columns: Sequence[str], rows: Iterable[Row], *, as_json: bool = False) -> None:
    """Write a result with several rows. As JSON, each row is an object with the columns as keys."""
    if as_json:
        write_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif is_terminal():
        _write(_drawn(title, columns, rows))
    else:
        lines = [columns, *(list(map(shown, row)) for row in rows)]
        _write("".join("\t".join(line) + "\n" for line in lines))


def shown(value: object) -> str:
    """Make a value fit for one cell of a table: on one line, control characters escaped, bytes decoded as text."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return printable(f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value))


def shortened(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Cut a text so that it fits into a table."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def drawn_table(title: str, columns: Sequence[str], rows: Iterable[Row]) -> Table:
    """A table for a terminal."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold")  # never cut, so that a person can copy it
    for row in rows:
        table.add_row(*(Text(shown(value), justify="right" if _is_number(value) else "left") for value in row))
    return table


def _drawn(title: str, columns: Sequence[str], rows: Iterable[Row]) -> str:
    table = drawn_table(title, columns, rows)
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _write(text: str) -> None:
    """Write to standard output. Raises `typer.Exit` if its reader is gone, `UsageError` E2013 for another error."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError as error:
        _give_up_output()
        raise typer.Exit(CLOSED_STATUS) from error
    except OSError as error:
        _give_up_output()
        raise UsageError("E2013", "standard output", f"cannot be written: {error.strerror}") from error


def _give_up_output() -> None:
    """Send buffered output to /dev/null: writing it at the end of the interpreter would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
