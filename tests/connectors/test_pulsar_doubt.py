"""Messages whose fate is unknown: sent and not confirmed, or refused at first and accepted later."""

import time

import pytest

from connectors.pulsar import source
from correlator.events import UNREADABLE, Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, outgoing, take, tokens
from correlator.testing.network import FaultProxy
from tests.connectors.rabbit import codes, lost, opened
from tests.pulsar_server import PulsarServer

pytestmark = pytest.mark.pulsar

MANY = 3000


def receiver(destination):
    return ReceiverSettings(id="r", connection="pulsar", destination=destination)


def sender(destination=None):
    return SenderSettings(id="s", connection="pulsar", destination=destination, reliability="EXACTLY_ONCE")


def nowhere(pulsar: PulsarServer):
    return f"topic:persistent://public/{pulsar.name()}/t"


def test_t35_where_repeats_are_dropped_nothing_is_refused_that_may_be_let_through_later(pulsar: PulsarServer):
    """The namespace may be created later. By then later numbers are stored, and the first would count as a repeat."""
    destination = nowhere(pulsar)
    message = [Outgoing(1, "life", destination, Message(b"1"))]
    with opened(pulsar.connection().sink(sender())) as sink:
        assert codes(sink.send(message)) == ["E8101"]
    with opened(pulsar.connection(deduplication=True).sink(sender())) as sink:
        assert lost(lambda: sink.send(message)).code == "E7010"


def test_what_was_confirmed_is_not_refused_when_the_batch_is_sent_again(pulsar: PulsarServer):
    """Given a batch whose last message fails, when the topic of the others ends, then they count as sent."""
    topic = pulsar.name()
    batch = [Outgoing(at, "life", f"topic:{topic}", Message(b"%d" % at)) for at in range(1, MANY + 1)]
    last = Outgoing(MANY + 1, "life", nowhere(pulsar), Message(b"last"))
    with opened(pulsar.connection(deduplication=True).sink(sender())) as sink:
        assert lost(lambda: sink.send([*batch, last])).code == "E7010"
        pulsar.request("POST", f"{pulsar.path(topic)}/terminate")
        sink.connect()
        results = codes(sink.send(batch))
    confirmed = results.index("E8102") if "E8102" in results else MANY
    assert confirmed >= MANY // 2
    assert results == [None] * confirmed + ["E8102"] * (MANY - confirmed)
    assert pulsar.stats(topic)["msgInCounter"] >= confirmed


def test_what_only_one_consumer_gets_is_marked_when_it_comes_again(pulsar: PulsarServer):
    """The broker does not count deliveries of such a subscription; the source does."""
    destination = f"topic:{pulsar.name()}"
    with opened(pulsar.connection().source(receiver(destination))) as one:
        with opened(pulsar.connection().sink(sender(destination))) as sink:
            assert not any(sink.send(outgoing(destination, [b"1", b"2"])))
        seen = []
        for _ in range(3):
            chunks = take(one, 2)
            seen.append([(m.headers.redelivered, m.headers.delivery_count) for chunk in chunks for m in chunk.messages])
            one.reject(tokens(chunks))
    assert seen == [[(False, 1)] * 2, [(True, 2)] * 2, [(True, 3)] * 2]


def test_a_connection_that_is_lost_within_a_long_wait_is_noticed(pulsar: PulsarServer, monkeypatch):
    with FaultProxy(pulsar.port) as proxy:
        through = pulsar.connection(service_url=f"pulsar://127.0.0.1:{proxy.port}")
        with opened(through.source(receiver(f"queue:{pulsar.name()}"))) as one:

            def loses(consumer, wait_ms):
                proxy.refuse()
                proxy.cut()
                deadline = time.monotonic() + PATIENCE_S
                while consumer.is_connected():
                    assert time.monotonic() < deadline

            monkeypatch.setattr(source, "_received", loses)
            begun = time.monotonic()
            assert lost(lambda: one.receive(1, 3600.0)).code == "E7001"
            assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.parametrize("call", ["receive", "acknowledge"])
def test_a_consumer_that_ends_between_the_look_at_it_and_the_call_is_lost(pulsar: PulsarServer, monkeypatch, call):
    destination = f"queue:{pulsar.name()}"
    with opened(pulsar.connection().sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, [b"1"])))
    with opened(pulsar.connection().source(receiver(destination))) as one:
        chunks = take(one, 1)
        one._consumer.close()
        monkeypatch.setattr(one._consumer, "is_connected", lambda: True)
        calls = {"receive": lambda: one.receive(1, 0.0), "acknowledge": lambda: one.acknowledge(tokens(chunks))}
        assert lost(calls[call]).code == "E7001"


def test_a_message_whose_properties_are_no_text_comes_without_them(pulsar: PulsarServer, monkeypatch):
    """Other clients may write any bytes. Python's client cannot, so the test raises the error that it would raise."""
    destination = f"queue:{pulsar.name()}"

    class NoText:
        def __init__(self, message):
            self._message = message

        def __getattr__(self, name):
            return getattr(self._message, name)

        def properties(self):
            return b"\xff".decode()

    with opened(pulsar.connection().sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, [Message(b"1", {"n": 1}), Message(b"2", {"n": 2})])))
    monkeypatch.setattr(source, "_received", lambda consumer, wait_ms: NoText(consumer.receive(wait_ms)))
    with opened(pulsar.connection().source(receiver(destination))) as one:
        chunks = [one.receive(1, PATIENCE_S), one.receive(1, PATIENCE_S)]
    assert bodies(chunks) == [b"1", b"2"]
    assert [chunk.messages[0].properties for chunk in chunks] == [{UNREADABLE: "properties and key"}] * 2
