"""Consumers are woken by senders of other threads and processes; a lost wake-up only delays."""

import contextlib
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import psycopg
import pytest
from sqlalchemy import Connection

from connectors.embedded import bell_files, notices, waking
from connectors.embedded.bell_files import BellFiles, FileListener, FilePoller
from connectors.embedded.database import connect_postgres, connect_sqlite
from connectors.embedded.notices import NoticeListener, Notices
from connectors.embedded.waking import BELLS, Bells, bells
from correlator.storage.database import location
from tests.connectors.waking_worker import DESTINATION
from tests.servers import PgBouncer, PostgresServer, running

SOON_S = 10.0
"""For what comes within milliseconds; the machine may be busy."""
NOT_S = 0.3
"""For what must not come."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that may be frozen or killed: others wait for the server of the whole session."""
    with running(PostgresServer()) as own:
        yield own


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/broker.db"
    return request.getfixturevalue("postgres_server").fresh_schema()


@pytest.fixture(autouse=True)
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads end soon after their test; those of tests of other files have ended before."""
    monkeypatch.setattr(waking, "_STAYS_S", 0.1)
    _join_listening_threads()
    yield
    _join_listening_threads()


def _join_listening_threads() -> None:
    for thread in listening_threads():
        thread.join(SOON_S)
        assert not thread.is_alive()


def listening_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "embedded-bells"]


class Process:
    """What another process has: bells, and a connection for its senders."""

    def __init__(self, store: str) -> None:
        self.bells = Bells(Notices(store, BELLS) if is_postgres(store) else BellFiles(location(store)))
        self.connection: Connection = connect(store)

    def ring(self, *destinations: str) -> None:
        self.bells.ring(destinations or (DESTINATION,), self.connection)


@pytest.fixture
def another(store: str) -> Iterator[Process]:
    with closing_of(Process(store)) as process:
        yield process


@contextlib.contextmanager
def closing_of(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.connection.close()


def is_postgres(store: str) -> bool:
    return store.startswith("postgresql")


def connect(store: str) -> Connection:
    return connect_postgres(store) if is_postgres(store) else connect_sqlite(Path(location(store)))


def listening(ours: Bells, store: str, destination: str = DESTINATION) -> int:
    """Wait until the bells listen, and have rung by themselves for the last time. Returns how often that was."""
    rings = 2 if is_postgres(store) else 1
    for rung in range(rings):
        assert ours.wait(destination, rung, SOON_S)
    return rings


class Waiter:
    """A thread that waits; leaving its block checks that it was woken."""

    def __init__(self, ours: Bells, destination: str = DESTINATION) -> None:
        self._woken = False
        rung = ours.rung(destination)
        self._thread = threading.Thread(target=self._wait, args=(ours, destination, rung))
        self._thread.start()

    def _wait(self, ours: Bells, destination: str, rung: int) -> None:
        self._woken = ours.wait(destination, rung, SOON_S)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._thread.join(2 * SOON_S)
        assert self._woken


class Worker:
    """A process of `waking_worker`, by its lines."""

    def __init__(self, what: str, store: str, *prefix: str) -> None:
        command = [*prefix, sys.executable, "-m", "tests.connectors.waking_worker", what, store]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(SOON_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


# --- within a process ---


def test_who_waits_is_woken_by_a_thread_of_the_same_process(store: str, another: Process) -> None:
    listening(another.bells, store)
    with Waiter(another.bells), Waiter(another.bells):
        another.ring()


def test_what_has_rung_before_the_wait_wakes_at_once(store: str, another: Process) -> None:
    rung = another.bells.rung(DESTINATION)
    another.ring()
    assert another.bells.wait(DESTINATION, rung, 0.0)
    assert not another.bells.wait(DESTINATION, another.bells.rung(DESTINATION), 0.0)
    assert listening_threads() == [], "nobody had to wait"


def test_the_threads_of_a_process_share_the_bells_of_a_store(store: str) -> None:
    assert bells(store) is bells(store)
    assert bells(store) is not bells(store + ("2" if not is_postgres(store) else "&connect_timeout=9"))


# --- between processes ---


def test_who_waits_is_woken_by_another_process(store: str, another: Process) -> None:
    ours = bells(store)
    listening(ours, store)
    for _ in range(20):
        with Waiter(ours):
            another.ring()


def test_a_real_process_misses_nothing_whether_it_works_or_waits(store: str, another: Process) -> None:
    """It has a minute for each wait, so a wake-up that is missed is noticed."""
    another.connection.exec_driver_sql("CREATE TABLE numbers (n integer)")
    another.connection.commit()
    chance, number, pause = random.Random(5), 0, threading.Event()
    begin = time.monotonic()
    with Worker("follow", store) as worker:
        for _ in range(60):
            for gap_s in chance.choice([(0.0,), (0.001, 0.0), (0.01, 0.005), (0.25,), (0.004, 0.004, 0.004)]):
                pause.wait(gap_s)
                number += 1
                with another.connection.begin():
                    another.connection.exec_driver_sql(f"INSERT INTO numbers VALUES ({number:d})")
                another.ring()
            while worker.line() != f"saw {number}":
                pass
    assert time.monotonic() - begin < 60


def test_one_destination_does_not_wake_another_one(store: str, another: Process) -> None:
    ours = bells(store)
    rings = listening(ours, store)
    with Waiter(ours):
        another.ring("queue:busy", "topic:busy")
        another.ring()
    assert ours.rung(DESTINATION) == rings + 1


def test_the_own_rings_of_a_process_come_once(store: str, another: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bell of another destination rings last, since rings arrive in order: then the own ones have been read."""
    ours = bells(store)
    with monkeypatch.context() as patches:
        patches.setattr(waking, "_LINGER_S", 60.0)
        rings = listening(ours, store)
        listening(ours, store, "queue:other")
        with closing_of(Process(store)) as sender:
            sender.bells = ours
            for _ in range(5):
                sender.ring()
        with Waiter(ours, "queue:other"):
            another.ring("queue:other")
        assert ours.rung(DESTINATION) == rings + 5
    listening(ours, store, "queue:third")  # the thread looks when it is to end


def test_a_bell_that_is_no_longer_waited_for_is_not_listened_to(
    store: str, another: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waking, "_LINGER_S", 0.0)
    ours = bells(store)
    rings = listening(ours, store)
    listening(ours, store, "queue:other")  # only now does the thread look anew for whom it listens to
    with Waiter(ours, "queue:other"):
        another.ring()
        another.ring("queue:other")
    assert ours.rung(DESTINATION) == rings


def test_a_second_destination_is_listened_to_at_once(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = bells(store)
    with monkeypatch.context() as patches:
        patches.setattr(waking, "_STAYS_S", 60.0)
        listening(ours, store)
        ours.wait(DESTINATION, ours.rung(DESTINATION), NOT_S)  # longer than a bell is listened to without a waiter
        listening(ours, store, "queue:other")
    listening(ours, store, "queue:third")  # the thread looks when it is to end


def test_the_thread_ends_when_nobody_waits_and_another_one_begins(store: str, another: Process) -> None:
    ours = bells(store)
    for _ in range(2):
        rung = ours.rung(DESTINATION)
        assert ours.wait(DESTINATION, rung, SOON_S), "it rings when it begins to listen"
        (thread,) = listening_threads()
        thread.join(SOON_S)
        assert not thread.is_alive()
    with Waiter(ours):
        another.ring()


def test_a_forked_child_has_bells_of_its_own_and_leaves_those_of_its_parent_alone(store: str, another: Process) -> None:
    with Worker("fork", store) as worker:
        assert worker.line() == "child has", "neither inotify nor a socket"
        assert worker.line() == "child waits"
        another.ring()
        assert worker.line() == "woken"
        assert worker.line() == "parent waits"
        another.ring()
        assert worker.line() == "woken"


def test_a_process_without_a_free_descriptor_only_waits_longer(
    store: str, another: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted() -> None:
        raise OSError(24, "Too many open files")

    ours = bells(store)
    with monkeypatch.context() as patches:
        patches.setattr(waking.socket, "socketpair", exhausted)
        for _ in range(3):
            assert not ours.wait(DESTINATION, 0, 0.01)
    assert len(caplog.records) == 1
    assert "up to a second late: [Errno 24] Too many open files" in caplog.text
    listening(ours, store)


# --- SQLite ---


@pytest.fixture
def files(tmp_path: Path) -> BellFiles:
    (tmp_path / "broker.db").touch()
    return BellFiles(f"{tmp_path}/broker.db")


def test_the_files_are_private_and_only_those_are_there_that_somebody_waited_for(
    tmp_path: Path, files: BellFiles
) -> None:
    directory = tmp_path / "broker.db.bells"
    files.notify({3}, None)
    assert not directory.exists()
    with contextlib.closing(files.listener()) as listener:
        listener.listen({3, 5})
    assert sorted(path.name for path in directory.iterdir()) == ["3", "5"]
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


@pytest.mark.parametrize("kind", [FileListener, FilePoller])
def test_a_listener_hears_other_processes_and_not_its_own(
    files: BellFiles, tmp_path: Path, kind: Callable[[BellFiles], FileListener]
) -> None:
    other = BellFiles(f"{tmp_path}/broker.db")
    with contextlib.closing(kind(files)) as listener:
        listener.listen({1, 2})
        assert listener.heard() == set()
        files.notify({1, 2}, None)
        assert listener.heard() == set()
        other.notify({2, 3}, None)
        assert listener.heard() == {2}
        assert listener.heard() == set()
        listener.listen({1})
        other.notify({1, 2}, None)
        assert listener.heard() == {1}


def test_events_that_the_system_drops_ring_every_bell(files: BellFiles, tmp_path: Path) -> None:
    other = BellFiles(f"{tmp_path}/broker.db")
    largest = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with contextlib.closing(files.listener()) as listener:
        listener.listen({1, 2, 3})
        for _ in range(largest // 2 + 1):
            other.notify({1}, None)
            other.notify({2}, None)
        other.notify({3}, None)
        heard = set()
        while one := listener.heard():
            heard |= one
    assert heard == {1, 2, 3}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener comes back soon."""
    monkeypatch.setattr(waking, "_RETRY_S", 0.1)
    monkeypatch.setattr(bell_files, "_REMOVAL_TAKES_S", 0.05)


@pytest.mark.parametrize("kept", [False, True])
def test_files_that_are_replaced_are_watched_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: bool) -> None:
    store = f"sqlite:///{tmp_path}/broker.db"
    with closing_of(Process(store)) as another:
        ours = bells(store)
        listening(ours, store)
        (path,) = (tmp_path / "broker.db.bells").iterdir()
        new = tmp_path / "new"
        new.touch()
        if kept:  # under another name
            os.link(path, tmp_path / "old")
        with Waiter(ours):
            new.replace(path)
        with Waiter(ours):
            another.ring()
    assert caplog.records == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["removed", "moved"])
def test_files_that_vanish_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    store = f"sqlite:///{tmp_path}/broker.db"
    directory = tmp_path / "broker.db.bells"
    with closing_of(Process(store)) as another:
        ours = bells(store)
        listening(ours, store)
        with Waiter(ours):
            if how == "removed":
                shutil.rmtree(directory)
            else:
                directory.rename(tmp_path / "away")
                for path in (tmp_path / "away").iterdir():
                    path.touch()
        until(
            lambda: (
                directory.exists()
                and list(directory.iterdir())
                and not ours.wait(DESTINATION, ours.rung(DESTINATION), 0.1)
            )
        )
        with Waiter(ours):
            another.ring()
    assert len(caplog.records) == 1
    assert "polls for messages of other processes, since it cannot be told about them: [Errno 2]" in caplog.text


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline


def test_a_store_can_be_removed_while_consumers_wait(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for _ in range(20):
        place.mkdir()
        (place / "broker.db").touch()
        ours = Bells(BellFiles(f"{place}/broker.db"))
        for number in range(20):
            ours.wait(f"queue:{number}", 0, SOON_S)
        with Waiter(ours, "queue:1"):
            shutil.rmtree(place)
        assert not place.exists()


@pytest.mark.parametrize("limit", ["max_inotify_instances", "max_inotify_watches"])
def test_where_the_limits_of_inotify_are_reached_the_files_are_polled(tmp_path: Path, limit: str) -> None:
    store = f"sqlite:///{tmp_path}/broker.db"
    command = f'echo 0 > /proc/sys/user/{limit} && exec "$@"'
    with (
        closing_of(Process(store)) as another,
        Worker("limited", store, "unshare", "--user", "--map-root-user", "sh", "-c", command, "sh") as worker,
    ):
        assert [worker.line() for _ in range(4)] == [
            "waits",
            "told The broker polls for messages of other processes, since it cannot be told about them: "
            + ("[Errno 24] Too many open files" if "instances" in limit else "[Errno 28] No space left on device"),
            "woken",
            "waits",
        ]
        for _ in range(3):
            another.ring()
            assert [worker.line(), worker.line()] == ["woken", "waits"]


def test_a_thousand_files_beside_the_database_wake_nobody(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/broker.db"
    with closing_of(Process(store)) as another:
        ours = bells(store)
        rings = listening(ours, store)
        with Waiter(ours):
            for number in range(1000):
                (tmp_path / f"broker.db.{number}").touch()
                (tmp_path / "broker.db.bells" / f"a{number}").touch()
            another.ring()
    assert ours.rung(DESTINATION) == rings + 1


def test_a_sender_that_may_not_touch_the_files_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broker.db.bells").write_text("no directory")
    with closing_of(Process(f"sqlite:///{tmp_path}/broker.db")) as another:
        another.ring()
        another.ring()
        assert another.bells.rung(DESTINATION) == 2, "threads of its process are woken"
    assert len(caplog.records) == 1
    assert "up to a second late: [Errno 20] Not a directory" in caplog.text


# --- PostgreSQL ---

postgres = pytest.mark.postgres


@pytest.fixture
def schema(postgres_server: PostgresServer) -> str:
    return postgres_server.fresh_schema()


@postgres
def test_nobody_is_notified_when_nobody_waits(schema: str) -> None:
    bell = waking._bell_of(DESTINATION)
    with closing_of(Process(schema)) as sender, contextlib.closing(Notices(schema, BELLS).listener()) as listener:
        channel = f"correlator_{listener._keys[bell]}"
        with psycopg.connect(schema, autocommit=True) as spy:
            spy.execute(f'LISTEN "{channel}"')
            sender.ring()
            listener.listen({bell})
            Process(schema).ring()
            assert [notice.channel for notice in spy.notifies(timeout=SOON_S, stop_after=1)] == [channel]
            assert list(spy.notifies(timeout=0)) == []


@postgres
def test_a_sender_that_found_nobody_does_not_ask_again_and_who_begins_to_wait_looks_once_more(
    schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_QUIET_S", 3600.0)
    monkeypatch.setattr(NoticeListener, "settles_after_s", 0.5)
    with closing_of(Process(schema)) as sender:
        sender.ring()
        ours = bells(schema)
        assert ours.wait(DESTINATION, 0, SOON_S)
        sender.ring()  # it does not ask
        assert ours.rung(DESTINATION) == 1
        assert ours.wait(DESTINATION, 1, SOON_S), "the second look"
        assert not ours.wait(DESTINATION, 2, NOT_S)
    assert notices.NoticeListener.settles_after_s > 0


@postgres
def test_the_second_look_comes_after_the_time_in_which_senders_do_not_ask() -> None:
    assert NoticeListener.settles_after_s > notices._QUIET_S


@postgres
def test_a_sender_asks_again_when_the_quiet_time_is_over(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_QUIET_S", 0.0)
    with closing_of(Process(schema)) as sender:
        sender.ring()
        ours = bells(schema)
        listening(ours, schema)
        with Waiter(ours):
            sender.ring()


@postgres
def test_the_connection_of_a_sender_has_transactions_after_it_has_rung(schema: str) -> None:
    with closing_of(Process(schema)) as sender:
        sender.connection.exec_driver_sql("CREATE TABLE numbers (n integer)")
        sender.connection.commit()
        sender.ring()
        sender.connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")
        sender.connection.rollback()
        assert sender.connection.exec_driver_sql("SELECT count(*) FROM numbers").scalar_one() == 0


@postgres
def test_senders_ask_in_vain_when_nobody_waits_any_more(schema: str) -> None:
    bell = waking._bell_of(DESTINATION)
    with closing_of(Process(schema)) as sender, contextlib.closing(Notices(schema, BELLS).listener()) as listener:
        listener.listen({bell})
        sender.ring()
        assert sender.bells._channel._quiet_until[bell] == 0.0
        listener.listen(set())
        sender.ring()
        assert sender.bells._channel._quiet_until[bell] > 0.0


@postgres
def test_schemas_do_not_wake_each_other(schema: str, postgres_server: PostgresServer) -> None:
    ours = bells(schema)
    rings = listening(ours, schema)
    other = postgres_server.fresh_schema()
    listening(bells(other), other)
    with closing_of(Process(other)) as stranger:
        with Waiter(bells(other)):
            stranger.ring()
        assert not ours.wait(DESTINATION, rings, NOT_S)


@postgres
def test_a_lost_session_is_replaced_and_told_once(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waking, "_RETRY_S", 0.05)
    url = server.fresh_schema()
    ours = bells(url)
    listening(ours, url)
    for end in (lambda: server.terminate_backends(url), server.crash, lambda: restart(server)):
        caplog.clear()
        with Waiter(ours):
            end()
        awaken_by_another_process(ours, url)
    assert caplog.records == [], "it was told the first time"


def restart(server: PostgresServer) -> None:
    server.kill()
    server.start()


def awaken_by_another_process(ours: Bells, url: str) -> None:
    """The bells have listened anew when a notice, not a poll, wakes them."""
    with closing_of(Process(url)) as another:
        bell = waking._bell_of(DESTINATION)
        deadline = time.monotonic() + SOON_S
        while True:
            assert time.monotonic() < deadline
            ours.wait(DESTINATION, ours.rung(DESTINATION), 0.1)
            another.bells._channel._quiet_until[bell] = 0.0
            another.ring()
            if another.bells._channel._quiet_until[bell] == 0.0:
                return  # somebody waited, and was notified


@postgres
def test_a_frozen_server_wakes_when_it_goes_on(server: PostgresServer) -> None:
    url = server.fresh_schema()
    ours = bells(url)
    listening(ours, url)
    with closing_of(Process(url)) as another, Waiter(ours):
        sender = threading.Thread(target=another.ring)
        with server.frozen():
            sender.start()
            assert not ours.wait(DESTINATION, ours.rung(DESTINATION), NOT_S)
        sender.join(SOON_S)


@postgres
def test_behind_a_pooler_consumers_poll_and_say_so_once(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waking, "_RETRY_S", 0.05)
    with running(PgBouncer(postgres_server, "transaction")) as pooler:
        ours = bells(pooler.url(postgres_server.fresh_database()))
        for rung in range(5):
            assert ours.wait(DESTINATION, rung, SOON_S)
    assert len(caplog.records) == 1
    assert "a connection pooler stands between this process and the PostgreSQL server" in caplog.text


@postgres
def test_a_server_that_delivers_no_notifications_is_found_out(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_SELF_TEST_S", 0.05)
    monkeypatch.setattr(NoticeListener, "_note", lambda *_: None)
    with pytest.raises(TimeoutError, match="does not deliver notifications"):
        Notices(schema, BELLS).listener()


@postgres
def test_a_session_that_is_lost_when_the_sender_notifies_is_no_failure_of_the_send(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.fresh_schema()
    sender = Process(url)
    server.terminate_backends(url)
    sender.ring()
    assert sender.bells.rung(DESTINATION) == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "up to a second late" in caplog.text
    sender.connection.invalidate()


def test_a_store_that_is_removed_when_nobody_waits_any_more_is_not_told(tmp_path: Path, caplog) -> None:
    place = tmp_path / "there"
    place.mkdir()
    (place / "broker.db").touch()
    store = f"sqlite:///{place}/broker.db"
    before = set(threading.enumerate())
    ours = bells(store)
    listening(ours, store)
    threads = [one for one in set(threading.enumerate()) - before if one.name == "embedded-bells"]
    assert threads
    shutil.rmtree(place)
    for one in threads:
        one.join(SOON_S)
        assert not one.is_alive()
    assert caplog.messages == []
