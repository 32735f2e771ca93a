"""The example of docs/rabbitmq-streams.md runs unchanged, against a real server, and is killed meanwhile."""

import pytest

from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from tests.connectors.rabbit import opened
from tests.connectors.test_rabbitmq_examples import (
    PATIENCE_S,
    names,  # noqa: F401  # a fixture for every test here
    started,
    stop,
    taken,
    write_example,
)
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq


def run(rabbit, directory):
    return started(rabbit, directory, "bridge.yaml", RABBITMQ_STREAM_PORT=rabbit.stream_port)


def test_the_example_of_the_page(rabbit: RabbitServer, tmp_path):
    write_example("rabbitmq-streams.md", tmp_path)
    connection = rabbit.stream_connection()
    out = ReceiverSettings(id="customer", connection="shop", destination="queue:bills")
    orders = [Message(b"%d" % n, {"uniqueMessageId": f"{n}:shop"}, "customer") for n in (1, 2, 2, 3)]
    process = run(rabbit, tmp_path)
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
                process = run(rabbit, tmp_path)
                more = Message(b"4", {"uniqueMessageId": "4:shop"})
                assert not any(sink.send([Outgoing(5, "a", "queue:orders", more)]))
            bridged += taken(bills, 1)
            assert not bills.receive(1, 0.2).messages
    finally:
        stop(process, tmp_path)
    wanted = [(b"1", "customer"), (b"2", "customer"), (b"3", "customer"), (b"4", None)]
    assert [(one.body, one.key) for one in bridged] == wanted
    assert "Traceback" not in (tmp_path / "run.log").read_text()
