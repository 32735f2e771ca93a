"""`correlator publish`: sends the lines of a file, or of standard input, to a destination."""

import codecs
import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from correlator.cli.arguments import ConfigurationFile, ConnectionName
from correlator.cli.failures import telling
from correlator.cli.loading import connection_of, importable, load_engine
from correlator.cli.output import write_line
from correlator.connector import Sink
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, SendRejected, UsageError, quoted
from correlator.events import Message, Outgoing
from correlator.pipeline.spec import PipelineFile
from correlator.settings import SenderSettings

_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BATCH = 500
LONGEST_LINE = 10 * 1024 * 1024
MOST_NAMED = 20


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator publish` with `app`, the Typer application of all commands."""
    app.command()(publish)


def publish(
    file: ConfigurationFile,
    connection: ConnectionName,
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DESTINATION", help="queue:NAME, topic:NAME or a logical destination of FILE.", show_default=False
        ),
    ],
    messages: Annotated[
        str, typer.Argument(metavar="MESSAGES_FILE", help="File with one message in each line; - is standard input.")
    ] = "-",
    text: Annotated[bool, typer.Option("--text", help="Accept lines that are not JSON.")] = False,
) -> None:
    """Send each line of a file to a queue or topic, as the body of a message.

    A line must be JSON unless --text is given; empty lines are left out. The command waits until the broker has
    confirmed every message. If a line is no JSON or is too long, or if the broker refuses it, the command names it with
    the reason, publishes all other lines, and exits with 2.
    """
    with importable(file):
        loaded = load_engine(file)
    with telling(loaded.secrets.redact), _lines_of(messages) as lines:
        place = loaded.settings.destinations.get(destination, destination)
        publisher = CountingPublisher(_sink(connection, place, loaded.settings), place)
        try:
            publisher.publish(_bodies(lines, text=text))
        except CorrelatorError:
            if publisher.confirmed:
                write_line(f"{publisher.confirmed} published")
            raise
        finally:
            publisher.close()
        write_line(f"{publisher.confirmed} published")
        publisher.raise_refused()


class CountingPublisher:
    """Sends messages to one destination, and counts them.

    Attributes:
        confirmed: number of messages that the broker has confirmed.
    """

    def __init__(self, sink: Sink, destination: str) -> None:
        self.confirmed = 0
        self._sink = sink
        self._destination = destination
        self._refused: list[str] = []

    def publish(self, bodies: Iterable[tuple[int, bytes | UsageError]]) -> None:
        """Send bodies with their line numbers in order. An error in the place of a body is kept for `raise_refused`.

        Raises `ConnectionLost`, which names the lines that may have arrived.
        """
        self._sink.connect()
        batch: list[tuple[int, bytes]] = []
        for number, body in bodies:
            if isinstance(body, UsageError):
                self._refused.append(str(body))
                continue
            batch.append((number, body))
            if len(batch) == BATCH:
                self._send(batch)
                batch = []
        self._send(batch)

    def _send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        if not batch:
            return
        outgoing = [Outgoing(number, "", self._destination, Message(body)) for number, body in batch]
        try:
            results = self._sink.send(outgoing)
        except ConnectionLost as error:
            doubtful = f"Lines {batch[0][0]} to {batch[-1][0]} may have arrived"
            raise ConnectionLost(error.code, error.where, error.what, error.allowed, doubtful) from error
        self._note(batch, results)

    def _note(self, batch: Sequence[tuple[int, bytes]], results: Sequence[SendRejected | None]) -> None:
        for (number, _), result in zip(batch, results, strict=True):
            if result is None:
                self.confirmed += 1
            else:
                self._refused.append(f"line {number}: {result}")

    def raise_refused(self) -> None:
        """Raise `UsageError` E2029 if there are lines that were not published; it names them."""
        if self._refused:
            more = len(self._refused) - MOST_NAMED
            named = [*self._refused[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
            what = f"{len(self._refused)} lines are not published"
            raise UsageError("E2029", quoted(self._destination), what, "", "\n".join(["They are:", *named]))

    def close(self) -> None:
        """Close the connection to the broker."""
        self._sink.close()


def _sink(name: str, place: str, settings: PipelineFile) -> Sink:
    made = connection_of(name, settings)
    try:
        return made.sink(SenderSettings(id="publish", connection=name, destination=place))
    except ConfigError as error:
        raise UsageError(error.code, quoted(place), error.what, error.allowed, error.todo) from error


@contextlib.contextmanager
def _lines_of(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = Path(name).open("rb")  # noqa: SIM115  # closed below, so that errors of the block are not taken for its
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError("E2028", quoted(name), f"cannot be read: {reason}") from error
    with opened:
        yield opened


def _bodies(lines: BinaryIO, *, text: bool) -> Iterator[tuple[int, bytes | UsageError]]:
    """Return each line's number with its body, or with error E2028 if it is too long or no JSON."""
    for number in itertools.count(1):
        line = lines.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = lines.readline(LONGEST_LINE)
            yield number, _unusable(number, f"is longer than {LONGEST_LINE} bytes")
            continue
        body = line.removesuffix(b"\n").removesuffix(b"\r")
        if text or body.strip():
            yield number, body if text else _checked(number, body)


def _checked(number: int, body: bytes) -> bytes | UsageError:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if body.startswith(_BYTE_ORDER_MARKS):
            what, allowed = "begins with a byte order mark", "UTF-8 without a byte order mark"
            return _unusable(number, what, allowed, "Save the file without it")
        return _unusable(number, f"is not JSON: {error}")
    return body


def _unusable(number: int, what: str, allowed: str = "", todo: str = "") -> UsageError:
    return UsageError("E2028", f"line {number}", what, allowed, todo)
