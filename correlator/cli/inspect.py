"""`correlator inspect`: shows the content of a store, through a read-only connection, even while an engine runs."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from correlator.cli.arguments import Share, Target
from correlator.cli.loading import store_url
from correlator.cli.output import Row, shortened, shown, write_table
from correlator.events import DeadLetter
from correlator.storage import inspect as store
from correlator.storage.states import ShownState, shown_state

_LONGEST_VALUE = 2_000


class StorePart(StrEnum):
    """A part of a store that the command can show."""

    REGISTRY = "registry"
    RECEIVE_LOG = "receive-log"
    OUTBOX = "outbox"
    DUPS = "dups"
    CHECKPOINTS = "checkpoints"
    STATE = "state"
    DEAD_LETTERS = "dead-letters"


class View(NamedTuple):
    """How the command shows a part of a store.

    Attributes:
        title: the title of the table.
        columns: the names of the columns.
        rows: reads the rows.
        text: makes a row fit into a table.
    """

    title: str
    columns: Sequence[str]
    rows: Callable[[str], Sequence[Row]]
    text: Callable[[Any], Row] = tuple


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator inspect` with `app`, the Typer application of all commands."""
    app.command("inspect")(inspect_store)


def inspect_store(
    part: Annotated[StorePart, typer.Argument(metavar="PART", help="What to show.", show_default=False)],
    target: Target,
    share: Share = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list with an object for each row.")] = False,
) -> None:
    """Show what a store holds, as one consistent snapshot. Changes nothing; an engine may be running.

    registry: receivers and senders. receive-log: received messages that not every context has handled. outbox: sends
    that are not confirmed. dups: ids of duplicate detection. checkpoints: the last checkpoint. state: the values of
    monitors, tables and keyed steps, by key. dead-letters: messages that could not be processed or sent.

    The path of a SQLite store is relative to the working directory, even if a configuration file names it.
    """
    view = VIEWS[part]
    rows = view.rows(store_url(target, share))
    write_table(view.title, view.columns, rows if json else map(view.text, rows), as_json=json)


def _registry(url: str) -> list[Row]:
    return [
        (one.id, one.kind, one.origin, one.reliability, one.connection, one.destination, one.domain, one.source)
        for one in store.registry(url)
    ]


def _segments(read: Callable[[str], list[store.StoredSegment]]) -> Callable[[str], list[Row]]:
    return lambda url: [(one.owner, one.first, one.last, one.last - one.first + 1, one.size) for one in read(url)]


def _domains(url: str) -> list[Row]:
    return [(one.domain, one.ids, one.segments) for one in store.domains(url)]


def _checkpoints(url: str) -> list[Row]:
    """Return a row for the checkpoint, and one for each context and sender in it."""
    rows: list[Row] = []
    for one in store.checkpoints(url):
        rows.append((one.number, one.engine_time, "digest", one.digest.hex()))
        rows += [(one.number, one.engine_time, f"context {name}", f"{n} waiting") for name, n in one.waiting.items()]
        for cut in one.senders:
            text = f"next {cut.next_sequence}, confirmed through {cut.confirmed_through}"
            rows.append((one.number, one.engine_time, f"sender {cut.sender}", text))
    return rows


def _state(url: str) -> Sequence[ShownState]:
    return shown_state(store.state(url))


def _state_text(one: ShownState) -> Row:
    text = "" if one.problem else msgspec.json.encode(one.value).decode()
    return one._replace(value=shortened(text, _LONGEST_VALUE))


def _dead_letters(url: str) -> list[Row]:
    return [
        (number, letter.kind, letter.origin, letter.unique_id, letter.time, letter.reason, _body(letter))
        for number, letter in ((row.number, row.letter) for row in store.dead_letters(url))
    ]


def _body(letter: DeadLetter) -> str:
    return shortened(shown(letter.message.body))


_SEGMENT = ("first", "last", "messages", "bytes")
VIEWS = {
    StorePart.REGISTRY: View(
        "Receivers and senders",
        ("id", "kind", "origin", "reliability", "connection", "destination", "domain", "source"),
        _registry,
    ),
    StorePart.RECEIVE_LOG: View(
        "Received, not yet in a checkpoint", ("receiver", *_SEGMENT), _segments(store.receive_log)
    ),
    StorePart.OUTBOX: View("Sends not known to be confirmed", ("sender", *_SEGMENT), _segments(store.outbox)),
    StorePart.DUPS: View("Duplicate detection", ("domain", "ids", "segments"), _domains),
    StorePart.CHECKPOINTS: View("Last checkpoint", ("number", "engine_time", "part", "value"), _checkpoints),
    StorePart.STATE: View("State", ("owner", "key", "bytes", "value", "problem"), _state, _state_text),
    StorePart.DEAD_LETTERS: View(
        "Dead letters", ("number", "kind", "origin", "unique_id", "engine_time", "reason", "body"), _dead_letters
    ),
}
