"""The example of webhooks that go into a table and a topic: its command over real servers, killed while orders come."""

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from correlator.testing.crashtest.levels import opened
from tests.connectors.campaign.clients import Clients
from tests.connectors.webhook_campaign.rounds import PARTITIONS, TABLE, TOPIC, body_of, values_of
from tests.connectors.webhook_campaign.shop import FILE
from tests.crash.projects import assert_holds_at
from tests.docs.test_pages import ROOT
from tests.kafka_server import KafkaServer
from tests.servers import free_port
from tests.waiting import wait_until

ORDERS_OF_A_LIFE, KILLS = 40, 2


@pytest.mark.kafka
@pytest.mark.postgres
def test_each_order_is_once_in_the_table_and_once_in_the_topic(tmp_path: Path, postgres, kafka: KafkaServer):
    database, port = postgres(), free_port()
    with psycopg.connect(database) as connection:
        connection.execute(TABLE[0])
    kafka.make_topic(TOPIC, PARTITIONS)
    environment = {
        **os.environ,
        "CORRELATOR_STORE": f"sqlite:///{tmp_path / 'webhook.db'}",
        "SHOP_DATABASE": database,
        "KAFKA": kafka.servers,
        "PORT": str(port),
    }
    command = [sys.executable, "-c", "from correlator.cli.entry import main; main()", "run", str(FILE)]

    def start() -> "subprocess.Popen[bytes]":
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    engine = start()
    clients = Clients(port, body_of, lambda number, _: str(number))
    for kill in range(1, KILLS + 1):
        wait_until(lambda least=kill * ORDERS_OF_A_LIFE: len(clients.stored) > least)
        engine.kill()
        engine.wait()
        engine = start()
    clients.end()
    orders = sorted(values_of(body) for body in clients.stored)
    with psycopg.connect(database, autocommit=True) as connection:
        rows = lambda: connection.execute("SELECT id, customer, cents FROM orders ORDER BY id").fetchall()  # noqa: E731
        wait_until(lambda: len(rows()) == len(orders) == len(kafka.records(TOPIC)))
        assert rows() == orders
    assert sorted(values_of(one.value()) for one in kafka.records(TOPIC)) == orders
    engine.send_signal(signal.SIGTERM)
    assert engine.wait(60) == 128 + signal.SIGTERM
    kafka.delete_topic(TOPIC)  # the next tests of this broker have one of this name


def test_the_crash_test_of_the_example_holds():
    body = runpy.run_path(str(ROOT / "config/test_pipelines.py"))["test_each_order_is_in_the_table_and_in_the_topic"]
    with opened("sim", FILE) as level:
        assert_holds_at(level, body.__wrapped__, singles=10, drawn=4)
