"""The examples of config/ and of docs/rabbitmq.md run unchanged, against a real server."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.file import FileConnection
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import take, tokens
from tests.cli.commands import COMMAND, environment
from tests.connectors.rabbit import opened
from tests.docs.test_pages import blocks
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
TO_RABBITMQ = ROOT / "config" / "rabbitmq-to-rabbitmq.yaml"
TO_FILE = ROOT / "config" / "rabbitmq-to-file.yaml"


@pytest.fixture(autouse=True)
def names(rabbit: RabbitServer) -> Iterator[None]:
    """Delete the queues before and after each test, since all examples use the same names."""
    delete_queues(rabbit)
    yield
    delete_queues(rabbit)


def delete_queues(rabbit: RabbitServer) -> None:
    with rabbit.channel() as channel:
        for queue in ("orders", "bills", "billing", "orders.*:listener", "sold"):
            channel.queue_delete(queue)


def receiver(name, destination):
    return ReceiverSettings(id=name, connection="shop", destination=destination)


def publish(connection, messages, destination="queue:orders"):
    with opened(connection.sink(SenderSettings(id="p", connection="shop", destination=destination))) as sink:
        assert not any(sink.send([Outgoing(n, "shop", destination, one) for n, one in enumerate(messages)]))


def taken(source, wanted):
    """Take `wanted` messages; Spark needs time to start."""
    deadline = time.monotonic() + PATIENCE_S
    messages = []
    while len(messages) < wanted and time.monotonic() < deadline:
        chunks = take(source, wanted - len(messages))
        source.acknowledge(tokens(chunks))
        messages += [message for chunk in chunks for message in chunk.messages]
    return messages


def started(rabbit, directory, file, **port):
    """Run the command within the block; the environment names its port as the file expects.

    It has a session of its own, so that its JVM can be killed with it.
    """
    variables = {
        **{name: str(value) for name, value in (port or {"RABBITMQ_PORT": rabbit.port}).items()},
        "RABBITMQ_USER": rabbit.user,
        "RABBITMQ_PASSWORD": rabbit.password,
        "PYTHONPATH": str(directory),
    }
    with (directory / "run.log").open("ab") as log:
        return subprocess.Popen(
            [COMMAND, "run", str(file)],
            cwd=directory,
            env=environment(variables),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def write_example(page, directory):
    """Write the files of a page whose names begin with `bridge.`."""
    for _, text in blocks(ROOT / "docs" / page):
        name = text.split("\n", 1)[0].removeprefix("# ").removeprefix("FILE ")
        if name.startswith("bridge."):
            (directory / name).write_text(text)


def stop(process, directory):
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM, (directory / "run.log").read_text()


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


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
    process = started(rabbit, tmp_path, TO_RABBITMQ)
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


def reader(directory, name):
    """A source that follows the file of sales from its beginning."""
    options = {"path": str(directory), "state": str(directory / name)}
    follow = ReceiverSettings(
        id=name, connection="books", destination="queue:sales.jsonl", max_batch_size=10_000, options={"follow": True}
    )
    return FileConnection("books", ConnectionSettings(type="file", options=options)).source(follow)


def sold(numbers):
    """Orders of these numbers; the amount of every tenth is 0."""
    return [
        Message(b'{"customer": "c%d", "amount": %d}' % (number % 7, number % 10 * 200), {"order": str(number)})
        for number in numbers
    ]


def in_the_book(numbers):
    """Number, amount, and whether the amount is large, of each order whose amount is not 0."""
    return [(str(number), number % 10 * 200, number % 10 >= 5) for number in numbers if number % 10]


@pytest.mark.kill9
@pytest.mark.spark
def test_the_example_pipeline_into_a_file_is_killed_in_the_middle(rabbit: RabbitServer, tmp_path):
    connection = rabbit.connection(queue_type="quorum")
    books = tmp_path / "config" / "data"
    book = books / "sales.jsonl"
    books.mkdir(parents=True)
    book.touch()
    publish(connection, sold(range(500)), "queue:sold")
    process = started(rabbit, tmp_path, TO_FILE)
    try:
        with opened(reader(books, "first")) as lines:
            taken(lines, 1)
        publish(connection, sold(range(500, 900)), "queue:sold")
    finally:
        kill(process)
    everything = in_the_book(range(1000))
    assert 0 < book.read_bytes().count(b"\n") < len(everything) - 90
    publish(connection, sold(range(890, 1000)), "queue:sold")  # the shop does not know whether the last ones arrived
    process = started(rabbit, tmp_path, TO_FILE)
    try:
        with opened(reader(books, "second")) as lines:
            taken(lines, len(everything))
    finally:
        stop(process, tmp_path)
    told = [json.loads(line) for line in book.read_text().splitlines()]
    assert [(one["order"], one["amount"], one["large"]) for one in told] == everything
    assert all(one["tax"] == pytest.approx(one["amount"] * 0.19) for one in told)
    with rabbit.channel() as channel:
        assert channel.queue_delete("sold").method.message_count == 0
