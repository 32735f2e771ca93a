"""`correlator doctor` against a real server: its findings about queues, and that it changes nothing."""

import contextlib
import http.server
import json
import threading

import pytest

from connectors.rabbitmq import management
from correlator import Reliability
from correlator.cli.main import execute
from correlator.settings import ReceiverSettings, SenderSettings
from tests.rabbit_server import RabbitServer
from tests.servers import free_port

pytestmark = pytest.mark.rabbitmq

RELIABLE = Reliability.AT_LEAST_ONCE
LIMITED = {"x-queue-type": "quorum", "x-delivery-limit": 3}
KEPT = {"x-dead-letter-exchange": "amq.fanout"}
HELD = "1800 s, if consumer_timeout_s is the server's own consumer_timeout"


@pytest.fixture(scope="module")
def managed(rabbit: RabbitServer):
    """A server with the management API."""
    with rabbit.plugin("rabbitmq_management"):
        yield rabbit


def receiver(queue, reliability=RELIABLE, **options):
    return ReceiverSettings(
        id="in", connection="c", destination=f"queue:{queue}", reliability=reliability, options=options
    )


def sender_to(queue, **options):
    return SenderSettings(id="out", connection="c", destination=f"queue:{queue}", reliability=RELIABLE, options=options)


def found(server, *parts, **options):
    """The code and the text of each finding."""
    receivers = [part for part in parts if isinstance(part, ReceiverSettings)]
    senders = [part for part in parts if isinstance(part, SenderSettings)]
    connection = server.connection(**{"management_port": server.management_port, **options})
    return [(one.code, str(one)) for one in connection.examine(receivers, senders)]


CASES = [
    (True, {}, {}, None, ""),
    (True, {"x-max-length": 10, "x-overflow": "reject-publish"}, {}, None, ""),
    (True, {**LIMITED, **KEPT}, {}, None, ""),
    (True, LIMITED, {"dead-letter-exchange": "amq.fanout"}, None, ""),
    (True, {"x-queue-type": "quorum", "x-delivery-limit": -1}, {}, None, ""),
    (False, {}, {}, "W7032", "is not durable"),
    (True, {"x-max-length": 10}, {}, "W7033", "max-length 10; they are lost"),
    (True, {"x-max-length": 10, **KEPT}, {}, "W7033", "they go to exchange 'amq.fanout'"),
    (True, {"x-max-length-bytes": 900, "x-overflow": "drop-head"}, {}, "W7033", "max-length-bytes 900"),
    (True, {}, {"max-length": 7}, "W7033", "max-length 7"),
    (True, {"x-message-ttl": 5000}, {}, "W7034", "message-ttl 5000 ms"),
    (True, {}, {"expires": 600000}, "W7034", "expires 600000 ms: if nobody uses it for so long, the server deletes it"),
    (True, LIMITED, {}, "W7035", "after 3 deliveries"),
]
"""Durable, arguments and policy of a queue; the code of the finding, and what it says."""


@pytest.fixture(scope="module")
def queues(managed: RabbitServer):
    """The queues of `CASES`, all made at once, since the management API shows a new queue only after seconds."""
    names = [managed.queue() for _ in CASES]
    for queue, (_, _, policy, _, _) in zip(names, CASES, strict=True):
        if policy:
            managed.control("set_policy", "--apply-to", "queues", queue, f"^{queue}$", json.dumps(policy))
    with managed.channel() as channel:
        for queue, (durable, arguments, _, _, _) in zip(names, CASES, strict=True):
            channel.queue_declare(queue, durable=durable, arguments=arguments)
    return names


@pytest.mark.parametrize("case", range(len(CASES)))
def test_t39_what_a_queue_does_to_messages(managed: RabbitServer, queues, case):
    queue, (_, _, _, code, text) = queues[case], CASES[case]
    findings = found(managed, receiver(queue, declare=False), sender_to(queue, declare=False))
    assert [one for one, _ in findings] == ([code] * 2 if code else [])
    assert all(text in shown and f"'{queue}'" in shown for _, shown in findings)
    assert [shown.split(" ")[1] for _, shown in findings] == (["receivers.in:", "senders.out:"] if code else [])


def test_a_best_effort_receiver_may_have_a_queue_that_is_not_durable(managed: RabbitServer):
    queue = managed.queue()
    with managed.channel() as channel:
        channel.queue_declare(queue)
    assert not found(managed, receiver(queue, Reliability.BEST_EFFORT, declare=False))


@pytest.mark.parametrize(("arguments", "text"), [({}, HELD), ({"x-consumer-timeout": 90000}, "90000 ms")])
def test_how_long_an_application_may_hold_a_batch(managed: RabbitServer, arguments, text):
    queue = managed.queue()
    ((code, shown),) = found(managed, receiver(queue, Reliability.APP_CONTROLLED, arguments=arguments))
    assert code == "W7036"
    assert f"for longer than {text}" in shown


def test_of_a_queue_that_would_be_made_the_configuration_counts(managed: RabbitServer):
    queue = managed.queue()
    ((code, _),) = found(managed, receiver(queue, arguments={"x-max-length": 10}))
    assert code == "W7033"
    assert queue not in managed.queues()


def test_a_queue_that_is_missing_and_not_made(managed: RabbitServer):
    missing, queue = managed.queue(), managed.queue()
    with managed.channel() as channel:
        channel.queue_declare(queue)
    findings = found(managed, receiver(missing, declare=False), sender_to(queue, declare=False))
    assert [code for code, _ in findings] == ["E7010", "W7032"]
    assert findings[0][1].startswith("E7010 receivers.in: ")


class Answers(http.server.BaseHTTPRequestHandler):
    """An HTTP server that is no broker and answers every request alike."""

    content = b""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_):
        """Log nothing."""


@contextlib.contextmanager
def answering(content):
    """Run such a server within the block; yields its port."""
    handler = type("Handler", (Answers,), {"content": content})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def unseen(server, port):
    queue = server.queue()
    with server.channel() as channel:
        channel.queue_declare(queue, arguments={"x-max-length": 10})
    ((code, shown),) = found(server, receiver(queue, declare=False), management_port=port)
    assert code == "W7031"
    assert shown.endswith("give the user the tag monitoring, set management_port.")
    return shown


def test_a_server_without_the_management_api(rabbit: RabbitServer):
    port = free_port()
    assert f"cannot be read: 127.0.0.1:{port}: connection refused. " in unseen(rabbit, port)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b"7", b'{"effective_policy_definition": 7, "durable": true}', b"[" * 200_000]
)
def test_what_answers_instead_of_the_management_api(rabbit: RabbitServer, content):
    with answering(content) as port:
        assert f"127.0.0.1:{port}: what answers is not the management API. " in unseen(rabbit, port)


def test_a_queue_that_is_otherwise_than_configured(managed: RabbitServer):
    queue = managed.queue()
    with managed.channel() as channel:
        channel.queue_declare(queue, durable=True)
    ((code, shown),) = found(managed, receiver(queue, queue_type="quorum"))
    assert code == "E7008"
    assert "receivers.in" in shown


def test_a_queue_of_another_connection_keeps_nothing_from_the_others(managed: RabbitServer):
    own, queue = managed.queue(), managed.queue()
    with managed.channel() as channel:
        channel.queue_declare(own, exclusive=True)
        channel.queue_declare(queue)
        findings = found(managed, receiver(own), sender_to(queue, declare=False))
    assert [code for code, _ in findings] == ["E7009", "W7032"]
    assert "receivers.in" in findings[0][1]


def test_a_server_that_collects_no_statistics(rabbit: RabbitServer, monkeypatch):
    monkeypatch.setattr(management, "COLLECTING_S", 0.0)
    queue = rabbit.queue()
    with rabbit.channel() as channel:
        channel.queue_declare(queue, durable=True)
    with answering(b'{"durable": true, "arguments": {"x-max-length": 10}}') as port:
        findings = found(rabbit, receiver(queue), management_port=port)
    assert [code for code, _ in findings] == ["W7031", "W7033"]
    assert "the server collects no statistics" in findings[0][1]


def test_a_user_who_may_not_ask(managed: RabbitServer):
    queue = managed.queue()
    with managed.channel() as channel:
        channel.queue_declare(queue)
    managed.add_user("worker", "secret", ".*", ".*", ".*")
    try:
        ((code, shown),) = found(managed, receiver(queue, declare=False), user="worker", password="secret")
    finally:
        managed.delete_user("worker")
    assert code == "W7031"
    assert "answered 401" in shown


FILE = """
version: 1
name: shop
connections:
  shop: {{type: rabbitmq, port: {port}, management_port: {management_port}, user: {user}, password: "${{RABBITMQ_PASSWORD}}"}}
  local: {{type: embedded}}
destinations: {{orders: "queue:{queue}"}}
receivers:
  - {{id: orders, connection: shop, destination: orders, options: {{declare: false}}}}
  - {{id: other, connection: local, destination: "queue:q"}}
senders:
  - {{id: bills, connection: shop, destination: "topic:bills"}}
monitors:
  - {{type: "shop:Shop"}}
"""
SHOP = """
from correlator import Message, Monitor, on


class Shop(Monitor):
    @on(Message)
    def order(self, order: Message) -> None:
        pass
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a configuration file for a server, with a limited queue of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)

    def write(server, **changes):
        queue = server.queue()
        with server.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-max-length": 10})
        monkeypatch.setenv("RABBITMQ_PASSWORD", server.password)
        values = {"management_port": server.management_port, **server.options, **changes, "queue": queue}
        (tmp_path / "shop.yaml").write_text(FILE.format(**values))
        return queue

    return write


def test_the_command(managed: RabbitServer, file, capsys):
    queue = file(managed)
    assert execute(["doctor", "shop.yaml"]) == 0
    finding, last = capsys.readouterr().out.splitlines()
    assert finding.startswith(f"W7033 receivers.orders: queue '{queue}' drops its oldest messages beyond max-length 10")
    assert last == "examined: shop, local; nothing to examine: none"
    assert execute(["doctor", "shop.yaml", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["severity"], told["code"], told["path"]) == ("warning", "W7033", "receivers.orders")


def test_a_server_that_cannot_be_reached(rabbit: RabbitServer, file, capsys):
    file(rabbit, port=free_port())
    assert execute(["doctor", "shop.yaml"]) == 4
    shown = capsys.readouterr().out
    assert shown.startswith("E7001 connections.shop: ")
    assert rabbit.password not in shown
