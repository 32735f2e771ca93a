"""The sink of objects: each batch becomes one object, without the messages that the store already has."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

from connectors.objects.formats import Writer
from connectors.objects.series import Series
from connectors.objects.stores import Store
from connectors.own_source import OwnSource
from connectors.table_rules import check_gap, misfit
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Outgoing
from correlator.processes import LockFile, Maker
from correlator.settings import SenderSettings

_source_of = attrgetter("source")


class ObjectsSink:
    """Writes below the folder of its sender.

    Args:
        sender: the settings of the sender; its destination is the folder with the ending of the objects.
        store: the store that holds the objects.
        folder: the folder.
        ending: ending of the names.
        writer: makes the content.
        missing_up_to: number up to which the folder may lack messages of the sender.
    """

    def __init__(
        self, sender: SenderSettings, store: Store, folder: str, ending: str, writer: Writer, missing_up_to: int
    ) -> None:
        self._where = f"senders.{sender.id}"
        self._destination = sender.destination
        self._sends_again = sender.reliability != "BEST_EFFORT"
        self._store = store
        self._folder = folder
        self._ending = ending
        self._writer = writer
        self._missing_up_to = missing_up_to
        self._series: dict[str, Series] = {}
        self._locks: list[LockFile] = []
        self._own_source = OwnSource()
        self._maker = Maker()
        self._connected = False

    def connect(self) -> None:
        """Reach the store. Raises `UsageError` E2050 in a forked child of a process that uses it."""
        if self._connected:
            self._maker.check(self._where)
        self.close()
        self._maker = Maker()
        with self._closing_on_error():
            self._store.connect(self._where)
            self._store.check_creation(self._folder)
        self._connected = True

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Make an object from the messages of each source; the store has them when this returns. Raises
        `ConnectionLost`.
        """
        self._maker.check(self._where)
        if not self._connected:
            raise ConnectionLost("E7003", self._where, "not connected")
        with self._closing_on_error():
            parts = groupby(map(self._own_source.numbered, batch), _source_of)
            return [result for source, part in parts for result in self._add(source, list(part))]

    def close(self) -> None:
        """Release the locks. Does nothing in a forked child."""
        if self._maker.is_another_process:
            return
        for lock in self._locks:
            lock.close()
        self._locks.clear()
        self._series.clear()
        self._store.close()
        self._connected = False

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _add(self, source: str, part: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        series = self._series.get(source) or self._opened(source)
        if self._sends_again:
            cause = "its newest object was removed or replaced"
            check_gap(
                self._where,
                part[0],
                series.last,
                self._missing_up_to,
                kind="folder",
                holder=self._folder,
                cause=cause,
            )
        first, last = part[0].sequence, series.last
        earlier = series.refused_from(first) if first <= last else ()
        results: list[SendRejected | None] = []
        new: list[tuple[int, Any]] = []
        for out in part:
            row, refusal = self._row(out, was_refused=out.sequence in earlier or series.is_refused(out.sequence))
            if out.sequence > last:
                new.append((out.sequence, row))
                results.append(refusal)
            else:
                results.append(refusal if out.sequence in earlier else None)
        if new:
            series.add([number for number, _ in new], [row for _, row in new], self._writer)
        return results

    def _opened(self, source: str) -> Series:
        """Find out which messages of a source the store has, after excluding other processes that could add to it.

        A source that does not come back needs no exclusion: nobody else ever has it.
        """
        comes_back = self._sends_again and source != self._own_source.name
        lock = self._store.lock(self._folder, source) if comes_back else None
        if lock is not None:
            self._locks.append(lock)
        series = Series(self._where, self._store, self._folder, self._ending, source, comes_back=comes_back)
        self._series[source] = series
        return series

    def _row(self, out: Outgoing, *, was_refused: bool) -> tuple[Any, SendRejected | None]:
        """Return the row of a message, or why it is refused; an earlier life may have refused it."""
        if refusal := misfit(self._where, out, self._destination):
            return None, refusal
        try:
            row = self._writer.row(out)
        except ValueError as error:
            return None, self._refusal(out, str(error))
        if was_refused:
            return None, self._refusal(out, "the message did not fit when it was first sent")
        return row, None

    def _refusal(self, out: Outgoing, what: str) -> SendRejected:
        return SendRejected("E8110", f"{self._where} message {out.sequence}", what)
