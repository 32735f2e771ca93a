"""Subscriptions and topics are deleted with the broker's REST interface (rules S1.4, S1.9)."""

import urllib.error
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.pulsar import PulsarConnection
from correlator.errors import ConnectionLost, UsageError
from correlator.settings import ReceiverSettings
from tests.connectors.rabbit import opened
from tests.connectors.test_messaging import bodies, numbered, receive, send
from tests.pulsar_server import PulsarServer
from tests.servers import free_port

pytestmark = pytest.mark.pulsar


def factory(pulsar: PulsarServer, **options):
    web = {"web_service_url": f"http://127.0.0.1:{pulsar.web_port}"}
    return ConnectionFactory(PulsarConnection, {**pulsar.options, **web, **options})


def is_there(pulsar: PulsarServer, path: str):
    try:
        pulsar.request("GET", path)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code != HTTPStatus.NOT_FOUND
    return True


@pytest.fixture
def session(pulsar):
    with factory(pulsar, client_id="shop").create_connection() as connection:
        yield connection.create_session(AcknowledgeMode.CLIENT)


def test_s1_4_a_subscription_is_deleted_with_what_it_keeps_and_others_stay(pulsar, session):
    """Given one name on two topics, when one is deleted, then the other goes on; names begin with client ids."""
    news, rest = pulsar.name(), pulsar.name()
    for topic in (news, rest):
        session.create_consumer(f"topic:{topic}", subscription="reader").close()
        send(session, f"topic:{topic}", numbered(2))
    session.unsubscribe(f"topic:{news}", "reader")
    assert list(pulsar.subscriptions(news)) == []
    assert bodies(receive(session.create_consumer(f"topic:{rest}", subscription="reader"), 2)) == ["1", "2"]


def test_s1_4_a_subscription_that_is_in_use_or_not_there_is_not_deleted(pulsar, session):
    topic = f"topic:{pulsar.name()}"
    session.create_consumer(topic, subscription="reader")
    with pytest.raises(UsageError, match=f"^E7513 {topic}: somebody consumes from it"):
        session.unsubscribe(topic, "reader")
    with pytest.raises(UsageError, match=f"^E7512 {topic}: it has no subscription 'shop_other'"):
        session.unsubscribe(topic, "other")
    with pytest.raises(UsageError, match="^E7512"):
        session.unsubscribe(f"topic:{pulsar.name()}", "reader")
    with pytest.raises(UsageError, match="^E7511 topic:multi:a,b: is not one topic"):
        session.unsubscribe("topic:multi:a,b", "reader")


def test_s1_9_a_temporary_queue_ends_with_its_connection(pulsar):
    connection = factory(pulsar).create_connection()
    session = connection.create_session()
    queue = session.create_temporary_queue()
    send(session, queue, numbered(1))
    assert bodies(receive(session.create_consumer(queue), 1)) == ["1"]
    name = queue.removeprefix("queue:")
    assert "jms-queue" in pulsar.subscriptions(name)
    connection.close()
    assert not is_there(pulsar, f"{pulsar.path(name)}/stats")


def test_a_temporary_topic_may_have_partitions(pulsar):
    connection = factory(pulsar).create_connection()
    session = connection.create_session()
    topic = session.create_temporary_topic()
    path = pulsar.path(topic.removeprefix("topic:"))
    pulsar.request("PUT", f"{path}/partitions", 2)
    send(session, topic, numbered(3))
    assert is_there(pulsar, f"{path}/partitions")
    connection.close()
    assert not is_there(pulsar, f"{path}/partitions")
    assert not is_there(pulsar, f"{path}-partition-0/stats")


def test_s1_9_a_topic_that_cannot_be_deleted_stays_with_a_warning(pulsar, caplog):
    connection = factory(pulsar).create_connection()
    queue = connection.create_session().create_temporary_queue()
    receiver = ReceiverSettings(id="of another program", connection="pulsar", destination=queue)
    with opened(pulsar.connection().source(receiver)):
        connection.close()
        assert f"{queue} stays: E7513 {queue}: somebody consumes from it" in caplog.text
        assert "jms-queue" in pulsar.subscriptions(queue.removeprefix("queue:"))


def test_without_the_rest_interface_nothing_is_deleted(pulsar):
    bare = pulsar.connection()
    for delete in (lambda: bare.delete("queue:q"), lambda: bare.unsubscribe("topic:t", "reader")):
        with pytest.raises(UsageError, match="^E7511 connections.pulsar: .* Set web_service_url"):
            delete()
    nowhere = pulsar.connection(web_service_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionLost, match="^E7001 .*Look at web_service_url"):
        nowhere.delete("queue:q")


def test_a_broker_of_a_cluster_sends_whoever_asks_to_the_one_that_has_the_topic(pulsar):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(HTTPStatus.TEMPORARY_REDIRECT)
            self.send_header("Location", f"http://127.0.0.1:{pulsar.web_port}{self.path}")
            self.end_headers()

        do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_):
            """Log nothing."""

    name = pulsar.name()
    with factory(pulsar).create_connection() as connection:
        send(connection.create_session(), f"queue:{name}", numbered(1))
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        try:
            pulsar.connection(web_service_url=f"http://127.0.0.1:{other.server_port}").delete(f"queue:{name}")
        finally:
            other.shutdown()
            thread.join()
    assert not is_there(pulsar, f"{pulsar.path(name)}/stats")
