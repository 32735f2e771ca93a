"""Errors of connections to RabbitMQ and of its queues, each with its code, against a real server."""

import contextlib
import socket
import ssl
import struct
import threading

import pika
import pytest

from connectors.rabbitmq import RabbitConnection
from connectors.rabbitmq.link import RabbitLink
from correlator.errors import UsageError
from correlator.settings import ConnectionSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.connectors.rabbit import codes, lost, lost_by, opened, outgoing, receiver, sender
from tests.rabbit_server import RabbitServer
from tests.servers import free_port

pytestmark = pytest.mark.rabbitmq


@contextlib.contextmanager
def answering(answer, context=None):
    """A server that sends `answer` to its first client after the first bytes of the client; yields its port."""

    def serve():
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                if context is not None:
                    client = context.wrap_socket(client, server_side=True)
                client.recv(100)
                if answer is not None:
                    client.sendall(answer)
                client.recv(100)
            client.close()

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE_S)


# --- 160 to 163, 171, 172: no connection ---


def test_160_nobody_listens(rabbit: RabbitServer):
    error = lost(rabbit.connection(port=free_port()).source(receiver("q")).connect)
    assert error.code == "E7001"
    assert "connection refused" in str(error)


def test_160_the_name_is_unknown(rabbit: RabbitServer):
    error = lost(rabbit.connection(host="no-such-host.invalid").sink(sender("q")).connect)
    assert error.code == "E7001"
    assert "no-such-host.invalid" in str(error)


def test_160_nobody_answers(rabbit: RabbitServer):
    with answering(None) as port:
        error = lost(rabbit.connection(port=port, timeout_s=1).source(receiver("q")).connect)
    assert error.code == "E7001"
    assert "timed out" in str(error)


def test_161_the_user_is_refused(rabbit: RabbitServer):
    error = lost(rabbit.connection(password="not-this-one").source(receiver("q")).connect)
    assert error.code == "E7002"
    assert "'correlator' was refused" in str(error)
    assert "not-this-one" not in str(error)


def test_182_a_password_that_is_renewed_while_it_is_used(rabbit: RabbitServer, tmp_path):
    file = tmp_path / "token"
    queue = rabbit.queue()
    options = {name: value for name, value in rabbit.options.items() if name not in ("user", "password")}
    rabbit.add_user("renewed", "first", ".*", ".*", ".*")
    settings = ConnectionSettings(type="rabbitmq", options={**options, "user": "renewed", "password_file": str(file)})
    source = RabbitConnection("c", settings).source(receiver(queue))
    error = lost(source.connect)
    assert error.code == "E7002"
    assert f"password_file {file} cannot be read: no such file or directory" in str(error)
    file.write_text("first\n")
    with opened(source):
        rabbit.evaluate('rabbit_auth_backend_internal:change_password(<<"renewed">>, <<"second">>, <<"test">>)')
        rabbit.close_connections()
        lost_by(source)
        assert lost(source.connect).code == "E7002"
        file.write_text("second\n")
        source.connect()
    rabbit.delete_user("renewed")


def test_162_there_is_no_such_virtual_host(rabbit: RabbitServer):
    error = lost(rabbit.connection(virtual_host="elsewhere").source(receiver("q")).connect)
    assert error.code == "E7004"
    assert "'elsewhere'" in str(error)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\0\1\0\0", b"\x15\3\3\0\2\2\x16"])
def test_172_something_else_answers(rabbit: RabbitServer, said):
    with answering(said) as port:
        error = lost(rabbit.connection(port=port).source(receiver("q")).connect)
    assert error.code == "E7005"
    assert "does not speak AMQP 0-9-1 (answered '" in str(error)


def test_172_a_server_that_hangs_up_is_no_other_protocol(rabbit: RabbitServer):
    with answering(b"") as port:
        assert lost(rabbit.connection(port=port, timeout_s=1).source(receiver("q")).connect).code == "E7001"


def test_172_tls_is_needed(rabbit: RabbitServer):
    error = lost(rabbit.connection(port=rabbit.tls_port).source(receiver("q")).connect)
    assert error.code == "E7005"
    assert "tls: true" in str(error)


def test_171_an_encrypted_connection(rabbit: RabbitServer):
    queue = rabbit.queue()
    options = {"port": rabbit.tls_port, "tls": True, "ca_file": str(rabbit.directory / "ca.pem")}
    with opened(rabbit.connection(**options).sink(sender(queue))) as sink:
        assert codes(sink.send(outgoing(queue, b"x" * 200_000, b"secret"))) == [None, None]
    with opened(rabbit.connection(**options).source(receiver(queue))) as source:
        assert bodies(take(source, 2))[1] == b"secret"


def test_t58_171_the_authority_is_unknown(rabbit: RabbitServer):
    error = lost(rabbit.connection(port=rabbit.tls_port, tls=True).source(receiver("q")).connect)
    assert error.code == "E7016"
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)


def test_49_171_the_file_of_the_authority_is_missing(rabbit: RabbitServer, tmp_path):
    options = {"port": rabbit.tls_port, "tls": True, "ca_file": str(tmp_path / "none.pem")}
    assert lost(rabbit.connection(**options).source(receiver("q")).connect).code == "E7016"


@pytest.mark.parametrize("name", ["expired", "another", "old protocol", "plain text"])
def test_171_certificates_and_protocols_that_are_no_good(rabbit: RabbitServer, name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own = name if name in ("expired", "another") else "server"
    context.load_cert_chain(rabbit.directory / f"{own}.pem", rabbit.directory / f"{own}.key")
    if name == "old protocol":
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1
    with answering(b"AMQP\0\0\x09\1", None if name == "plain text" else context) as port:
        options = {"port": port, "tls": True, "ca_file": str(rabbit.directory / "ca.pem")}
        assert lost(rabbit.connection(**options).source(receiver("q")).connect).code == "E7016"


@pytest.fixture
def limited(rabbit: RabbitServer):
    """Options of a user without permissions."""
    rabbit.add_user("limited", "limited", "^$", "^$", "^$")
    yield {"user": "limited", "password": "limited"}
    rabbit.delete_user("limited")


def test_163_the_user_may_do_nothing(rabbit: RabbitServer, limited):
    queue = rabbit.queue()
    error = lost(rabbit.connection(**limited).source(receiver(queue)).connect)
    assert error.code == "E7007"
    assert queue in str(error)
    with opened(rabbit.connection(**limited).sink(sender(None))) as sink:
        assert codes(sink.send(outgoing(queue, b"1", b"2"))) == ["E8107", "E8107"]


def test_163_who_may_only_read_can_receive_from_a_queue_that_is_there(rabbit: RabbitServer, limited):
    queue = rabbit.queue()
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        sink.send(outgoing(queue, b"1", b"2"))
    rabbit.permit("limited", "^$", "^$", ".*")
    with opened(rabbit.connection(declare=False, **limited).source(receiver(queue))) as source:
        for body in (b"1", b"2"):
            chunks = take(source, 1)
            assert bodies(chunks) == [body]
            source.acknowledge(tokens(chunks))
        source.acknowledge([])
    assert rabbit.connection().browse(f"queue:{queue}", 5) == []


# --- 164 to 168, 180: queues ---


def test_164_a_queue_that_is_not_declared_must_be_there(rabbit: RabbitServer):
    queue = rabbit.queue()
    connection = rabbit.connection(declare=False)
    assert lost(connection.source(receiver(queue)).connect).code == "E7010"
    assert lost(connection.sink(sender(queue)).connect).code == "E7010"
    with rabbit.channel() as channel:
        channel.queue_declare(queue)  # as it likes
    with opened(connection.sink(sender(queue))) as sink, opened(connection.source(receiver(queue))) as source:
        assert codes(sink.send(outgoing(queue, b"1"))) == [None]
        assert bodies(take(source, 1)) == [b"1"]


def test_165_a_queue_that_is_otherwise_names_both_values(rabbit: RabbitServer):
    queue = rabbit.queue()
    with rabbit.channel() as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-max-length": 20})
    error = lost(rabbit.connection().source(receiver(queue, arguments={"x-max-length": 10})).connect)
    assert error.code == "E7008"
    assert f"the queue '{queue}' exists with another 'x-max-length': configured is '10', it has '20'" in str(error)
    error = lost(rabbit.connection().sink(sender(queue, durable=False)).connect)
    assert "another 'durable': configured is 'false', it has 'true'" in str(error)


def test_166_a_queue_of_another_connection(rabbit: RabbitServer):
    queue = rabbit.queue()
    with rabbit.channel() as channel:
        channel.queue_declare(queue, exclusive=True)
        assert lost(rabbit.connection(declare=False).source(receiver(queue)).connect).code == "E7009"


def test_166_a_queue_of_another_consumer(rabbit: RabbitServer):
    queue = rabbit.queue()
    with rabbit.channel() as channel:
        channel.queue_declare(queue, durable=True)
        channel.basic_consume(queue, lambda *_: None, exclusive=True)
        assert lost(rabbit.connection().source(receiver(queue)).connect).code == "E7009"


def test_167_a_queue_that_is_deleted_is_declared_again_and_that_is_told(rabbit: RabbitServer):
    queue = rabbit.queue()
    with opened(rabbit.connection().source(receiver(queue))) as source, rabbit.channel() as channel:
        channel.queue_delete(queue)
        assert lost_by(source).code == "E7018"
        error = lost(source.connect)
        assert error.code == "W7020"
        assert f"queue '{queue}' was gone" in str(error)
        source.connect()
        channel.basic_publish("", queue, b"new")
        assert bodies(take(source, 1)) == [b"new"]


def test_167_a_queue_that_is_not_to_be_declared_is_waited_for(rabbit: RabbitServer):
    queue = rabbit.queue()
    with rabbit.channel() as channel:
        channel.queue_declare(queue)
        with opened(rabbit.connection(declare=False).source(receiver(queue))) as source:
            channel.queue_delete(queue)
            assert lost_by(source).code == "E7018"
            assert lost(source.connect).code == "E7010"


@pytest.fixture
def impatient(rabbit: RabbitServer):
    """A server that lets consumers hold a message for a tenth of a second only."""
    with rabbit.setting("consumer_timeout", 100, usual=1_800_000):
        yield


@pytest.mark.usefixtures("impatient")
def test_168_a_batch_that_is_held_too_long_comes_again(rabbit: RabbitServer):
    queue = rabbit.queue()
    with rabbit.channel() as channel, opened(rabbit.connection().source(receiver(queue))) as source:
        channel.basic_publish("", queue, b"1")
        held = take(source, 1)
        error = lost_by(source)
        assert error.code == "E7019"
        assert "consumer_timeout" in str(error)
        assert lost(lambda: source.acknowledge(tokens(held))).code == "E7019"
        source.connect()
        source.acknowledge(tokens(held))
        again = take(source, 1)
        assert bodies(again) == [b"1"]
        source.acknowledge(tokens(again))


def test_186_an_acknowledgement_that_the_server_does_not_know(rabbit: RabbitServer):
    with opened(rabbit.connection().source(receiver(rabbit.queue()))) as source:
        source._link.tell(lambda channel: channel.basic_ack(999))
        error = lost_by(source)
        assert error.code == "E7025"
        assert "unknown delivery tag" in str(error)


def test_a_browser_needs_a_queue_that_is_there(rabbit: RabbitServer):
    with pytest.raises(UsageError, match="E2027"):
        rabbit.connection().browse(f"queue:{rabbit.queue()}", 5)
    with pytest.raises(UsageError, match="E2110"):
        rabbit.connection().browse("topic:t", 5)


def test_an_operator_closes_the_connection(rabbit: RabbitServer):
    with opened(rabbit.connection().source(receiver(rabbit.queue()))) as source:
        rabbit.close_connections()
        error = lost_by(source)
        assert error.code == "E7001"
        assert "320 CONNECTION_FORCED" in str(error)


# --- 173: frames ---


def test_173_a_frame_without_end_is_not_waited_for(rabbit: RabbitServer):
    endless = struct.pack(">BHI", 1, 0, 2**31) + bytes(2**20)
    with answering(endless) as port:
        error = lost(rabbit.connection(port=port).source(receiver("q")).connect)
    assert error.code == "E7001"
    assert "a frame of more than 131072 bytes" in str(error)


# --- 169, 170: silence ---


def test_169_170_a_server_that_is_there_and_does_nothing(rabbit: RabbitServer):
    queue = rabbit.queue()
    with (
        opened(rabbit.connection(heartbeat_s=1).source(receiver(queue))) as source,
        opened(rabbit.connection(timeout_s=1).sink(sender(queue))) as sink,
        opened(rabbit.connection(timeout_s=1).source(receiver(queue))) as asking,
        rabbit.frozen(),
    ):
        assert lost(lambda: sink.send(outgoing(queue, b"1"))).code == "E7023"
        asking.acknowledge([])
        error = lost(lambda: asking.acknowledge([]))
        assert error.code == "E7023"
        assert "did not answer within 1 s" in str(error)
        error = lost_by(source)
        assert error.code == "E7022"


def test_r15_heartbeats_are_answered_while_the_application_is_busy(rabbit: RabbitServer):
    """The server has meanwhile given up another client with the same time-out, which sends no heartbeats."""
    queue = rabbit.queue()
    with opened(rabbit.connection(heartbeat_s=1).source(receiver(queue))) as source:
        with neglected(rabbit.options) as end:
            assert closed_by_the_other_side(end)
        with rabbit.channel() as channel:
            channel.basic_publish("", queue, b"1")
        assert bodies(take(source, 1)) == [b"1"]


@contextlib.contextmanager
def neglected(options):
    """The socket of a connection with a heartbeat of one second that nobody sends; nobody else reads the socket."""
    credentials = pika.PlainCredentials(options["user"], options["password"])
    parameters = pika.ConnectionParameters("127.0.0.1", options["port"], credentials=credentials, heartbeat=1)
    connection = pika.BlockingConnection(parameters)
    end = connection._impl._transport._sock.dup()
    end.settimeout(PATIENCE_S)
    try:
        yield end
    finally:
        end.close()
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def closed_by_the_other_side(end):
    """Whether the other side closes the socket within the patience of the test."""
    try:
        while end.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


# --- links ---


def test_a_link_that_was_never_opened_can_be_closed(rabbit: RabbitServer):
    link = RabbitLink("test", rabbit.connection()._broker)
    link.close()


def test_a_server_that_does_not_let_go_is_cut_off(rabbit: RabbitServer, monkeypatch):
    monkeypatch.setattr("connectors.rabbitmq.link.CLOSE_TIMEOUT_S", 0.2)
    with opened(rabbit.connection().source(receiver(rabbit.queue()))) as source, rabbit.frozen():
        source.close()
