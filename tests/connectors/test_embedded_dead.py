"""The dead message queue of the embedded broker: what comes into it, how it is marked, and what is refused."""

import logging
import threading
import time

import pytest

from connectors.embedded import source as source_module
from connectors.embedded.link import open_link
from correlator.connector import Subscriber, Work
from correlator.errors import ConnectionLost, UsageError
from tests.connectors.embedded import (
    DEAD,
    QUEUE,
    TOPIC,
    bodies,
    bodies_of,
    counts,
    kill,
    message,
    outgoing,
    wait_until,
)

NAMES = (
    "undelivered_reason",
    "undelivered_comment",
    "undelivered_exception",
    "delivery_count",
    "body_truncated",
    "destination",
    "subscription",
)


def said(dead):
    return [dead.properties[f"correlator_dmq_{name}"] for name in NAMES]


def dead_messages(broker):
    return list(broker.connection.browse(DEAD, 99))


def expire(broker, source):
    """Let the source meet the messages whose time to live of a millisecond is over."""
    wait_until(lambda: not broker.connection.browse(QUEUE, 9))
    assert source.receive(9, 0.0).messages == ()


def execute(broker, statement):
    link = open_link(broker.store)
    with link.transaction() as connection:
        connection.exec_driver_sql(statement)
    link.close()


# --- the five causes; test_embedded_limits has OLDEST and LOW_PRIORITY ---


def test_an_expired_message_is_dead_with_id_priority_and_properties_but_never_expires_again(broker):
    broker.send(message("a", {"n": 5}, priority=7, time_to_live_ms=1, correlation_id="c"))
    began = time.time() * 1000
    expire(broker, broker.plain())
    (dead,) = dead_messages(broker)
    assert said(dead) == ["EXPIRED", "its time to live was over", "", 0, False, QUEUE, ""]
    assert abs(dead.properties["correlator_dmq_undelivered_timestamp_ms"] - began) < 60_000
    assert (dead.body, dead.properties["n"]) == (b"a", 5)
    headers = dead.headers
    assert (headers.priority, headers.correlation_id, headers.expiration, headers.time_to_live_ms) == (
        7,
        "c",
        None,
        None,
    )
    assert broker.tally() == (1, 0)
    assert broker.count() == 1


def test_the_message_id_stays(broker):
    source = broker.plain()
    broker.send(message("a", time_to_live_ms=60_000))
    (sent,) = broker.connection.browse(QUEUE, 9)
    execute(broker, "UPDATE broker_delivery SET expires = 1")
    assert source.receive(9, 0.0).messages == ()
    (dead,) = dead_messages(broker)
    assert dead.headers.message_id == sent.headers.message_id


def test_a_message_that_was_delivered_too_often_is_dead(broker):
    broker.connection.create(QUEUE, {"max_num_deliveries": 2})
    broker.send("a", "b")
    source = broker.plain()
    for count in (1, 2):
        held = source.receive(9, 0.0)
        assert counts(held) == [(count > 1, count)] * 2
        source.reject(held.tokens)
    source.release(source.receive(9, 0.0).tokens)
    assert [said(dead) for dead in dead_messages(broker)] == [
        ["UNDELIVERABLE", "max_num_deliveries is 2", "", 2, False, QUEUE, ""]
    ] * 2
    assert bodies_of(broker, QUEUE) == []
    assert broker.tally() == (2, 0)


def test_a_message_that_was_only_fetched_ahead_is_not_dead(broker):
    broker.connection.create(QUEUE, {"max_num_deliveries": 1})
    broker.send("a")
    source = broker.plain()
    for _ in range(3):
        held = source.receive(9, 0.0)
        assert counts(held) == [(False, 1)]
        source.release(held.tokens)


def test_poison_ends_and_its_neighbours_do_not_suffer(broker, monkeypatch):
    """The third of ten kills each consumer that gets it, which has fetched all ten at first."""
    monkeypatch.setattr("connectors.embedded.source.LONGEST_OVERRUN_S", 60.0)  # a busy machine takes longer for a claim
    broker.connection.create(QUEUE, {"max_num_deliveries": 3})
    broker.send(*"abcdefghij")
    delivered = []
    for _ in range(5):
        source = broker.source(broker.session())
        while (chunk := source.receive(10, 0.0)).messages:
            done = 0
            for one in chunk.messages:
                if one.body == b"c":
                    break
                delivered.append((one.body.decode(), one.headers.delivery_count))
                source.acknowledge(chunk.tokens[done : done + 1])
                done += 1
            if done < len(chunk.messages):
                kill(source)
                break
        else:
            break
    assert sorted(text for text, _ in delivered) == list("abdefghij")
    assert max(count for _, count in delivered) <= 2
    (dead,) = dead_messages(broker)
    assert (dead.body, said(dead)[0], said(dead)[3]) == (b"c", "UNDELIVERABLE", 3)


def test_a_message_that_cannot_be_read_is_dead_for_sessions_and_not_for_engines(broker):
    broker.send("a", "b", "c")
    execute(
        broker,
        "UPDATE broker_content SET content = message_id::bytea WHERE number = 2"
        if "postgres" in broker.store
        else "UPDATE broker_content SET content = X'c1' WHERE number = 2",
    )
    engine = broker.plain()
    held = engine.receive(9, 0.0)
    assert len(held.messages) == 3
    engine.release(held.tokens)
    source = broker.source(broker.session())
    assert bodies(source.receive(9, 0.0)) == ["a", "c"]
    (dead,) = dead_messages(broker)
    reason, comment, exception, count, truncated, destination, _ = said(dead)
    assert (reason, comment, count, truncated, destination) == ("ERROR", "it could not be read", 0, False, QUEUE)
    assert exception.startswith("content: ")
    assert len(dead.body) > 0


# --- what a sender says ---


@pytest.mark.parametrize("use_dmq", [True, False])
@pytest.mark.parametrize("preserve", [True, False, None, "yes"])
def test_a_sender_overrides_its_destination(broker, use_dmq, preserve):
    broker.connection.create(QUEUE, {"use_dmq": use_dmq})
    said_so = {} if preserve is None else {"correlator_preserve_undelivered": preserve}
    broker.send(message("a", said_so, time_to_live_ms=1))
    expire(broker, broker.plain())
    kept = preserve if isinstance(preserve, bool) else use_dmq
    assert bodies_of(broker, DEAD) == (["a"] if kept else [])
    assert broker.tally() == (int(kept), 0)


def test_a_sender_truncates_the_body_and_has_the_death_logged(broker, caplog):
    said_so = {"correlator_truncate_msg_body": True, "correlator_log_dead_messages": True}
    broker.send(message("a", said_so, time_to_live_ms=1), message("b", time_to_live_ms=1))
    with caplog.at_level(logging.INFO, "connectors.embedded"):
        expire(broker, broker.plain())
    first, second = dead_messages(broker)
    assert (first.body, first.properties["correlator_dmq_body_truncated"]) == (b"", True)
    assert (second.body, second.properties["correlator_dmq_body_truncated"]) == (b"b", False)
    (line,) = [record.getMessage() for record in caplog.records if "dead" in record.getMessage()]
    assert line.endswith("of queue:work is dead: EXPIRED, its time to live was over")


# --- which messages are dead, and where ---


def test_each_subscription_makes_its_own_dead_message(broker):
    session = broker.session("me")
    kinds = [Subscriber(name, durable=True, shared=False) for name in ("one", "other")]
    one, other = (broker.subscriber(session, kind) for kind in kinds)
    broker.send(message("a", time_to_live_ms=600_000), destination=TOPIC)
    execute(broker, "UPDATE broker_delivery SET expires = 1")
    for source, expected in ((one, {"one"}), (other, {"one", "other"})):
        assert source.receive(9, 0.0).messages == ()
        assert {dead.properties["correlator_dmq_subscription"] for dead in dead_messages(broker)} == expected
    assert broker.tally() == (2, 0)
    assert broker.count() == 2


def test_messages_of_temporary_destinations_are_only_gone(broker):
    client = broker.client()
    queue = client.create_temporary("queue")
    broker.send(message("a", time_to_live_ms=600_000), destination=queue)
    session = broker.opened(client.session())
    execute(broker, "UPDATE broker_delivery SET expires = 1")
    assert broker.source(session, queue).receive(9, 0.0).messages == ()
    assert broker.count() == 0


def test_a_death_and_the_end_of_the_message_are_one_transaction(broker, monkeypatch):
    broker.send(message("a", time_to_live_ms=600_000))
    source = broker.plain()
    execute(broker, "UPDATE broker_delivery SET expires = 1")

    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(source_module.settling, "leave", fail)
    with pytest.raises(ConnectionLost):
        source.receive(9, 0.0)
    monkeypatch.undo()
    assert broker.count() == 1
    assert broker.count("SELECT count(*) FROM broker_delivery WHERE subscription > 1") == 1  # not in the DMQ
    again = broker.plain()
    assert again.receive(9, 0.0).messages == ()
    assert bodies_of(broker, DEAD) == ["a"]


def test_each_message_dies_once_whoever_meets_it(broker):
    broker.send(*(message(f"{number}", time_to_live_ms=600_000) for number in range(60)))
    execute(broker, "UPDATE broker_delivery SET expires = 1")
    sources = [broker.plain() for _ in range(4)]
    threads = [threading.Thread(target=source.receive, args=(7, 0.0)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A receive without a time to wait may return before it has ended all expired messages.
    wait_until(lambda: not bodies(sources[0].receive(7, 0.0)) and len(bodies_of(broker, DEAD)) >= 60)
    assert sorted(map(int, bodies_of(broker, DEAD))) == list(range(60))
    assert broker.tally() == (60, 0)


def test_a_waiting_consumer_of_dead_messages_is_woken(broker):
    consumer = broker.plain(DEAD)
    results = []
    thread = threading.Thread(target=lambda: results.append(consumer.receive(1, 30.0)))
    thread.start()
    broker.send(message("a", time_to_live_ms=1))
    expire(broker, broker.plain())
    thread.join()
    assert bodies(*results) == ["a"]


# --- the queue itself ---


def test_the_queue_is_there_is_consumed_and_is_protected(broker):
    broker.plain()
    assert DEAD in broker.connection.queues()
    (refused,) = broker.send("x", destination=DEAD)
    assert refused.code == "E8109"
    for call in (lambda: broker.connection.create(DEAD), lambda: broker.connection.delete(DEAD)):
        with pytest.raises(UsageError, match="^E7522"):
            call()
    with pytest.raises(UsageError, match="^E7523 .*never lets senders wait"):
        broker.connection.update(DEAD, {"limit_behavior": "FLOW_CONTROL"})
    broker.send(message("a", time_to_live_ms=1), destination="queue:short")
    execute(broker, "UPDATE broker_delivery SET expires = 1 WHERE expires > 0")
    broker.plain("queue:short").receive(1, 0.0)
    session = broker.session()
    source = broker.source(session, DEAD)
    held = source.receive(9, 0.0)
    assert bodies(held) == ["a"]
    session.settle(Work([(source, held.tokens)], outgoing("moved", destination="queue:again")))
    assert (bodies_of(broker, DEAD), bodies_of(broker, "queue:again")) == ([], ["moved"])


@pytest.mark.parametrize("name", ["queue:mq.x", "topic:mq.sys.dmq", "queue:mq.tmp.mine"])
def test_reserved_names_are_not_made(broker, name):
    broker.send("x")
    with pytest.raises(UsageError, match="^E7522"):
        broker.connection.create(name)
    with pytest.raises((UsageError, ConnectionLost), match="^E7(522|010)"):
        broker.plain(name)
    (refused,) = broker.send("x", destination=name)
    assert refused.code in ("E8109", "E8101")


def test_the_oldest_dead_messages_go_at_a_limit(broker):
    broker.send("x")
    broker.connection.update(DEAD, {"max_num_msgs": 2})
    for text in "abc":
        broker.send(message(text, time_to_live_ms=600_000), destination="queue:short")
        execute(broker, "UPDATE broker_delivery SET expires = 1 WHERE expires > 0")
        broker.plain("queue:short").receive(1, 0.0)
    assert bodies_of(broker, DEAD) == ["b", "c"]
    assert broker.tally() == (3, 0)


# --- redelivery ---


def test_a_returned_message_may_be_kept_back_for_a_while(broker):
    broker.connection.create(QUEUE, {"redelivery_delay_ms": 3000})
    broker.send("a", "b")
    source = broker.plain()
    held = source.receive(1, 0.0)
    source.reject(held.tokens)
    held = source.receive(9, 0.0)
    assert bodies(held) == ["b"]
    source.release(held.tokens)  # what the program has not seen comes at once
    assert bodies(source.receive(1, 0.0)) == ["b"]
    assert counts(source.receive(1, 20.0)) == [(True, 2)]


# --- properties ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_msgs", 0),
        ("max_num_msgs", True),
        ("max_num_msgs", "5"),
        ("max_num_msgs", 2**53 + 1),
        ("max_total_msg_bytes", "16kb"),
        ("max_total_msg_bytes", "0k"),
        ("limit_behavior", "reject_newest"),
        ("use_dmq", 1),
        ("redelivery_delay_ms", -1),
        ("max_num_mesages", 5),
        (5, 5),
    ],
)
def test_what_is_no_property_or_no_value_of_it_is_refused(broker, name, value):
    with pytest.raises(UsageError, match="^E7523 queue:work"):
        broker.connection.create(QUEUE, {name: value})
    broker.send("x")
    with pytest.raises(UsageError, match="^E7523 queue:work"):
        broker.connection.update(QUEUE, {name: value})


def test_properties_are_stored_and_those_of_auto_created_destinations_have_their_defaults(broker):
    broker.connection.create("queue:made", {"max_total_msg_bytes": "2k", "max_per_msg_bytes": -1, "use_dmq": False})
    with pytest.raises(UsageError, match="^E7524"):
        broker.connection.create("queue:made")
    with pytest.raises(UsageError, match="^E7512"):
        broker.connection.update("queue:not there", {"max_num_msgs": 1})
    broker.send("x")
    for name, expected in (("queue:made", (-1, 2048, -1, 0, 0)), (QUEUE, (100_000, -1, -1, 1, 1))):
        link = open_link(broker.store)
        with link.reading() as connection:
            query = "SELECT max_num_msgs, max_total_msg_bytes, max_per_msg_bytes, use_dmq, auto_created"
            query += f" FROM broker_destination WHERE name = '{name}'"
            assert tuple(connection.exec_driver_sql(query).one()) == expected
        link.close()
