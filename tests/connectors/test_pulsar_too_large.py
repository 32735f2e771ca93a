"""A broker that drops repeats, and whose largest message size grows: a refused message stays refused."""

import pulsar
import pytest

from connectors.pulsar import PulsarConnection, sink
from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings
from tests.connectors.rabbit import codes

TRIES = 3


class DeduplicatingBroker:
    """Stores and confirms a number above the last one, confirms all others, and refuses messages that are too large.

    It is the sink's link and its producer as well.
    """

    def __init__(self):
        self.limit = 10
        self.stored = []
        self.silent = False

    def __call__(self, *_):
        return self

    def open(self):
        pass

    def close(self):
        pass

    def keep(self, _):
        pass

    def producer(self, *_):
        return self

    def send_async(self, content, settle, *, sequence_id, **_):
        if len(content) > self.limit:
            settle(pulsar.Result.MessageTooBig, None)
            return
        if self.silent:
            settle(pulsar.Result.Timeout, None)
            return
        if sequence_id is None or not self.stored or sequence_id > self.stored[-1][0]:
            self.stored.append((sequence_id, content))
        settle(pulsar.Result.Ok, None)


@pytest.fixture
def broker(monkeypatch):
    made = DeduplicatingBroker()
    monkeypatch.setattr(sink, "PulsarLink", made)
    return made


def sink_of(*, deduplication=True):
    connection = PulsarConnection("c", ConnectionSettings(type="pulsar", options={"deduplication": deduplication}))
    made = connection.sink(SenderSettings(id="s", connection="c", destination="topic:t", max_tries=TRIES))
    made.connect()
    return made


def out(number, content):
    return Outgoing(number, "life", "topic:t", Message(content))


LARGE = out(2, b"larger than the limit")
BATCH = [out(1, b"1"), LARGE, out(3, b"3")]


def test_what_was_too_large_is_refused_at_every_try(broker):
    one = sink_of()
    assert codes(one.send(BATCH)) == [None, "E8106", None]
    broker.limit = 1000
    for _ in range(TRIES - 1):
        assert codes(one.send([LARGE])) == ["E8106"]
    assert codes(one.send([out(4, b"of a size that is allowed now")])) == [None]
    assert [number for number, _ in broker.stored] == [1, 3, 4]


def test_also_where_the_batch_failed_after_it_was_refused(broker):
    one = sink_of()
    broker.silent = True
    with pytest.raises(ConnectionLost):
        one.send([LARGE, out(3, b"3")])
    broker.limit, broker.silent = 1000, False
    one.connect()
    assert codes(one.send([LARGE, out(3, b"3")])) == ["E8106", None]
    for _ in range(TRIES - 1):
        assert codes(one.send([LARGE])) == ["E8106"]


def test_what_was_given_up_is_not_remembered(broker):
    one = sink_of()
    for number in range(1, 101):
        for _ in range(TRIES):
            assert codes(one.send([out(number, LARGE.message.body)])) == ["E8106"]
    assert not one._too_large


def test_a_broker_that_drops_nothing_may_take_it_later(broker):
    one = sink_of(deduplication=False)
    assert codes(one.send(BATCH)) == [None, "E8106", None]
    broker.limit = 1000
    assert codes(one.send([LARGE])) == [None]
    assert len(broker.stored) == 3
