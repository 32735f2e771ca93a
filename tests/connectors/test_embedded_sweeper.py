"""The sweeper of the embedded broker: what it ends and what it keeps, its election, and its thread."""

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from connectors.embedded import expiring, sweeping, unused
from connectors.embedded.clients import name_of
from connectors.embedded.link import is_alive, open_link
from connectors.embedded.sweeping import Round, elected, sweeper
from correlator.connector import Subscriber, Work
from correlator.settings import SenderSettings
from tests.connectors.embedded import (
    DEAD,
    QUEUE,
    TOPIC,
    Broker,
    bodies,
    bodies_of,
    connected,
    counts,
    kill,
    message,
    outgoing,
    wait_until,
)

NEVER = {"pause": lambda _: False}
SWEEPER = """
import sys
from connectors.embedded import expiring, sweeping
from connectors.embedded.link import is_alive, open_link

sweeping._FIRST_SLICE = expiring.MOST = 10
link = open_link(sys.argv[1])
end = expiring.end

def told(connection, most):
    ended = end(connection, most)
    print(ended, flush=True)
    sys.stdin.readline()
    return ended

expiring.end = told
sweeping.Round(link, lambda _: False).expire()
"""
"""A process that ends expired messages. It waits within each transaction until it is told to go on."""


def sweep(broker):
    link = open_link(broker.store)
    Round(link, **NEVER).run()
    link.close()


def execute(broker, statement):
    link = open_link(broker.store)
    with link.transaction() as connection:
        connection.exec_driver_sql(statement)
    link.close()


# --- expired messages ---


def test_expired_messages_end_though_nobody_asks_for_them(broker):
    delayed = message("delayed", time_to_live_ms=600_000, delivery_delay_ms=500_000)
    broker.send(message("gone", time_to_live_ms=600_000), delayed, "stays")
    source = broker.plain()
    broker.send(message("held", time_to_live_ms=600_000, priority=9))
    held = source.receive(1, 0.0)
    assert bodies(held) == ["held"]
    execute(broker, "UPDATE broker_delivery SET expires = 1 WHERE expires > 0")
    sweep(broker)
    assert sorted(bodies_of(broker, DEAD)) == ["delayed", "gone"]
    assert bodies_of(broker, QUEUE) == ["stays"]
    source.acknowledge(held.tokens)  # whoever holds a message may still settle it
    assert broker.tally() == (3, 0)


@pytest.mark.kill9
def test_each_of_a_thousand_dies_once_though_sweepers_are_killed(broker):
    broker.send(*(message(f"{number}", time_to_live_ms=600_000) for number in range(1000)))
    broker.plain("queue:keeps the broker open")
    execute(broker, "UPDATE broker_delivery SET expires = 1")
    chance = random.Random(5)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", SWEEPER, broker.store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            for _ in range(chance.randint(1, 12)):
                assert int(process.stdout.readline()) > 0
                if chance.random() < 0.1:  # it dies within the transaction
                    break
                process.stdin.write("\n")
                process.stdin.flush()
        finally:
            process.kill()
            process.communicate()
    left = broker.count("SELECT count(*) FROM broker_delivery WHERE expires = 1")
    assert 0 < left < 1000
    wait_until(lambda: sweep(broker) or not broker.count("SELECT count(*) FROM broker_delivery WHERE expires = 1"))
    dead = broker.connection.browse(DEAD, 2000)
    assert sorted(int(one.body) for one in dead) == list(range(1000))
    assert broker.tally() == (1000, 0)


def test_slices_grow_and_shrink_with_the_time_that_they_take(broker, monkeypatch):
    now, sizes = [0.0], []

    def end(_, most):
        sizes.append(most)
        now[0] += most / 32_000
        return most if len(sizes) < 12 else 0

    monkeypatch.setattr(expiring, "end", end)
    monkeypatch.setattr(sweeping.time, "monotonic", lambda: now[0])
    pauses = []
    link = open_link(broker.store)
    assert Round(link, lambda s: pauses.append(s) or False).expire()
    link.close()
    assert sizes == [100] + [200] * 11
    assert pauses[1] == pytest.approx(3 * 200 / 32_000)  # three times as long as it took


def test_a_round_ends_early_when_it_is_told(broker):
    broker.send("x")
    link = open_link(broker.store)
    assert not Round(link, lambda _: True).expire()
    link.close()


# --- the dead ---


def test_what_dead_processes_leave_behind_is_removed(broker):
    client = broker.client("me")
    temporary = client.create_temporary("queue")
    session = broker.opened(client.session())
    source = broker.source(session)
    broker.subscriber(session, Subscriber("", durable=False, shared=False))
    broker.subscriber(session, Subscriber("kept", durable=True, shared=False))
    living = broker.plain("queue:living")
    broker.send("a", destination=QUEUE)
    broker.send("t", destination=TOPIC)
    broker.send("l", destination="queue:living")
    assert bodies(living.receive(1, 0.0)) == ["l"]
    assert bodies(source.receive(1, 0.0)) == ["a"]
    kill(source)
    kill(client)
    sweep(broker)
    assert broker.count("SELECT count(*) FROM broker_client") == 0
    assert broker.count("SELECT count(*) FROM broker_consumer") == 1
    assert temporary not in broker.connection.queues()
    assert broker.count("SELECT count(*) FROM broker_subscription WHERE durable = 0") == 0
    assert broker.count("SELECT count(*) FROM broker_delivery WHERE state = 1") == 1  # the living one holds it
    assert broker.count("SELECT count(*) FROM broker_subscription WHERE name = 'kept'") == 1
    assert counts(broker.plain().receive(1, 0.0)) == [(True, 2)]


def test_outcomes_of_transactions_are_kept_for_a_day(broker):
    session = broker.session()
    for name in ("old", "new", "prepared"):
        session.prepare(name, Work([], []))
    session.resolve("old", commit=True)
    session.resolve("new", commit=True)
    execute(broker, f"UPDATE broker_tx SET at = at - {24 * 3600 * 1000 + 1} WHERE name <> 'new'")
    sweep(broker)
    assert broker.count("SELECT count(*) FROM broker_tx WHERE name = 'old'") == 0
    assert broker.count("SELECT count(*) FROM broker_tx") == 2


# --- unused destinations ---


def later(broker):
    """Let the time pass after which an unused destination is deleted."""
    execute(broker, f"UPDATE broker_destination SET unused_since = unused_since - {unused.KEPT_MS}")


def use_up(broker, queue):
    """Leave a queue empty that was used."""
    broker.send("x", destination=queue)
    source = broker.plain(queue)
    source.acknowledge(source.receive(1, 0.0).tokens)
    source.close()


def test_a_destination_that_nobody_uses_ends_after_a_while(broker):
    use_up(broker, QUEUE)
    broker.send("x", destination=TOPIC)
    broker.connection.create("queue:created")
    sweep(broker)
    sweep(broker)
    assert QUEUE in broker.connection.queues()
    later(broker)
    sweep(broker)
    assert broker.connection.queues() == ["queue:created", DEAD]
    assert broker.count("SELECT count(*) FROM broker_destination") == 2
    use_up(broker, QUEUE)
    assert QUEUE in broker.connection.queues()


def test_what_was_used_in_between_is_kept(broker):
    use_up(broker, QUEUE)
    sweep(broker)
    use_up(broker, QUEUE)
    later(broker)
    sweep(broker)
    assert QUEUE in broker.connection.queues()
    later(broker)
    sweep(broker)
    assert QUEUE not in broker.connection.queues()


@pytest.mark.parametrize("use", ["message", "consumer", "prepared", "prepared send", "sender", "subscription"])
def test_what_is_in_use_is_kept(broker, use):
    session = broker.session()
    name = TOPIC if use == "subscription" else QUEUE
    if use in {"message", "prepared"}:
        broker.send("x")
    if use == "consumer":
        broker.plain()
    if use == "prepared":
        source = broker.source(session)
        session.prepare("t", Work([(source, source.receive(1, 0.0).tokens)], []))
        source.close()
    if use == "prepared send":
        use_up(broker, QUEUE)
        session.prepare("t", Work([], outgoing("x")))
    if use == "sender":  # an engine may repeat its last messages after a crash
        engine = SenderSettings(id="s", connection="c", destination=QUEUE, reliability="EXACTLY_ONCE")
        sink = connected(broker.opened(broker.connection.sink(engine)))
        sink.send(outgoing("x", source="engine"))
        source = broker.plain()
        source.acknowledge(source.receive(1, 0.0).tokens)
        source.close()
    if use == "subscription":
        broker.plain(TOPIC).close()
    for _ in range(3):
        sweep(broker)
        later(broker)
    assert broker.count(f"SELECT count(*) FROM broker_destination WHERE name = '{name}'") == 1
    if use == "sender":
        sink.send(outgoing("x", source="engine"))
        assert bodies_of(broker, QUEUE) == []


# --- the dead, whom several look for at once ---


def test_a_look_for_the_dead_shows_no_life_to_others(broker):
    broker.send("a", "b")
    killed = broker.source(broker.session())
    assert bodies(killed.receive(2, 0.0)) == ["a", "b"]
    kill(killed)
    looking = open_link(broker.store)
    with looking.reading():
        assert looking.is_dead(str(killed._holder.consumer))
        assert bodies(broker.source(broker.session()).receive(2, 0.0)) == ["a"]
    looking.close()


def test_the_look_of_an_administrator_shows_no_life_to_others(broker):
    broker.send("a", "b")
    killed = broker.source(broker.session())
    assert bodies(killed.receive(2, 0.0)) == ["a", "b"]
    kill(killed)
    looking = open_link(broker.store)
    with looking.reading() as connection:
        assert not is_alive(broker.store, connection, str(killed._holder.consumer))
        assert bodies(broker.source(broker.session()).receive(2, 0.0)) == ["a"]
    looking.close()


def test_a_look_at_a_dead_client_keeps_nobody_from_its_client_id(broker):
    looking = open_link(broker.store)
    client = broker.client("desk")
    killed = broker.source(client.session())
    dead = client._id
    client._access.close()
    kill(killed)
    with looking.reading():
        wait_until(lambda: looking.is_dead(name_of(dead)))
        broker.client("desk").close()
    looking.close()


# --- the thread ---


@pytest.mark.parametrize("_", range(3))
def test_one_of_several_is_elected_at_once(broker, _):
    links = [open_link(broker.store) for _ in range(4)]
    with ThreadPoolExecutor(len(links)) as pool:
        assert sorted(pool.map(elected, links)) == [False, False, False, True]
    for link in links:
        link.close()


def test_one_sweeper_is_elected_at_a_time(broker):
    links = [open_link(broker.store) for _ in range(2)]
    assert [elected(link) for link in links] == [True, False]
    links[0].close()
    wait_until(lambda: elected(links[1]))  # a server frees the lock a moment later
    links[1].close()


def threads():
    return {thread for thread in threading.enumerate() if thread.name == "embedded-sweeper"}


def test_sessions_have_a_thread_and_engines_have_none(broker):
    of_other_stores = threads()
    source = broker.plain()
    client, other = broker.client(), broker.client()
    sessions = broker.opened(client.session()), broker.opened(other.session())
    assert threads() == of_other_stores
    for session in sessions:
        broker.source(session)
    (thread,) = threads() - of_other_stores
    for session in sessions:
        session.close()
    client.close()
    assert thread.is_alive()
    other.close()
    assert not thread.is_alive()
    source.close()


def test_the_thread_sweeps(broker, monkeypatch):
    monkeypatch.setattr(sweeping, "INTERVAL_S", 0.01)
    session = broker.session()
    broker.source(session, "queue:other")
    broker.send(message("gone", time_to_live_ms=1))
    wait_until(lambda: bodies_of(broker, DEAD) == ["gone"])


@pytest.mark.parametrize("moment", ["between two rounds", "at the beginning of a round"])
def test_the_thread_does_not_make_a_store_that_was_removed(moment, tmp_path, monkeypatch):
    path = tmp_path / "broker.db"
    rounds = threading.Semaphore(0)
    sweep, connect = sweeping.Sweeper._sweep, sweeping.open_link
    made, removed = threading.Event(), threading.Event()

    def remove():
        for file in tmp_path.glob("broker.db*"):
            if file.is_file():
                file.unlink()
        removed.set()

    def swept(sweeper, end):
        if moment == "between two rounds" and made.is_set() and not removed.is_set():
            remove()
        try:
            sweep(sweeper, end)
        finally:
            if removed.is_set():
                rounds.release()

    def connected(store, **how):
        if moment == "at the beginning of a round" and made.is_set():
            remove()
        return connect(store, **how)

    monkeypatch.setattr(sweeping.Sweeper, "_sweep", swept)
    monkeypatch.setattr(sweeping, "open_link", connected)
    monkeypatch.setattr(sweeping, "INTERVAL_S", 0.01)
    broker = Broker(f"sqlite:///{path}")
    broker.source(broker.session())
    made.set()
    for _ in range(3):
        assert rounds.acquire(timeout=60)
    assert not path.exists()
    broker.close()


def test_many_dead_messages_are_told_once(broker, monkeypatch, caplog):
    monkeypatch.setattr(sweeping, "INTERVAL_S", 0.01)
    monkeypatch.setattr(sweeping, "MOST_DEAD", 2)
    session = broker.session()
    broker.source(session, "queue:other")
    broker.send(message("a", time_to_live_ms=1), message("b", time_to_live_ms=1))
    rounds = wait_until(lambda: [line for line in caplog.messages if "dead messages" in line])
    assert rounds == ["There are 2 dead messages in queue:mq.sys.dmq: consume them, or limit the queue"]


def test_a_failure_is_told_once_and_there_is_another_round(broker, monkeypatch, caplog):
    monkeypatch.setattr(sweeping, "INTERVAL_S", 0.01)
    failures = []

    def fail(_, **__):
        failures.append(1)
        raise OSError("no disk\nat all")

    monkeypatch.setattr(sweeping, "open_link", fail)
    broker.source(broker.session())
    wait_until(lambda: len(failures) > 3)
    assert caplog.messages == ["The embedded broker cannot be tidied up: no disk"]


def test_the_sweeper_of_a_process_is_one(broker):
    assert sweeper(broker.store) is sweeper(broker.store)
