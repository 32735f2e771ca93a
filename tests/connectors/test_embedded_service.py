"""The embedded broker as a message service: order, counts, times, kinds of subscriptions, clients, transactions."""

import threading
import time
from functools import partial
from queue import SimpleQueue

import pytest
from psycopg import OperationalError

from connectors.embedded import EmbeddedConnection, sql, storing, tally
from connectors.embedded.link import open_link
from connectors.embedded.waking import Bells
from connectors.messaging import ConnectionFactory
from correlator.connector import MessageService, Prefetching, Subscriber, Work
from correlator.errors import ConnectionLost, SendRejected, UsageError
from correlator.events import Message, Outgoing
from correlator.settings import SenderSettings
from correlator.storage.database import copy_while_running
from correlator.testing.contract import PATIENCE_S, take
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

DURABLE = Subscriber("s", durable=True, shared=False)
SHARED_DURABLE = Subscriber("s", durable=True, shared=True)
SHARED = Subscriber("s", durable=False, shared=True)
OWN = Subscriber("", durable=False, shared=False)


# --- the order of deliveries ---


def test_priority_then_number_and_what_is_returned_keeps_its_place(broker):
    broker.send(message("a", priority=4), message("b", priority=9), message("c", priority=4))
    source = broker.plain()
    held = source.receive(2, 0.0)
    assert bodies(held) == ["b", "a"]
    source.reject(held.tokens)
    assert bodies(source.receive(9, 0.0)) == ["b", "a", "c"]


def test_a_selector_keeps_the_order_of_priorities(broker):
    broker.send(*(message(f"{p}", {"n": p}, priority=p) for p in (1, 5, 9, 3)))
    source = broker.plain(selector="n > 1")
    chunk = source.receive(2, 0.0)
    assert bodies(chunk) == ["9", "5"]
    source.reject(chunk.tokens[1:])
    assert bodies(source.receive(9, 0.0)) == ["5", "3"]


def test_rejected_counts_and_released_does_not(broker):
    broker.send("a", "b")
    source = broker.plain()
    assert isinstance(source, Prefetching)
    held = source.receive(2, 0.0)
    source.reject(held.tokens[:1])
    source.release(held.tokens[1:])
    assert counts(source.receive(2, 0.0)) == [(True, 2), (False, 1)]


def test_a_cancelled_source_takes_nothing_and_settles_what_it_holds(broker):
    broker.send("a", "b")
    source = broker.plain()
    held = source.receive(1, 0.0)
    source.cancel()
    assert source.receive(1, 0.0).messages == ()
    source.acknowledge(held.tokens)
    source.close()
    assert bodies(broker.plain().receive(9, 0.0)) == ["b"]


# --- the dead ---


def test_suspects_come_one_by_one_and_only_the_poison_counts_on(broker):
    broker.send(*"abcd")
    held = None
    for life in range(3):
        source = broker.source(broker.session())
        if life == 0:
            held = source.receive(9, 0.0)
            assert bodies(held) == ["a", "b", "c", "d"]
            source.acknowledge(held.tokens[:1])
        else:
            held = source.receive(9, 0.0)
            assert (bodies(held), counts(held)) == (["b"], [(True, life + 1)])
        kill(source)
    last = broker.source(broker.session())
    chunks = [last.receive(9, 0.0) for _ in range(3)]
    assert [bodies(chunk) for chunk in chunks] == [["b"], ["c"], ["d"]]
    assert counts(*chunks) == [(True, 4), (True, 2), (True, 2)]
    assert last.receive(9, 0.0).messages == ()


def test_a_suspect_is_counted_in_the_commit_that_claims_it(broker):
    broker.send("a")
    for stored in (0, 2):
        source = broker.source(broker.session())
        source.receive(1, 0.0)
        assert broker.count("SELECT deliveries FROM broker_delivery") == stored
        kill(source)
    source = broker.source(broker.session())
    (token,) = source.receive(1, 0.0).tokens
    assert broker.count("SELECT deliveries FROM broker_delivery") == 3
    source.release([token])
    assert counts(source.receive(1, 0.0)) == [(True, 3)]


def test_receivers_of_engines_take_suspects_together(broker):
    broker.send(*"abcd")
    dead = broker.plain()
    assert len(dead.receive(9, 0.0).messages) == 4
    kill(dead)
    again = broker.plain()
    held = again.receive(9, 0.0)
    assert bodies(held) == ["a", "b", "c", "d"]
    assert counts(held) == [(True, 2)] * 4
    kill(again)
    assert counts(broker.plain().receive(3, 0.0)) == [(True, 3)] * 3


def test_a_living_consumer_finds_what_a_dead_one_held(broker):
    broker.send("a")
    one, other = broker.plain(), broker.plain()
    one.receive(1, 0.0)
    assert other.receive(1, 0.0).messages == ()
    kill(one)
    assert counts(other.receive(1, 5.0)) == [(True, 2)]


def test_who_was_struck_off_settles_nothing(broker):
    broker.send("a")
    session = broker.session()
    source = broker.source(session)
    held = source.receive(1, 0.0)
    link = open_link(broker.store)
    with link.transaction() as connection:
        connection.exec_driver_sql("UPDATE broker_delivery SET state = 0, consumer = 0")
    link.close()
    with pytest.raises(ConnectionLost, match="^E7021"):
        session.settle(Work([(source, held.tokens)], outgoing("x", destination="queue:out")))
    assert broker.connection.browse("queue:out", 9) == []
    assert broker.count("SELECT count(*) FROM broker_delivery") == 1


def test_after_another_boot_all_that_is_ready_may_have_been_seen(broker):
    """Claims that did not wait for the disk may be lost with the power."""
    broker.send("a", "b")
    source = broker.plain()
    source.receive(1, 0.0)
    link = open_link(broker.store)
    with link.transaction() as connection:
        connection.exec_driver_sql("UPDATE broker_consumer SET boot = 'another'")
        connection.exec_driver_sql("UPDATE broker_delivery SET state = 0, consumer = 0")  # the claim is lost
    link.close()
    kill(source)
    broker.send("c")
    again = broker.plain()
    broker.send("d")
    assert counts(again.receive(9, 0.0)) == [(True, 1), (True, 1), (False, 1), (False, 1)]


# --- times ---


def test_an_expired_message_is_never_handed_over(broker):
    broker.send(message("gone", time_to_live_ms=1), message("stays", time_to_live_ms=600_000))
    wait_until(lambda: len(broker.connection.browse(QUEUE, 9)) == 1)
    assert [m.body for m in broker.connection.browse(QUEUE, 9)] == [b"stays"]
    source = broker.plain()
    held = source.receive(9, 0.0)
    assert bodies(held) == ["stays"]
    source.acknowledge(held.tokens)
    assert bodies_of(broker, DEAD) == ["gone"]
    assert broker.tally() == (1, 0)


def test_a_delayed_message_comes_in_its_place_when_it_is_due(broker):
    broker.send(message("late", delivery_delay_ms=3000, priority=9), "soon")
    source = broker.plain()
    first = source.receive(9, 0.0)
    assert bodies(first) == ["soon"]
    source.reject(first.tokens)
    (late, _) = wait_until(lambda: two(source))
    assert (late.body, late.headers.delivery_time) == (b"late", late.headers.timestamp + 3000)
    assert late.headers.delivery_delay_ms is None
    assert not late.headers.redelivered


def two(source):
    chunk = source.receive(9, 0.0)
    if len(chunk.messages) == 2:
        return chunk.messages
    source.release(chunk.tokens)
    return None


def test_a_delay_beyond_the_life_is_refused(broker):
    (result,) = broker.send(message("x", delivery_delay_ms=1000, time_to_live_ms=1000))
    assert result.code == "E8110"
    assert broker.count() == 0


# --- what ends with the broker ---


def test_what_is_not_persistent_ends_when_nobody_has_the_broker_open(broker):
    broker.send(message("passing", persistent=False), "stays")
    assert [m.body for m in broker.connection.browse(QUEUE, 9)] == [b"passing", b"stays"]
    keeper = broker.plain("queue:other")
    broker.send(message("kept", persistent=False))
    broker.plain("queue:more").close()
    bodies_now = [m.body for m in broker.connection.browse(QUEUE, 9)]
    assert bodies_now == [b"stays", b"kept"]  # "passing" ended when the keeper opened the broker alone
    starts = broker.count("SELECT starts FROM broker_store")
    keeper.close()
    broker.send("x")
    assert [m.body for m in broker.connection.browse(QUEUE, 9)] == [b"stays", b"x"]
    assert broker.count("SELECT starts FROM broker_store") == starts + 2  # the sink, and the link of the count
    assert broker.count("SELECT sum(messages) FROM broker_tally") == 2


def test_an_engine_stores_durably_what_is_not_persistent(broker):
    sink = broker.connection.sink(SenderSettings(id="s", connection="c", destination=QUEUE))
    sink.connect()
    sink.send(outgoing(message("passing", persistent=False)))
    sink.close()
    broker.plain().close()
    assert bodies_of(broker, QUEUE) == ["passing"]


def test_eight_openers_at_once_are_one_start(broker):
    broker.send("x")
    before = broker.count("SELECT starts FROM broker_store")
    barrier, links = threading.Barrier(8), []

    def open_one():
        barrier.wait()
        links.append(open_link(broker.store))

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(links) == 8
    assert broker.count("SELECT starts FROM broker_store") == before + 1
    for link in links:
        link.close()


def test_the_tally_stays_true_and_small(broker, monkeypatch):
    monkeypatch.setattr(tally, "FOLDED", 5)
    source = broker.plain()
    for number in range(20):
        broker.send("x", f"{number}")
        source.acknowledge(source.receive(1, 0.0).tokens)
        assert broker.tally() == (number + 1, 0)
        assert broker.count("SELECT count(*) FROM broker_tally") <= 12


def test_the_tallies_of_destinations_that_are_used_by_turns_stay_small(broker, monkeypatch):
    monkeypatch.setattr(tally, "FOLDED", 4)
    session = broker.session()
    sink = connected(session.sink(SenderSettings(id="s", connection="c", destination=None)))
    for number in range(40):
        for destination in (QUEUE, "queue:other"):
            sink.send(outgoing(f"{number}", destination=destination))
    rows = "SELECT max(n) FROM (SELECT count(*) AS n FROM broker_tally GROUP BY destination) AS rows_of"
    assert broker.count(rows) < 20
    assert broker.tally() == (80, 0)


@pytest.mark.postgres
def test_large_batches_are_stored_in_portions(postgres, monkeypatch):
    """PostgreSQL takes less than 1 GB in one statement."""
    broker = Broker(postgres())
    broker.send("first")
    portions = []
    add = storing._add_postgres

    def counted(connection, destination, rows):
        portions.append(len(rows))
        add(connection, destination, rows)

    monkeypatch.setattr(storing, "_add_postgres", counted)
    monkeypatch.setattr(storing, "PORTION_BYTES", 250)
    sent = [letter * size for letter, size in zip("abcdef", (70, 70, 900, 70, 70, 70), strict=True)]
    broker.send(*sent)
    assert portions == [2, 1, 2, 1]
    assert bodies(broker.plain().receive(9, 0.0)) == ["first", *sent]
    assert broker.tally() == (7, 0)
    broker.close()


# --- topics ---


def test_content_is_stored_once_and_goes_with_the_last_reference(broker):
    session = broker.session("me")
    sources = [broker.subscriber(session, DURABLE._replace(name=f"s{n}")) for n in range(3)]
    broker.send("x", destination=TOPIC)
    assert broker.count() == 1
    for left, source in zip((1, 1, 0), sources, strict=True):
        source.acknowledge(source.receive(1, 0.0).tokens)
        assert broker.count() == left
    assert broker.tally() == (0, 0)


def test_what_no_subscription_wants_is_not_stored(broker):
    broker.send("x", destination=TOPIC)
    assert broker.count() == 0


def test_a_selector_applies_when_a_message_is_routed_and_unknown_is_no_match(broker):
    session = broker.session("me")
    red = broker.subscriber(session, DURABLE, selector="color = 'red'")
    everything = broker.subscriber(session, DURABLE._replace(name="all"))
    broker.send(message("1", {"color": "red"}), message("2"), message("3", {"color": 5}), destination=TOPIC)
    assert broker.count("SELECT count(*) FROM broker_delivery") == 4
    assert bodies(red.receive(9, 0.0)) == ["1"]
    assert bodies(everything.receive(9, 0.0)) == ["1", "2", "3"]


def test_another_selector_is_refused_and_the_subscription_keeps_its_messages(broker):
    session = broker.session("me")
    one = broker.subscriber(session, SHARED_DURABLE, selector="n = 1")
    with pytest.raises(
        UsageError, match=r"^E7517 .* has the selector 'n = 1', and pid \d+ on host .* consumes from it"
    ):
        broker.subscriber(session, SHARED_DURABLE, selector="n = 2")
    one.close()
    broker.send(message("kept", {"n": 1}), destination=TOPIC)
    for selector in ("n = 2", None):
        with pytest.raises(UsageError, match="^E7517 .* has the selector 'n = 1'. .*unsubscribe first"):
            broker.subscriber(session, SHARED_DURABLE, selector=selector)
    assert bodies(broker.subscriber(session, SHARED_DURABLE, selector="n = 1").receive(9, 0.0)) == ["kept"]
    broker.subscriber(session, SHARED_DURABLE._replace(name="all")).close()
    with pytest.raises(UsageError, match="^E7517 .* 'all' has no selector"):
        broker.subscriber(session, SHARED_DURABLE._replace(name="all"), selector="n = 1")


def test_an_unshared_subscription_has_one_consumer(broker):
    session = broker.session("me")
    one = broker.subscriber(session, DURABLE)
    with pytest.raises(UsageError, match=r"^E7516 .*pid \d+ on host"):
        broker.subscriber(session, DURABLE)
    one.close()
    broker.subscriber(session, DURABLE)


def test_a_shared_subscription_is_shared_and_kinds_are_not_mixed(broker):
    session = broker.session("me")
    one, other = broker.subscriber(session, SHARED_DURABLE), broker.subscriber(session, SHARED_DURABLE)
    broker.send("1", "2", destination=TOPIC)
    assert sorted(bodies(one.receive(1, 0.0), other.receive(9, 0.0))) == ["1", "2"]
    for kind in (DURABLE, SHARED):
        with pytest.raises(UsageError, match="^E7516 .*Kinds of subscriptions do not share names"):
            broker.subscriber(session, kind)


def test_a_name_belongs_to_its_client_id(broker):
    mine, yours = (broker.subscriber(broker.session(one), DURABLE) for one in ("me", "you"))
    broker.send("x", destination=TOPIC)
    assert bodies(mine.receive(9, 0.0)) == bodies(yours.receive(9, 0.0)) == ["x"]


def test_a_durable_subscription_of_a_client_moves_to_another_topic(broker):
    session = broker.session("me")
    broker.subscriber(session, DURABLE).close()
    broker.send("old", destination=TOPIC)
    moved = broker.subscriber(session, DURABLE, "topic:else")
    assert broker.count() == 0
    with pytest.raises(UsageError, match="^E7516"):
        broker.subscriber(session, DURABLE, TOPIC)
    moved.close()


@pytest.mark.parametrize("kind", [SHARED, OWN])
@pytest.mark.parametrize("killed", [False, True])
def test_what_is_not_durable_ends_with_its_last_consumer(broker, kind, killed):
    keeper = broker.plain("queue:other")
    sessions = [broker.session() for _ in range(2 if kind is SHARED else 1)]
    sources = [broker.subscriber(session, kind) for session in sessions]
    broker.send("x", destination=TOPIC)
    for source in sources:
        assert broker.count() == 1
        kill(source) if killed else source.close()
    broker.client("reaper")
    assert broker.count() == 0
    assert broker.count("SELECT count(*) FROM broker_subscription WHERE durable = 0") == 0
    assert broker.tally() == (0, 0)
    keeper.close()


# --- clients ---


def test_the_embedded_broker_is_a_message_service(broker):
    assert isinstance(broker.connection, MessageService)


def test_a_client_id_is_used_by_one_living_client(broker):
    first = broker.client("me")
    with pytest.raises(UsageError, match=r"^E7515 .*pid \d+ on host"):
        broker.client("me")
    kill(first)
    second = broker.client("me")
    second.close()
    broker.client("me")


def test_a_client_that_is_refused_leaves_nothing_open(broker):
    first = broker.client("me")
    with pytest.raises(UsageError, match="^E7515"):
        broker.client("me")
    first.close()
    wait_until(lambda: started(broker) < started(broker))  # the broker starts when nobody else has it open


def started(broker):
    return broker.count("SELECT starts FROM broker_store")


def test_a_temporary_queue_is_its_clients_own_and_ends_with_it(broker):
    keeper = broker.plain("queue:other")
    client = broker.client()
    queue = client.create_temporary("queue")
    source = broker.source(broker.opened(client.session()), queue)
    assert broker.send("reply", destination=queue) == [None]
    assert bodies(source.receive(9, 0.0)) == ["reply"]
    with pytest.raises(UsageError, match="^E7521"):
        broker.source(broker.session(), queue)
    with pytest.raises(UsageError, match="^E7513"):
        client.delete_temporary(queue)
    source.close()
    client.close()
    assert broker.count() == 0
    (late,) = broker.send("late", destination=queue)
    assert late.code == "E8101"
    with pytest.raises(ConnectionLost, match="^E7010"):
        broker.plain(queue)
    keeper.close()


def test_a_temporary_queue_of_a_killed_client_is_reaped(broker):
    client = broker.client()
    queue = client.create_temporary("queue")
    broker.send("x", destination=queue)
    kill(client)
    broker.client("reaper")
    assert broker.count() == 0
    assert broker.connection.queues() == [DEAD]


def test_a_temporary_queue_of_a_killed_client_takes_nothing_from_its_death_on(broker):
    client, sender = broker.client(), broker.session()
    sink = connected(broker.opened(sender.sink(SenderSettings(id="s", connection="c", destination=None))))
    queue = client.create_temporary("queue")
    (send,) = outgoing("reply", destination=queue)
    assert sink.send([send]) == [None]
    sender.prepare("before", Work([], [send]))
    kill(client)
    (refused,) = wait_until(lambda: [one for one in sink.send([send]) if one])  # PostgreSQL needs a moment
    assert refused.code == "E8101"
    for refuses in (sender.settle, partial(sender.prepare, "later")):
        with pytest.raises(SendRejected, match="^E8101"):
            refuses(Work([], [send]))
    sender.resolve("before", commit=True)
    assert broker.count(f"SELECT count(*) FROM broker_destination WHERE name = '{queue}'") == 1, "nobody has noticed"


def test_message_ids_are_given_or_made_and_never_the_same(broker):
    sink = broker.opened(broker.connection.sink(SenderSettings(id="s", connection="c", destination=QUEUE)))
    for _ in range(2):
        sink.connect()
        sink.send(outgoing("a", "b"))
    other = broker.opened(broker.connection.sink(SenderSettings(id="s", connection="c", destination=QUEUE)))
    other.connect()
    other.send([*outgoing("c"), replace_id(outgoing("d")[0], "ID:mine")])
    ids = [m.headers.message_id for m in broker.connection.browse(QUEUE, 9)]
    assert len(set(ids)) == 6
    assert all(one.startswith("ID:") for one in ids)
    assert ids[-1] == "ID:mine"


@pytest.fixture
def copied(broker, request, tmp_path):
    """Makes a copy of the broker, which nobody has open if it is in a server."""

    def copy():
        if broker.store.startswith("sqlite"):
            copy_while_running(broker.store, tmp_path / "copy.db")
            return f"sqlite:///{tmp_path}/copy.db"
        name = broker.store.rpartition("/")[2]
        return request.getfixturevalue("postgres_server").fresh_database(f"TEMPLATE {name}")

    return copy


def test_no_message_id_is_given_again_when_a_copy_is_used_as_well_as_its_original(broker, copied):
    broker.send("a", "b")
    copy = Broker(copied())
    for one in (broker, copy):
        one.send("c", "d")
        sink = one.opened(one.connection.sink(SenderSettings(id="s", connection="c", destination=QUEUE)))
        connected(sink).send(outgoing("e", "f", source="engine"))
    ids = [[m.headers.message_id for m in one.connection.browse(QUEUE, 99)] for one in (broker, copy)]
    assert ids[0][:2] == ids[1][:2]  # the messages that were copied
    assert len({*ids[0], *ids[1]}) == 2 + 4 + 4
    copy.close()


def test_no_message_id_is_given_again_when_a_copy_was_made_while_a_producer_went_on(tmp_path):
    store, copy = f"sqlite:///{tmp_path}/broker.db", tmp_path / "copy.db"
    with ConnectionFactory(EmbeddedConnection, {"store": store}).create_connection() as connection:
        producer = connection.create_session().create_producer(QUEUE)
        ids = [producer.send(Message(b"before"))]
        copy_while_running(store, copy)
        ids += [producer.send(Message(b"after")) for _ in range(3)]
        with ConnectionFactory(EmbeddedConnection, {"store": f"sqlite:///{copy}"}).create_connection() as restored:
            other = restored.create_session().create_producer(QUEUE)
            ids += [other.send(Message(b"after")) for _ in range(3)]
    assert len(set(ids)) == 7


def replace_id(out, message_id):
    return Outgoing(out.sequence, out.source, out.destination, out.message, message_id)


# --- transactions ---


def test_settle_acknowledges_and_sends_at_once(broker):
    broker.send("a", "b")
    broker.send("c", destination="queue:more")
    session = broker.session()
    one, more = broker.source(session), broker.source(session, "queue:more")
    held, other = one.receive(1, 0.0), more.receive(1, 0.0)
    sends = [*outgoing("x", destination="queue:out"), *outgoing("y", destination="queue:out2")]
    session.settle(Work([(one, held.tokens), (more, other.tokens)], sends))
    one.close()
    more.close()
    left = [bodies_of(broker, name) for name in (QUEUE, "queue:more", "queue:out", "queue:out2")]
    assert left == [["b"], [], ["x"], ["y"]]


def test_a_refused_message_undoes_the_whole_work_and_what_is_held_stays_held(broker):
    broker.send("a")
    client = broker.client()
    session = broker.opened(client.session())
    source = broker.source(session)
    held = source.receive(1, 0.0)
    temporary = client.create_temporary("queue")
    client.delete_temporary(temporary)
    for refused in (temporary, "nonsense"):
        sends = [*outgoing("x", destination="queue:out"), *outgoing("y", destination=refused)]
        with pytest.raises(SendRejected):
            session.settle(Work([(source, held.tokens)], sends))
    assert bodies_of(broker, "queue:out") == []
    session.settle(Work([(source, held.tokens)], []))
    assert broker.count() == 0


IN_THE_MIDDLE = {
    "sqlite": [(storing, "_ADD_CONTENT"), (storing, "_ADD_DELIVERY"), (tally, "_ADD")],
    "postgresql": [(storing, "_ADD_POSTGRES")],
}
"""Statements of a send, after the acknowledgements of its transaction."""


def test_a_failure_in_the_middle_undoes_all(broker, monkeypatch):
    broker.send("a")
    session = broker.session()
    source = broker.source(session)
    for module, statement in IN_THE_MIDDLE["sqlite" if session._access.is_sqlite else "postgresql"]:
        source.connect()
        [held] = take(source, 1)  # the server may need a moment to notice that a session has ended
        with monkeypatch.context() as patched, pytest.raises(ConnectionLost, match="^E7003"):
            patched.setattr(module, statement, sql.Sql("SELECT 1 FROM nowhere"))
            # SQLite stores the deliveries of messages that are alike with another statement.
            sends = outgoing("x", message("y", priority=9), destination="queue:out")
            session.settle(Work([(source, held.tokens)], sends))
        assert bodies_of(broker, "queue:out") == []
    source.connect()
    assert bodies(*take(source, 1)) == ["a"]


def test_sources_of_a_session_share_its_link(broker):
    broker.send("a")
    session = broker.session()
    one, other = broker.source(session), broker.source(session, "queue:other")
    held = one.receive(1, 0.0)
    kill(one)
    for call in (lambda: one.acknowledge(held.tokens), lambda: other.receive(1, 0.0)):
        with pytest.raises(ConnectionLost, match="^E7003"):
            call()
    one.connect()
    other.connect()
    assert one._link is other._link
    assert counts(one.receive(1, 0.0)) == [(True, 2)]


def test_a_prepared_transaction_is_invisible_and_outlives_consumers_and_the_broker(broker):
    broker.send("a", "b")
    session = broker.session()
    source = broker.source(session)
    held = source.receive(1, 0.0)
    session.prepare("t", Work([(source, held.tokens)], outgoing("x", "y", destination="queue:out")))
    assert bodies_of(broker, "queue:out") == []
    kill(source)
    session.close()
    next_session = broker.session()
    reader = broker.source(next_session)
    assert bodies(reader.receive(9, 0.0)) == ["b"]
    with pytest.raises(UsageError, match="^E7513"):
        reader.close()
        broker.connection.delete(QUEUE)
    next_session.resolve("t", commit=True)
    next_session.resolve("t", commit=True)
    assert bodies_of(broker, "queue:out") == ["x", "y"]
    assert bodies_of(broker, QUEUE) == ["b"]
    assert broker.tally() == (3, 0)


def test_a_prepared_transaction_that_is_rolled_back_returns_what_it_held(broker):
    broker.send("a", "b")
    session = broker.session()
    source = broker.source(session)
    session.prepare("t", Work([(source, source.receive(1, 0.0).tokens)], outgoing("x", destination="queue:out")))
    session.resolve("t", commit=False)
    chunk = source.receive(9, 0.0)
    assert (bodies(chunk), counts(chunk)) == (["a", "b"], [(True, 2), (False, 1)])
    assert bodies_of(broker, "queue:out") == []


def test_names_of_transactions(broker):
    session = broker.session()
    session.prepare("t", Work([], []))
    with pytest.raises(UsageError, match="^E7519"):
        session.prepare("t", Work([], []))
    session.resolve("t", commit=True)
    for call in (lambda: session.resolve("t", commit=False), lambda: session.resolve("none", commit=True)):
        with pytest.raises(UsageError, match="^E7520"):
            call()
    with pytest.raises(UsageError, match="^E7519"):
        session.prepare("t", Work([], []))
    link = open_link(broker.store)
    with link.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE broker_tx SET at = at - {24 * 3600 * 1000 + 1}")
    link.close()
    session.prepare("t", Work([], []))


@pytest.mark.postgres
@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(postgres, monkeypatch, committed):
    broker = Broker(postgres())
    broker.send("a")
    session = broker.session()
    source = broker.source(session)
    held = source.receive(1, 0.0)
    raw = source._link.connection.connection.driver_connection
    commit = type(raw).commit

    def lost(self):
        if committed:
            commit(self)
        self.close()
        raise OperationalError("the line is cut")

    monkeypatch.setattr(type(raw), "commit", lambda self: lost(self) if self is raw else commit(self))
    work = Work([(source, held.tokens)], outgoing("x", destination="queue:out"))
    if committed:
        session.settle(work)
    else:
        with pytest.raises(ConnectionLost, match="^E7003"):
            session.settle(work)
    assert bodies_of(broker, "queue:out") == (["x"] if committed else [])
    broker.close()


def test_wake_ends_the_present_and_the_next_wait(broker, monkeypatch):
    heard, rung = SimpleQueue(), threading.Event()

    def waits(_bells, destinations, _rung, _timeout_s):
        heard.put(set(destinations))
        assert rung.wait(PATIENCE_S)

    def ring(_bells, destinations):
        if listening & set(destinations):
            rung.set()

    monkeypatch.setattr(Bells, "wait_for_any", waits)
    monkeypatch.setattr(Bells, "ring_here", ring)
    session = broker.session()
    waiting = threading.Thread(target=session.wait, args=(session.look(), PATIENCE_S))
    waiting.start()
    listening = heard.get(timeout=PATIENCE_S)
    session.wake()
    assert rung.is_set()
    waiting.join()
    session.wake()
    session.wait(session.look(), PATIENCE_S)
    assert heard.empty()


# --- what must not get lost, stall or spin ---


def test_a_consumer_with_a_selector_gets_what_an_undone_transaction_gives_back(broker):
    broker.send(message("a", {"n": 5}))
    session = broker.session()
    source = broker.source(session, selector="n > 1")
    session.prepare("t", Work([(source, source.receive(9, 0.0).tokens)], []))
    assert source.receive(9, 0.0).messages == ()
    seen = session.look()
    session.resolve("t", commit=False)
    assert session.look() != seen, "whoever waits for the queue is woken"
    assert counts(source.receive(9, 0.0)) == [(True, 2)]


def test_what_a_dead_consumer_held_comes_before_a_backlog(broker):
    broker.send(message("urgent", priority=9))
    dead = broker.plain()
    dead.receive(1, 0.0)
    living = broker.plain()
    kill(dead)
    broker.send(*"abc")
    living._next_check = 0.0  # a second later
    assert bodies(living.receive(9, 0.0)) == ["urgent", "a", "b", "c"]


def test_what_is_not_persistent_stays_while_a_connection_is_open(broker):
    client = broker.client()
    for session in (client.session(), client.session()):
        sink = session.sink(SenderSettings(id="s", connection="c", destination=QUEUE))
        sink.connect()
        sink.send(outgoing(message("passing", persistent=False)))
        session.close()
    assert len(broker.connection.browse(QUEUE, 9)) == 2


def test_a_prepared_message_to_a_temporary_queue_that_has_ended_is_dropped(broker, caplog):
    asks = broker.client()
    temporary = asks.create_temporary("queue")
    broker.send("a")
    session = broker.session()
    source = broker.source(session)
    held = source.receive(1, 0.0)
    sends = [*outgoing("answer", destination=temporary), *outgoing("x", destination="queue:out")]
    session.prepare("t", Work([(source, held.tokens)], sends))
    asks.close()
    session.resolve("t", commit=True)
    assert "1 messages of transaction t go to destinations that have ended" in caplog.text
    assert (bodies_of(broker, QUEUE), bodies_of(broker, "queue:out")) == ([], ["x"])
    with pytest.raises(SendRejected, match="E8101"):
        session.prepare("u", Work([], outgoing("answer", destination=temporary)))


def test_a_delayed_message_for_others_is_not_looked_at_again_and_again(broker):
    broker.send(message("other", {"n": 0}, delivery_delay_ms=1))
    source = broker.plain(selector="n > 1")
    wait_until(lambda: broker.count(f"SELECT count(*) FROM broker_delivery WHERE due < {time.time() * 1000:.0f}"))
    source.receive(9, 0.0)
    assert source.looks_in_s() > 0.5
    broker.send(message("mine", {"n": 5}, delivery_delay_ms=400))
    source.receive(9, 0.0)
    assert source.looks_in_s() < 0.5


def test_a_subscription_is_not_deleted_while_a_closed_consumer_holds_messages(broker):
    session = broker.session("desk")
    source = broker.subscriber(session, SHARED_DURABLE)
    broker.send("a", destination=TOPIC)
    held = source.receive(1, 0.0)
    source.cancel()
    with pytest.raises(UsageError, match="^E7513"):
        session.unsubscribe(TOPIC, "s")
    session.settle(Work([(source, held.tokens)], []))
    source.close()
    session.unsubscribe(TOPIC, "s")
    assert broker.count() == 0


def test_what_dead_processes_leave_is_removed_by_those_that_wait(broker):
    dead = broker.subscriber(broker.session(), OWN)
    living = broker.plain()
    kill(dead)

    def is_removed():  # PostgreSQL ends a session a moment after its client
        living._next_check = living._next_reap = 0.0  # some seconds later
        assert living.receive(1, 0.0).messages == ()
        return broker.count("SELECT count(*) FROM broker_subscription WHERE durable = 0") == 0

    wait_until(is_removed)
