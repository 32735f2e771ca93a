"""The examples run as they stand, against a real server: `config/rabbitmq-to-rabbitmq.yaml` and docs/rabbitmq.md."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import take, tokens
from tests.cli.commands import COMMAND, environment
from tests.connectors.rabbit import opened
from tests.docs.test_pages import blocks
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
EXAMPLE = ROOT / "config" / "rabbitmq-to-rabbitmq.yaml"


def receiver(name, destination):
    return ReceiverSettings(id=name, connection="shop", destination=destination)


def publish(connection, messages):
    with opened(connection.sink(SenderSettings(id="p", connection="shop", destination="queue:orders"))) as sink:
        assert not any(sink.send([Outgoing(n, "shop", "queue:orders", one) for n, one in enumerate(messages)]))


def taken(source, wanted):
    """So many messages, once they are there; Spark takes its time to start."""
    deadline = time.monotonic() + PATIENCE_S
    messages = []
    while len(messages) < wanted and time.monotonic() < deadline:
        chunks = take(source, wanted - len(messages))
        source.acknowledge(tokens(chunks))
        messages += [message for chunk in chunks for message in chunk.messages]
    return messages


def started(rabbit, directory, file, **port):
    """The command, for as long as the test needs it; its port under the name that the file has for it."""
    variables = {
        **{name: str(value) for name, value in (port or {"RABBITMQ_PORT": rabbit.port}).items()},
        "RABBITMQ_USER": rabbit.user,
        "RABBITMQ_PASSWORD": rabbit.password,
        "PYTHONPATH": str(directory),
    }
    with (directory / "run.log").open("ab") as log:
        return subprocess.Popen(
            [COMMAND, "run", str(file)], cwd=directory, env=environment(variables), stdout=log, stderr=log
        )


def write_example(page, directory):
    """The files of a page that are called `bridge`."""
    for _, text in blocks(ROOT / "docs" / page):
        name = text.split("\n", 1)[0].removeprefix("# ").removeprefix("FILE ")
        if name.startswith("bridge."):
            (directory / name).write_text(text)


def stop(process, directory):
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM, (directory / "run.log").read_text()


def test_the_example_of_the_page(rabbit: RabbitServer, tmp_path):
    write_example("rabbitmq.md", tmp_path)
    connection = rabbit.connection(queue_type="quorum")
    with opened(connection.source(receiver("bills", "queue:bills"))) as bills:
        with opened(connection.source(receiver("orders", "queue:orders"))):
            pass
        orders = [Message(b"%d" % n, {"uniqueMessageId": f"{n}:shop"}, "customer") for n in (1, 2, 2, 3)]
        publish(connection, orders)
        process = started(rabbit, tmp_path, "bridge.yaml")
        try:
            bridged = taken(bills, 3)
        finally:
            stop(process, tmp_path)
        assert [(one.body, one.key) for one in bridged] == [(b"%d" % n, "customer") for n in (1, 2, 3)]
        assert not bills.receive(1, 0.2).messages
    with rabbit.channel() as channel:
        channel.queue_delete("orders")
        channel.queue_delete("bills")


@pytest.mark.spark
def test_the_example_pipeline(rabbit: RabbitServer, tmp_path):
    connection = rabbit.connection(queue_type="quorum")
    with (
        opened(connection.source(receiver("bills", "queue:billing"))) as bills,
        opened(connection.source(receiver("listener", "topic:orders.*"))) as large,
        opened(connection.source(receiver("orders", "queue:orders"))),
    ):
        pass
    amounts = {"1": 10.0, "2": 0.0, "3": 2000.0, "4": 999.0, "5": 1000.0}
    sent = [
        Message(json.dumps({"customer": f"c{number}", "amount": amounts[number]}).encode(), {"order": number})
        for number in ("1", "2", "3", "3", "4", "5")
    ]
    publish(connection, sent)
    process = started(rabbit, tmp_path, EXAMPLE)
    try:
        with (
            opened(connection.source(receiver("bills", "queue:billing"))) as bills,
            opened(connection.source(receiver("listener", "topic:orders.*"))) as large,
        ):
            assert [json.loads(one.body)["customer"] for one in taken(bills, 4)] == ["c1", "c3", "c4", "c5"]
            told = taken(large, 2)
            assert [(json.loads(one.body)["amount"], one.key) for one in told] == [(2000.0, "c3"), (1000.0, "c5")]
            assert all("uniqueMessageId" in one.properties for one in told)
            assert not bills.receive(1, 0.2).messages
    finally:
        stop(process, tmp_path)
