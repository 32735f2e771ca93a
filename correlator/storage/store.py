"""The store of an engine (port `Store`): each commit is one transaction, fenced by epoch and number.

A start reads the store in one short transaction and takes the next epoch in a second one. Between the two the engine
makes all parts that may refuse the start, which can take minutes; no transaction is open meanwhile. The second
transaction compares epoch and commit number with those that were read, so nothing has changed since the engine read.
"""

import functools
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, insert, select, update

from correlator.core.commit import CheckpointCommit, ReceiveCommit, Recovered, StateSegment, Write
from correlator.core.deadletters import Letter
from correlator.core.faults import point
from correlator.errors import CommitUnknown, Fenced, RecoveryRefused
from correlator.storage import codec, files, loading, migrate, tables
from correlator.storage import database as databases
from correlator.storage.owned import Database, closed
from correlator.storage.sqlite import SqliteDatabase
from correlator.storage.statements import Statements
from correlator.storage.witness import Witness, witness_of
from correlator.storage.writes import THE_ROW, TransactionPlan


class _Points(NamedTuple):
    """The fault points around a transaction of one kind."""

    begin: str
    fence: str
    before: str
    after: str


_CHECKPOINT = _Points("ck.tx.begin", "ck.tx.fence", "ck.tx.commit.before", "ck.tx.commit.after")
_RECEIVE = _Points("rx.tx.begin", "rx.tx.fence", "rx.tx.commit.before", "rx.tx.commit.after")
_REGISTRY = _Points("cfg.tx.begin", "cfg.tx.fence", "cfg.tx.commit.before", "cfg.tx.commit.after")


class SqlStore:
    """The store of an engine in a SQLite file or a PostgreSQL schema.

    The thread that starts the engine calls `read` and `take_over`; afterwards only the writer thread uses the store. A
    forked child cannot use it (E3107). Every method may raise the `StoreError`s that `correlator.storage.database`
    lists.

    Args:
        url: `sqlite:///path` or `postgresql://…`.
        name: name of the engine; the store cannot be opened under another name.
        witness_directory: directory for the witness (trap T33) of a PostgreSQL store, which has no witness without it.
            The witness of a SQLite store lies beside the store.
        displace: whether `read` ends the session of an owner of a PostgreSQL store that has the same application name,
            because its lease of the store has ended (`correlator.storage.leases`).
    """

    def __init__(self, url: str, name: str, *, witness_directory: Path | None = None, displace: bool = False) -> None:
        self._url = url
        self._displace = displace
        self._name = name
        self._witness_directory = witness_directory
        self._database: Database | None = None
        self._statements: Statements
        self._witness: Witness
        self._epoch = 0
        self._dead_letters = 0
        self._unresolved: TransactionPlan | None = None

    def read(self) -> Recovered:
        """Lock the store, bring its schema up to date, check and read it; writes nothing but a newer schema.

        The result reads `state` and `ids` from the store during each iteration over them, which is possible until the
        first commit.

        Raises:
            Fenced: E3201, another engine owns the store.
            RecoveryRefused: E4310, the store belongs to another engine name; E4311, it is older than its witness;
                E4201, a row was changed by hand.
            StoreError: the store cannot be used.
        """
        point("rec.lock")
        self._database = databases.connect(self._url, displace=self._displace)
        try:
            return self._read(self._database)
        except BaseException:
            self.close()
            raise

    def take_over(self, recovered: Recovered) -> None:
        """Take the epoch `recovered.epoch`, unless the store has changed since it was read.

        If the server has meanwhile ended the idle session, a new session takes the lock again.

        Raises:
            Fenced: E3201, another engine owns the store now; E3202, the store has changed; E3203, the session has lost
                its lock.
            StoreError: the store cannot be written, or the session was lost while it was written (E3105).
        """
        database = self._opened()
        try:
            database.confirm_lock(at_once=True)
        except CommitUnknown:
            database.reconnect()
        with database.transaction() as connection:
            row = _locked_row(connection)
            self._refuse_changed(recovered, row)
            _take_epoch(connection, self._name, recovered.epoch, new=row is None)
            point("rec.epoch.commit.before")
        point("rec.epoch.commit.after")
        self._epoch, self._dead_letters = recovered.epoch, row.dead_letters if row else 0
        database.tidy()

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """Write everything in one transaction, which checks the epoch and `number` (the previous number plus 1).

        Raises:
            StoreBusy: it was rolled back; the caller tries again.
            CommitUnknown: the answer was lost; the caller calls `resolve`.
            Fenced: E3202, another engine has taken over; the caller stops.
            StoreError: the outcome may be unknown; the caller stops, and the next start reads what was committed.
        """
        plan = TransactionPlan(self._statements, writes, self._dead_letters)
        points = _points_of(writes)
        point(points.begin)
        try:
            with self._opened().transaction() as connection:
                self._fence(connection, number)
                point(points.fence)
                for step in plan.steps:
                    point(step.point)
                    step.run(connection)
                point(points.before)
        except CommitUnknown:
            self._unresolved = plan
            raise
        point(points.after)
        self._committed(plan)

    def resolve(self, number: int) -> bool:
        """Return, after `CommitUnknown`, whether transaction `number` was committed.

        Raises:
            CommitUnknown: the server cannot be reached; the caller asks again later.
            Fenced: E3201, E3202, another engine has taken over.
        """
        point("ck.resolve_ambiguous")
        database = self._opened()
        database.reconnect()
        with database.transaction() as connection:
            row = connection.execute(select(tables.engine).with_for_update()).one_or_none()
        if row is None or row.epoch != self._epoch or row.commit_number not in (number, number - 1):
            raise self._fenced(number, row)
        plan, self._unresolved = self._unresolved, None
        if row.commit_number == number and plan is not None:
            self._committed(plan)
        return bool(row.commit_number == number)

    def confirm_lock(self) -> float | None:
        """Check whether this engine still has the lock, if the check is due.

        Returns the seconds until the next check is due, `None` if the lock cannot be lost.

        Raises:
            CommitUnknown: the session with the server was lost; the caller calls `resolve`.
            Fenced: E3203, the session has lost its lock.
        """
        return self._opened().confirm_lock()

    def read_state(self, numbers: Sequence[int]) -> Sequence[StateSegment]:
        """Read state segments by number, in the order of their numbers. The writer calls it to compact the state
        log.
        """
        with self._opened().transaction() as connection:
            return loading.state_by_number(connection, numbers)

    def read_letters(self, above: int, most: int) -> Sequence[Letter]:
        """Read the next dead letters with larger numbers than `above`, in the order of their numbers: at most `most`,
        and about 16 MiB together, but at least one.
        """
        with self._opened().transaction() as connection:
            return loading.letters_above(connection, above, most)

    def close(self) -> None:
        """Give up the lock and close; never raises."""
        if self._database is not None:
            if self._epoch:
                self._witness.flush()
            self._database.close()
            self._database = None

    def _opened(self) -> Database:
        if self._database is None:
            raise closed(databases.location(self._url))
        return self._database

    def _read(self, database: Database) -> Recovered:
        """Check all that can be checked before the engine makes its parts, and read the store."""
        witness = witness_of(self._witness_directory, self._name, self._url)
        if witness is not None and not isinstance(database, SqliteDatabase):
            files.prepare_witness(witness)
        self._witness = Witness(witness, self._name)
        if migrate.revision(database):
            self._refuse_other_name(database)
        else:
            self._witness.refuse_older(database.where, 0)
        migrate.bring_up(database)
        database.check_integrity()
        self._statements = Statements(database.dialect)
        with database.transaction() as connection:
            row = _locked_row(connection)
            point("rec.load.meta")
            epoch, commit = (row.epoch, row.commit_number) if row else (0, 0)
            recovered = loading.load(database, connection, epoch + 1, commit)
            if row is not None and loading.last_letter(connection) > row.dead_letters:
                raise codec.altered("engine")  # its row has no digest; the next dead letter would get a number in use
            self._witness.refuse_older(database.where, recovered.checkpoint)
        return recovered

    def _refuse_changed(self, recovered: Recovered, row: Row[Any] | None) -> None:
        """Raise `Fenced` if the epoch or the commit number has changed since the store was read.

        Every transaction of an engine or a command raises one of the two numbers.
        """
        epoch, commit = (row.epoch, row.commit_number) if row else (0, 0)
        if (epoch, commit) != (recovered.epoch - 1, recovered.commit):
            raise Fenced(
                "E3202",
                databases.location(self._url),
                f"the store was read at commit {recovered.commit} of epoch {recovered.epoch - 1}, and is at commit "
                f"{commit} of epoch {epoch} now: another engine or a command has changed it during this start",
                "",
                "Nothing was written. Start again when no other engine uses the store",
            )

    def _refuse_other_name(self, database: Database) -> None:
        """Refuse a store of another engine, before any change, even before a migration."""
        with database.transaction() as connection:
            name = connection.execute(select(tables.engine.c.name)).scalar()
        refuse_other_name(database.where, name, self._name)

    def _fence(self, connection: Connection, number: int) -> None:
        fence = {"mine": self._epoch, "before": number - 1, "number": number}
        if self._statements.fence.run(connection, [fence]) == 1:
            return
        row = connection.execute(select(tables.engine)).one_or_none()
        raise self._fenced(number, row)

    def _fenced(self, number: int, row: Row[Any] | None) -> Fenced:
        """Return the error for a store that another engine has taken over.

        Args:
            number: the number of the transaction that was refused.
            row: the row of table `engine`; `None` if somebody has deleted it.
        """
        if row is None:
            what = "the store has no engine any more: somebody has emptied it"
        else:
            why = "the store went back" if row.epoch == self._epoch else "another engine has taken over the store"
            what = (
                f"commit {number} of epoch {self._epoch} does not follow commit {row.commit_number} of epoch "
                f"{row.epoch}: {why}"
            )
        return Fenced(
            "E3202",
            databases.location(self._url),
            what,
            "",
            "Nothing was written; this engine stops",
        )

    def _committed(self, plan: TransactionPlan) -> None:
        """Note the numbers of a transaction that is durable."""
        self._dead_letters = plan.dead_letters
        if plan.checkpoint:
            self._witness.note(plan.checkpoint)


def refuse_other_name(where: str, name: str | None, mine: str) -> None:
    """Refuse the store of another engine.

    Args:
        where: the name of the store in messages.
        name: the name in the store; `None` for a new store.
        mine: the name of this engine.

    Raises:
        RecoveryRefused: E4310.
    """
    if name not in (None, mine):
        raise RecoveryRefused(
            "E4310",
            where,
            f"the store belongs to the engine '{name}', this one is '{mine}'",
            "A store opens under the name that made it",
            f"Set name: {name}, or give this engine a store of its own",
        )


def _points_of(writes: Sequence[Write]) -> _Points:
    if any(isinstance(write, CheckpointCommit) for write in writes):
        return _CHECKPOINT
    return _RECEIVE if any(isinstance(write, ReceiveCommit) for write in writes) else _REGISTRY


@functools.cache
def _product() -> str:
    return f"correlator {version('correlator')}"


def _locked_row(connection: Connection) -> Row[Any] | None:
    """Return the row of table `engine`, `None` in a new store.

    The lock on the row keeps others from committing until the end of the transaction.
    """
    return connection.execute(select(tables.engine).with_for_update()).one_or_none()


def _take_epoch(connection: Connection, name: str, epoch: int, *, new: bool) -> None:
    """Write the epoch. After the commit of this, no transaction of an earlier engine succeeds."""
    product = _product()
    if new:
        row = {"id": THE_ROW, "name": name, "product": product, "epoch": epoch, "commit_number": 0, "dead_letters": 0}
        connection.execute(insert(tables.engine).values(row))
    else:
        connection.execute(update(tables.engine).values(epoch=epoch, product=product))
