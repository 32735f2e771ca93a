"""The source of a table that it only reads: it reads the rows in the order of a column whose values grow.

No row may appear before rows that were already read. In PostgreSQL a column with the number of the transaction ensures
this: the source reads the rows of a transaction only if no transaction with a lower number is still open. Otherwise the
source waits with the newest rows for the time `lag`, in which the transactions of earlier rows must end (`Horizon`).
"""

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
from sqlalchemy import URL, Connection

from connectors.sidecars import lock, read_whole, sidecar
from connectors.sql.database import open_database, translated
from connectors.sql.polled_dialects import Place
from connectors.sql.polled_table import Polled, PolledRow, PolledTable
from connectors.sql.row_progress import RowProgress
from connectors.sql.table_source import TableSource
from connectors.sql.waking import Changes, Nothing
from correlator import durable
from correlator.connector import Chunk
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, Headers, Message
from correlator.settings import ReceiverSettings

_MOST_ROWS = 10_000
"""Most rows to remember after an unacknowledged one, in addition to those that the receiver holds."""
_SAMPLES = 16


class _Position(msgspec.Struct):
    """The content of the sidecar.

    Attributes:
        identity: identity of the table.
        order: the columns that order its rows.
        place: all rows up to this place are acknowledged.
        done: the places of further rows that are acknowledged.
    """

    identity: str
    order: list[str]
    place: list[int | float | str]
    done: list[list[int | float | str]]


_decoder = msgspec.json.Decoder(_Position)


class Horizon:
    """Tracks which rows have existed for long enough. Times are seconds of a clock that does not go back.

    Args:
        lag_s: seconds for which a row must have existed.
    """

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._samples: deque[tuple[float, Place]] = deque()

    def sample(self, now: float, last: Place) -> None:
        """Note the place of the last row that existed at some time before `now`."""
        if not self._samples or (last != self._samples[-1][1] and now >= self._samples[-1][0] + self._lag_s / _SAMPLES):
            self._samples.append((now, last))

    def place(self, now: float) -> Place | None:
        """Return the place up to which all rows have existed for long enough; `None` if no such place is known."""
        while len(self._samples) > 1 and self._samples[1][0] + self._lag_s <= now:
            self._samples.popleft()
        if not self._samples or self._samples[0][0] + self._lag_s > now:
            return None
        return self._samples[0][1]

    def due_in_s(self, now: float) -> float:
        """Return the seconds until further rows will have existed for long enough, as far as it knows."""
        due = [at + self._lag_s - now for at, _ in self._samples if at + self._lag_s > now]
        return min(due, default=float("inf"))


class PolledSource(TableSource):
    """Reads the rows of a polled table.

    Args:
        receiver: the settings of the receiver.
        url: address of the database.
        polled: the table.
        poll_interval_s: see `TableSource`.
        state: the directory of the sidecar with the position.
    """

    def __init__(
        self, receiver: ReceiverSettings, url: URL, polled: Polled, poll_interval_s: float, state: Path
    ) -> None:
        super().__init__(polled.where, receiver, url, polled.table, poll_interval_s)
        self._polled = polled
        self._path = sidecar(state, "position", polled.table, receiver.subscription)
        self._lock_path = sidecar(state, "position.lock", polled.table, receiver.subscription)
        self._progress = RowProgress((), ())
        self._horizon: Horizon | None = None

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Move the position; it is on disk when this returns. A token from before a reconnect acknowledges nothing."""
        with translated(self._where, self.close):
            self._connected()
            if self._progress.acknowledge(tokens):
                self._save()

    def reject(self, tokens: Sequence[int]) -> None:
        """Give these rows back: `receive` returns them again, before new rows. Raises `ConnectionLost`."""
        self._connected()
        self._progress.reject(tokens)
        self._next_look = 0.0

    def _begin(self) -> None:
        """See `TableSource`. Continues after the acknowledged position.

        Raises `ConnectionLost` E7012 while another receiver with this subscription reads the table, and E7017 if the
        position belongs to another table.
        """
        self._lock = lock(self._lock_path, self._where)
        connection = self._connection = open_database(self._where, self._url, defers=True)
        with connection.begin():
            if connection.dialect.name == "postgresql":  # so that the texts of places do not depend on settings
                connection.exec_driver_sql("SET datestyle = 'ISO'; SET timezone = 'UTC'; SET extra_float_digits = 1")
            self._table = PolledTable(connection, self._polled)
            self._find_place(connection)
        self._watch = Changes(connection) if connection.dialect.name == "sqlite" else Nothing()
        lag_s = 0.0 if self._table.by_transaction else self._polled.lag_s or 0.0
        self._horizon = Horizon(lag_s) if lag_s else None

    def _look(self, connection: Connection, limit: int, now: float) -> Chunk:
        """Return the rows that were given back, then the next ones."""
        rows = self._again(connection, limit) or self._further(connection, limit, now)
        return Chunk([self._message(row) for row in rows], self._progress.hold([row.place for row in rows]))

    def _room(self) -> int:
        most = self._receiver.max_batch_size
        return min(most - self._progress.held, most + _MOST_ROWS - len(self._progress))

    def _pause_s(self, now: float) -> float:
        if self._horizon is None:
            return self._poll_interval_s
        return min(self._poll_interval_s, self._horizon.due_in_s(now))

    def _find_place(self, connection: Connection) -> None:
        """Continue from the stored position. Without one, begin as the options say, and store this position."""
        content = read_whole(self._path)
        if content is not None:
            kept = self._kept(content)
            self._progress = RowProgress(tuple(kept.place), [tuple(one) for one in kept.done])
            return
        self._progress = RowProgress(self._table.present(connection) if self._polled.starts_next else (), ())
        self._save()

    def _kept(self, content: bytes) -> _Position:
        """Read the sidecar. Raises `ConnectionLost` E7017 if it does not fit the table."""
        try:
            kept = _decoder.decode(content)
        except msgspec.MsgspecError as error:
            raise self._misfit("is damaged") from error
        if kept.order != self._table.order:
            raise self._misfit(f"belongs to the order {', '.join(kept.order)}")
        if kept.identity != self._table.identity:
            what = f"belongs to another table, {kept.identity}: the present one, {self._table.identity}, was made anew"
            raise self._misfit(f"{what} or lies in another schema, or the database was restored")
        return kept

    def _misfit(self, what: str) -> ConnectionLost:
        todo = f"Restore what was there, or remove {self._path} to begin anew"
        return ConnectionLost("E7017", self._where, f"the position in {self._path} {what}", "", todo)

    def _save(self) -> None:
        progress = self._progress
        position = _Position(
            self._table.identity, self._table.order, list(progress.place), [list(one) for one in progress.done]
        )
        durable.replace(self._path, msgspec.json.encode(position))

    @property
    def _bounds(self) -> tuple[int, int]:
        return self._receiver.max_message_bytes, self._receiver.max_batch_bytes

    def _again(self, connection: Connection, limit: int) -> list[PolledRow]:
        """Return rows that were given back. Rows that no longer exist count as acknowledged."""
        progress = self._progress
        after = progress.before_returned
        while after is not None:
            rows = self._table.read(connection, after, progress.end, limit, self._bounds)
            again = [row for row in rows if progress.is_returned(row.place)]
            if again:
                return again
            after = rows[-1].place if rows else None
            if after is None:
                progress.forget_returned()
        return []

    def _further(self, connection: Connection, limit: int, now: float) -> list[PolledRow]:
        """Return the next rows that were never acknowledged. The transaction began after `now`."""
        until: Place | None = None
        if self._horizon is not None:
            until = self._horizon.place(now)
            last = self._table.last(connection)
            self._horizon.sample(time.monotonic(), last)
            if not until:
                return []
        while rows := self._table.read(connection, self._progress.end, until, limit, self._bounds):
            fresh = self._progress.read([row.place for row in rows])
            if any(fresh):
                return [row for row, is_fresh in zip(rows, fresh, strict=True) if is_fresh]
        return []

    def _message(self, row: PolledRow) -> Message:
        unique = f"{msgspec.json.encode(row.place).decode()}:{self._table.identity}"
        properties = self._ids(unique)
        if row.size > len(row.body):
            properties[CUT_FROM] = row.size
        return Message(row.body, properties, None, None, Headers(message_id=unique))
