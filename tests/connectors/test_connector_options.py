"""Wrong options and destinations of connectors: the error, and its text."""

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.file import FileConnection
from correlator.errors import ConfigError
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


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
