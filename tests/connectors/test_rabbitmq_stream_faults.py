"""Processes, connections and the server of streams are killed: nothing is lost, and what has a name is stored once.

And what can go wrong with connections, each with its code.
"""

import asyncio
import json
import math
import signal
import subprocess
import sys
import threading
import time

import pytest
from rstream import schema
from rstream.client import Client

from connectors.rabbitmq_stream import StreamConnection
from connectors.rabbitmq_stream.broker import NodeAddress
from connectors.rabbitmq_stream.link import Wire
from correlator import Engine, Message, Monitor, on
from correlator.errors import ConnectionLost
from correlator.events import UNREADABLE, Outgoing
from correlator.settings import CheckpointSettings, ConnectionSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from correlator.testing.network import FaultProxy
from tests.connectors.rabbit import (
    LONG_S,
    Seen,
    codes,
    forwarding,
    lose_again_and_again,
    lost,
    lost_by,
    opened,
    outgoing,
)
from tests.connectors.test_rabbitmq_errors import answering
from tests.connectors.test_rabbitmq_streams import contents, read, receiver, send, sender
from tests.rabbit_server import RabbitServer
from tests.servers import free_port

pytestmark = pytest.mark.rabbitmq

MESSAGES = 3000


# --- the sending process is killed between confirm and checkpoint ---


def forward(rabbit, path, source, target, *, hits, name):
    """Run engines, and kill all but the last after a confirm; returns the content of the target stream."""
    options = json.dumps({**rabbit.options, "port": rabbit.stream_port})
    store = f"sqlite:///{path}/worker.db"
    wanted = {b"%d" % number for number in range(200)}
    for hit in (*hits, 0):
        command = [
            sys.executable,
            "-m",
            "tests.connectors.stream_worker",
            options,
            store,
            source,
            target,
            str(hit),
            name,
        ]
        with (path / "log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            if hit:
                assert process.wait(LONG_S) == -signal.SIGKILL, (path / "log").read_text()
                continue
            try:
                stored = everything(rabbit, target, wanted)
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(LONG_S) == 0
    return stored + contents(read(rabbit, target, 0, "reader"))


def everything(rabbit, stream, wanted):
    """Receive until each of the wanted messages has come; returns all bodies, repeats included."""
    stored = []
    deadline = time.monotonic() + LONG_S
    with opened(rabbit.stream_connection().source(receiver(stream, "reader"))) as source:
        while set(stored) != wanted:
            assert time.monotonic() < deadline, len(set(stored))
            chunk = source.receive(1000, 1.0)
            source.acknowledge(chunk.tokens)
            stored += contents(chunk.messages)
    return stored


@pytest.mark.kill9
def test_a_killed_sender_stores_nothing_twice(rabbit: RabbitServer, tmp_path):
    source, target = rabbit.queue(), rabbit.queue()
    send(rabbit, source, *(b"%d" % number for number in range(200)))
    stored = forward(rabbit, tmp_path, source, target, hits=(1, 3, 2), name="named")
    assert stored == [b"%d" % number for number in range(200)]


@pytest.mark.kill9
def test_without_a_name_it_does(rabbit: RabbitServer, tmp_path):
    source, target = rabbit.queue(), rabbit.queue()
    send(rabbit, source, *(b"%d" % number for number in range(200)))
    stored = forward(rabbit, tmp_path, source, target, hits=(1, 3, 2), name="nameless")
    assert len(stored) > 200


# --- the server is killed ---


SEEN = Seen()


class Forwards(Monitor, persistent=True):
    """Sends on each message."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.count += 1
        SEEN.add(message.body)
        self.send(message.body, to="out")


def test_a_server_that_is_killed_under_load_loses_and_doubles_nothing(rabbit: RabbitServer, tmp_path):
    SEEN.counts.clear()
    source, target = rabbit.queue(), rabbit.queue()
    settings = forwarding(
        "forwarding",
        f"sqlite:///{tmp_path}/forwarding.db",
        f"{__name__}:Forwards",
        source,
        target,
        checkpoint=CheckpointSettings(interval=0.02),
        connection_retry_interval=0.05,
        max_connection_retry_interval=0.05,
    )
    for stream in (source, target):
        with opened(rabbit.stream_connection().sink(sender(stream))):
            pass
    rabbit.write_definitions()  # else the killed server may not have the streams that it has just declared
    with Engine(settings, connections={"rabbit": rabbit.stream_connection()}):
        for kill in range(2):
            first, end = kill * MESSAGES, (kill + 1) * MESSAGES
            SEEN.hold_at(first + MESSAGES // 10)
            send(rabbit, source, *(b"%d" % number for number in range(first, end)), first=first + 1)
            SEEN.wait_for(first + MESSAGES // 10)
            SEEN.hold_at(math.inf)  # a quick engine would else be done before the server is killed
            rabbit.restart()
            SEEN.wait_for(end)
    stored = [message.body for message in read(rabbit, target, 2 * MESSAGES)]
    assert stored == [b"%d" % number for number in range(2 * MESSAGES)]
    assert set(SEEN.counts.values()) == {1}


@pytest.mark.parametrize("answered", [False, True], ids=["cut at once", "cut after a confirm"])
def test_a_batch_that_was_cut_is_stored_once(rabbit: RabbitServer, answered):
    stream = rabbit.queue()
    numbers = [b"%d" % number for number in range(2000)]
    with FaultProxy(rabbit.stream_port) as proxy:
        connection = rabbit.stream_connection(port=proxy.port)
        with opened(connection.sink(sender(stream))) as sink:
            if answered:
                assert not any(sink.send(outgoing(stream, *numbers[:1000])))
            cutting = threading.Timer(0.0, proxy.cut)
            cutting.start()
            try:
                sink.send(outgoing(stream, *numbers))
            except ConnectionLost as error:
                assert error.code == "E7001"  # noqa: PT017  # the cut may also come too late
            cutting.join()
            sink.connect()
            assert not any(sink.send(outgoing(stream, *numbers)))
    assert contents(read(rabbit, stream, 2000)) == numbers


def test_a_server_that_does_not_answer(rabbit: RabbitServer):
    stream = rabbit.queue()
    connection = rabbit.stream_connection(timeout_s=1)
    with opened(connection.source(receiver(stream))) as source, opened(connection.sink(sender(stream))) as sink:
        assert not any(sink.send(outgoing(stream, b"1", b"2")))
        one, two = source.receive(1, PATIENCE_S), source.receive(1, PATIENCE_S)
        with rabbit.frozen():
            source.acknowledge(one.tokens)
            assert lost(lambda: source.acknowledge(two.tokens)).code == "E7023"
            assert lost(lambda: sink.send(outgoing(stream, b"1", b"2", b"3"))).code == "E7023"
        source.connect()
        sink.connect()
        assert not any(sink.send(outgoing(stream, b"1", b"2", b"3")))
        rest = bodies(take(source, 2))
        if rest == [b"1", b"2"]:  # the first acknowledgement was lost with its connection
            rest = [b"2", *bodies(take(source, 1))]
        assert rest == [b"2", b"3"]


def test_a_server_that_falls_silent_is_given_up(rabbit: RabbitServer):
    with opened(rabbit.stream_connection(heartbeat_s=1).source(receiver(rabbit.queue()))) as source, rabbit.frozen():
        assert lost_by(source).code == "E7022"


# --- streams that are gone, or others ---


def delete(rabbit, stream):
    with rabbit.channel() as channel:
        channel.queue_delete(stream)


def test_a_stream_that_is_deleted(rabbit: RabbitServer):
    stream = rabbit.queue()
    with (
        opened(rabbit.stream_connection().source(receiver(stream))) as source,
        opened(rabbit.stream_connection().sink(sender(stream))) as sink,
    ):
        assert not any(sink.send(outgoing(stream, b"lost")))
        source.acknowledge(tokens(take(source, 1)))
        delete(rabbit, stream)
        assert lost_by(source).code == "E7018"
        assert lost(source.connect).code == "W7020"
        source.connect()
        assert lost(lambda: sink.send(outgoing(stream, b"kept"))).code == "E7018"
        sink.connect()
        assert not any(sink.send(outgoing(stream, b"kept")))
        assert bodies(take(source, 1)) == [b"kept"]


def test_a_stream_that_must_be_there_is_waited_for(rabbit: RabbitServer):
    stream = rabbit.queue()
    connection = rabbit.stream_connection(declare=False)
    source, sink = connection.source(receiver(stream)), connection.sink(sender(stream))
    assert lost(source.connect).code == lost(sink.connect).code == "E7010"
    send(rabbit, stream, b"1")
    with opened(source):
        assert bodies(take(source, 1)) == [b"1"]


def test_a_stream_with_other_arguments_and_a_queue_that_is_none(rabbit: RabbitServer):
    stream, queue = rabbit.queue(), rabbit.queue()
    connection = rabbit.stream_connection()
    with opened(connection.source(receiver(stream, arguments={"max-age": "1D"}))):
        error = lost(connection.source(receiver(stream, arguments={"max-age": "2D"})).connect)
    assert error.code == "E7008"
    with rabbit.channel() as channel:
        channel.queue_declare(queue, durable=True)
    assert lost(connection.sink(sender(queue)).connect).code == "E7008"


def test_two_receivers_of_one_name_are_told(rabbit: RabbitServer):
    stream = rabbit.queue()
    send(rabbit, stream, b"1", b"2", b"3")
    connection = rabbit.stream_connection()
    with (
        opened(connection.source(receiver(stream))) as one,
        opened(connection.source(receiver(stream))) as other,
    ):
        first, second = one.receive(1, PATIENCE_S), one.receive(1, PATIENCE_S)
        ahead = other.receive(3, PATIENCE_S)

        one.acknowledge(first.tokens)
        one._link.finish(one._proof[1])  # two connections have no order among each other
        other.acknowledge(ahead.tokens)
        other.connect()
        one._proof = (one._proof[0], one._link.begin(lambda wire: wire.query_offset(stream, "r"), stream))
        assert lost(lambda: one.acknowledge(second.tokens)).code == "E7027"


def test_a_batch_that_cannot_be_unpacked_is_passed(rabbit: RabbitServer):
    stream = rabbit.queue()
    send(rabbit, stream, b"1")

    async def publish():
        client = Client(
            "127.0.0.1", rabbit.stream_port, frame_max=2**20, heartbeat=0, connection_closed_handler=lambda _: None
        )
        await client.start()
        await client.authenticate("/", rabbit.user, rabbit.password)
        await client.declare_publisher(stream, None, 0)
        confirmed = client.wait_frame(schema.PublishConfirm)
        snappy = 2
        await client.send_frame(schema.PublishSubBatching(0, 1, 1, 0x80 | snappy << 4, 2, 5, 3, b"???"))
        await confirmed
        await client.close()

    asyncio.run(publish())
    with opened(rabbit.stream_connection().source(receiver(stream))) as source:
        messages = [one for chunk in take(source, 3) for one in chunk.messages]
    assert [(one.body, one.properties["x-stream-offset"]) for one in messages] == [(b"1", 0), (b"???", 1), (b"", 2)]
    assert "snappy is not supported" in messages[1].properties[UNREADABLE]
    assert "message 2 of a batch of 2" in messages[2].properties[UNREADABLE]


# --- no connection ---


def test_the_node_that_leads_the_stream_is_gone_to(rabbit: RabbitServer, monkeypatch):
    """The first node names itself by another address than the address of the leader."""
    stream = rabbit.queue()
    send(rabbit, stream, b"1")
    monkeypatch.setattr(Wire, "advertised", NodeAddress("another.node", 5552))
    with (
        FaultProxy(rabbit.stream_port) as proxy,
        opened(rabbit.stream_connection(port=proxy.port).source(receiver(stream))) as source,
    ):
        proxy.cut()
        assert bodies(take(source, 1)) == [b"1"]


def test_no_connection(rabbit: RabbitServer):
    def error(**options):
        return lost(rabbit.stream_connection(**options).source(receiver("q")).connect)

    refused = error(port=free_port())
    assert refused.code == "E7001"
    assert "connect" in str(refused)
    assert error(host="no-such-host.invalid").code == "E7001"
    assert error(password="wrong").code == "E7002"
    assert error(virtual_host="nowhere").code == "E7004"
    assert error(port=rabbit.port).code == "E7005"
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert error(port=port).code == "E7005"
    with answering(None) as port:
        assert error(port=port, timeout_s=1).code == "E7001"


def test_tls(rabbit: RabbitServer):
    stream = rabbit.queue()
    tls = {"tls": True, "port": rabbit.stream_tls_port, "host": "localhost"}
    trusted = {**tls, "ca_file": str(rabbit.directory / "ca.pem")}
    assert lost(rabbit.stream_connection(**tls).source(receiver(stream)).connect).code == "E7016"
    missing = rabbit.stream_connection(**{**tls, "ca_file": str(rabbit.directory / "nothing.pem")})
    assert lost(missing.source(receiver(stream)).connect).code == "E7016"
    plain = rabbit.stream_connection(port=rabbit.stream_tls_port)
    assert lost(plain.source(receiver(stream)).connect).code in ("E7005", "E7001")
    with opened(rabbit.stream_connection(**trusted).sink(sender(stream))) as sink:
        assert codes(sink.send(outgoing(stream, b"secret"))) == [None]
    assert contents(read(rabbit, stream, 1)) == [b"secret"]


def test_a_user_who_may_not(rabbit: RabbitServer):
    stream, other = rabbit.queue(), rabbit.queue()
    send(rabbit, stream, b"1")
    send(rabbit, other, b"1")
    rabbit.add_user("reader", "secret", "^$", "^$", f"^{stream}$")
    connection = rabbit.stream_connection(user="reader", password="secret", declare=False)
    with opened(connection.source(receiver(stream))) as source:
        assert bodies(take(source, 1)) == [b"1"]
    assert lost(connection.source(receiver(other)).connect).code == "E7007"
    with opened(connection.sink(sender(None))) as sink:
        assert codes(sink.send([Outgoing(1, "x", f"queue:{stream}", Message(b"x"))])) == ["E8107"]


def test_many_lost_connections_leave_nothing_behind(rabbit: RabbitServer):
    stream = rabbit.queue()
    at = rabbit.stream_port
    lose_again_and_again(at, lambda port: rabbit.stream_connection(port=port).source(receiver(stream)), 10)


def test_182_the_password_is_read_from_its_file_at_every_connect(rabbit: RabbitServer, tmp_path):
    file = tmp_path / "token"
    options = {**rabbit.options, "port": rabbit.stream_port, "password_file": str(file)}
    password = options.pop("password")
    queue = rabbit.queue()
    source = StreamConnection("c", ConnectionSettings(type="rabbitmq_stream", options=options)).source(receiver(queue))
    assert lost(source.connect).code == "E7002"
    file.write_text("another one")
    assert lost(source.connect).code == "E7002"
    file.write_text(password + "\n")
    with opened(source):
        send(rabbit, queue, b"1")
        assert bodies(take(source, 1)) == [b"1"]
