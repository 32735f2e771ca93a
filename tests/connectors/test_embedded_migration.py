"""The schema of the embedded broker: brokers of older versions keep every message, held ones, and what was stored."""

import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event

from connectors.embedded import EmbeddedConnection, schema
from connectors.embedded.database import APPLICATION_ID
from connectors.embedded.link import open_link
from connectors.embedded.sql import Sql
from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.storage import migrate
from correlator.testing.contract import take

FIRST = Path(__file__).with_name("brokers") / "first.sql"
"""A broker as the last version without revisions wrote it; its process was killed while two consumers held messages."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def first(request, tmp_path):
    """The address of a broker of the first schema, with messages."""
    if request.param == "sqlite":
        make_first(tmp_path / "broker.db")
        return f"sqlite:///{tmp_path}/broker.db"
    url = request.getfixturevalue("postgres")()
    with psycopg.connect(url) as database:
        for statement in statements_for_postgres():
            database.execute(statement)
    return url


def make_first(path):
    database = sqlite3.connect(path)
    database.executescript(FIRST.read_text())
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute("PRAGMA journal_mode = WAL")
    database.close()


def statements_for_postgres():
    made, inserted = [], []
    for statement in FIRST.read_text().split(";\n"):
        text = statement.strip()
        if text.startswith("CREATE TABLE broker_"):
            text = text.replace("id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "id SERIAL PRIMARY KEY")
            text = text.replace("BLOB", "BYTEA").replace("WITHOUT ROWID", "")
            made.append(text)
        elif text.startswith('INSERT INTO "broker_'):
            inserted.append(text.replace("X'", "'\\x"))
    order = [
        "broker_destination",
        "broker_subscription",
        "broker_schema",
        "broker_message",
        "broker_consumer",
        "broker_sender",
    ]
    return sorted(made, key=lambda text: order.index(text.split()[2])) + sorted(
        inserted, key=lambda text: order.index(text.split('"')[1])
    )


def connection_to(store):
    return EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": store}))


def opened(store, destination, name="r"):
    source = connection_to(store).source(ReceiverSettings(id=name, connection="c", destination=destination))
    source.connect()
    return source


def taken(source, number):
    return [message for chunk in take(source, number) for message in chunk.messages]


def send(store, destination, *batch, reliability="EXACTLY_ONCE"):
    sink = connection_to(store).sink(
        SenderSettings(id="s", connection="c", destination=destination, reliability=reliability)
    )
    sink.connect()
    assert not any(sink.send([Outgoing(number, source, destination, Message(body)) for number, source, body in batch]))
    sink.close()


def test_every_message_is_there_in_order_and_what_was_delivered_is_marked(first):
    source = opened(first, "queue:orders")
    messages = taken(source, 24)
    assert source.receive(10, 0.0).messages == ()
    numbers = [int(message.body.split()[1]) for message in messages]
    assert set(numbers) == {*range(2, 21), *range(100, 105)}
    # First by priority, which the first schema did not know, then in the order in which they were sent.
    rank = {
        message.body: 9 - (message.headers.priority if message.headers.priority is not None else 4)
        for message in messages
    }
    sent = {number: at for at, number in enumerate([*range(2, 21), *range(100, 105)])}
    assert numbers == sorted(numbers, key=lambda n: (rank[b"queue:orders %d" % n], sent[n]))
    seen = {int(m.body.split()[1]): (m.headers.redelivered, m.headers.delivery_count) for m in messages}
    assert {number for number, (redelivered, _) in seen.items() if redelivered} == {2, 3}  # rejected; held when it died
    assert (seen[2], seen[3], seen[4]) == ((True, 2), (True, 2), (False, 1))
    by_number = {int(m.body.split()[1]): m for m in messages}
    assert by_number[5].headers.message_id == "queue:orders:5"
    assert by_number[5].headers.expiration == by_number[5].headers.timestamp + 10**12
    assert by_number[5].properties == {"n": 5}
    assert by_number[5].key == "key 2"
    source.close()


def test_subscriptions_keep_what_waited_for_them(first):
    one, second = opened(first, "topic:news", "one"), opened(first, "topic:news", "second")
    assert sorted(m.body for m in taken(one, 5)) == [b"topic:news %d" % number for number in range(2, 7)]
    again = taken(second, 6)
    assert [m.body for m in again] == [b"topic:news %d" % number for number in range(1, 7)]
    assert not any(m.headers.redelivered for m in again)
    one.close()
    second.close()


def test_senders_are_remembered_and_no_message_id_is_used_again(first):
    send(first, "queue:orders", (20, "engine-1", b"repeat"), (21, "engine-1", b"new"))
    send(first, "queue:done", (4, "engine-2", b"repeat"), (5, "engine-2", b"new"))
    send(first, "queue:done", (3, "life-1", b"repeat"), reliability="BEST_EFFORT")
    connection = connection_to(first)
    assert [m.body for m in connection.browse("queue:done", 10)] == [b"new"]
    ids = [m.headers.message_id for m in connection.browse("queue:orders", 100)]
    assert len(ids) == len(set(ids)) == 25


def test_an_acknowledged_message_leaves_nothing(first):
    for destination, name, number in [("queue:orders", "r", 24), ("topic:news", "one", 5), ("topic:news", "second", 6)]:
        source = opened(first, destination, name)
        source.acknowledge([token for chunk in take(source, number) for token in chunk.tokens])
        source.close()
    assert counted(first) == [0, 0, 0, 0]


def counted(store):
    link = open_link(store)
    with link.reading() as connection:
        query = "SELECT (SELECT count(*) FROM broker_content), (SELECT count(*) FROM broker_delivery)"
        query += ", coalesce(sum(messages), 0), coalesce(sum(bytes), 0) FROM broker_tally"
        counts = [int(one) for one in connection.exec_driver_sql(query).one()]
    link.close()
    return counts


def test_a_copy_is_made_first(tmp_path):
    make_first(tmp_path / "broker.db")
    assert connection_to(f"sqlite:///{tmp_path}/broker.db").queues() == [
        "queue:done",
        "queue:mq.sys.dmq",
        "queue:orders",
    ]
    copy = sqlite3.connect(tmp_path / "broker.db.backup-0001")
    assert copy.execute("SELECT count(*) FROM broker_message").fetchone() == (35,)
    copy.close()


def test_a_death_at_any_statement_loses_nothing(tmp_path, monkeypatch):
    """The migration ends at its n-th statement, for each n. Then the whole old broker is there, or the whole new one."""
    make_first(tmp_path / "first.db")
    path = tmp_path / "broker.db"
    deaths, old = 0, 0
    while True:
        shutil.copy(tmp_path / "first.db", path)
        if migrated(path, deaths, monkeypatch):
            break
        database = sqlite3.connect(path)
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'broker_message'").fetchone():
            assert database.execute("SELECT count(*) FROM broker_message").fetchone() == (35,), deaths
            old += 1
        database.close()
        assert counted(f"sqlite:///{path}")[:2] == [30, 35], deaths
        forget(path)
        deaths += 1
    assert 30 < old < deaths
    assert counted(f"sqlite:///{path}")[:2] == [30, 35]


class Died(Exception):
    pass


def migrated(path, statements, monkeypatch):
    """Whether the migration and the start need no more than so many statements; else they are cut off."""
    left = statements

    def count(*_):
        nonlocal left
        left -= 1
        if left < 0:
            raise Died

    execute = Sql._execute
    monkeypatch.setattr(Sql, "_execute", lambda self, *more: (count(), execute(self, *more))[1])
    event.listen(Engine, "before_cursor_execute", count)
    try:
        open_link(f"sqlite:///{path}").close()
    except Died:
        return False
    finally:
        event.remove(Engine, "before_cursor_execute", count)
        monkeypatch.undo()
    return True


def forget(path):
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("number", "refusal"),
    [
        pytest.param("0099", rf"^E7006 .*schema 99, this is {int(schema.HEAD)}", id="newer"),
        pytest.param("out", "^E7003 .*'out' is not the number of a schema", id="damaged"),
    ],
)
def test_a_broker_with_another_number_of_the_schema_is_refused_and_not_changed(first, number, refusal):
    open_link(first).close()
    link = open_link(first)
    with link.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE broker_version SET version_num = '{number}'")
    link.close()
    for use in (lambda: open_link(first), lambda: connection_to(first).queues()):
        with pytest.raises(ConnectionLost, match=refusal):
            use()


def test_programs_from_before_the_revisions_refuse_the_broker(first):
    """They look at this number, and refuse one above 1."""
    link = open_link(first)
    with link.reading() as connection:
        assert connection.exec_driver_sql("SELECT version FROM broker_schema").scalar_one() == 2
    link.close()


def test_the_head_is_the_last_revision_and_there_is_no_way_down():
    scripts = ScriptDirectory(str(schema.SCRIPTS))
    assert scripts.get_heads() == [schema.HEAD]
    assert not any(hasattr(script.module, "downgrade") for script in scripts.walk_revisions())


def test_threads_make_new_brokers_and_stores_at_the_same_time(tmp_path):
    """Each file gets its own tables, and no others."""
    together = threading.Barrier(4)

    def make(at):
        together.wait()
        if at == 0:
            migrate.upgrade(f"sqlite:///{tmp_path}/0.db")
        else:
            open_link(f"sqlite:///{tmp_path}/{at}.db").close()
        with sqlite3.connect(tmp_path / f"{at}.db") as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        database.close()
        return {name for (name,) in tables}

    with ThreadPoolExecutor(4) as threads:
        store, *brokers = threads.map(make, range(4))
    assert brokers[0] == brokers[1] == brokers[2] >= {"broker_consumer", "broker_version"}
    assert "engine" in store
    assert not any(name.startswith("broker_") for name in store)
