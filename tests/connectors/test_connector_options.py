"""Wrong options and destinations of connectors: the error, and its text."""

import re
from typing import NamedTuple

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.file import FileConnection
from correlator import Engine
from correlator.configuration.connectors import connector, installed
from correlator.connector import routing_options
from correlator.errors import ConfigError, RecoveryRefused
from correlator.reliability import Reliability
from correlator.settings import ConnectionSettings, EngineSettings, ReceiverSettings, SenderSettings


def make(kind, **options):
    return kind("c", ConnectionSettings(type="any", options=options))


def receiver(destination, **options):
    return ReceiverSettings(id="r", connection="c", destination=destination, options=options)


def sender(destination, **options):
    return SenderSettings(id="s", connection="c", destination=destination, options=options)


@pytest.mark.parametrize(
    ("kind", "options", "code", "text"),
    [
        (EmbeddedConnection, {"stroe": "x"}, "E1020", "Did you mean 'store'?"),
        (EmbeddedConnection, {"store": 7}, "E1022", "connections.c.store"),
        (EmbeddedConnection, {"store": ""}, "E1022", "connections.c.store"),
        (EmbeddedConnection, {"store": "mysql://host/db"}, "E1214", "connections.c.store"),
        (EmbeddedConnection, {"store": "sqlite://"}, "E1214", "sqlite:///"),
        (EmbeddedConnection, {"store": "sqlite:///:memory:"}, "E1214", "sqlite:///"),
        (EmbeddedConnection, {"store": "no url at all"}, "E1214", "connections.c.store"),
        (FileConnection, {}, "E1021", "'path' is missing"),
        (FileConnection, {"path": "data", "pth": "x"}, "E1020", "Did you mean 'path'?"),
        (FileConnection, {"path": ["data"]}, "E1022", "connections.c.path"),
        (FileConnection, {"path": "data", "state": 1}, "E1022", "connections.c.state"),
    ],
)
def test_options_of_connections(kind, options, code, text) -> None:
    with pytest.raises(ConfigError) as raised:
        make(kind, **options)
    assert raised.value.code == code
    assert text in str(raised.value)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        make(EmbeddedConnection, store="mysql://user:topsecret@host/db")
    assert "topsecret" not in str(raised.value)


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("orders", {}, "E1215"),
        ("queue:", {}, "E1215"),
        ("qeue:orders", {}, "E1215"),
        ("queue:a\0b", {}, "E1215"),
        ("queue:\ud800", {}, "E1215"),
        ("queue:" + "x" * 501, {}, "E1215"),
        ("queue:orders", {"follow": True}, "E1020"),
    ],
)
def test_receivers_of_the_embedded_broker(destination, options, code) -> None:
    with pytest.raises(ConfigError) as raised:
        make(EmbeddedConnection).source(receiver(destination, **options))
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [
        ("topic:a.csv", {}, "E1216"),
        ("queue:a.txt", {}, "E1216"),
        ("queue:a", {}, "E1216"),
        ("queue:../a.csv", {}, "E1216"),
        ("queue:b/../../a.csv", {}, "E1216"),
        ("queue:/etc/a.csv", {}, "E1216"),
        ("queue:b//a.csv", {}, "E1216"),
        ("queue:.positions/a.jsonl", {}, "E1216"),
        ("queue:.csv", {}, "E1216"),
        ("queue:a.csv", {"folow": True}, "E1020"),
        ("queue:a.csv", {"follow": "yes"}, "E1022"),
    ],
)
def test_receivers_of_files(destination, options, code) -> None:
    with pytest.raises(ConfigError) as raised:
        make(FileConnection, path="data").source(receiver(destination, **options))
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("destination", "options", "code"),
    [("queue:a.csv", {}, "E1216"), ("queue:a.jsonl", {"x": 1}, "E1020"), ("queue:a.jsonl", {"mode": 640}, "E1022")],
)
def test_senders_of_files(destination, options, code) -> None:
    with pytest.raises(ConfigError) as raised:
        make(FileConnection, path="data").sink(sender(destination, **options))
    assert raised.value.code == code


class OfSenders(NamedTuple):
    """The options of the senders of a connector.

    `routing` has those by which messages that wait could go to another place, each with two values. A new option must
    be entered in one of the two fields.
    """

    connection: dict[str, object]
    destination: str
    routing: dict[str, tuple[str, str]]
    others: set[str]


TABLE = {"schema", "extra_fields", "key_column", "unique_id_column", "properties_column", "missing_up_to"}
OF_SENDERS = {
    "embedded": OfSenders({}, "queue:q", {}, set()),
    "file": OfSenders({"path": "files"}, "queue:a.jsonl", {}, {"mode"}),
    "http": OfSenders(
        {"url": "http://127.0.0.1:1"},
        "queue:/p",
        {},
        {"token", "headers", "content_type", "concurrency", "timeout"},
    ),
    "kafka": OfSenders({"bootstrap_servers": "127.0.0.1:1"}, "topic:t", {}, {"subject", "schema_file"}),
    "lake": OfSenders({"path": "lake", "format": "delta"}, "queue:t", {}, TABLE),
    "objects": OfSenders({"path": "objects"}, "queue:o/*.parquet", {}, TABLE),
    "pulsar": OfSenders(
        {"service_url": "pulsar://127.0.0.1:1"}, "queue:q", {}, {"text", "delivery_delay", "queue_subscription"}
    ),
    "rabbitmq": OfSenders(
        {"port": 1},
        "topic:t",
        {"exchange": ("one", "two"), "routing_key": ("k", "l")},
        {"declare", "durable", "queue_type", "arguments", "exchange_type", "mandatory", "text"},
    ),
    "rabbitmq_stream": OfSenders({"port": 1}, "queue:q", {}, {"declare", "arguments"}),
    "sql": OfSenders(
        {"database": "sqlite:///tables.db"},
        "queue:t",
        {"schema": ("temp", "main")},
        {"mode", "key_columns", "statement", "extra_fields", "missing_up_to"},
    ),
}
ROUTED = [(type_, option) for type_, one in OF_SENDERS.items() for option in one.routing]


def test_every_connector_with_senders_is_here():
    assert {*OF_SENDERS, "program"} == {
        type_ for type_ in installed() if connector(type_, type_).__module__.startswith("connectors.")
    }


@pytest.mark.parametrize("type_", OF_SENDERS)
def test_every_option_of_a_sender_either_says_where_messages_go_or_does_not(type_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, destination, routing, others = OF_SENDERS[type_]
    made = make(connector(type_, type_), **options)
    with pytest.raises(ConfigError, match="E1020") as raised:
        made.sink(sender(destination, unknown=1))
    made.close()
    assert {*re.findall(r"\w+", raised.value.allowed.partition("Known: ")[2])} == {*routing} | others
    assert {*routing_options(made)} == {*routing}


def engine_with_a_sender(type_, options, destination, of_sender):
    out = SenderSettings(
        id="out",
        connection="c",
        destination=destination,
        reliability=Reliability.AT_LEAST_ONCE,
        options=of_sender,
    )
    connections = {"c": ConnectionSettings(type=type_, options=options)}
    return Engine(EngineSettings(name="e", store="sqlite:///e.db", connections=connections, senders=(out,)))


@pytest.mark.parametrize(("type_", "option"), ROUTED)
def test_a1_11_messages_that_wait_do_not_silently_go_elsewhere(type_, option, tmp_path, monkeypatch):
    """They were sent to the place that the option named before."""
    monkeypatch.chdir(tmp_path)
    options, destination, routing, _ = OF_SENDERS[type_]

    def engine(**changed):
        return engine_with_a_sender(type_, options, destination, changed)

    one, other = routing[option]
    with engine(**{option: one}):
        pass
    for changed, shown in (({option: other}, other), ({}, "null")):
        told = f"^E4302 sender 'out': options.{option} changed from {one} to {shown}. Not allowed .* Put it back"
        with pytest.raises(RecoveryRefused, match=told):
            engine(**changed).start()
    with engine(**{option: one}):
        pass


WRITTEN_OUT = {
    "the schema of SQLite": ("sql", {"database": "sqlite:///tables.db"}, "queue:t", {}, {"schema": "main"}),
    "the database of MySQL": ("sql", {"database": "mysql://u:p@127.0.0.1:1/d"}, "queue:t", {}, {"schema": "d"}),
    "the exchange of a topic": ("rabbitmq", {"port": 1}, "topic:t", {}, {"exchange": "amq.topic"}),
    "the routing key of a topic": ("rabbitmq", {"port": 1}, "topic:t", {}, {"routing_key": "t"}),
    "the routing key": ("rabbitmq", {"port": 1}, "queue:q", {"exchange": "e"}, {"exchange": "e", "routing_key": "q"}),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_default_that_is_written_out_is_no_other_place(name, tmp_path, monkeypatch):
    """In each direction, and still in the life after it."""
    monkeypatch.chdir(tmp_path)
    type_, options, destination, short, written = WRITTEN_OUT[name]

    for of_sender in (short, written, written, short, short):
        with engine_with_a_sender(type_, options, destination, of_sender):
            pass
