"""The examples of docs/kafka.md run unchanged, against a real broker."""

import json
import sqlite3
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka as confluent
import pytest

from correlator import Engine
from tests.cli.commands import run
from tests.connectors.registry import serving
from tests.docs.test_pages import ROOT, blocks
from tests.kafka_server import KafkaServer
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

PAGE = ROOT / "docs" / "kafka.md"
TOPICS = ("orders", "bills")


@pytest.fixture(autouse=True)
def place(kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the files of the page, and the topics that all examples use."""
    for _, text in blocks(PAGE):
        name = text.split("\n", 1)[0].removeprefix("# ").removeprefix("FILE ")
        if name.endswith((".yaml", ".py")):
            (tmp_path / name).write_text(text)
    for topic in TOPICS:
        kafka.make_topic(topic, 3)
    monkeypatch.setenv("KAFKA", kafka.servers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for topic in TOPICS:
        kafka.delete_topic(topic)
    for module in ("bridge", "sales", "billing"):
        sys.modules.pop(module, None)


def test_from_topic_to_topic(kafka: KafkaServer) -> None:
    keys = {b"%d" % number: b"customer %d" % (number % 5) for number in range(30)}
    half = [{"value": value, "key": key, "headers": {"kind": "order"}} for value, key in keys.items()][:15]
    kafka.publish("orders", *half)
    with Engine.from_yaml("bridge.yaml"):
        wait_until(lambda: len(kafka.records("bills")) == 15)
    kafka.publish("orders", *[{"value": value, "key": key} for value, key in list(keys.items())[15:]])
    with Engine.from_yaml("bridge.yaml"):
        wait_until(lambda: len(kafka.records("bills")) == 30)
    bills = kafka.records("bills")
    assert {record.value(): record.key() for record in bills} == keys
    assert all(record.partition() == confluent.murmur2(record.key(), 3) for record in bills), "not where Java puts it"
    for key in set(keys.values()):
        mine = [int(record.value() or b"") for record in bills if record.key() == key]
        assert mine == sorted(mine)
    assert {one for (topic, _), one in kafka.offsets("billing").items() if topic == "orders"} != {0}


def test_lint_and_explain_know_what_is_promised(place: Path) -> None:
    assert run("lint", "bridge.yaml", cwd=place).returncode == 0
    explained = run("explain", "bridge.yaml", cwd=place).stdout
    assert "every message has its effect once" in " ".join(explained.split())


def test_from_a_topic_into_a_table(kafka: KafkaServer, place: Path) -> None:
    with closing(sqlite3.connect(place / "sales.db")) as database:
        database.execute("CREATE TABLE totals (customer TEXT PRIMARY KEY, cents INTEGER)")
        orders = [
            {"customer": "ada", "cents": 300},
            {"customer": "bob", "cents": 500},
            {"customer": "ada", "cents": 200},
        ]
        lines = "".join(json.dumps(order) + "\n" for order in orders)
        (place / "orders.jsonl").write_text(lines)
        told = run("publish", "sales.yaml", "shop", "topic:orders", "orders.jsonl", cwd=place)
        assert told.returncode == 0, told.stderr
        with Engine.from_yaml("sales.yaml") as engine:
            wait_until(lambda: engine.status().senders["totals"][1].sent == len(orders))
        assert sorted(database.execute("SELECT * FROM totals")) == [("ada", 500), ("bob", 500)]


def test_schemas_of_a_registry(kafka: KafkaServer, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bill,) = [text for language, text in blocks(PAGE) if language == "json"]
    (place / "bill.avsc").write_text(bill)
    price = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}
    fields = [{"name": "customer", "type": "string"}, {"name": "price", "type": price}]
    order = json.dumps({"type": "record", "name": "Order", "fields": fields})
    with serving() as registry:
        monkeypatch.setenv("REGISTRY", registry.url)
        number = registry.register("orders-value", order)
        kafka.publish("orders", {"value": struct.pack(">bI", 0, number) + b"\x06ada\x02\x7b"})
        with Engine.from_yaml("billing.yaml"):
            wait_until(lambda: len(kafka.records("bills")) == 1)
        (sent,) = kafka.records("bills")
        (written,) = registry.subjects["bills-value"]
    assert sent.value() == struct.pack(">bI", 0, written) + b"\x06ada\x04\x04\xce\x02"
