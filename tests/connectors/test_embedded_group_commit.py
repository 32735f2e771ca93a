"""Threads of a process that write to the same SQLite file share commits."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from connectors.embedded import grouping
from connectors.embedded.gates import gate
from connectors.embedded.link import SqliteLink, open_link
from correlator.settings import SenderSettings
from tests.connectors.embedded import QUEUE, Broker, bodies_of, connected, message, outgoing, wait_until


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path}/broker.db"


@pytest.fixture
def groups(monkeypatch):
    """The sizes of the groups that were committed."""
    sizes = []
    commit = grouping._commit
    monkeypatch.setattr(grouping, "_commit", lambda group, begin: (sizes.append(len(group)), commit(group, begin)))
    return sizes


class Writer(threading.Thread):
    """Does one thing with a link of its own, or with what is given."""

    def __init__(self, do):
        super().__init__(daemon=True)
        self._do = do
        self.error = None
        self.start()

    def run(self):
        try:
            self._do()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            self.error = error

    def ended(self):
        self.join(20)
        assert not self.is_alive()
        return self.error


class Table:
    """A table of its own in the file of a broker."""

    def __init__(self, store):
        self.store = store
        self._links = [open_link(store) for _ in range(8)]
        self._link = self._links[0]
        self._unused = iter(self._links)
        with self._link.transaction() as connection:
            connection.exec_driver_sql("CREATE TABLE t (n INTEGER PRIMARY KEY, content BLOB)")

    def insert(self, number, then=lambda _: None):
        """A thread that inserts a number and calls a function with the connection in the same write."""
        link = next(self._unused)

        def do(connection):
            connection.exec_driver_sql(f"INSERT INTO t (n) VALUES ({number:d})")
            then(connection)
            return number

        def run():
            assert link.write(do) == number

        return Writer(run)

    def numbers(self):
        with self._link.reading() as connection:
            return [row[0] for row in connection.exec_driver_sql("SELECT n FROM t ORDER BY n")]

    def close(self):
        for link in self._links:
            link.close()


@pytest.fixture
def table(store):
    table = Table(store)
    yield table
    table.close()


@pytest.fixture
def in_line(store):
    """Starts threads one after the other, while the first one waits for its turn at the gate."""
    own = gate(store)

    def started(*starts):
        assert own.lock.acquire(timeout=5)
        try:
            writers = []
            for at, start in enumerate(starts):
                writers.append(start())
                wait_until(lambda: own.group._has_leader and len(own.group._line) == at)  # noqa: B023
            assert all(writer.is_alive() for writer in writers)
        finally:
            own.lock.release()
        return writers

    return started


def test_sends_that_line_up_during_a_commit_share_the_next_one(store, in_line, groups):
    broker = Broker(store)
    broker.send("first")
    sinks = [
        connected(broker.session().sink(SenderSettings(id="s", connection="c", destination=QUEUE))) for _ in range(5)
    ]
    groups.clear()
    writers = in_line(
        *[lambda at=at, sink=sink: Writer(lambda: sink.send(outgoing(f"{at}"))) for at, sink in enumerate(sinks)]
    )
    assert [writer.ended() for writer in writers] == [None] * 5
    assert groups == [1, 4]
    assert bodies_of(broker, QUEUE) == ["first", "0", "1", "2", "3", "4"]
    for sink in sinks:
        sink.close()
    broker.close()


def test_an_error_undoes_the_write_of_its_thread_only(table, in_line, groups):
    def fail(_):
        raise ValueError("no")

    writers = in_line(*[lambda n=n: table.insert(n, fail if n == 3 else lambda _: None) for n in range(1, 6)])
    assert [type(writer.ended()) for writer in writers] == [type(None), type(None), ValueError, type(None), type(None)]
    assert table.numbers() == [1, 2, 4, 5]
    assert groups == [1, 4]


def test_a_statement_that_fails_undoes_the_write_of_its_thread_only(table, in_line):
    writers = in_line(*[lambda n=n: table.insert(n) for n in (1, 2, 2, 3)])
    assert [writer.ended() is None for writer in writers] == [True, True, False, True]
    assert table.numbers() == [1, 2, 3]


def test_a_commit_that_fails_fails_for_all(table, in_line, monkeypatch):
    check = grouping._commit

    def commit(group, transaction):
        @contextmanager
        def failing(*, synced):
            with transaction(synced=synced) as connection:
                yield connection
                raise OSError("the disk is gone")

        check(group, failing if len(group) > 1 else transaction)

    monkeypatch.setattr(grouping, "_commit", commit)
    writers = in_line(*[lambda n=n: table.insert(n) for n in range(1, 5)])
    errors = [writer.ended() for writer in writers]
    assert [str(error) for error in errors] == ["None"] + ["the disk is gone"] * 3
    assert table.numbers() == [1]


def test_a_group_is_limited(table, in_line, groups, monkeypatch):
    monkeypatch.setattr(grouping, "MOST", 2)
    writers = in_line(*[lambda n=n: table.insert(n) for n in range(1, 7)])
    assert [writer.ended() for writer in writers] == [None] * 6
    assert groups == [1, 2, 2, 1]


def test_the_others_are_told_when_the_thread_that_writes_is_interrupted(table, in_line):
    def interrupt(_):
        raise KeyboardInterrupt

    writers = in_line(*[lambda n=n: table.insert(n, interrupt if n == 1 else lambda _: None) for n in (0, 2, 1, 3)])
    errors = [writer.ended() for writer in writers]
    assert [type(error) for error in errors] == [type(None), KeyboardInterrupt, OSError, OSError]
    assert table.numbers() == [0]


@pytest.mark.parametrize("appointed", [False, True])
def test_a_thread_that_is_interrupted_while_it_waits_writes_nothing_and_stops_nobody(table, monkeypatch, appointed):
    """The third one, at once or when it is its turn to lead."""
    waiting = []

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            waiting.append(self)
            if len(waiting) == 2:
                if appointed:
                    assert super().wait(20)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(grouping, "threading", SimpleNamespace(Event=Interrupted))
    monkeypatch.setattr(grouping, "MOST", 1)
    own = gate(table.store)
    assert own.lock.acquire(timeout=5)
    writers = []
    for number, in_line in ((1, 0), (2, 1), (3, 2 if appointed else 1), (4, 3 if appointed else 2)):
        writers.append(table.insert(number))
        wait_until(
            lambda: own.group._has_leader and (len(waiting), len(own.group._line)) == (number - 1, in_line)  # noqa: B023
        )
    own.lock.release()
    assert [type(writer.ended()) for writer in writers] == [type(None), type(None), KeyboardInterrupt, type(None)]
    assert table.numbers() == [1, 2, 4]


class InterruptedLine(list):
    """Interrupts the thread that has just lined up."""

    def append(self, write):
        super().append(write)
        raise KeyboardInterrupt


def test_a_thread_that_is_interrupted_as_it_lines_up_stops_nobody(table):
    group = gate(table.store).group
    group._line = InterruptedLine()
    assert type(table.insert(1).ended()) is KeyboardInterrupt
    group._line = []
    assert table.insert(2).ended() is None
    assert table.numbers() == [2]


@pytest.mark.parametrize("before", [True, False])
def test_a_thread_that_is_interrupted_as_it_begins_to_lead_stops_nobody(table, monkeypatch, before):
    """Before and after it has taken the writes from the line."""
    owner, name = (grouping.Group, "_lead") if before else (grouping, "_commit")

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupt)
        assert type(table.insert(1).ended()) is KeyboardInterrupt
    assert table.insert(2).ended() is None
    assert table.numbers() == [2]


def test_a_full_disk_is_told_to_all_threads_of_the_group(table, in_line):
    """SQLite then undoes the whole transaction, not only the savepoint of the write that has no space."""

    def fill(connection):
        connection.connection.cursor().execute("INSERT INTO t VALUES (99, zeroblob(1000000))")

    for link in table._links:
        link._raw.execute("PRAGMA max_page_count = 1")  # what the file has now
    writers = in_line(*[lambda n=n: table.insert(n, fill if n == 3 else lambda _: None) for n in range(1, 6)])
    errors = [writer.ended() for writer in writers]
    assert [str(error) for error in errors] == ["None"] + ["database or disk is full"] * 4
    assert table.numbers() == [1]


def test_one_that_must_be_on_disk_makes_the_commit_wait_for_the_disk(store, in_line, monkeypatch):
    synced = []
    transaction = SqliteLink.transaction

    def noted(link, **how):
        synced.append(how["synced"])
        return transaction(link, **how)

    broker = Broker(store)
    broker.send("first")
    sinks = [
        connected(broker.session().sink(SenderSettings(id="s", connection="c", destination=QUEUE))) for _ in range(3)
    ]

    def sending(at, *, persistent):
        return lambda: Writer(lambda: sinks[at].send(outgoing(message(f"{at}", persistent=persistent))))

    monkeypatch.setattr(SqliteLink, "transaction", noted)
    writers = in_line(sending(0, persistent=False), sending(1, persistent=False), sending(2, persistent=True))
    assert [writer.ended() for writer in writers] == [None] * 3
    monkeypatch.undo()
    assert synced == [False, True]
    for sink in sinks:
        sink.close()
    broker.close()
