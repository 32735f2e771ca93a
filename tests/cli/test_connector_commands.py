"""`lint`, `explain`, `plan` and `doctor` know the options, the promises and the places of each connector."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from correlator.cli.main import execute
from tests.cli.commands import write
from tests.kafka_server import KafkaServer

FILE = """
version: 1
name: shop
store: sqlite:///engine.db
connections:
  shop: {{type: {type}, {options}}}
receivers:
  - {{id: in, connection: shop, destination: "{source}", reliability: EXACTLY_ONCE{more}}}
senders:
  - {{id: out, connection: shop, destination: "{target}", reliability: EXACTLY_ONCE}}
bridges:
  - {{name: through, from: [in], to: [out]}}
"""
NEW = "receiver in\tnew\ta new part needs an id that no other part has"


class Case(NamedTuple):
    """A connector.

    Attributes:
        options: those of the connection.
        source: destination of the receiver.
        target: destination of the sender.
        wrong: a destination that the connector refuses, and its reason.
        says: for each command the exit status, and a text of its output.
        more: further settings of the receiver.
    """

    options: str
    source: str
    target: str
    wrong: tuple[str, str]
    says: Mapping[str, tuple[int, str]]
    more: str = ""


CASES = {
    "sql": Case(
        'database: "sqlite:///shop.db", state: positions',
        "topic:orders",
        "queue:rows",
        ("topic:rows", "senders[0].destination: 'topic:rows' is not a table"),
        {
            "lint": (0, "receivers[0].options.lag: a row that commits more than 1s after"),
            "explain": (0, "Nothing is lost, and every message has its effect once"),
            "plan": (0, NEW),
            "doctor": (4, "E7010 senders.out: the database has no table 'rows'"),
        },
        ", options: {order_column: id, lag: 1s}",
    ),
    "kafka": Case(
        'bootstrap_servers: "127.0.0.1:1"',
        "topic:orders",
        "topic:bills",
        ("queue:bills", "senders[0].destination: 'queue:bills' is not a topic of Kafka"),
        {
            "lint": (0, "receivers[0].reliability: recognises a repeat"),
            "explain": (0, "Connection 'shop' does not confirm acknowledgements"),
            "plan": (0, NEW),
            "doctor": (4, "E7010 senders.out: Broker: Unknown topic or partition"),
        },
    ),
    "http": Case(
        'port: 0, url: "http://127.0.0.1:1"',
        "queue:orders",
        "queue:bills",
        ("topic:bills", "senders[0].destination: 'topic:bills' is not a path"),
        {
            "lint": (0, "senders[0].reliability: after a crash repeats go out with the same id"),
            "explain": (0, "clients that repeat each request until it is answered"),
            "plan": (0, NEW),
            "doctor": (4, "E7001 connections.shop: cannot connect to 127.0.0.1:1"),
        },
    ),
    "objects": Case(
        "path: ., state: positions",
        "queue:orders/*.jsonl",
        "queue:bills/*.jsonl",
        ("queue:bills", "senders[0].destination: 'queue:bills' names no objects"),
        {
            "lint": (0, "senders[0]: each batch is an object"),
            "explain": (0, "Nothing is lost, and every message has its effect once"),
            "plan": (0, NEW),
            "doctor": (4, "E7010 receivers.in: there is no folder "),
        },
    ),
}
COMMANDS = ("lint", "explain", "plan", "doctor")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=[pytest.mark.kafka] if (kind, name) == ("kafka", "doctor") else [])
        for kind in CASES
        for name in COMMANDS
    ],
)
def test_a_command_knows_a_connector(
    kind: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.db").touch()
    case, options = CASES[kind], CASES[kind].options
    if (kind, name) == ("kafka", "doctor"):
        server: KafkaServer = request.getfixturevalue("kafka")
        options = options.replace("127.0.0.1:1", server.servers)
    text = FILE.format(type=kind, options=options, source=case.source, target=case.target, more=case.more)
    write(tmp_path / "shop.yaml", [text.strip()])
    status, line = case.says[name]
    assert (execute([name, "shop.yaml"]), line in "".join(shown := capsys.readouterr())) == (status, True), shown
    refused, reason = case.wrong
    write(tmp_path / "shop.yaml", [text.strip().replace(case.target, refused)])
    assert execute([name, "shop.yaml"]) == 2
    assert reason in "".join(capsys.readouterr())
