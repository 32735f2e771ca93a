"""Messages that RabbitMQ refuses, for a while or for ever, against a real server."""

import pytest

from correlator.events import Headers, Message, Outgoing
from correlator.reliability import Reliability
from correlator.settings import SenderSettings
from correlator.testing.contract import bodies, take, tokens
from tests.connectors.rabbit import codes, drained, lost, opened, outgoing, receiver, sender
from tests.rabbit_server import RabbitServer

pytestmark = pytest.mark.rabbitmq


def test_174_a_memory_alarm_is_waited_for_and_nothing_is_sent_twice(rabbit: RabbitServer):
    queue = rabbit.queue()
    contents = [b"%d" % number for number in range(1500)]
    with opened(rabbit.connection(timeout_s=1).sink(sender(queue))) as sink:
        with rabbit.out_of_memory():
            error = lost(lambda: sink.send(outgoing(queue, *contents[:1200])))
            assert error.code == "E7026"
            assert "low on memory" in str(error)
            assert lost(sink.connect).code == "E7026"
        sink.connect()
        assert codes(sink.send(outgoing(queue, *contents))) == [None] * 1500
    with opened(rabbit.connection().source(receiver(queue))) as source:
        assert drained(source, 1500) == contents


def test_174_another_batch_after_an_alarm_begins_anew(rabbit: RabbitServer):
    queue = rabbit.queue()
    with opened(rabbit.connection(timeout_s=1).sink(sender(queue))) as sink:
        with rabbit.out_of_memory():
            assert lost(lambda: sink.send(outgoing(queue, b"1", b"2"))).code == "E7026"
        assert codes(sink.send(outgoing(queue, b"other"))) == [None]
    with opened(rabbit.connection().source(receiver(queue))) as source:
        assert b"other" in bodies(take(source, 3))


def test_174_receivers_go_on_during_an_alarm(rabbit: RabbitServer):
    queue = rabbit.queue()
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        sink.send(outgoing(queue, *[b"x"] * 20))
    with opened(rabbit.connection().source(receiver(queue))) as source, rabbit.out_of_memory():
        chunks = take(source, 20)
        source.acknowledge(tokens(chunks))
        source.acknowledge([])  # behind the answer to the first one
        assert rabbit.queues()[queue] == 0


def test_175_a_message_that_no_queue_gets(rabbit: RabbitServer):
    queue = rabbit.queue()
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        batch = outgoing(queue, b"1", b"2", b"3")
        batch[1] = Outgoing(2, "life", "queue:nowhere", Message(b"2"))
        results = sink.send(batch)
        assert codes(results) == [None, "E8101", None]
        assert str(results[1]).startswith(
            "E8101 message 2:life: the message was not routed: there is no queue 'nowhere'"
        )


@pytest.mark.parametrize(("options", "code"), [({}, None), ({"mandatory": True}, "E8101")])
def test_175_a_topic_without_subscribers(rabbit: RabbitServer, options, code):
    settings = SenderSettings(id="s", connection="rabbit", destination="topic:unheard", options=options)
    with opened(rabbit.connection().sink(settings)) as sink:
        assert codes(sink.send([Outgoing(1, "life", "topic:unheard", Message(b"1"))])) == [code]


@pytest.mark.parametrize("own", [True, False])
def test_r14_a_reliable_sender_warns_once_of_a_topic_without_subscribers(rabbit: RabbitServer, caplog, own):
    destinations = {"destination": "topic:silent"} if own else {}
    for reliability in (Reliability.BEST_EFFORT, Reliability.AT_LEAST_ONCE):
        settings = SenderSettings(id="s", connection="rabbit", reliability=reliability, **destinations)
        with opened(rabbit.connection().sink(settings)) as sink:
            for number in range(1, 4):
                assert codes(sink.send([Outgoing(number, "life", "topic:silent", Message(b"1"))])) == [None]
    (told,) = caplog.messages
    assert told.startswith("senders.s: nobody gets messages: no queue is bound to exchange 'amq.topic' for 'silent'")


def test_176_a_full_queue_refuses(rabbit: RabbitServer):
    queue = rabbit.queue()
    with opened(
        rabbit.connection().sink(sender(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    ) as sink:
        assert codes(sink.send(outgoing(queue, b"1"))) == [None]
        assert codes(sink.send(outgoing(queue, b"2", b"3"))) == ["E8102", "E8102"]


def test_177_an_exchange_that_is_deleted_in_the_middle(rabbit: RabbitServer):
    queue, exchange = rabbit.queue(), rabbit.queue()
    own = SenderSettings(
        id="s", connection="rabbit", destination="topic:here", options={"exchange": exchange, "exchange_type": "topic"}
    )
    with opened(rabbit.connection().sink(sender(queue))):
        pass
    with opened(rabbit.connection().sink(own)) as sink, rabbit.channel() as channel:
        channel.exchange_delete(exchange)
        batch = outgoing(queue, *[b"%d" % number for number in range(50)])
        batch[20] = Outgoing(21, "life", "topic:here", Message(b"lost"))
        results = sink.send(batch)
        assert codes(results) == [None] * 20 + ["E8103"] + [None] * 29
        assert exchange in str(results[20])
    with opened(rabbit.connection().source(receiver(queue))) as source:
        assert set(drained(source, 49)) == {b"%d" % number for number in range(50)} - {b"20"}


@pytest.fixture
def narrow(rabbit: RabbitServer):
    """A queue that accepts no message of more than 1,000 bytes."""
    with rabbit.setting("max_message_size", 1000, usual=134_217_728):
        yield


@pytest.mark.usefixtures("narrow")
def test_178_a_message_that_is_too_large_does_not_keep_back_the_others(rabbit: RabbitServer):
    queue = rabbit.queue()
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        results = sink.send(outgoing(queue, b"1", bytes(2000), b"3", bytes(3000)))
        assert codes(results) == [None, "E8106", None, "E8106"]
        assert "larger than" in str(results[1])


def test_173_properties_that_no_frame_can_take(rabbit: RabbitServer):
    """Properties travel in one frame: the server would close the connection at every attempt and block the sender."""
    queue = rabbit.queue()
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        over = 131_072
        results = sink.send(outgoing(queue, b"1", Message(b"2", {"p": "x" * over}), b"3"))
        assert codes(results) == [None, "E8106", None]
        assert "the server's frame_max leaves 131052" in str(results[1])
        encoded = int(str(results[1]).split(" bytes")[0].rsplit(" ", 1)[1])
        largest = Message(b"2", {"p": "x" * (over - encoded + 131_052)})
        assert codes(sink.send(outgoing(queue, largest))) == [None]
        assert codes(sink.send(outgoing(queue, Message(b"2", {"p": largest.properties["p"] + "x"})))) == ["E8106"]
    with opened(rabbit.connection().source(receiver(queue))) as source:
        assert [message.properties for chunk in take(source, 3) for message in chunk.messages][2] == largest.properties


@pytest.mark.parametrize(
    "message",
    [
        Message(b"2", headers=Headers(priority=-1)),
        Message(b"2", headers=Headers(priority="high")),
        Message(b"2", headers=Headers(correlation_id=5)),
        Message(b"2", {"CC": "elsewhere"}),
        Message("text"),
        Message(b"2", None),
    ],
    ids=repr,
)
def test_what_rabbitmq_cannot_carry_is_refused_and_the_others_are_sent(rabbit: RabbitServer, message):
    queue = rabbit.queue()
    with opened(rabbit.connection().sink(sender(queue))) as sink:
        assert codes(sink.send(outgoing(queue, b"1", message, b"3"))) == [None, "E8110", None]
