"""Helpers for the tests of the embedded broker."""

import functools
import tempfile
from contextlib import closing
from pathlib import Path

from connectors.embedded import EmbeddedConnection, schema
from connectors.embedded.database import connect_postgres, connect_sqlite, raw_sqlite
from connectors.embedded.link import open_link
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from tests import waiting

QUEUE = "queue:work"
TOPIC = "topic:news"
DEAD = "queue:mq.sys.dmq"


def address(request, tmp_path):
    """The address of a new broker, for a fixture with the parameter `sqlite` or `postgres`.

    Its tables are there, and nobody has opened it: to copy them is cheaper than to run all revisions for each test.
    """
    if request.param == "sqlite":
        return new_file(tmp_path)
    store, server = empty(request, tmp_path), request.getfixturevalue("postgres_server")
    server.execute(_statements(server).replace(f"{_TEMPLATE}.", f"{server.schema_of(store)}."), store)
    return store


def empty(request, tmp_path):
    """The address where a broker may be made, for a fixture with the parameter `sqlite` or `postgres`."""
    return f"sqlite:///{tmp_path}/broker.db" if request.param == "sqlite" else request.getfixturevalue("postgres_store")


def new_file(directory):
    """The address of a new broker in a file, whose tables are there."""
    path = directory / "broker.db"
    path.touch(0o600)
    path.write_bytes(_file())
    return f"sqlite:///{path}"


@functools.cache
def _file():
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "broker.db"
        with closing(connect_sqlite(path)) as connection:
            schema.upgrade(connection, "")
        return path.read_bytes()


_TEMPLATE = "broker_template"


@functools.cache
def _statements(server):
    """The statements that make the tables and functions of a broker in a schema with the name `_TEMPLATE`."""
    store = server.fresh_schema()
    with closing(connect_postgres(store)) as connection:
        schema.upgrade(connection, "")
    server.execute(f"ALTER SCHEMA {server.schema_of(store)} RENAME TO {_TEMPLATE}", store)
    return server.dump(store, _TEMPLATE)


class Broker:
    """A broker with clients; `kill` ends the links of a client as the death of its process would."""

    def __init__(self, store, **options):
        self.store = store
        self.connection = EmbeddedConnection(
            "c", ConnectionSettings(type="embedded", options={"store": store, **options})
        )
        self._open = []

    def client(self, client_id=None):
        client = self.connection.attach(client_id)
        self._open.append(client)
        return client

    def session(self, client_id=None):
        return self.opened(self.client(client_id).session())

    def opened(self, one):
        self._open.append(one)
        return one

    def source(self, session, destination=QUEUE, **settings):
        return connected(self.opened(session.source(receiver(destination, **settings))))

    def subscriber(self, session, kind, destination=TOPIC, **settings):
        return connected(self.opened(session.subscriber(receiver(destination, **settings), kind)))

    def plain(self, destination=QUEUE, **settings):
        return connected(self.opened(self.connection.source(receiver(destination, **settings))))

    def send(self, *messages, destination=QUEUE, source=""):
        client = self.connection.attach(None)
        session = client.session()
        sink = session.sink(SenderSettings(id="s", connection="c", destination=destination))
        sink.connect()
        results = sink.send(outgoing(*messages, destination=destination, source=source))
        session.close()
        client.close()
        return results

    def count(self, query="SELECT count(*) FROM broker_content"):
        link = open_link(self.store)
        with link.reading() as connection:
            found = connection.exec_driver_sql(query).scalar()
        link.close()
        return int(found or 0)

    def tally(self):
        return (
            self.count("SELECT sum(messages) FROM broker_tally"),
            self.count(
                "SELECT sum(bytes) - (SELECT coalesce(sum(length(content)), 0) FROM broker_content) FROM broker_tally"
            ),
        )

    def close(self):
        for one in reversed(self._open):
            one.close()


def receiver(destination, name="r", **settings):
    return ReceiverSettings(id=name, connection="c", destination=destination, **settings)


def connected(source):
    source.connect()
    return source


def message(body, properties=None, **headers):
    return Message(body.encode(), properties or {}, None, None, Headers(**headers))


def outgoing(*messages, destination=QUEUE, source=""):
    made = [message(one) if isinstance(one, str) else one for one in messages]
    return [Outgoing(number, source, destination, one) for number, one in enumerate(made, 1)]


def bodies(*chunks):
    return [message.body.decode() for chunk in chunks for message in chunk.messages]


def counts(*chunks):
    return [(m.headers.redelivered, m.headers.delivery_count) for chunk in chunks for m in chunk.messages]


def kill(source):
    """End the link of a source as the death of its process would: the locks are free, the rows stay."""
    link = source._access._link
    if link is None:
        return
    session = getattr(getattr(link.connection.connection.driver_connection, "info", None), "backend_pid", 0)
    source._access.close()
    if session:  # the server releases the locks a moment later
        link = open_link(source._access.store)
        wait_until(lambda: not _lives(link, session))
        link.close()


def _lives(link, session):
    with link.reading() as connection:
        return connection.exec_driver_sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (session,)).first()


wait_until = functools.partial(waiting.wait_until, within_s=20)


def bodies_of(broker, queue):
    return [m.body.decode() for m in broker.connection.browse(queue, 99)]


def steps(connection, do):
    """How many tens of its instructions SQLite needs to do something."""
    taken = []
    raw = raw_sqlite(connection)
    raw.set_progress_handler(lambda: taken.append(1), 10)
    try:
        do()
    finally:
        raw.set_progress_handler(None, 0)
    return len(taken)
