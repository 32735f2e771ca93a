"""The administration of the embedded broker: true counts, what is created, deleted, purged, paused, moved, resolved."""

import os
import signal
import socket
import threading
from collections import Counter
from contextlib import suppress

import pytest

from connectors.embedded import moving, orphans, sending, settling, statistics, sweeping, unused
from connectors.embedded.content import encode
from connectors.embedded.link import open_link
from connectors.embedded.sending import Terms
from connectors.embedded.storing import NewMessage
from connectors.embedded.waking import Bells
from correlator.connector import DEAD_MESSAGES, Administered, Place, Subscriber, Taken, Work
from correlator.errors import ConfigError, ConnectionLost, UsageError
from correlator.settings import SenderSettings
from correlator.testing.contract import PATIENCE_S
from tests.connectors.embedded import (
    QUEUE,
    TOPIC,
    Broker,
    bodies,
    connected,
    empty,
    kill,
    message,
    outgoing,
    steps,
    wait_until,
)
from tests.connectors.test_embedded_service import DURABLE, OWN, SHARED_DURABLE
from tests.forking import forking

OTHER = "queue:other"
HOUR_MS = 3_600_000
_forking = forking("pytest", "connectors.embedded", "tests.connectors.embedded")


def administration(of):
    return of.connection.administration()


def state(of, destination=QUEUE):
    (found,) = [one for one in administration(of).destinations() if one.destination == destination]
    return found


def destinations_of(of):
    found = [one.destination for one in administration(of).destinations()]
    assert DEAD_MESSAGES in found
    return [name for name in found if name != DEAD_MESSAGES]


def counts(of, destination=QUEUE):
    found = state(of, destination)
    return found.ready, found.held, found.delayed, found.in_tx, found.messages


def drained(of, destination=QUEUE):
    """The bodies of all messages that can be received, which are acknowledged."""
    source = of.plain(destination)
    chunk = source.receive(10_000, 0.0)
    source.acknowledge(chunk.tokens)
    source.close()
    return bodies(chunk)


def properties_of(of, destination=QUEUE):
    return state(of, destination).properties


def test_the_embedded_broker_can_be_administered(broker):
    assert isinstance(broker.connection, Administered)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def never_used(request, tmp_path):
    return Broker(empty(request, tmp_path))


def test_a_broker_that_was_never_used_is_not_made_by_a_look(never_used):
    admin = administration(never_used)
    for look in (
        admin.destinations,
        lambda: admin.consumers(None),
        admin.transactions,
        lambda: admin.purge(Place(QUEUE)),
    ):
        with pytest.raises(ConnectionLost, match="E7003"):
            look()


# --- showing ---


def test_counts_of_a_queue_are_true(broker):
    broker.send(*(message(f"{n}") for n in range(7)), message("later", delivery_delay_ms=HOUR_MS))
    session = broker.session()
    source = broker.source(session)
    held = source.receive(3, 0.0)
    session.prepare("t", Work([(source, held.tokens[:1])], []))
    found = state(broker)
    assert counts(broker) == (4, 2, 1, 1, 8)
    assert found.bytes == broker.count("SELECT sum(size) FROM broker_delivery")
    assert found.consumers == 1
    assert 0 <= found.oldest_ms < 60_000
    assert not found.created


def test_a_delayed_message_that_is_due_counts_as_ready(broker):
    broker.send(message("x", delivery_delay_ms=HOUR_MS))
    assert counts(broker) == (0, 0, 1, 0, 1)
    link = open_link(broker.store)
    with link.transaction() as connection:
        connection.exec_driver_sql("UPDATE broker_delivery SET due = 1")
    link.close()
    assert counts(broker) == (1, 0, 0, 0, 1)


def test_counts_of_a_topic_are_those_of_its_subscriptions(broker):
    session = broker.session("desk")
    own, shared = broker.subscriber(session, DURABLE), broker.subscriber(session, Subscriber("all", True, True))
    broker.send("a", "b", destination=TOPIC)
    own.receive(1, 0.0)
    shared.acknowledge(shared.receive(1, 0.0).tokens)
    assert counts(broker, TOPIC) == (2, 1, 0, 0, 2)
    found = {(one.subscription, one.client_id): one for one in administration(broker).subscriptions(TOPIC)}
    assert set(found) == {("s", "desk"), ("all", "desk")}
    one = found["s", "desk"]
    assert (one.durable, one.shared, one.selector, one.ready, one.held, one.consumers) == (True, False, None, 1, 1, 1)
    assert found["all", "desk"].ready == 1


def test_consumers_show_process_role_and_what_they_hold(broker):
    broker.send("a", "b", "c")
    administration(broker).update(QUEUE, {"max_num_active_consumers": "1", "max_num_backup_consumers": "-1"})
    session = broker.session()
    first, second = broker.source(session), broker.source(broker.session())
    dead = broker.source(broker.session(), OTHER)
    first.receive(2, 0.0)
    kill(dead)
    found = administration(broker).consumers(None)
    assert [(one.destination, one.role, one.held) for one in found] == [
        (OTHER, "dead", 0),
        (QUEUE, "active", 2),
        (QUEUE, "backup", 0),
    ]
    assert {(one.pid, one.host) for one in found} == {(os.getpid(), socket.gethostname())}
    assert found[1].oldest_ms is not None
    assert found[2].oldest_ms is None
    assert state(broker, OTHER).consumers == 0
    first.cancel()
    assert [one.role for one in administration(broker).consumers(QUEUE)] == ["closing", "active"]
    second.close()


def test_the_consumer_of_a_killed_process_is_dead_until_another_one_notices(broker):
    broker.send("a", "b")
    process = _forking.Process(target=consume_and_die, args=(broker.store,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    for _ in range(2):
        (one,) = administration(broker).consumers(QUEUE)
        assert (one.role, one.pid, one.held) == ("dead", process.pid, 1)
        assert state(broker).consumers == 0
    broker.plain()
    assert [one.role for one in administration(broker).consumers(QUEUE)] == ["active"]
    assert counts(broker) == (2, 0, 0, 0, 2)


def consume_and_die(store):
    dying = Broker(store)
    dying.source(dying.session()).receive(1, 0.0)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_look_neither_strikes_off_nor_starts_the_broker(broker):
    dead = broker.source(broker.session())
    broker.send(message("x", persistent=False))
    dead.receive(1, 0.0)
    kill(dead)
    admin = administration(broker)
    for _ in range(2):
        assert counts(broker) == (0, 1, 0, 0, 1)
        assert [one.role for one in admin.consumers(QUEUE)] == ["dead"]


def test_the_cost_of_a_look_does_not_grow_with_the_depth_of_a_queue(tmp_path):
    broker = Broker(f"sqlite:///{tmp_path}/broker.db")
    taken = []
    for depth in (100, 10_000):
        broker.send(*["x"] * (depth - (counts(broker)[0] if taken else 0)))
        with broker.connection._looking() as connection:
            taken.append(steps(connection, lambda: statistics.destinations(connection, lambda *_: True)))
        assert counts(broker)[0] == depth
    assert taken[1] < 2 * taken[0]


# --- creating, changing, deleting ---


def test_what_is_created_is_there_with_its_properties(broker):
    admin = administration(broker)
    admin.create(QUEUE, {"max_num_msgs": "7", "max_total_msg_bytes": "16k", "use_dmq": "false"})
    found = state(broker)
    assert found.created
    assert found.properties["max_num_msgs"] == 7
    assert found.properties["max_total_msg_bytes"] == 16 * 1024
    assert found.properties["use_dmq"] is False
    assert found.properties["limit_behavior"] == "REJECT_NEWEST"
    broker.send("a")
    assert drained(broker) == ["a"]


def test_update_changes_what_it_names_and_restores_defaults(broker):
    admin = administration(broker)
    admin.create(QUEUE, {"max_num_msgs": "7", "max_num_deliveries": "3"})
    admin.update(QUEUE, {"max_num_msgs": "default", "limit_behavior": "REMOVE_OLDEST"})
    found = properties_of(broker)
    assert (found["max_num_msgs"], found["max_num_deliveries"], found["limit_behavior"]) == (-1, 3, "REMOVE_OLDEST")


def test_what_is_updated_counts_as_created(broker):
    broker.send("a")
    assert not state(broker).created
    administration(broker).update(QUEUE, {"max_num_msgs": "5"})
    assert state(broker).created


def test_topics_have_no_properties_of_queues(broker):
    admin = administration(broker)
    admin.create(TOPIC, {"max_num_msgs": "5"})
    assert "max_num_active_consumers" not in properties_of(broker, TOPIC)
    with pytest.raises(UsageError, match="E7523"):
        admin.update(TOPIC, {"max_num_active_consumers": "1"})


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"max_num_msg": "1"}, "E7523", "Did you mean 'max_num_msgs'"),
        ({"max_num_msgs": "0"}, "E7523", "-1 for no limit"),
        ({"max_num_msgs": "-2"}, "E7523", "'-2'"),
        ({"max_num_msgs": "16k"}, "E7523", "'16k'"),
        ({"max_total_msg_bytes": "16kb"}, "E7523", "b, k or m"),
        ({"max_num_msgs": "9007199254740993"}, "E7523", "9007199254740992"),
        ({"max_num_msgs": "1e3"}, "E7523", "whole number"),
        ({"max_num_msgs": "\u0663"}, "E7523", "whole number"),
        ({"max_num_msgs": "9" * 5000}, "E7523", "whole number"),
        ({"limit_behavior": "reject_newest"}, "E7523", "REJECT_NEWEST"),
        ({"use_dmq": "yes"}, "E7523", "True, False"),
        ({"redelivery_delay_ms": "-1"}, "E7523", "from 0"),
        ({"consumer_flow_limit": "0"}, "E7523", "from 1"),
        ({"consumer_flow_threshold_percent": "-1"}, "E7523", "from 0 to 100"),
        ({"consumer_flow_threshold_percent": "101"}, "E7523", "from 0 to 100"),
    ],
)
def test_wrong_properties_are_refused_and_nothing_is_made(broker, given, code, said):
    with pytest.raises(UsageError, match=code) as refused:
        administration(broker).create(QUEUE, {"max_num_deliveries": "3", **given})
    assert said in str(refused.value)
    broker.send("a", destination=OTHER)
    assert destinations_of(broker) == [OTHER]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("queue:mq.x", "E7562"),
        ("queue:", "E7562"),
        ("queue:a b", "E7562"),
        ("topic:news.*", "E7562"),
        ("topic:news.>", "E7562"),
        ("orders", "E7562"),
        ("queue:a\0b", "E7562"),
        (DEAD_MESSAGES, "E7566"),
        ("queue:taken", "E7524"),
    ],
)
def test_names_that_cannot_be_created_are_refused(broker, name, code):
    administration(broker).create("queue:taken", {})
    with pytest.raises(UsageError, match=code):
        administration(broker).create(name, {})


def test_a_misspelt_destination_is_refused_with_a_similar_name(broker):
    broker.send("a")
    admin = administration(broker)
    for call in (
        lambda: admin.update("queue:wrk", {}),
        lambda: admin.delete(Place("queue:wrk"), force=True),
        lambda: admin.purge(Place("queue:wrk")),
        lambda: admin.pause("queue:wrk", "ALL"),
        lambda: admin.move("queue:wrk", OTHER, None, None),
        lambda: admin.consumers("queue:wrk"),
    ):
        with pytest.raises(UsageError, match="E7564") as refused:
            call()
        assert "Did you mean 'queue:work'" in str(refused.value)
    assert counts(broker) == (1, 0, 0, 0, 1)


def test_temporary_destinations_and_dead_messages_are_protected(broker):
    temporary = broker.client().create_temporary("queue")
    admin = administration(broker)
    for call in (
        lambda: admin.delete(Place(temporary), force=True),
        lambda: admin.update(temporary, {}),
        lambda: admin.pause(temporary, "ALL"),
        lambda: admin.delete(Place(DEAD_MESSAGES), force=True),
        lambda: admin.pause(DEAD_MESSAGES, "ALL"),
        lambda: admin.move(QUEUE, DEAD_MESSAGES, None, None),
    ):
        with pytest.raises(UsageError, match="E7566"):
            call()


def test_a_subscription_is_created_and_keeps_messages_before_it_has_a_consumer(broker):
    admin = administration(broker)
    admin.subscribe(Place(TOPIC, "s", "desk"), shared=False, selector="n > 1")
    admin.subscribe(Place(TOPIC, "s"), shared=True, selector=None)
    broker.send(message("one", {"n": 1}), message("two", {"n": 2}), destination=TOPIC)
    session = broker.session("desk")
    assert bodies(broker.subscriber(session, DURABLE, selector="n > 1").receive(9, 0.0)) == ["two"]
    assert [(one.client_id, one.ready) for one in admin.subscriptions(None)] == [("", 2), ("desk", 0)]
    for place, shared, code in (
        (Place(TOPIC, "s"), True, "E7563"),
        (Place("topic:else", "s", "desk"), False, "E7563"),
        (Place(QUEUE, "s"), True, "E7567"),
        (Place(TOPIC, "own"), False, "E7567"),
        (Place(TOPIC, "\0"), True, "E7562"),
    ):
        with pytest.raises(UsageError, match=code):
            admin.subscribe(place, shared=shared, selector=None)
    with pytest.raises(ConfigError, match="E6003"):
        admin.subscribe(Place(TOPIC, "t"), shared=True, selector="n >")


def test_delete_refuses_messages_without_force(broker):
    broker.send("a", "b")
    admin = administration(broker)
    with pytest.raises(UsageError, match="E7565.*2 messages"):
        admin.delete(Place(QUEUE), force=False)
    assert counts(broker) == (2, 0, 0, 0, 2)
    assert admin.delete(Place(QUEUE), force=True) == 2
    assert destinations_of(broker) == []
    assert broker.count("SELECT count(*) FROM broker_delivery") == broker.count() == 0
    assert broker.count("SELECT count(*) FROM broker_tally") == 0
    broker.send("c")
    assert drained(broker) == ["c"]


def test_delete_refuses_consumers_and_prepared_transactions_also_with_force(broker):
    broker.send("a", "b")
    session = broker.session()
    source = broker.source(session)
    held = source.receive(1, 0.0)
    admin = administration(broker)
    with pytest.raises(UsageError, match="E7513.*consumes"):
        admin.delete(Place(QUEUE), force=True)
    session.prepare("t", Work([(source, held.tokens)], outgoing("x", destination=OTHER)))
    source.close()
    with pytest.raises(UsageError, match="E7513.*prepared"):
        admin.delete(Place(QUEUE), force=True)
    broker.send("b", destination=OTHER)
    with pytest.raises(UsageError, match="E7513.*prepared"):
        admin.delete(Place(OTHER), force=True)
    admin.resolve("t", commit=True)
    assert admin.delete(Place(QUEUE), force=True) == 1


def sink_of(broker, session, destination=QUEUE):
    return connected(broker.opened(session.sink(SenderSettings(id="s", connection="c", destination=destination))))


def test_delete_refuses_producers_also_with_force(broker):
    admin = administration(broker)
    producer = sink_of(broker, broker.session())
    for delete in (
        lambda: admin.delete(Place(QUEUE), force=True),
        lambda: broker.connection.delete(QUEUE),
    ):
        with pytest.raises(UsageError, match=f"^E7513 queue:work: pid {os.getpid()} on host .*Close the producer"):
            delete()
    producer.close()
    admin.delete(Place(QUEUE), force=False)
    assert destinations_of(broker) == []


def test_a_producer_of_a_killed_process_prevents_no_delete(broker):
    session = broker.session()
    sink_of(broker, session)
    kill(session)
    kill(session._client)
    wait_until(lambda: deletes(broker))


def deletes(broker):
    """PostgreSQL ends a session a moment after its client."""
    with suppress(UsageError):
        administration(broker).delete(Place(QUEUE), force=False)
    return destinations_of(broker) == []


def test_a_subscription_is_deleted_though_its_topic_has_a_producer(broker):
    broker.subscriber(broker.session("desk"), DURABLE).close()
    sink_of(broker, broker.session(), TOPIC)
    administration(broker).delete(Place(TOPIC, "s", "desk"), force=False)
    assert administration(broker).subscriptions(TOPIC) == []


def test_a_client_deletes_its_temporary_queue_though_another_one_may_answer_to_it(broker):
    client = broker.client()
    queue = client.create_temporary("queue")
    sink_of(broker, broker.session(), queue)
    client.delete_temporary(queue)
    assert destinations_of(broker) == []


def test_delete_of_a_subscription_leaves_the_others(broker):
    session = broker.session("desk")
    broker.subscriber(session, DURABLE).close()
    broker.subscriber(session, Subscriber("all", durable=True, shared=True)).close()
    broker.send("a", "b", destination=TOPIC)
    admin = administration(broker)
    with pytest.raises(UsageError, match="E7512"):
        admin.delete(Place(TOPIC, "s"), force=True)
    broker.send("q")
    with pytest.raises(UsageError, match="E7567"):
        admin.purge(Place(QUEUE, "s"))
    with pytest.raises(UsageError, match="E7565"):
        admin.delete(Place(TOPIC, "s", "desk"), force=False)
    assert admin.delete(Place(TOPIC, "s", "desk"), force=True) == 2
    assert counts(broker, TOPIC) == (2, 0, 0, 0, 2)
    rest = broker.subscriber(session, Subscriber("all", durable=True, shared=True))
    assert bodies(rest.receive(9, 0.0)) == ["a", "b"]


def test_a_delete_that_dies_is_done_in_view_and_swept_by_the_next(broker, monkeypatch):
    broker.send(*(f"{n}" for n in range(30)))
    broker.send("stays", destination=OTHER)
    monkeypatch.setattr(orphans, "SLICE", 10)
    leave, done = settling.leave, []

    def dying(*arguments):
        done.append(1)
        if len(done) > 1:
            raise KeyboardInterrupt
        return leave(*arguments)

    monkeypatch.setattr(settling, "leave", dying)
    admin = administration(broker)
    with pytest.raises(KeyboardInterrupt):
        admin.delete(Place(QUEUE), force=True)
    monkeypatch.setattr(settling, "leave", leave)
    assert destinations_of(broker) == [OTHER]
    assert broker.count("SELECT count(*) FROM broker_delivery") == 21
    broker.send("new")
    assert drained(broker) == ["new"]
    assert admin.delete(Place(QUEUE), force=False) == 0
    assert broker.count("SELECT count(*) FROM broker_delivery") == broker.count() == 1
    assert broker.tally() == (1, 0)


def test_the_sweeper_removes_what_a_delete_has_left(broker, monkeypatch):
    broker.send(*(f"{n}" for n in range(7)))
    broker.send("stays", destination=OTHER)
    monkeypatch.setattr(orphans, "SLICE", 2)
    monkeypatch.setattr(type(administration(broker)), "_sweep", lambda *_: None)
    administration(broker).delete(Place(QUEUE), force=True)
    assert broker.count("SELECT count(*) FROM broker_delivery") == 8
    link = open_link(broker.store)
    sweeping.Round(link, lambda _: False).run()
    link.close()
    assert broker.count("SELECT count(*) FROM broker_delivery") == broker.count() == 1
    assert broker.tally() == (1, 0)


# --- purging ---


def test_purge_leaves_what_is_held_or_prepared_and_says_so(broker, monkeypatch):
    monkeypatch.setattr(orphans, "SLICE", 2)
    broker.send(*"abcdefg", message("later", delivery_delay_ms=HOUR_MS))
    session = broker.session()
    source = broker.source(session)
    held = source.receive(3, 0.0)
    session.prepare("t", Work([(source, held.tokens[:1])], []))
    assert administration(broker).purge(Place(QUEUE)) == Taken(5, 3)
    assert counts(broker) == (0, 2, 0, 1, 3)
    assert broker.tally() == (3, 0)
    source.reject(held.tokens[1:])
    assert bodies(source.receive(9, 0.0)) == ["b", "c"]


def test_purge_of_a_subscription_leaves_the_others(broker):
    session = broker.session("desk")
    own, shared = broker.subscriber(session, DURABLE), broker.subscriber(session, Subscriber("all", True, True))
    broker.send("a", "b", destination=TOPIC)
    assert administration(broker).purge(Place(TOPIC, "s", "desk")) == Taken(2, 0)
    assert bodies(own.receive(9, 0.0)) == []
    chunk = shared.receive(9, 0.0)
    assert bodies(chunk) == ["a", "b"]
    shared.reject(chunk.tokens)
    assert administration(broker).purge(Place(TOPIC)) == Taken(2, 0)
    assert broker.count() == 0
    assert broker.tally() == (0, 0)


# --- pausing ---


@pytest.mark.parametrize("paused", ["CONSUMERS", "ALL"])
@pytest.mark.parametrize("selector", ["", "JMSPriority = 4"])
def test_paused_consumers_claim_nothing_and_settle_what_they_hold(broker, paused, selector):
    broker.send("a", "b")
    source = broker.source(broker.session(), selector=selector) if selector else broker.source(broker.session())
    held = source.receive(1, 0.0)
    assert bodies(held) == ["a"]
    admin = administration(broker)
    admin.pause(QUEUE, paused)
    assert bodies(source.receive(9, 0.1), broker.plain().receive(9, 0.1)) == []
    source.acknowledge(held.tokens)
    assert state(broker).paused == paused
    admin.pause(QUEUE, None)
    assert bodies(source.receive(9, 5.0)) == ["b"]


@pytest.mark.parametrize("of_session", [True, False])
def test_a_claim_that_has_looked_before_the_pause_gets_nothing(broker, monkeypatch, of_session):
    broker.send(message("a", {"n": 1}))
    source = broker.source(broker.session(), selector="n = 1") if of_session else broker.plain(selector="n = 1")
    look, looks = type(source)._look, []

    def looked(*given):
        found = look(*given)
        looks.append(len(found))
        administration(broker).pause(QUEUE, "CONSUMERS")
        return found

    monkeypatch.setattr(type(source), "_look", looked)
    assert bodies(source.receive(9, 0.1)) == []
    assert looks[:2] == [1, 0]


def test_a_paused_producer_of_a_session_waits_and_goes_on_when_resumed(broker, monkeypatch):
    heard, rung = set(), set()
    wait_for_any, ring = Bells.wait_for_any, Bells.ring

    def waits(bells, destinations, *more):
        heard.update(destinations)
        return wait_for_any(bells, destinations, *more)

    def rings(bells, destinations, connection):
        rung.update(destinations)
        ring(bells, destinations, connection)

    monkeypatch.setattr(Bells, "wait_for_any", waits)
    monkeypatch.setattr(Bells, "ring", rings)
    admin = administration(broker)
    admin.create(QUEUE, {})
    admin.pause(QUEUE, "PRODUCERS")
    started = threading.Event()
    sent = []

    def send():
        started.set()
        sent.append(broker.send("a"))

    sending_thread = threading.Thread(target=send)
    sending_thread.start()
    assert started.wait(5)
    sending_thread.join(0.3)
    assert sending_thread.is_alive()
    assert counts(broker) == (0, 0, 0, 0, 0)
    rung.clear()
    admin.pause(QUEUE, None)
    assert rung & heard  # it does not go on at its next look only
    sending_thread.join(PATIENCE_S)
    assert not sending_thread.is_alive()
    assert sent == [[None]]
    assert drained(broker) == ["a"]


def test_a_commit_waits_while_a_destination_is_paused(broker):
    broker.send("a")
    admin = administration(broker)
    admin.create(OTHER, {})
    admin.pause(OTHER, "ALL")
    session = broker.session()
    source = broker.source(session)
    held = source.receive(1, 0.0)
    settling_thread = threading.Thread(
        target=session.settle, args=(Work([(source, held.tokens)], outgoing("x", destination=OTHER)),)
    )
    settling_thread.start()
    settling_thread.join(0.3)
    assert settling_thread.is_alive()
    assert (counts(broker)[1], counts(broker, OTHER)[4]) == (1, 0)
    admin.pause(OTHER, "CONSUMERS")
    settling_thread.join(10)
    assert (counts(broker)[4], counts(broker, OTHER)[4]) == (0, 1)


def test_the_sender_of_an_engine_is_blocked_while_its_destination_is_paused(broker):
    admin = administration(broker)
    admin.create(QUEUE, {})
    sink = broker.opened(broker.connection.sink(SenderSettings(id="s", connection="c", destination=QUEUE)))
    sink.connect()
    admin.pause(QUEUE, "PRODUCERS")
    with pytest.raises(ConnectionLost, match="E7026.*paused"):
        sink.send(outgoing("a"))
    sink.connect()
    with pytest.raises(ConnectionLost, match="E7026.*paused"):
        sink.send(outgoing("a"))
    admin.pause(QUEUE, None)
    assert sink.send(outgoing("a")) == [None]


def test_a_pause_survives_the_end_of_all_users(broker):
    administration(broker).create(QUEUE, {})
    administration(broker).pause(QUEUE, "ALL")
    again = Broker(broker.store)
    assert state(again).paused == "ALL"
    source = again.source(again.session())
    assert bodies(source.receive(1, 0.1)) == []
    again.close()


@pytest.mark.parametrize("paused", ["ALL", None])
def test_a_paused_destination_is_kept_though_nobody_uses_it(broker, monkeypatch, paused):
    monkeypatch.setattr(unused, "KEPT_MS", -1)
    broker.send("a")
    drained(broker)
    administration(broker).pause(QUEUE, paused)
    link = open_link(broker.store)
    for _ in range(3):
        sweeping.Round(link, lambda _: False).run()
    link.close()
    assert destinations_of(broker) == ([QUEUE] if paused else [])


# --- moving ---


def test_move_keeps_id_time_priority_and_life_and_takes_what_matches(broker):
    broker.send(*(message(f"{n}", {"n": n}, priority=n, time_to_live_ms=HOUR_MS) for n in range(4)))
    before = broker.connection.browse(QUEUE, 9)
    expires = broker.count("SELECT min(expires) FROM broker_delivery")
    administration(broker).create(OTHER, {})
    assert administration(broker).move(QUEUE, OTHER, "n <> 2", None) == Taken(3, 0, 1)
    after = broker.connection.browse(OTHER, 9)
    assert [one.body for one in after] == [b"3", b"1", b"0"]
    kept = {one.body: one for one in before}
    for one in after:
        was = kept[one.body].headers
        assert (one.headers.message_id, one.headers.timestamp, one.headers.priority) == (
            was.message_id,
            was.timestamp,
            was.priority,
        )
        assert one.headers.expiration == was.expiration
    assert abs(broker.count("SELECT min(expires) FROM broker_delivery") - expires) < 1000
    assert drained(broker) == ["2"]
    assert broker.tally() == (3, 0)


def test_moved_messages_come_behind_those_that_wait_and_to_waiting_selectors(broker):
    broker.send("a", message("b", {"n": 1}))
    broker.send(message("x", {"n": 1}), destination=OTHER)
    waiting = broker.source(broker.session(), OTHER, selector="n = 1")
    assert bodies(waiting.receive(9, 0.0)) == ["x"]
    administration(broker).move(QUEUE, OTHER, None, None)
    assert bodies(waiting.receive(9, 5.0)) == ["b"]


def test_move_leaves_what_is_held_and_respects_its_limit(broker, monkeypatch):
    monkeypatch.setattr(moving, "SLICE", 2)
    broker.send(*"abcdefg")
    administration(broker).create(OTHER, {})
    source = broker.source(broker.session())
    source.receive(2, 0.0)
    assert administration(broker).move(QUEUE, OTHER, None, 3) == Taken(3, 2, 0)
    assert drained(broker, OTHER) == ["c", "d", "e"]
    assert counts(broker) == (2, 2, 0, 0, 4)


def test_a_delayed_message_moves_with_the_rest_of_its_delay(broker):
    broker.send(message("x", delivery_delay_ms=HOUR_MS))
    administration(broker).create(OTHER, {})
    assert administration(broker).move(QUEUE, OTHER, None, None).done == 1
    assert counts(broker, OTHER) == (0, 0, 1, 0, 1)


def test_a_message_that_is_claimed_between_look_and_move_stays(broker, monkeypatch):
    broker.send("a", "b")
    administration(broker).create(OTHER, {})
    source = broker.source(broker.session())
    wanted = moving.Mover._wanted

    def claimed_meanwhile(*given):
        found = wanted(*given)
        source.receive(1, 0.0)
        return found

    monkeypatch.setattr(moving.Mover, "_wanted", claimed_meanwhile)
    assert administration(broker).move(QUEUE, OTHER, None, None) == Taken(1, 1, 0)
    assert (counts(broker), drained(broker, OTHER)) == ((0, 1, 0, 0, 1), ["b"])


def test_what_a_target_does_not_take_stays(broker, monkeypatch):
    monkeypatch.setattr(moving, "SLICE", 1)
    broker.send("a", "b")
    admin = administration(broker)
    admin.create(TOPIC, {})
    with pytest.raises(UsageError, match="E7570.*no subscription.*0 messages"):
        admin.move(QUEUE, TOPIC, None, None)
    admin.create(OTHER, {})
    admin.pause(OTHER, "PRODUCERS")
    with pytest.raises(UsageError, match="E7570.*paused"):
        admin.move(QUEUE, OTHER, None, None)
    assert counts(broker) == (2, 0, 0, 0, 2)
    assert counts(broker, OTHER)[4] == counts(broker, TOPIC)[4] == 0


@pytest.mark.parametrize("persistent", [True, False])
def test_a_full_target_takes_what_it_may_hold_and_nothing_is_lost(broker, monkeypatch, persistent):
    monkeypatch.setattr(moving, "SLICE", 2)
    broker.source(broker.session(), "queue:open")  # what is not persistent stays while somebody has the broker open
    broker.send(*(message(f"{n}", persistent=persistent) for n in range(5)))
    admin = administration(broker)
    admin.create(OTHER, {"max_num_msgs": "3"})
    with pytest.raises(UsageError, match="E7570.*full.*2 messages were moved"):
        admin.move(QUEUE, OTHER, None, None)
    assert (counts(broker)[4], counts(broker, OTHER)[4]) == (3, 2)
    assert admin.move(QUEUE, OTHER, None, 1) == Taken(1, 0, 0)
    assert drained(broker) + drained(broker, OTHER) == ["3", "4", "0", "1", "2"]


def test_purge_makes_room_for_a_sender_that_waits(broker):
    admin = administration(broker)
    admin.create(QUEUE, {"max_num_msgs": "1", "limit_behavior": "FLOW_CONTROL"})
    broker.send("a")
    waiting = threading.Thread(target=broker.send, args=("b",))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    assert admin.purge(Place(QUEUE)) == Taken(1, 0)
    waiting.join(10)
    assert drained(broker) == ["b"]


@pytest.mark.parametrize(
    ("source", "target", "selector", "error", "code"),
    [
        (QUEUE, QUEUE, None, UsageError, "E7569"),
        (TOPIC, QUEUE, None, UsageError, "E7567"),
        (QUEUE, "queue:none", None, UsageError, "E7564"),
        (QUEUE, OTHER, "n >", ConfigError, "E6003"),
    ],
)
def test_moves_that_make_no_sense_are_refused(broker, source, target, selector, error, code):
    broker.send("a")
    broker.send("a", destination=OTHER)
    with pytest.raises(error, match=code):
        administration(broker).move(source, target, selector, None)
    assert counts(broker) == (1, 0, 0, 0, 1)


@pytest.mark.parametrize("statement", ["before", "between", "after"])
@pytest.mark.parametrize("slice_number", [1, 3])
def test_a_move_that_is_killed_leaves_each_message_in_one_place(broker, statement, slice_number):
    names = [f"{n}" for n in range(12)]
    broker.send(*names)
    administration(broker).create(OTHER, {})
    process = _forking.Process(target=move_and_die, args=(broker.store, statement, slice_number))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    moved = {"before": slice_number - 1, "between": slice_number - 1, "after": slice_number}[statement] * 3
    assert (counts(broker)[4], counts(broker, OTHER)[4]) == (12 - moved, moved)
    assert administration(broker).move(QUEUE, OTHER, None, None) == Taken(12 - moved, 0, 0)
    assert drained(broker, OTHER) == names
    assert broker.tally() == (0, 0)


def move_and_die(store, statement, slice_number):
    """Move in slices of three, and die in one of them: before it, between its statements, or after its commit."""
    moving.SLICE = 3
    seen = Counter()

    def dying(moment, do):
        def did(*given, **named):
            seen[moment] += 1
            if (moment, seen[moment]) == (statement, slice_number):
                os.kill(os.getpid(), signal.SIGKILL)
            return do(*given, **named)

        return did

    settling.leave = dying("before", settling.leave)
    sending.store = dying("between", sending.store)
    moving.Access.ring = dying("after", moving.Access.ring)
    administration(Broker(store)).move(QUEUE, OTHER, None, None)


# --- dead messages ---


def bury(of, body, properties):
    """Store a dead message, as the broker does."""
    link = open_link(of.store)
    with link.transaction() as connection:
        content = encode(message(body, properties))
        sending.store(connection, DEAD_MESSAGES, [NewMessage("", 0, f"ID:{body}", content)], Terms(link, set()))
    link.close()


def test_dead_messages_go_back_without_the_properties_of_their_death(broker):
    death = {"correlator_dmq_undelivered_reason": "EXPIRED", "correlator_dmq_destination": QUEUE}
    bury(broker, "a", {"n": 1, **death})
    bury(broker, "unknown", {"n": 2})
    assert administration(broker).retry(None, None) == Taken(1, 0, 1)
    (one,) = broker.connection.browse(QUEUE, 9)
    assert (one.body, one.properties, one.headers.message_id) == (b"a", {"n": 1}, "ID:a")
    assert one.headers.delivery_count == 1
    assert [left.body for left in broker.connection.browse(DEAD_MESSAGES, 9)] == [b"unknown"]
    assert administration(broker).purge(Place(DEAD_MESSAGES)) == Taken(1, 0)


def test_what_was_delivered_too_often_is_dead_and_can_be_retried(broker):
    admin = administration(broker)
    admin.create(QUEUE, {"max_num_deliveries": "1"})
    broker.send(message("a", {"n": 1}))
    source = broker.source(broker.session())
    source.reject(source.receive(1, 0.0).tokens)
    assert bodies(source.receive(1, 0.0)) == []
    assert (counts(broker)[4], counts(broker, DEAD_MESSAGES)[0]) == (0, 1)
    assert admin.retry(None, None) == Taken(1, 0, 0)
    again = source.receive(1, 5.0)
    assert [(one.body, one.properties) for one in again.messages] == [(b"a", {"n": 1})]


def test_a_dead_message_of_a_subscription_goes_back_to_it_alone(broker):
    session = broker.session()
    first = broker.subscriber(session, SHARED_DURABLE)
    other = broker.subscriber(session, Subscriber("other", durable=True, shared=True))
    live = broker.subscriber(session, OWN)
    bury(broker, "a", {"correlator_dmq_destination": TOPIC, "correlator_dmq_subscription": "s"})
    assert administration(broker).retry(None, None) == Taken(1, 0, 0)
    assert bodies(first.receive(9, 0.0)) == ["a"]
    assert bodies(other.receive(9, 0.0), live.receive(9, 0.0)) == []


def test_a_dead_message_whose_subscription_is_gone_stays_dead(broker):
    broker.subscriber(broker.session(), Subscriber("other", durable=True, shared=True))
    bury(broker, "a", {"correlator_dmq_destination": TOPIC, "correlator_dmq_subscription": "gone"})
    with pytest.raises(UsageError, match="E7570"):
        administration(broker).retry(None, None)
    assert counts(broker, DEAD_MESSAGES)[4] == 1


# --- transactions ---


def test_prepared_transactions_are_listed_and_ended(broker):
    broker.send("a", "b")
    session = broker.session()
    source = broker.source(session)
    held = source.receive(2, 0.0)
    session.prepare("first", Work([(source, held.tokens[:1])], outgoing("x", "y", destination=OTHER)))
    session.prepare("second", Work([(source, held.tokens[1:])], outgoing("z", destination=OTHER)))
    source.close()
    admin = administration(broker)
    found = admin.transactions()
    assert [(one.name, one.state, one.acknowledged, one.sends) for one in found] == [
        ("first", "PREPARED", 1, 2),
        ("second", "PREPARED", 1, 1),
    ]
    admin.resolve("first", commit=True)
    admin.resolve("first", commit=True)
    admin.resolve("second", commit=False)
    assert drained(broker, OTHER) == ["x", "y"]
    again = connected(broker.opened(session.source(source._receiver)))
    chunk = again.receive(9, 0.0)
    assert bodies(chunk) == ["b"]
    assert chunk.messages[0].headers.redelivered
    assert [(one.name, one.state) for one in admin.transactions()] == [("first", "COMMITTED"), ("second", "ROLLEDBACK")]
    with pytest.raises(UsageError, match="E7520.*COMMITTED"):
        admin.resolve("first", commit=False)
    with pytest.raises(UsageError, match="E7520.*no prepared"):
        admin.resolve("third", commit=True)


def test_a_commit_to_a_destination_that_takes_nothing_is_refused_and_can_be_done_later(broker):
    admin = administration(broker)
    admin.create(OTHER, {})
    admin.pause(OTHER, "PRODUCERS")
    broker.session().prepare("t", Work([], outgoing("x", destination=OTHER)))
    with pytest.raises(UsageError, match="E7570.*stays prepared"):
        admin.resolve("t", commit=True)
    assert [one.state for one in admin.transactions()] == ["PREPARED"]
    admin.pause(OTHER, None)
    admin.resolve("t", commit=True)
    assert drained(broker, OTHER) == ["x"]
