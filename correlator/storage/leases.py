"""The leases of the shares of an engine, in tables of a PostgreSQL schema that all members of the engine use.

Each method is one short transaction. Only the clock of the server compares times (`clock_timestamp`, not the time at
which a transaction began). These tables decide who *should* run a share. A store decides who *can* write: a member that
has lost a share without noticing is fenced by the epoch of the store (`correlator.storage.store`).
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection
from sqlalchemy import exc as sql_errors

from correlator.core.shares import Lease, Seen
from correlator.errors import Fenced, RecoveryRefused, StoreError, UsageError
from correlator.processes import Maker
from correlator.storage import database as databases
from correlator.storage import files, postgres
from correlator.storage.failures import failure
from correlator.storage.inspect import owner
from correlator.storage.reset import contents
from correlator.storage.store import refuse_other_name

T = TypeVar("T")
VERSION = 1
_PATIENCE_S = 30.0
"""Seconds that a joining member waits at most while others make tables."""
_ANSWER_S = 0.25
"""Seconds that a session waits longer than the server, because an error of the server says more than a time-out."""
_LOCK = 0x73686172
"""Key of the lock under which members make tables one after the other: "shar"."""

TABLES = """
CREATE TABLE IF NOT EXISTS configuration
    (id int PRIMARY KEY, version int NOT NULL, name text NOT NULL, count int NOT NULL, digest text NOT NULL);
CREATE TABLE IF NOT EXISTS member
    (id text PRIMARY KEY, host text NOT NULL, since timestamptz NOT NULL, until timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS share
    (number int PRIMARY KEY, owner text, epoch bigint NOT NULL DEFAULT 0,
     until timestamptz NOT NULL DEFAULT '-infinity', problem text NOT NULL DEFAULT '');
"""
SEEN = (
    "INSERT INTO member VALUES (%(me)s, %(host)s, clock_timestamp(), clock_timestamp() + %(lease)s * interval '1 s')"
    " ON CONFLICT (id) DO UPDATE SET until = excluded.until"
)
RENEW = (
    "UPDATE share SET until = clock_timestamp() + %(lease)s * interval '1 s' WHERE owner = %(me)s"
    " RETURNING number, epoch"
)
LOOK = (
    "SELECT owner, until < clock_timestamp() AS ended, CASE WHEN isfinite(until)"
    " THEN extract(epoch FROM until - clock_timestamp())::float8 END AS seconds FROM share WHERE number < %(count)s"
)
TAKE = (
    "WITH free AS MATERIALIZED (SELECT number FROM share WHERE until < clock_timestamp()"
    " AND number < %(count)s AND owner IS DISTINCT FROM %(me)s ORDER BY number LIMIT %(most)s FOR UPDATE SKIP LOCKED)"
    " UPDATE share SET owner = %(me)s, epoch = epoch + 1, until = clock_timestamp() + %(lease)s * interval '1 s',"
    " problem = '' FROM free WHERE share.number = free.number RETURNING share.number, epoch"
)
GIVE_BACK = (
    "UPDATE share SET owner = NULL, until = '-infinity'"
    " WHERE number = %(number)s AND owner = %(me)s AND epoch = %(epoch)s"
)
NOTE = "UPDATE share SET problem = %(problem)s WHERE number = %(number)s AND owner = %(me)s AND epoch = %(epoch)s"
_LIVING = "SELECT id FROM member WHERE until > clock_timestamp() AND id <> %(me)s"
_USED = (
    "SELECT EXISTS (SELECT FROM member WHERE until > clock_timestamp())"
    " OR EXISTS (SELECT FROM share WHERE until > clock_timestamp())"
)
_LIMITS = (
    "SELECT set_config('statement_timeout', %(ms)s, true),"
    " set_config('idle_in_transaction_session_timeout', %(ms)s, true)"
)
_TURN = "SELECT pg_advisory_xact_lock(%(lock)s, hashtext(%(schema)s))"
_CONFIGURED = "SELECT version, name, count AS shares, digest FROM configuration"
_CONFIGURE = (
    "INSERT INTO configuration VALUES (1, %(version)s, %(name)s, %(count)s, %(digest)s)"
    " ON CONFLICT (id) DO UPDATE SET digest = excluded.digest"
)
_MAKE_SHARES = (
    "INSERT INTO share (number) SELECT generate_series(0, %(count)s::int - 1) ON CONFLICT (number) DO NOTHING"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The shares of an engine, and where they are.

    Attributes:
        url: URL of the schema with the leases.
        schema: name of this schema.
        stores: schema of the store of each share, by number.
        name: name of the engine.
        digest: digest of the settings that all members must have in common.
        undivided: URL of the store that the engine has without shares.
    """

    url: str
    schema: str
    stores: Sequence[str]
    name: str
    digest: str
    undivided: str


class LeaseTable:
    """The leases, for one member. One thread at a time uses the object; a forked child cannot use it (E2050).

    Args:
        shares: the shares of the engine.
        me: id of this member.
        lease_s: how long the leases of this member last without a renewal.
    """

    def __init__(self, shares: Shares, me: str, lease_s: float) -> None:
        self._shares = shares
        self._parameters = {
            "me": me,
            "host": files.owner_text().partition(" since ")[0],
            "lease": lease_s,
            "count": len(shares.stores),
            "schema": shares.schema,
            "name": shares.name,
            "digest": shares.digest,
            "version": VERSION,
            "lock": _LOCK,
        }
        self._lease_s = lease_s
        self._maker = Maker()
        self._where = databases.location(shares.url)
        self._engine = postgres.postgres_engine(databases.parse(shares.url))
        self._connection: Connection | None = None

    def join(self) -> None:
        """Make missing schemas and tables, and register this member.

        Raises:
            RecoveryRefused: E4310, the leases belong to another engine; E4340, the number of shares has changed; E4341,
                other members run another configuration; E4342, the store that the engine had without shares holds
                something that no share would use.
            StoreError: E3004, the tables were made by a newer version; E31xx, E33xx, the server cannot be used.
        """
        self._transact(self._join, wait_s=_PATIENCE_S)

    def renew(self, *, leaving: bool = False) -> Seen:
        """Renew the leases of this member that nobody else has taken, and read all leases.

        Args:
            leaving: whether this member stops, so that the others no longer count it.

        Raises:
            Fenced: E3204, the members have another configuration now.
            StoreError: the server cannot be used at present.
        """
        return self._transact(lambda connection: self._renew(connection, leaving=leaving))

    def take(self, most: int) -> list[Lease]:
        """Take at most this many shares that nobody runs.

        Raises `StoreError`; the next `renew` shows whether some were taken.
        """
        rows = self._transact(lambda connection: self._run(connection, TAKE, most=most).all())
        return sorted(Lease(*row) for row in rows)

    def give_back(self, lease: Lease) -> None:
        """Let another member take a share at once. Raises `StoreError`; after an error the lease ends by itself."""
        self._transact(lambda connection: self._run(connection, GIVE_BACK, **lease._asdict()))

    def note(self, lease: Lease, problem: str) -> None:
        """Note the code of the error for which a share does not run; "" once it runs. Raises `StoreError`."""
        self._transact(lambda connection: self._run(connection, NOTE, problem=problem, **lease._asdict()))

    def recount(self) -> None:
        """Set the number of shares to the number in the configuration, while no member lives.

        The stores of removed shares stay in their schemas, and are used again if the number grows later.

        Raises:
            UsageError: E2062, a member lives, or its leases have not ended yet.
            RecoveryRefused: E4310, the leases belong to another engine.
            StoreError: as `join`.
        """
        self._transact(self._recount, wait_s=_PATIENCE_S)

    def close(self) -> None:
        """End the session; never raises."""
        if self._connection is not None and not self._maker.is_another_process:
            with contextlib.suppress(sql_errors.SQLAlchemyError):
                self._connection.close()
        self._connection = None

    def _join(self, connection: Connection) -> None:
        self._run(connection, _TURN)
        for schema in (self._shares.schema, *self._shares.stores):
            if self._run(connection, "SELECT to_regnamespace(%(schema)s)", schema=schema).scalar() is None:
                connection.exec_driver_sql(f"CREATE SCHEMA {schema}")  # a checked identifier
        connection.exec_driver_sql(TABLES)
        row = connection.exec_driver_sql(_CONFIGURED).one_or_none()
        if row is None:
            self._refuse_left_behind()
        else:
            self._refuse_other(connection, row)
        self._run(connection, _CONFIGURE)
        self._run(connection, _MAKE_SHARES)
        connection.exec_driver_sql("DELETE FROM member WHERE until < clock_timestamp() - interval '1 day'")
        self._run(connection, SEEN)

    def _recount(self, connection: Connection) -> None:
        self._run(connection, _TURN)
        refuse_other_name(self._where, connection.exec_driver_sql(_CONFIGURED).one().name, self._shares.name)
        if connection.exec_driver_sql(_USED).scalar_one():
            todo = "Stop all members; a member that was killed counts until its leases end"
            raise UsageError("E2062", self._where, "members run the shares of this engine", "", todo)
        self._run(connection, "UPDATE configuration SET count = %(count)s")

    def _refuse_left_behind(self) -> None:
        url = self._shares.undivided
        if owner(url) != self._shares.name:
            return
        held = [f"{one.rows} rows in {one.table}" for one in contents(url) if one.rows]
        if held:
            raise RecoveryRefused(
                "E4342",
                databases.location(url),
                f"holds what the engine did without shares, which no share would use: {', '.join(held)}",
                "Each share begins with an empty store",
                "Leave shares out, let the engine send all its messages, stop it, then: correlator db reset STORE_URL",
            )

    def _refuse_other(self, connection: Connection, row: Any) -> None:
        if row.version > VERSION:
            what = f"the leases have version {row.version}, this program knows {VERSION}"
            raise StoreError("E3004", self._where, what, "", "Upgrade this program first")
        refuse_other_name(self._where, row.name, self._shares.name)
        if row.shares != len(self._shares.stores):
            raise RecoveryRefused(
                "E4340",
                self._where,
                f"the engine has {row.shares} shares, the configuration says {len(self._shares.stores)}",
                "Each share keeps its own state, which another number of shares does not divide anew",
                f"Set shares.count to {row.shares}, or stop all members and run: correlator shares FILE --recount",
            )
        living = self._run(connection, _LIVING).all()
        if row.digest != self._shares.digest and living:
            raise RecoveryRefused(
                "E4341",
                self._where,
                f"{len(living)} other members run this engine with another configuration",
                "All members need the same receivers, senders, monitors and pipelines",
                "Stop them first; a member that was killed counts until its lease ends",
            )

    def _renew(self, connection: Connection, *, leaving: bool) -> Seen:
        if leaving:
            self._run(connection, "DELETE FROM member WHERE id = %(me)s")
        else:
            self._run(connection, SEEN)
        mine = sorted(Lease(*row) for row in self._run(connection, RENEW))
        row = connection.exec_driver_sql(_CONFIGURED).one_or_none()
        if row is None or (row.shares, row.digest) != (len(self._shares.stores), self._shares.digest):
            raise Fenced(
                "E3204",
                self._where,
                "the other members have another configuration or number of shares by now",
                "",
                "This member stops; start it again with the present configuration",
            )
        others = dict.fromkeys((row.id for row in self._run(connection, _LIVING)), 0)
        free, ends = 0, []
        for row in self._run(connection, LOOK):
            if row.ended:
                free += 1
            elif row.owner != self._parameters["me"]:
                ends.append(row.seconds)
                if row.owner in others:
                    others[row.owner] += 1
        return Seen(len(self._shares.stores), mine, others, free, min(ends, default=None))

    def _run(self, connection: Connection, statement: str, **more: Any) -> Any:
        return connection.exec_driver_sql(statement, {**self._parameters, **more})

    def _transact(self, work: Callable[[Connection], T], *, wait_s: float | None = None) -> T:
        """Do work in one transaction, in a new session if the last one was lost.

        Args:
            work: the statements.
            wait_s: longest wait for an answer; by default a quarter of the lease, so that another attempt is possible.
        """
        self._maker.check(f"leases in {self._where}")
        committing = False
        try:
            if self._connection is None:
                self._connection = postgres.connect_server(self._engine, self._where)
            wait_s = self._lease_s / 4 if wait_s is None else wait_s
            postgres.session_of(self._connection).answer_timeout_s = wait_s + _ANSWER_S
            with self._connection.begin() as transaction:
                self._run(self._connection, _LIMITS, ms=f"{wait_s * 1000:.0f}")
                done = work(self._connection)
                committing = True
                transaction.commit()
        except sql_errors.DBAPIError as error:
            self.close()
            raise failure("postgresql", self._where, error, committing=committing) from error
        return done


class ShareRow(NamedTuple):
    """A share in the form that `correlator shares` shows.

    Attributes:
        number: number of the share.
        state: `held`; `ended` if the lease has ended and nobody has taken the share yet; `free` if it was given back or
            never taken.
        member: host and process of the member that has the lease, or had it when it ended; "" for none.
        epoch: how often the share has been taken.
        seconds: seconds until the lease ends; negative after its end, `None` for a free share.
        problem: code of the error for which the share does not run; "" if there is none.
    """

    number: int
    state: str
    member: str
    epoch: int
    seconds: float | None
    problem: str


class MemberRow(NamedTuple):
    """A member that lives: host and process, the number of its leases, and the seconds since its start."""

    member: str
    shares: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Table:
    """All shares and all living members at one moment; `count` is `None` if no member has ever started."""

    count: int | None
    shares: Sequence[ShareRow] = ()
    members: Sequence[MemberRow] = ()


_SHARES = (
    "SELECT number, CASE WHEN share.until > clock_timestamp() THEN 'held' WHEN owner IS NULL THEN 'free' ELSE 'ended'"
    " END, coalesce(host, ''), epoch, CASE WHEN isfinite(share.until)"
    " THEN extract(epoch FROM share.until - clock_timestamp())::float8 END, problem"
    " FROM share LEFT JOIN member ON member.id = owner WHERE number < %(count)s ORDER BY number"
)
_MEMBERS = (
    "SELECT host, (SELECT count(*) FROM share WHERE owner = member.id AND share.until > clock_timestamp()),"
    " extract(epoch FROM clock_timestamp() - since)::float8 FROM member WHERE until > clock_timestamp()"
    " ORDER BY since, id"
)


def shown(shares: Shares) -> Table:
    """Read which member runs which share; changes nothing. Raises `StoreError` as `database.reading`."""
    with databases.reading(shares.url) as connection:
        table = {"table": f"{shares.schema}.configuration"}
        if connection.exec_driver_sql("SELECT to_regclass(%(table)s)", table).scalar() is None:
            return Table(None)
        count = connection.exec_driver_sql(_CONFIGURED).one().shares
        rows = connection.exec_driver_sql(_SHARES, {"count": count}).all()
        members = connection.exec_driver_sql(_MEMBERS).all()
    return Table(count, [ShareRow(*row) for row in rows], [MemberRow(*row) for row in members])
