"""The example of docs/rabbitmq-streams.md runs as it stands, against a real server, and is killed in between."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from tests.cli.commands import COMMAND, environment
from tests.connectors.rabbit import opened
from tests.connectors.test_rabbitmq_examples import PATIENCE_S, taken
from tests.docs.test_pages import blocks
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def names(rabbit: RabbitServer) -> Iterator[None]:
    """The example of the page about queues calls its queues alike: neither leaves them to the other."""
    delete_queues(rabbit)
    yield
    delete_queues(rabbit)


def delete_queues(rabbit: RabbitServer) -> None:
    with rabbit.channel() as channel:
        for queue in ("orders", "bills"):
            channel.queue_delete(queue)


def started(rabbit, directory):
    variables = {
        "RABBITMQ_STREAM_PORT": str(rabbit.stream_port),
        "RABBITMQ_USER": rabbit.user,
        "RABBITMQ_PASSWORD": rabbit.password,
        "PYTHONPATH": str(directory),
    }
    with (directory / "run.log").open("ab") as log:
        command = [COMMAND, "run", "bridge.yaml"]
        return subprocess.Popen(command, cwd=directory, env=environment(variables), stdout=log, stderr=log)


def test_the_example_of_the_page(rabbit: RabbitServer, tmp_path):
    for _, text in blocks(ROOT / "docs" / "rabbitmq-streams.md"):
        name = text.split("\n", 1)[0].removeprefix("# ").removeprefix("FILE ")
        if name.startswith("bridge."):
            (tmp_path / name).write_text(text)
    connection = rabbit.stream_connection()
    out = ReceiverSettings(id="customer", connection="shop", destination="queue:bills")
    orders = [Message(b"%d" % n, {"uniqueMessageId": f"{n}:shop"}, "customer") for n in (1, 2, 2, 3)]
    process = started(rabbit, tmp_path)
    try:
        with opened(connection.source(out)) as bills:
            to_orders = SenderSettings(
                id="p", connection="shop", destination="queue:orders", options={"arguments": {"max-age": "7D"}}
            )
            with opened(connection.sink(to_orders)) as sink:
                assert not any(sink.send([Outgoing(n, "a", "queue:orders", one) for n, one in enumerate(orders, 1)]))
                bridged = taken(bills, 3)
                process.kill()
                process.wait(PATIENCE_S)
                process = started(rabbit, tmp_path)
                more = Message(b"4", {"uniqueMessageId": "4:shop"})
                assert not any(sink.send([Outgoing(5, "a", "queue:orders", more)]))
            bridged += taken(bills, 1)
            assert not bills.receive(1, 0.2).messages
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM, (tmp_path / "run.log").read_text()
    wanted = [(b"1", "customer"), (b"2", "customer"), (b"3", "customer"), (b"4", None)]
    assert [(one.body, one.key) for one in bridged] == wanted
    assert "Traceback" not in (tmp_path / "run.log").read_text()
