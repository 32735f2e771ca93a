"""Rounds of kills, each with a fresh database and a fresh store."""

import contextlib
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from connectors.sql import SqlConnection
from correlator.settings import ConnectionSettings, ReceiverSettings
from correlator.storage.inspect import dead_letters
from tests.connectors.campaign import command
from tests.connectors.campaign.life import PATIENCE_S, Life
from tests.connectors.campaign.verdict import counts_in
from tests.connectors.sql_campaign import bridge
from tests.connectors.sql_campaign.bridge import (
    CAPTURE,
    MISFIT,
    NAME,
    OUTBOX,
    POLLED,
    PUBLICATION,
    SINK,
    SNAPSHOT,
    SOURCE,
    TABLE,
    TRUNCATED,
)
from tests.connectors.tables import execute, rows, sql_engine, sqlite_file
from tests.forking import forking
from tests.mysql_server import MysqlServer
from tests.servers import PostgresServer, database_of, running
from tests.waiting import wait_until

FORKING = forking("connectors.sql", bridge.__name__)
KILLS_OF_A_ROUND, KILLS_WITH_A_SNAPSHOT, KILLS_OF_A_CONTROL = 25, 5, 12
LONGEST_LIFE_S = 0.6
LAST_CALL, LAST_CALL_OF_A_CONTROL = 30, 4
AT_A_CALL = 0.5
PLACED = 20
IN_SNAPSHOT = 3000
"""Orders that are there before the first life, if it begins with a snapshot."""
PAUSE_S = 0.02
FAILURES = (sqlite3.Error, sa.exc.DBAPIError)
AnyServer = PostgresServer | MysqlServer
SERVERS: Mapping[str, Callable[[], AnyServer]] = {
    "postgres": lambda: PostgresServer(settings=["wal_level=logical"]),
    "mysql": MysqlServer,
}


@dataclass
class Figures:
    """What rounds of one kind have found.

    Attributes:
        kills: processes that were killed.
        at_a_call: those that killed themselves at a transaction.
        server_kills: servers that were killed.
        in_snapshot: kills of the process during a snapshot.
        waiting: kills while orders were under way.
        orders: orders that the program has committed.
        rows: rows that the tables hold.
        refused: orders that became dead letters.
        looks: how often a reader has looked at the table while rows were written.
        handled_twice: orders that got a second number.
        written_twice: rows beyond the first of an order and number.
        seconds: duration.
        violations: what is wrong.
    """

    kills: int = 0
    at_a_call: int = 0
    server_kills: int = 0
    in_snapshot: int = 0
    waiting: int = 0
    orders: int = 0
    rows: int = 0
    refused: int = 0
    looks: int = 0
    handled_twice: int = 0
    written_twice: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Result(command.Result):
    """The result of a campaign; `source` is where the orders come from: see `bridge.live`."""

    database: str
    seed: int
    source: str = OUTBOX
    figures: Figures = field(default_factory=Figures)
    control: Figures = field(default_factory=Figures)

    @property
    def violations(self) -> Sequence[str]:
        """The violations that the campaign found."""
        return self.figures.violations + self.control.violations

    @property
    def blind(self) -> Sequence[str]:
        """The reasons why the campaign proves nothing although it found no violation."""
        found = {"handled": self.control.handled_twice, "wrote": self.control.written_twice}
        return [f"the control {what} nothing twice" for what, times in found.items() if not times]

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        one, control = self.figures, self.control
        twice = "{0.handled_twice} orders handled twice, {0.written_twice} rows written twice"
        return [
            f"{self.database}, {self.source}, seed {self.seed}: {one.kills} kills of the process, {one.server_kills} of the server",
            f"{one.waiting} kills while orders were under way, {one.at_a_call} at a transaction, {one.in_snapshot} in a snapshot",
            f"{one.orders} orders: {one.rows} rows, {one.refused} dead letters; {twice.format(one)}; {one.looks} looks",
            f"{len(one.violations)} violations, {one.seconds:.0f} s",
            f"control: {twice.format(control)} after {control.kills} kills",
            *self.violations,
            *self.blind,
        ]


class Program:
    """A program of a user, which places orders in its own transactions."""

    def __init__(self, url: str, source: str, state: Path) -> None:
        self._url = url
        self._source = source
        self._state = state
        self._next = count(1)
        columns = "name VARCHAR(40) PRIMARY KEY"
        if source == POLLED:
            columns = (
                "name VARCHAR(40) UNIQUE, place INTEGER PRIMARY KEY"
                if url.startswith("sqlite")
                else f"{columns}, place xid8 NOT NULL DEFAULT pg_current_xact_id()"
            )
        execute(
            url,
            f"CREATE TABLE {TABLE} ({columns})",
            "CREATE TABLE orders (order_name VARCHAR(40), number BIGINT)",
        )
        if source in (CAPTURE, SNAPSHOT):
            execute(url, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}")
        if source == CAPTURE:
            execute(url, f"SELECT pg_create_logical_replication_slot('{database_of(url)}', 'pgoutput')")
        elif source == SNAPSHOT:
            names = f"SELECT 'order ' || i FROM generate_series(1, {IN_SNAPSHOT}) AS i"
            execute(url, f"INSERT INTO {TABLE} {names}")
            self._next = count(IN_SNAPSHOT + 1)
        elif source == OUTBOX:
            connection = SqlConnection("tables", ConnectionSettings(type="sql", options={"database": url}))
            connection.create_outbox(ReceiverSettings(id="orders", connection="tables", destination="queue:outbox"))

    def place(self, number: int) -> None:
        """Place so many orders. Those of a transaction that fails may be placed or not, as the database says."""
        first, second = self._batch(number - number // 2), self._batch(number // 2)
        with contextlib.suppress(*FAILURES):
            if self._url.startswith("sqlite"):
                execute(self._url, *first, *second)
                return
            with sql_engine(self._url) as engine, engine.connect() as slow, engine.connect() as fast:
                for connection, statements in ((slow, first), (fast, second)):
                    for statement in statements:
                        connection.exec_driver_sql(statement)
                fast.commit()
                slow.commit()

    def placed(self) -> set[str]:
        """The orders that are placed."""
        return {str(name) for (name,) in rows(self._url, f"SELECT name FROM {TABLE}")}

    def stored(self) -> int:
        """How many rows the bridge has written; -1 while the database cannot be asked."""
        with contextlib.suppress(*FAILURES):
            return int(rows(self._url, "SELECT count(*) FROM orders")[0][0])
        return -1

    def half_seen(self) -> str:
        """What a reader sees of half a batch; empty if it sees whole ones, or cannot look."""
        query = "SELECT sequence, (SELECT count(*) FROM orders) FROM correlator_sender"
        with contextlib.suppress(*FAILURES):
            for sequence, there in rows(self._url, query):
                if there != sequence - sequence // MISFIT:
                    return f"a reader saw {there} rows when the last message was {sequence}"
        return ""

    def position(self) -> Mapping[str, Any]:
        """What the receiver has noted about its position, if it keeps one in a file."""
        for file in (*self._state.glob("*.position"), *self._state.glob("*.capture")):
            return dict(msgspec.json.decode(file.read_bytes()))
        return {}

    def is_in_snapshot(self) -> bool:
        """Whether the receiver has begun a snapshot, and not ended it."""
        return not self.position().get("has_begun", True)

    def all_taken(self) -> Callable[[], bool]:
        """Tells whether the bridge has taken, and acknowledged, every order that is placed by now."""
        if self._source == OUTBOX:
            return lambda: not rows(self._url, "SELECT 1 FROM outbox LIMIT 1")
        if self._source == POLLED:
            columns = "place" if self._url.startswith("sqlite") else "place::text, name"
            query = f"SELECT {columns} FROM {TABLE} ORDER BY {TABLE}.place DESC, name DESC LIMIT 1"
            last = [list(one) for one in rows(self._url, query)]
            return lambda: [self.position().get("place")] == last
        end = rows(self._url, "SELECT pg_current_wal_lsn()::text")[0][0]
        slot = database_of(self._url)
        query = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{slot}'"
        return lambda: rows(self._url, query) == [(True,)] and not self.is_in_snapshot()

    def end(self) -> None:
        """Drop the slot, of which a server has few."""
        if self._source in (CAPTURE, SNAPSHOT):
            slot = f"FROM pg_replication_slots WHERE slot_name = '{database_of(self._url)}'"
            wait_until(lambda: not rows(self._url, f"SELECT active {slot}")[0][0])
            execute(self._url, f"SELECT pg_drop_replication_slot(slot_name) {slot}")

    def _batch(self, number: int) -> list[str]:
        names = [f"order {next(self._next)}" for _ in range(number)]
        places = (f"{TABLE} (name)", *(["outbox (body)"] if self._source == OUTBOX else []))
        return [f"INSERT INTO {into} VALUES ('{name}')" for name in names for into in places]


def campaign(
    directory: Path,
    database: str,
    *,
    kills: int,
    seed: int,
    server_kills: int = 0,
    source: str = OUTBOX,
    say: Callable[[str], object] = lambda _: None,
) -> Result:
    """Run the control, then rounds until there were enough kills. A violation ends the campaign."""
    result = Result(database, seed, source)
    with _server(database) as server:
        rng = random.Random(f"{seed} 0")
        one_round(directory / "control", result, rng, server, [False] * KILLS_OF_A_CONTROL, is_control=True)
        victims = [True] * server_kills + [False] * kills
        random.Random(seed).shuffle(victims)
        size = KILLS_WITH_A_SNAPSHOT if source == SNAPSHOT else KILLS_OF_A_ROUND
        for number in count(1):
            some = victims[(number - 1) * size : number * size]
            if not some or result.violations:
                return result
            one_round(directory / f"round{number}", result, random.Random(f"{seed} {number}"), server, some)
            say(f"round {number}: {result.figures.kills} kills, {result.figures.orders} orders")
    raise AssertionError


@contextlib.contextmanager
def _server(database: str) -> Iterator[AnyServer | None]:
    if database == "sqlite":
        yield None
        return
    with running(SERVERS[database]()) as server:
        yield server


def one_round(
    directory: Path,
    result: Result,
    rng: random.Random,
    server: AnyServer | None,
    victims: Sequence[bool],
    *,
    is_control: bool = False,
) -> None:
    """One round: all its kills, a life without a kill, and the comparison. Without a violation nothing is left of it.

    Args:
        directory: for the store; made here.
        result: gets the figures.
        rng: decides.
        server: the server, or `None` for SQLite.
        victims: for each life whether the server is killed in it, too.
        is_control: whether nothing recognises repeats.
    """
    figures = result.control if is_control else result.figures
    directory.mkdir(mode=0o700)
    begin = time.monotonic()
    url = sqlite_file(directory) if server is None else server.fresh_database()
    program = Program(url, result.source, directory / "state")
    for kills_server in victims:
        victim = server if kills_server else None
        _one_life(directory, url, program, rng, figures, victim, source=result.source, control=is_control)
        figures.in_snapshot += program.is_in_snapshot()
        figures.waiting += program.stored() < len(program.placed()) * (1 - 1 / MISFIT) - 1
    status, left = _last_life(directory, url, program, source=result.source, control=is_control)
    found = _compare(directory, url, program, figures, is_control=is_control, source=result.source)
    if status:
        found.append(f"the last life ended with status {status}")
    if left:
        found.append("orders are left in the outbox table, or behind the place of the slot")
    program.end()
    figures.violations += [f"{directory.name}: {one}" for one in found]
    figures.seconds += time.monotonic() - begin
    if not found:
        shutil.rmtree(directory)


def _one_life(
    directory: Path,
    url: str,
    program: Program,
    rng: random.Random,
    figures: Figures,
    server: AnyServer | None,
    *,
    source: str,
    control: bool,
) -> None:
    """Start the bridge, place orders as long as it lives, and kill it; before that perhaps its server."""
    program.place(PLACED)
    kill = rng.choice((-1, 1)) * rng.randint(1, LAST_CALL) if server is None and rng.random() < AT_A_CALL else 0
    of: Collection[str] = (SINK, SOURCE)
    if control:  # in turn where the next life handles messages again, and where it writes rows again
        number = rng.randint(1, LAST_CALL_OF_A_CONTROL)
        kill, of = (-number, (SINK,)) if figures.kills % 2 else (number, (SOURCE,))
    life = Life(FORKING, bridge.live, directory, url, source, kill, of, is_control=control)
    began = life.begin()
    deadline = time.monotonic() + (PATIENCE_S if kill else LONGEST_LIFE_S * rng.random())
    while began and life.is_alive and time.monotonic() < deadline:
        program.place(rng.randint(2, PLACED))
        if not control and source != SNAPSHOT:
            figures.looks += 1
            figures.violations += filter(None, [program.half_seen()])
        time.sleep(PAUSE_S)
    if server is not None:
        before = program.stored()
        server.kill()
        server.start()
        figures.server_kills += 1
        program.place(PLACED)
        wait_until(lambda: program.stored() > before or not life.is_alive, PATIENCE_S)
    figures.at_a_call += life.kill()
    figures.kills += 1


def _last_life(directory: Path, url: str, program: Program, *, source: str, control: bool) -> tuple[int | None, bool]:
    """Let the bridge go on until it has taken and written all; returns its exit status, and whether something is left."""
    life = Life(FORKING, bridge.live, directory, url, source, 0, (SINK, SOURCE), is_control=control)
    life.begin()
    all_taken = program.all_taken()
    deadline = time.monotonic() + PATIENCE_S
    while life.is_alive and not all_taken() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return life.stop(), not all_taken()  # a stop sends all that is there


def _compare(
    directory: Path, url: str, program: Program, figures: Figures, *, is_control: bool, source: str
) -> list[str]:
    """Compare the tables and the dead letters with the state of the engine."""
    *earlier, last = _between_snapshots(sorted(rows(url, "SELECT number, order_name FROM orders")))
    there = Counter((name, number) for number, name in last)
    state = counts_in(f"sqlite:///{directory}/engine.db", NAME)
    wanted = {(name, number) for name, number in state.items() if number % MISFIT}
    letters = dead_letters(f"sqlite:///{directory}/engine.db")
    dead = Counter(msgspec.json.decode(one.letter.message.body)["order_name"] for one in letters)
    misfits = {name for name, number in state.items() if not number % MISFIT}
    if source == SNAPSHOT:  # rows of an interrupted one may be dead letters, too
        dead = Counter(misfits & {*dead})
    placed = program.placed()
    handled_twice = len({*there}) + dead.total() - len({name for name, _ in there} | {*dead})
    figures.orders += len(placed)
    figures.rows += there.total()
    figures.refused += dead.total()
    figures.handled_twice += handled_twice
    figures.written_twice += sum(len(part) - len({*part}) for part in (*earlier, last))
    found = []
    if set(state) != placed:
        lost, foreign = sorted(placed - set(state)), sorted(set(state) - placed)
        found.append(f"the state lacks the orders {lost[:20]}, and has {foreign[:20]}, which nobody has placed")
    if not wanted <= set(there):
        found.append(f"the table lacks {sorted(wanted - set(there))[:20]}")
    if is_control:
        return found
    for part in earlier:
        again = [name for name, times in Counter(name for _, name in part).items() if times > 1]
        if again:
            found.append(f"orders that came twice after one snapshot had begun: {again[:20]}")
    if set(there) - wanted:
        found.append(f"the table has {sorted(set(there) - wanted)[:20]}")
    if there.total() > len(there):
        found.append(f"rows that are there twice: {[row for row, times in there.items() if times > 1][:20]}")
    if set(dead) != misfits or dead.total() != len(misfits):
        found.append(f"dead letters: {len(dead)} orders, {dead.total()} letters, {len(misfits)} misfits")
    return found


def _between_snapshots(there: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """The rows before the first snapshot that began again, those between it and the next one, and so on."""
    parts: list[list[tuple[int, str]]] = [[]]
    for number, name in there:
        if name == TRUNCATED:
            parts.append([])
        else:
            parts[-1].append((number, name))
    return parts
