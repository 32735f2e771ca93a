"""Reads the content of a store after a power cut, as far as facts can be compared with it.

`read` looks at rows with the product's own decoding and checks, but without the steps that an engine takes once in a
life (lock, migration, epoch), which cost ten times as much. `opened` starts as an engine does.
"""

import contextlib
import functools
import sqlite3
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from correlator.core.commit import ContextCut, OutboundSegment, ReceiveSegment, SenderCut, StateSegment
from correlator.errors import RecoveryRefused
from correlator.storage import files, inspect, loading
from correlator.storage.failures import damaged
from correlator.storage.store import SqlStore
from correlator.storage.witness import Witness
from tests.harness.power import workload

_COUNTS = f"table:{workload.Ledger.state_name}#0.counts"
_text = msgspec.msgpack.Decoder(str).decode


class ImageContent(NamedTuple):
    """The content of a store.

    Attributes:
        checkpoint: the number of the last checkpoint, 0 if there is none.
        digest: the digest of that checkpoint.
        senders: the senders at that checkpoint, by id.
        outbox: for each sender, the bodies by number.
        counted: the ids whose effect is in the state of that checkpoint.
        waiting: the ids of messages in the receive log that are not handled at that checkpoint.
        dead: the ids of dead letters.
        refusal: why an engine refuses to start on the store, "" if it does not.
    """

    checkpoint: int
    digest: bytes
    senders: Mapping[str, SenderCut]
    outbox: Mapping[str, Mapping[int, bytes]]
    counted: AbstractSet[str]
    waiting: AbstractSet[str]
    dead: AbstractSet[str]
    refusal: str = ""


def read(directory: Path) -> ImageContent:
    """Read the store of an image. SQLite recovers it as for any process that opens it.

    Raises:
        sqlite3.Error: SQLite cannot read it.
        CorrelatorError: E3002, E4201, E4202 as at a start.
    """
    path = directory / workload.FILE
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA locking_mode = EXCLUSIVE")  # no other process opens it, so SQLite needs no shared memory
        raw.execute("BEGIN")
        (verdict,) = raw.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(str(path), verdict)
        rows = {table: _rows(raw, table) for table in _TABLES}
    for row in rows["accepted_ids"]:
        loading.ids_of(row)
    cuts = [loading.cut_of(row) for row in rows["checkpoint"]]
    number, digest = (cuts[0].number, cuts[0].digest) if cuts else (0, b"")
    return ImageContent(
        number,
        digest,
        {sender.sender: sender for cut in cuts for sender in cut.senders},
        _outbox(loading.outbound_of(row) for row in rows["outbox"]),
        _counted(loading.state_of(row) for row in rows["state_log"]),
        _waiting([context for cut in cuts for context in cut.contexts], map(loading.received_of, rows["receive_log"])),
        {str(loading.letter_of(row).message.properties["id"]) for row in rows["dead_letter"]},
        _refusal(path, number),
    )


def opened(directory: Path) -> ImageContent:
    """Return the content that the start of an engine finds. Raises as `SqlStore.read`."""
    url = f"sqlite:///{directory / workload.FILE}"
    store = SqlStore(url, workload.NAME)
    try:
        recovered = store.read()
        counted = _counted(recovered.state)
    finally:
        store.close()
    return ImageContent(
        recovered.checkpoint,
        recovered.digest,
        {sender.sender: sender for sender in recovered.senders},
        _outbox(recovered.outbound),
        counted,
        _waiting(recovered.contexts, recovered.receive_log),
        {str(row.letter.message.properties["id"]) for row in inspect.dead_letters(url)},
    )


_TABLES = {
    "accepted_ids": "domain, number",
    "checkpoint": "number",
    "dead_letter": "number",
    "outbox": "sender, first",
    "receive_log": "receiver, first",
    "state_log": "number",
}
"""The tables to read, and the order of their rows."""


def _rows(raw: sqlite3.Connection, table: str) -> Sequence[Any]:
    """Return the rows of a table with columns as attributes, as the decoding needs them."""
    cursor = raw.execute(f"SELECT * FROM {table} ORDER BY {_TABLES[table]}")  # the names are constants of this module
    row = _row(tuple(name for name, *_ in cursor.description))
    return [row(*values) for values in cursor]


@functools.cache
def _row(columns: tuple[str, ...]) -> Any:
    return namedtuple("_Row", columns)  # noqa: PYI024  # the columns are the database's


def _outbox(segments: Iterable[OutboundSegment]) -> dict[str, dict[int, bytes]]:
    bodies: dict[str, dict[int, bytes]] = {}
    for segment in segments:
        of_sender = bodies.setdefault(segment.sender, {})
        of_sender.update((number, message.body) for number, message in enumerate(segment.messages, segment.first))
    return bodies


def _counted(segments: Iterable[StateSegment]) -> set[str]:
    """Return the keys of the table in which the application counts the ids that it has handled."""
    living: dict[bytes, bytes | None] = {}
    for segment in segments:
        living.update({entry.key: entry.value for entry in segment.entries if entry.owner == _COUNTS})
    return {_text(key) for key, value in living.items() if value is not None}


def _waiting(contexts: Sequence[ContextCut], log: Iterable[ReceiveSegment]) -> set[str]:
    """Return the messages of the receive log that have not entered their context at the checkpoint, or
    wait in its queue.
    """
    entered = {receiver: number for context in contexts for receiver, number in context.entered.items()}
    queued = {
        (run.receiver, number)
        for context in contexts
        for run in context.queue
        for number in range(run.first, run.first + run.count)
    }
    return {
        str(message.properties["id"])
        for segment in log
        for number, message in enumerate(segment.messages, segment.first)
        if number > entered.get(segment.receiver, 0) or (segment.receiver, number) in queued
    }


def _refusal(path: Path, checkpoint: int) -> str:
    try:
        Witness(files.beside(path, ".witness"), workload.NAME).refuse_older(str(path), checkpoint)
    except RecoveryRefused as error:
        return str(error)
    return ""
