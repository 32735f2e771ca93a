"""The worlds in which the contract of connectors is checked: a class for each kind of broker."""

import gzip
import io
import json
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from itertools import count
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from deltalake import DeltaTable

from connectors.embedded import EmbeddedConnection
from connectors.file import FileConnection
from connectors.http import HttpConnection
from connectors.http.source import HttpSource
from connectors.kafka import KafkaConnection
from connectors.kafka.destinations import topic_of_sender
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource
from connectors.lake import LakeConnection
from connectors.lake.plain import all_entries
from connectors.lake.sink import LakeSink
from connectors.objects import ObjectsConnection
from connectors.objects.sink import ObjectsSink
from connectors.objects.source import ObjectsSource
from connectors.pulsar import PulsarConnection
from connectors.pulsar.source import PulsarSource
from connectors.rabbitmq import RabbitConnection
from connectors.rabbitmq_stream import StreamConnection
from connectors.sql import SqlConnection
from connectors.sql.capture import CaptureSource
from connectors.sql.outbox import OutboxSource
from connectors.sql.polling import PolledSource
from correlator.connector import Connection, Features, Order, Source, Subscriber
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Message, Outgoing
from correlator.reliability import Reliability
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, BrokerWorld, receiver
from correlator.testing.memory import MEMORY_FEATURES, MemoryBroker
from correlator.testing.service import SERVICE_FEATURES, ServiceBroker
from tests.connectors.places import Place
from tests.connectors.tables import execute, rows, sql_engine
from tests.connectors.web import WebService, post
from tests.kafka_server import KafkaServer
from tests.pulsar_server import PulsarServer
from tests.rabbit_server import RabbitServer
from tests.waiting import wait_until

_worlds = count(1)


class MemoryWorld(BrokerWorld):
    features = MEMORY_FEATURES
    selects_in_place = True

    def __init__(self) -> None:
        super().__init__()
        self.broker = MemoryBroker(features=self.features)

    def connection(self) -> Connection:
        return self.broker.connection()

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        self.broker.publish(destination, messages)

    def collect(self, destination: str, at_least: int) -> list[Message]:
        return self.broker.received(destination)

    def refused(self) -> Outgoing | None:
        return None

    def restart(self) -> None:
        self.broker.down = True
        self.broker.down = False


class DeduplicatingMemoryWorld(MemoryWorld):
    features = Features(acknowledges_surely=True, deduplicates_sends=True)


class PositionMemoryWorld(MemoryWorld):
    """A world with a position for each receiver, as files and streams have."""

    features = replace(MEMORY_FEATURES, order=Order.POSITION, selects=False, shares=False)


class ServiceWorld(BrokerWorld):
    """The message service in memory. A restart cuts all connections."""

    features = SERVICE_FEATURES
    selects_in_place = True
    is_service = True

    def __init__(self) -> None:
        super().__init__()
        self.broker = ServiceBroker()

    def connection(self) -> Connection:
        return self.broker.connection()

    def restart(self) -> None:
        self.broker.drop_connections()


class EmbeddedWorld(BrokerWorld):
    features = EmbeddedConnection.features
    selects_in_place = True
    is_service = True

    def __init__(self, store: str) -> None:
        super().__init__()
        self.store = store

    def connection(self) -> EmbeddedConnection:
        return EmbeddedConnection("local", ConnectionSettings(type="embedded", options={"store": self.store}))


class RabbitWorld(BrokerWorld):
    """Queues of the server's default type. A restart kills the server."""

    features = Features()
    options: Mapping[str, object] = {}

    def __init__(self, server: RabbitServer, name: str) -> None:
        super().__init__()
        self.server = server
        self._name = name

    def connection(self) -> RabbitConnection:
        return RabbitConnection(
            "rabbit", ConnectionSettings(type="rabbitmq", options={**self.server.options, **self.options})
        )

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = f"{super().destination(kind, label)} {self._name}"
        source = self.connection().source(receiver(destination))
        if kind == "queue":
            source.connect()
            source.close()
        return destination

    def restart(self) -> None:
        self.server.write_definitions()
        self.server.restart()


class QuorumRabbitWorld(RabbitWorld):
    """Quorum queues, which count deliveries. A restart cuts the connections, as an operator can; the server lives."""

    features = Features(flags_redelivery=True)
    options: Mapping[str, object] = {"queue_type": "quorum"}

    def restart(self) -> None:
        self.server.close_connections()


class StreamWorld(RabbitWorld):
    """Streams. A restart kills the server, and waits until the streams are there again."""

    features = StreamConnection.features
    topics = False

    def __init__(self, server: RabbitServer, name: str) -> None:
        super().__init__(server, name)
        self._made: list[str] = []

    def connection(self) -> StreamConnection:
        return self.server.stream_connection()

    def destination(self, kind: str = "queue", label: str = "") -> str:
        self._made.append(super().destination(kind, label))
        return self._made[-1]

    def restart(self) -> None:
        super().restart()
        for destination in self._made:
            source = self.connection().source(receiver(destination, "waiter"))
            deadline = time.monotonic() + PATIENCE_S
            while not self._opens(source):
                assert time.monotonic() < deadline

    def _opens(self, source: Source) -> bool:
        try:
            source.connect()
        except ConnectionLost:
            return False
        source.close()
        return True


class _ImpatientPulsar(PulsarConnection):
    """A connection as the contract expects it: a new subscriber of a topic gets later messages only.

    Messages of a queue that a consumer leaves to others come again after 100 ms each time, not after growing pauses.
    """

    def source(self, receiver: ReceiverSettings) -> PulsarSource:
        of_topics = {"initial_position": "latest"}
        of_queues = {"negative_ack_delay": "100ms"}
        options = of_topics if receiver.destination.startswith("topic:") else of_queues
        return super().source(replace(receiver, options=options))


class PulsarWorld(BrokerWorld):
    """A namespace of its own. A restart kills the broker."""

    features = PulsarConnection.features

    def __init__(self, server: PulsarServer) -> None:
        super().__init__()
        self.server = server
        self._namespace = server.namespace(deduplication=self.features.deduplicates_sends)

    def connection(self) -> PulsarConnection:
        mine = {"namespace": self._namespace, "deduplication": self.features.deduplicates_sends}
        return _ImpatientPulsar("pulsar", ConnectionSettings(type="pulsar", options={**self.server.options, **mine}))

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = super().destination(kind, label)
        self.connection().source(receiver(destination))  # raises ConfigError where no topic may have that name
        return destination

    def restart(self) -> None:
        self.server.restart()


class DeduplicatingPulsarWorld(PulsarWorld):
    """A world whose broker drops repeats. A restart unloads the namespace, as an operator can; the broker lives."""

    features = replace(PulsarConnection.features, deduplicates_sends=True)

    def restart(self) -> None:
        self.server.request("PUT", f"namespaces/{self._namespace}/unload")


class _ExclusivePulsar(PulsarConnection):
    """A connection whose queues have one consumer at a time."""

    def source(self, receiver: ReceiverSettings) -> PulsarSource:
        return super().source(_exclusive(receiver))

    def order(self, receiver: ReceiverSettings, subscriber: Subscriber | None = None) -> Order:
        return super().order(_exclusive(receiver), subscriber)


def _exclusive(receiver: ReceiverSettings) -> ReceiverSettings:
    return replace(receiver, options={"subscription_type": "exclusive"})


class ExclusivePulsarWorld(PulsarWorld):
    """For the checks whose results differ with one consumer at a time."""

    features = replace(PulsarConnection.features, order=Order.POSITION)

    def connection(self) -> PulsarConnection:
        mine = {"namespace": self._namespace}
        return _ExclusivePulsar("pulsar", ConnectionSettings(type="pulsar", options={**self.server.options, **mine}))


class _OwnSources(KafkaSink):
    """A sink whose sources no other check has: a cluster knows them whatever the destination."""

    life = ""

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        return super().send(
            [msgspec.structs.replace(out, source=out.source and out.source + self.life) for out in batch]
        )


class _OnceKafka(KafkaConnection):
    """A connection whose senders are EXACTLY_ONCE, as repeats need it; a new group of a topic gets later messages only."""

    life = ""

    def source(self, receiver: ReceiverSettings) -> KafkaSource:
        start = "latest" if receiver.destination.startswith("topic:topic-") else "earliest"
        return super().source(replace(receiver, options={"start": start}))

    def sink(self, sender: SenderSettings) -> KafkaSink:
        once = replace(sender, reliability=Reliability.EXACTLY_ONCE)
        super().sink(once)  # raises ConfigError where the sender is wrong
        sink = _OwnSources(self._broker, topic_of_sender(once), once)
        sink.life = self.life
        return sink


class KafkaWorld(BrokerWorld):
    """Topics with one partition: there is nothing else, so a queue is one, too. A restart kills the broker."""

    features = KafkaConnection.features

    def __init__(self, server: KafkaServer, name: str) -> None:
        super().__init__()
        self.server = server
        self._name = name

    def connection(self) -> KafkaConnection:
        connection = _OnceKafka("kafka", ConnectionSettings(type="kafka", options=self.server.options))
        connection.life = self._name
        return connection

    def destination(self, kind: str = "queue", label: str = "") -> str:
        _, _, number = super().destination(kind).partition(":")
        destination = f"topic:{kind}-{label}{number}-{self._name}"
        self.connection().source(receiver(destination))  # raises ConfigError where no topic may have that name
        self.server.make_topic(destination.removeprefix("topic:"))
        return destination

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        records = [{"value": one.body, "key": one.key} for one in messages]
        self.server.publish(destination.removeprefix("topic:"), *records)

    def collect(self, destination: str, at_least: int) -> list[Message]:
        return [Message(one.value() or b"") for one in self.server.records(destination.removeprefix("topic:"))]

    def restart(self) -> None:
        self.server.restart()


class FileWorld:
    """Files of JSON lines, for sources and sinks."""

    features = FileConnection.features
    receives = True
    sends = True
    topics = False
    ends = True
    selects_in_place = False
    any_destination = True
    whole_messages = False
    is_service = False
    ending = ".jsonl"
    beginning = b""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = count(1)

    def connection(self) -> FileConnection:
        return FileConnection("files", ConnectionSettings(type="file", options={"path": str(self.path)}))

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = f"{kind}:{label}{next(self._numbers)}{self.ending}"
        self.connection().source(receiver(destination))  # raises ConfigError where no file may have that name
        file = self._file(destination)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.beginning)
        return destination

    def body(self, text: str) -> bytes:
        return json.dumps({"text": text}).encode()

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        with self._file(destination).open("ab") as file:
            file.writelines(message.body + b"\n" for message in messages)

    def collect(self, destination: str, at_least: int) -> list[Message]:
        return [Message(line) for line in self._file(destination).read_bytes().splitlines()]

    def refused(self) -> Outgoing | None:
        return Outgoing(0, "", "", Message(b"not JSON"))

    def restart(self) -> None:
        """Do nothing: there is no broker."""

    def _file(self, destination: str) -> Path:
        return self.path / destination.removeprefix("queue:")


class CsvWorld(FileWorld):
    """Files of CSV, for sources only."""

    sends = False
    ending = ".csv"
    beginning = b"text,number\r\n"

    def body(self, text: str) -> bytes:
        return f'"{text}\n""quoted""",17'.encode()


class _LakeOfTexts(LakeConnection):
    """A lake whose tables have one column, `text`."""

    def sink(self, sender: SenderSettings) -> LakeSink:
        return super().sink(replace(sender, options={"schema": "text STRING"}))


class LakeWorld(BrokerWorld):
    """Tables, for sinks. A table has rows, so `collect` makes the bodies again, in the order of the data files."""

    features = LakeConnection.features
    receives = False
    topics = False
    any_destination = False
    whole_messages = False
    format = ""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def connection(self) -> LakeConnection:
        options = {"path": str(self.path), "format": self.format}
        return _LakeOfTexts("lake", ConnectionSettings(type="lake", options=options))

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = super().destination(kind, label)
        self.connection().sink(SenderSettings(id="s", connection="lake", destination=destination))
        return destination

    def body(self, text: str) -> bytes:
        return json.dumps({"text": text}).encode()

    def collect(self, destination: str, at_least: int) -> list[Message]:
        files = self.files(self.path / destination.removeprefix("queue:"))
        in_order = sorted(files, key=lambda file: file.stat().st_mtime_ns)
        return [
            Message(self.body(text)) for file in in_order for text in pq.ParquetFile(file).read()["text"].to_pylist()
        ]

    def refused(self) -> Outgoing | None:
        return Outgoing(0, "", "", Message(b'{"text": 1}'))

    @abstractmethod
    def files(self, table: Path) -> list[Path]:
        """The data files that the log of a table names."""


class ParquetLakeWorld(LakeWorld):
    format = "parquet"

    def files(self, table: Path) -> list[Path]:
        return [table / file.path for entry in all_entries("test", table) for file in entry.files]


class DeltaLakeWorld(LakeWorld):
    format = "delta"

    def files(self, table: Path) -> list[Path]:
        return [Path(uri.removeprefix("file://")) for uri in DeltaTable(table).file_uris()]


class _SoonObjects(ObjectsConnection):
    """A connection whose receivers look often."""

    def source(self, receiver: ReceiverSettings) -> ObjectsSource:
        return super().source(replace(receiver, options={"poll_interval": "10ms"}))


class ObjectsWorld(BrokerWorld):
    """Objects of JSON lines, several in each, in a folder or a bucket."""

    features = ObjectsConnection.features
    topics = False
    any_destination = False
    whole_messages = False
    ending = ".jsonl"

    def __init__(self, place: Place, per_object: int = 7) -> None:
        super().__init__()
        self.place = place
        self._per_object = per_object
        self._objects = count(1)

    def connection(self) -> ObjectsConnection:
        return _SoonObjects("objects", ConnectionSettings(type="objects", options=self.place.options))

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = f"{super().destination(kind, label)}/*{self.ending}"
        self.connection().source(receiver(destination))  # raises ConfigError where no folder may have that name
        self.place.make_folder(destination.removeprefix("queue:").removesuffix(f"/*{self.ending}"))
        return destination

    def body(self, text: str) -> bytes:
        return msgspec.json.encode({"text": text})

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        folder = destination.removeprefix("queue:").removesuffix(f"/*{self.ending}")
        size = self._per_object
        for at in range(0, len(messages), size):
            name = f"{folder}/part={at // (3 * size):03d}/{next(self._objects):06d}{self.ending}"
            self.place.put(name, self.content([message.body for message in messages[at : at + size]]))

    def content(self, bodies: Sequence[bytes]) -> bytes:
        return b"\n".join([*bodies, b""])

    def collect(self, destination: str, at_least: int) -> list[Message]:
        """The objects of a source are in order; sources are in the order of their first bodies, which are numbered."""
        folder = destination.removeprefix("queue:").removesuffix(f"/*{self.ending}")
        sources: dict[str, list[bytes]] = {}
        for name in self.place.names():
            if name.startswith(f"{folder}/") and name.endswith(self.ending):
                sources.setdefault(name.rpartition("/")[0], []).extend(self.bodies(self.place.get(name)))
        return [Message(body) for its in sorted(sources.values()) for body in its]

    def bodies(self, content: bytes) -> Sequence[bytes]:
        return content.splitlines()

    def refused(self) -> Outgoing | None:
        return Outgoing(0, "", "", Message(b"not JSON"))


class PackedObjectsWorld(ObjectsWorld):
    """Objects of compressed JSON lines."""

    ending = ".jsonl.gz"

    def content(self, bodies: Sequence[bytes]) -> bytes:
        return gzip.compress(super().content(bodies))

    def bodies(self, content: bytes) -> Sequence[bytes]:
        return super().bodies(gzip.decompress(content))


class _RowsOfTexts(_SoonObjects):
    """A connection whose objects have one column, `text`."""

    def sink(self, sender: SenderSettings) -> ObjectsSink:
        return super().sink(replace(sender, options={"schema": "text STRING"}))


class ParquetObjectsWorld(ObjectsWorld):
    """Objects of Parquet, with three rows in each group."""

    ending = ".parquet"

    def connection(self) -> ObjectsConnection:
        return _RowsOfTexts("objects", ConnectionSettings(type="objects", options=self.place.options))

    def content(self, bodies: Sequence[bytes]) -> bytes:
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([msgspec.json.decode(body) for body in bodies]), sink, row_group_size=3)
        return sink.getvalue()

    def bodies(self, content: bytes) -> Sequence[bytes]:
        return [msgspec.json.encode(row) for row in pq.ParquetFile(io.BytesIO(content)).read().to_pylist()]

    def refused(self) -> Outgoing | None:
        return Outgoing(0, "", "", Message(b'{"text": 1}'))


class SqlWorld(BrokerWorld):
    """Outbox tables, to which senders write, too: they fill `text`, of which the database makes the body."""

    features = SqlConnection.features
    topics = False
    any_destination = False
    whole_messages = False
    _parts = {
        "sqlite": ("(hex(randomblob(16)))", """'{"text": "' || text || '"}'"""),
        "postgresql": ("gen_random_uuid()", """'{"text": "' || text || '"}'"""),
        "mysql": ("(uuid())", """concat('{"text": "', text, '"}')"""),
    }
    """A random text, and the body of a row."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def connection(self) -> SqlConnection:
        return SqlConnection("tables", ConnectionSettings(type="sql", options={"database": self.url}))

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = super().destination(kind, label)
        self.connection().sink(SenderSettings(id="s", connection="tables", destination=destination))
        with sql_engine(self.url) as engine:
            self._table(destination, *self._parts[engine.dialect.name]).create(engine)
            self._wake(engine, destination)
        return destination

    def _wake(self, engine: sa.Engine, destination: str) -> None:
        """Make the trigger of PostgreSQL."""
        _, *trigger = self.connection().outbox_statements(receiver(destination))
        with engine.begin() as connection:
            for statement in trigger:
                connection.exec_driver_sql(statement, execution_options={"no_parameters": True})

    def body(self, text: str) -> bytes:
        return json.dumps({"text": text}).encode()

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        rows = [json.loads(message.body) for message in messages]
        with sql_engine(self.url) as engine, engine.begin() as connection:
            connection.execute(sa.insert(self._table(destination)), rows)

    def collect(self, destination: str, at_least: int) -> list[Message]:
        table = self._table(destination)
        with sql_engine(self.url) as engine, engine.connect() as connection:
            texts = connection.execute(sa.select(table.c.text).order_by(table.c.id)).scalars().all()
        return [Message(self.body(text)) for text in texts]

    def refused(self) -> Outgoing | None:
        return Outgoing(0, "", "", Message(b'{"text": 1}'))

    def _table(self, destination: str, random: str = "", body: str = "''") -> sa.Table:
        return sa.Table(
            destination.removeprefix("queue:"),
            sa.MetaData(),
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("body", sa.Text, sa.Computed(body, persisted=True)),
            sa.Column("unique_id", sa.Text, nullable=False, server_default=sa.text(random)),
            sa.Column("text", sa.Text),
        )


class _Looking(SqlConnection):
    """A connection whose receivers look often: nothing can wake them."""

    def source(self, receiver: ReceiverSettings) -> OutboxSource | PolledSource:
        return super().source(replace(receiver, options={**receiver.options, "poll_interval": "10ms"}))


class MysqlWorld(SqlWorld):
    """Outbox tables of MySQL."""

    def connection(self) -> SqlConnection:
        return _Looking("tables", ConnectionSettings(type="sql", options={"database": self.url}))


class _WebOfOneWorld(HttpConnection):
    """A connection whose sources the world knows."""

    def __init__(self, sources: list[HttpSource]) -> None:
        super().__init__("web", ConnectionSettings(type="http", options={"port": 0}))
        self._sources = sources

    def source(self, receiver: ReceiverSettings) -> HttpSource:
        source = super().source(receiver)
        self._sources.append(source)
        return source


class WebhookWorld(BrokerWorld):
    """Requests of clients, for sources. Each message is a request, which its client repeats until it is answered 202.

    A client begins when the request before it is under way, so that the messages have an order. `close` ends all.
    """

    features = HttpConnection("web", ConnectionSettings(type="http", options={"port": 0})).features
    sends = False
    topics = False
    whole_messages = False

    def __init__(self) -> None:
        super().__init__()
        self._sources: list[HttpSource] = []
        self._connections: list[HttpConnection] = []
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def connection(self) -> HttpConnection:
        connection = _WebOfOneWorld(self._sources)
        self._connections.append(connection)
        return connection

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        self._begin(self._publish, destination, list(messages))

    def close(self) -> None:
        self._ended.set()
        for end in (*self._sources, *self._connections):
            end.close()
        for thread in self._threads:
            thread.join()

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _publish(self, destination: str, messages: Sequence[Message]) -> None:
        path = "/" + destination.removeprefix("queue:")
        for message in messages:
            under_way = threading.Event()
            self._begin(self._repeat, path, message.body, under_way)
            while not under_way.wait(0.002) and not self._ended.is_set():
                if any(message.body in _bodies_of(source) for source in list(self._sources)):
                    under_way.set()

    def _repeat(self, path: str, body: bytes, answered: threading.Event) -> None:
        while not self._ended.is_set():
            for connection in self._connections:
                with suppress(OSError, HTTPException):
                    if connection.address and post(connection.address, path, body).status == 202:
                        answered.set()
                        return
            self._ended.wait(0.002)


def _bodies_of(source: HttpSource) -> set[bytes]:
    """The bodies of the requests that are under way."""
    endpoint = source._endpoint
    with endpoint._changed:
        return {message.body for one in (*endpoint._waiting, *endpoint._held) for message in one.messages}


class ServiceOfOneWorld(BrokerWorld):
    """A service, for sinks. It refuses what comes for the path `refused`."""

    features = HttpConnection("web", ConnectionSettings(type="http", options={"url": "http://localhost"})).features
    receives = False
    topics = False
    whole_messages = False

    def __init__(self, service: WebService) -> None:
        super().__init__()
        self._service = service
        service.behaviour = lambda call: (422 if call.path == "/refused" else 200, {}, b"")

    def connection(self) -> HttpConnection:
        options = {"url": self._service.url, "deduplication": self.features.deduplicates_sends}
        return HttpConnection("web", ConnectionSettings(type="http", options=options))

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = super().destination(kind, label)
        self.connection().sink(SenderSettings(id="s", connection="web", destination=destination))
        return destination

    def collect(self, destination: str, at_least: int) -> list[Message]:
        path = "/" + destination.removeprefix("queue:")
        return [Message(call.body) for call in self._service.stored if call.path == path]

    def refused(self) -> Outgoing | None:
        return Outgoing(0, "", "queue:refused", Message(b"x"))


class DeduplicatingServiceOfOneWorld(ServiceOfOneWorld):
    """A service that honours `Idempotency-Key`."""

    features = replace(ServiceOfOneWorld.features, deduplicates_sends=True)


class _Capturing(SqlConnection):
    """A connection as the contract expects it: a subscriber of a topic gets later rows only, any other one every row."""

    def __init__(self, world: "CapturedWorld", options: Mapping[str, object]) -> None:
        super().__init__("tables", ConnectionSettings(type="sql", options=dict(options)))
        self._world = world

    def source(self, receiver: ReceiverSettings) -> OutboxSource | PolledSource | CaptureSource:
        slot = self._world.slot(receiver.destination, receiver.subscription)
        return super().source(replace(receiver, options={"slot": slot, "snapshot": "never"}))


class CapturedWorld(BrokerWorld):
    """Tables of PostgreSQL whose changes are captured. Close it: a server has few slots."""

    features = replace(SqlConnection.features, shares=False)
    sends = False
    whole_messages = False

    def __init__(self, url: str, state: Path) -> None:
        super().__init__()
        self.url = url
        self.state = state
        self._prefix = f"contract_{next(_worlds)}_"
        self._slots: dict[tuple[str, str], str] = {}

    def connection(self) -> SqlConnection:
        return _Capturing(self, {"database": self.url, "state": str(self.state)})

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = super().destination("topic", f"{self._prefix} {kind} {label}")
        table = destination.removeprefix("topic:")
        execute(
            self.url,
            f'CREATE TABLE "{table}" (text TEXT PRIMARY KEY)',
            f'CREATE PUBLICATION "{table}" FOR TABLE "{table}"',
        )
        if kind == "queue":
            execute(self.url, f"SELECT pg_create_logical_replication_slot('{self._name(destination, '')}', 'pgoutput')")
        return destination

    def slot(self, destination: str, subscription: str) -> str:
        """The slot of a subscription. That of a queue begins with the first message of the queue."""
        is_new = (destination, subscription) not in self._slots
        slot = self._name(destination, subscription)
        if is_new and " queue " in destination:
            begin = self._slots[destination, ""]
            execute(self.url, f"SELECT pg_copy_logical_replication_slot('{begin}', '{slot}')")
        return slot

    def body(self, text: str) -> bytes:
        return b'{"text":"%s"}' % text.encode()

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        with sql_engine(self.url) as engine, engine.begin() as connection:
            table = sa.Table(destination.removeprefix("topic:"), sa.MetaData(), sa.Column("text", sa.Text))
            connection.execute(sa.insert(table), [json.loads(message.body) for message in messages])

    def close(self) -> None:
        """Drop the slots and publications."""
        own = f"FROM pg_replication_slots WHERE starts_with(slot_name::text, '{self._prefix}')"
        wait_until(lambda: not rows(self.url, f"SELECT 1 {own} AND active"))
        execute(self.url, f"SELECT pg_drop_replication_slot(slot_name) {own}")
        for destination in {destination for destination, _ in self._slots}:
            execute(self.url, f'DROP PUBLICATION IF EXISTS "{destination.removeprefix("topic:")}"')

    def _name(self, destination: str, subscription: str) -> str:
        return self._slots.setdefault((destination, subscription), f"{self._prefix}{len(self._slots)}")


class _Polling(SqlConnection):
    """A connection as the contract expects it: a new subscriber of a topic gets later rows only."""

    def source(self, receiver: ReceiverSettings) -> OutboxSource | PolledSource | CaptureSource:
        start = "next" if receiver.destination.startswith("topic:topic ") else "first"
        return super().source(replace(receiver, options={"start": start, "order_column": "text"}))


class PolledWorld(BrokerWorld):
    """Tables of SQLite that are polled; each receiver gets every row, as from a file. Their rows are texts."""

    features = replace(SqlConnection.features, shares=False)
    sends = False
    whole_messages = False

    def __init__(self, url: str, state: Path) -> None:
        super().__init__()
        self.url = url
        self.state = state

    def connection(self) -> SqlConnection:
        options = {"database": self.url, "state": str(self.state)}
        return _Polling("tables", ConnectionSettings(type="sql", options=options))

    def destination(self, kind: str = "queue", label: str = "") -> str:
        destination = super().destination("topic", f"{kind} {label}")
        with sql_engine(self.url) as engine:
            self._table(destination).create(engine)
        return destination

    def body(self, text: str) -> bytes:
        return b'{"text":"%s"}' % text.encode()

    def publish(self, destination: str, messages: Sequence[Message]) -> None:
        with sql_engine(self.url) as engine, engine.begin() as connection:
            connection.execute(sa.insert(self._table(destination)), [json.loads(message.body) for message in messages])

    def _table(self, destination: str) -> sa.Table:
        return sa.Table(destination.removeprefix("topic:"), sa.MetaData(), sa.Column("text", sa.Text, primary_key=True))
