"""The example of webhooks that go into a table and a topic, over real servers, killed while orders come."""

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from correlator.testing.crashtest.levels import opened
from tests.connectors.web import post
from tests.crash.projects import assert_holds_at
from tests.docs.test_pages import ROOT
from tests.kafka_server import KafkaServer
from tests.servers import free_port
from tests.waiting import wait_until

FILE = "config/webhook-to-table-and-topic.yaml"
ORDERS, KILLS, CLIENTS = 200, 3, 4
TABLE = "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, cents BIGINT NOT NULL CHECK (cents > 0))"


class Shop:
    """An engine in a process of its own, and clients that repeat each order until it is answered with 202."""

    def __init__(self, place: Path, database: str, servers: str) -> None:
        self.port = free_port()
        self.stored: set[int] = set()
        self._environment = {
            **os.environ,
            "CORRELATOR_STORE": f"sqlite:///{place / 'webhook.db'}",
            "SHOP_DATABASE": database,
            "KAFKA": servers,
            "PORT": str(self.port),
        }
        self._log = (place / "log").open("w")

    def start(self) -> subprocess.Popen:
        run = "from correlator.cli.entry import main; main()"
        command = [sys.executable, "-c", run, "run", FILE]
        return subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=self._log, stderr=self._log)

    def send(self, numbers: range) -> None:
        for number in numbers:
            order = {"id": number, "customer": f"c{number % 3}", "cents": 100 * number}
            while not self._is_taken(json.dumps(order), number):
                pass
            self.stored.add(number)

    def _is_taken(self, body: str, number: int) -> bool:
        try:
            return post(("127.0.0.1", self.port), "/orders", body, {"Idempotency-Key": str(number)}).status == 202
        except OSError:
            threading.Event().wait(0.05)  # nobody listens
            return False

    def close(self) -> None:
        self._log.close()


@pytest.mark.kafka
@pytest.mark.postgres
def test_each_order_is_once_in_the_table_and_once_in_the_topic(tmp_path, postgres, kafka: KafkaServer):
    database = postgres()
    with psycopg.connect(database) as connection:
        connection.execute(TABLE)
    kafka.make_topic("orders", 3)
    shop = Shop(tmp_path, database, kafka.servers)
    engine = shop.start()
    clients = [threading.Thread(target=shop.send, args=(range(n, ORDERS, CLIENTS),)) for n in range(1, CLIENTS + 1)]
    for client in clients:
        client.start()
    for kill in range(1, KILLS + 1):
        wait_until(lambda least=kill * ORDERS // (KILLS + 2): len(shop.stored) > least)
        engine.kill()
        engine.wait()
        engine = shop.start()
    for client in clients:
        client.join()
    numbers = sorted(shop.stored)
    with psycopg.connect(database, autocommit=True) as connection:
        rows = lambda: connection.execute("SELECT id, customer, cents FROM orders ORDER BY id").fetchall()  # noqa: E731
        wait_until(lambda: len(rows()) == len(numbers) == len(kafka.records("orders")))
        assert rows() == [(number, f"c{number % 3}", 100 * number) for number in numbers]
    records = kafka.records("orders")
    assert sorted(json.loads(one.value())["id"] for one in records) == numbers
    assert all(one.key().decode() == json.loads(one.value())["customer"] for one in records)
    engine.send_signal(signal.SIGTERM)
    assert engine.wait(60) == 128 + signal.SIGTERM
    shop.close()
    kafka.delete_topic("orders")  # the next tests of this broker have one of this name


def test_the_crash_test_of_the_example_holds():
    body = runpy.run_path(str(ROOT / "config/test_pipelines.py"))["test_each_order_is_in_the_table_and_in_the_topic"]
    with opened("sim", ROOT / FILE) as level:
        assert_holds_at(level, body.__wrapped__, singles=10, drawn=4)
