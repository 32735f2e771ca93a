"""The sink of the lake: each batch is one data file and one commit, without the messages that the table already has."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter

from connectors.lake.places import TablePlace
from connectors.lake.tables import TABLE_ERRORS, Commit, TableLog, unusable
from connectors.own_source import OwnSource
from connectors.table_rows import Row, RowMaker
from connectors.table_rules import check_gap, misfit
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Outgoing
from correlator.processes import LockFile, Maker
from correlator.settings import SenderSettings

_source_of = attrgetter("source")


class LakeSink:
    """Writes to the table of its sender.

    Args:
        sender: the settings of the sender; its destination is the table.
        place: the directory of the table.
        log: the log of the table.
        maker: makes rows from messages.
        missing_up_to: number up to which the table may lack messages of the sender.
    """

    def __init__(
        self, sender: SenderSettings, place: TablePlace, log: TableLog, maker: RowMaker, missing_up_to: int
    ) -> None:
        self._where = place.where
        self._destination = sender.destination
        self._sends_again = sender.reliability != "BEST_EFFORT"
        self._missing_up_to = missing_up_to
        self._place = place
        self._log = log
        self._rows = maker
        self._locks: dict[str, LockFile] = {}
        self._own_source = OwnSource()
        self._process = Maker()
        self._connected = False

    def connect(self) -> None:
        """Open the table; make it if it does not exist. Raises `UsageError` E2050 in a forked child of
        a process that uses it.
        """
        if self._connected:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        with self._translated():
            self._log.open()
        self._connected = True

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Add the rows of a batch; they are on disk when this returns. Raises `ConnectionLost`."""
        self._process.check(self._where)
        if not self._connected:
            raise ConnectionLost("E7003", self._where, "not connected")
        with self._translated():
            parts = groupby(map(self._own_source.numbered, batch), _source_of)
            return [result for source, part in parts for result in self._add(source, list(part))]

    def close(self) -> None:
        """Release the locks. Does nothing in a forked child."""
        if self._process.is_another_process:
            return
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()
        self._connected = False

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Close the sink after any error; an error of the file system or of a library becomes `ConnectionLost`."""
        try:
            yield
        except TABLE_ERRORS as error:
            self.close()
            raise unusable(self._place, error) from error
        except BaseException:
            self.close()
            raise

    def _add(self, source: str, part: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Add the rows of messages of one source."""
        self._place.check_in_place()
        if source not in self._locks:
            self._locks[source] = self._place.lock(source)
        last = self._log.last(source)
        if self._sends_again:
            cause = "the table was removed or restored"
            holder = str(self._place.path)
            check_gap(self._where, part[0], last, self._missing_up_to, kind="table", holder=holder, cause=cause)
        earlier = self._log.refused(source, part[0].sequence) if part[0].sequence <= last else ()
        results: list[SendRejected | None] = []
        new: list[tuple[Outgoing, Row | None]] = []
        for out in part:
            if out.sequence <= last:
                results.append(self._refused_before(out) if out.sequence in earlier else None)
                continue
            row, refusal = self._row(out)
            new.append((out, row))
            results.append(refusal)
        if new:
            self._commit(source, new)
        return results

    def _row(self, out: Outgoing) -> tuple[Row | None, SendRejected | None]:
        """Return the row of a message, or why it is refused."""
        if refusal := misfit(self._where, out, self._destination):
            return None, refusal
        try:
            return self._rows.row(out), None
        except ValueError as error:
            return None, self._refusal(out, str(error))

    def _refused_before(self, out: Outgoing) -> SendRejected:
        """Return the refusal of a message that an earlier commit has refused, whatever the present columns are."""
        _, refusal = self._row(out)
        return refusal or self._refusal(out, "the message did not fit the schema when it was first sent")

    def _refusal(self, out: Outgoing, what: str) -> SendRejected:
        return SendRejected("E8110", f"{self._where} message {out.sequence}", what)

    def _commit(self, source: str, new: Sequence[tuple[Outgoing, Row | None]]) -> None:
        first, last = new[0][0].sequence, new[-1][0].sequence
        rows = [row for _, row in new if row is not None]
        refused = [out.sequence for out, row in new if row is None]
        digest = self._digest(new)
        file = None
        if rows:
            file = self._place.write(source, f"{first}-{last}-{digest[:16]}", self._rows.table(rows))
        self._log.commit(Commit(source, first, last, refused, file, digest))

    def _digest(self, new: Sequence[tuple[Outgoing, Row | None]]) -> str:
        """Return the digest of the columns and the rows: equal input has equal digests in each life."""
        digest = hashlib.sha256(repr(self._rows.arrow).encode())
        for out, row in new:
            digest.update(repr((out.sequence, row)).encode(errors="backslashreplace"))
        return digest.hexdigest()
