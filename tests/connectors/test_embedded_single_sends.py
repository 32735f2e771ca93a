"""The embedded broker stores a single message with one statement, and what it stores and refuses is as with several."""

import pytest

from connectors.embedded import sink, storing
from connectors.embedded.content import encode
from connectors.embedded.link import open_link
from correlator.settings import SenderSettings
from tests.connectors.embedded import QUEUE, Broker, address, connected, message, outgoing

SIZE = len(encode(message("x" * 60)))
STORED = (
    "SELECT c.destination, c.message_id, c.persistent, c.refs_left, c.content, d.subscription, d.rank, d.state,"
    " d.consumer, d.deliveries, d.suspect, d.size, d.due - c.sent_at, d.expires - c.sent_at, d.due > 0, d.expires > 0"
    " FROM broker_content c JOIN broker_delivery d ON d.number = c.number ORDER BY c.number"
)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def broker(request, tmp_path):
    broker = Broker(address(request, tmp_path))
    yield broker
    broker.close()


@pytest.fixture
def sender(broker):
    return connected(broker.session().sink(SenderSettings(id="s", connection="c", destination=None)))


@pytest.fixture
def alone(monkeypatch):
    """For each try to store a message with one statement, whether it was stored."""
    tries = []

    def send(*arguments, **options):
        tries.append(storing_send(*arguments, **options))
        return tries[-1]

    storing_send = storing.send
    monkeypatch.setattr(storing, "send", send)
    return tries


def test_one_statement_stores_it_unless_the_queue_is_missing_or_full_or_temporary(broker, alone):
    session = broker.session()
    producer = connected(session.sink(SenderSettings(id="s", connection="c", destination=None)))
    producer.send(outgoing("makes the queue"))
    producer.send(outgoing("stored"))
    assert alone == [False, True]
    broker.connection.administration().update(QUEUE, {"max_num_msgs": "2"})
    producer.send(outgoing("refused"))
    assert alone == [False, True, False]
    producer.send(outgoing("to a client", destination=broker.client().create_temporary("queue")))
    producer.send(outgoing("to a topic", destination="topic:news"))
    producer.send(outgoing("numbered", source="orders"))
    producer.send(outgoing("one", "two", destination="queue:other"))
    assert alone == [False, True, False]
    assert broker.tally() == (5, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"priority": 9, "persistent": False},
        {"delivery_delay_ms": 700_000},
        {"time_to_live_ms": 800_000, "priority": 0},
        {"delivery_delay_ms": 600_000, "time_to_live_ms": 900_000},
    ],
)
def test_what_one_statement_stores_is_what_several_store(broker, sender, monkeypatch, headers):
    broker.send("makes the queue")
    one = outgoing(message("a", {"n": 1}, message_id="ID:a", **headers))
    sender.send(one)
    monkeypatch.setattr(sink.EmbeddedSink, "_stored_alone", lambda *_, **__: False)
    sender.send(one)
    link = open_link(broker.store)
    with link.reading() as connection:
        _, alone, general = ([*row] for row in connection.exec_driver_sql(STORED).all())
    link.close()
    alone[1] = general[1] = "ID"  # each send has an id of its own
    for due_or_expires, has in ((12, 14), (13, 15)):
        if not alone[has]:
            alone[due_or_expires] = general[due_or_expires] = 0
    assert alone == general
    assert broker.tally() == (3, 0)


def refusals(results):
    return [None if one is None else one.code for one in results]


@pytest.mark.parametrize(
    ("limits", "stored", "then"),
    [
        ({"max_num_msgs": 3}, 3, "E8108"),
        # Above half of a limit one statement of PostgreSQL must not decide: the server lets a hundred others send at the
        # same time.
        ({"max_num_msgs": 210}, 210, "E8108"),
        ({"max_total_msg_bytes": 3 * SIZE}, 3, "E8108"),
        ({"max_total_msg_bytes": 210 * SIZE}, 210, "E8108"),
        ({"max_per_msg_bytes": SIZE - 1}, 0, "E8106"),
    ],
)
def test_limits_are_exact(broker, sender, limits, stored, then):
    broker.connection.create(QUEUE, limits)
    results = [refusals(sender.send(outgoing("x" * 60)))[0] for _ in range(stored + 2)]
    assert results == [None] * stored + [then] * 2
    assert broker.count() == stored


def test_a_paused_queue_takes_nothing(broker, sender):
    broker.connection.create(QUEUE, {"limit_behavior": "REJECT_NEWEST"})
    broker.connection.administration().pause(QUEUE, "PRODUCERS")
    sender._access.refuse_to_wait()
    assert refusals(sender.send(outgoing("a"))) == ["E8108"]
    assert broker.count() == 0
