"""Databases without a server: what one would be told and what it must be, and how a file is given up."""

import os
import socket
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from connectors.embedded.database import connect_sqlite
from correlator.errors import CommitUnknown, ConnectionLost, Fenced, StoreError
from correlator.storage import database as databases
from correlator.storage import migrate, postgres
from correlator.storage.postgres import ServerFacts

HALF_A_MINUTE_S = 30


def test_a_file_is_owned_until_its_connection_is_closed(sqlite_url: str) -> None:
    """Whoever takes it over finds nobody else in it."""
    owned = databases.connect(sqlite_url)
    refused: list[str] = []

    def take(*_: object) -> None:
        with pytest.raises(Fenced) as refusal:
            databases.connect(sqlite_url)
        refused.append(refusal.value.code)

    engine: Engine = owned.engine
    event.listen(engine, "close", take)
    owned.close()
    assert refused == ["E3201"]
    databases.connect(sqlite_url).close()


def test_a_store_and_a_broker_refuse_the_file_of_each_other(sqlite_url: str, tmp_path: Path) -> None:
    broker = tmp_path / "broker.db"
    connect_sqlite(broker).close()
    with pytest.raises(StoreError, match="E3003"):
        databases.connect(f"sqlite:///{broker}")
    migrate.upgrade(sqlite_url)
    with pytest.raises(ConnectionLost, match="E3003"):
        connect_sqlite(Path(databases.location(sqlite_url)))


def test_the_file_of_a_broker_is_opened_like_that_of_a_store(sqlite_url: str, tmp_path: Path) -> None:
    """What makes commits durable and bounds the log; pages of a store are larger, because its rows are batches."""
    store = databases.connect(sqlite_url)
    broker = connect_sqlite(tmp_path / "broker.db")
    for name in ("journal_mode", "synchronous", "fullfsync", "journal_size_limit", "busy_timeout"):
        of_store, of_broker = (one.exec_driver_sql(f"PRAGMA {name}").scalar() for one in (store.connection, broker))
        assert of_store == of_broker, name
    broker.close()
    store.close()


def test_deleting_messages_writes_them_no_second_time(sqlite_url: str) -> None:
    """Some builds of SQLite overwrite deleted rows with zeros by default, and log the pages of the zeros."""
    store = databases.connect(sqlite_url)
    with store.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE messages (content BLOB)")
        connection.exec_driver_sql("INSERT INTO messages VALUES (zeroblob(1000000))")
    wal = Path(f"{store.where}-wal")
    before = wal.stat().st_size
    with store.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM messages")
    assert before > 1_000_000
    assert wal.stat().st_size - before < 100_000
    store.close()


def test_a_server_is_told_who_we_are_and_a_dead_one_is_noticed_within_half_a_minute() -> None:
    told = postgres._driver_arguments(databases.parse("postgresql://u@h/d"))
    assert told["application_name"] == f"pid {os.getpid()} on host {socket.gethostname()}"
    assert (told["connect_timeout"], told["client_encoding"]) == (postgres.CONNECT_TIMEOUT_S, "utf8")
    assert 0 < told["tcp_user_timeout"] <= HALF_A_MINUTE_S * 1000
    silence = told["keepalives_idle"] + told["keepalives_interval"] * told["keepalives_count"]
    assert 0 < silence <= HALF_A_MINUTE_S


def test_what_an_address_sets_is_left_to_it() -> None:
    told = postgres._driver_arguments(databases.parse("postgresql://u@h/d?connect_timeout=3&application_name=desk"))
    assert {"connect_timeout", "application_name"}.isdisjoint(told)
    assert {"client_encoding", "tcp_user_timeout"} <= set(told)


GOOD = {
    "version": 150_000,
    "encoding": "UTF8",
    "fsync": "on",
    "synchronous_commit": "on",
    "read_only": False,
    "schema": "public",
}


@pytest.mark.parametrize(
    ("fact", "code"),
    [
        ({}, ""),
        ({"synchronous_commit": "remote_apply"}, ""),
        ({"version": 140_022}, "E3307 db: PostgreSQL 14 is too old. 15 or newer"),
        ({"fsync": "off"}, "E3306 db: fsync is off"),
        ({"synchronous_commit": "off"}, "E3306 db: synchronous_commit is off"),
        ({"read_only": True}, "E3308 db: the server only reads"),
        ({"encoding": "LATIN1"}, "E3305 db"),
        ({"schema": None}, "E3304 db"),
    ],
)
def test_what_a_server_must_be(fact: dict[str, object], code: str) -> None:
    facts = ServerFacts(**(GOOD | fact))  # type: ignore[arg-type]
    if not code:
        postgres.refuse_server("db", facts)
        return
    with pytest.raises(StoreError, match=code) as refusal:
        postgres.refuse_server("db", facts)
    assert isinstance(refusal.value, CommitUnknown) is ("E3308" in code), "that may change by itself"


def test_the_digest_of_an_address_tells_databases_apart_and_does_not_depend_on_passwords() -> None:
    same = [
        ("postgresql://u:one@host/shop", "postgresql+psycopg://u:shop@host/shop"),
        ("postgresql://host/shop?user=u&password=s", "postgresql://host/shop?user=u&password=shop"),
        ("postgresql://other/shop",),
        ("postgresql://u@host/other",),
        ("postgresql://host/shop?options=-csearch_path%3Done",),
        ("sqlite:///one.db",),
        ("sqlite:////one.db",),
    ]
    digests = [{databases.digest_of(address) for address in addresses} for addresses in same]
    assert [len(one) for one in digests] == [1] * len(same)
    assert len(set.union(*digests)) == len(same)
