"""The embedded broker on PostgreSQL reads few rows, even if the statistics of the server do not know a queue yet."""

from contextlib import closing

import psycopg
import pytest

from connectors.embedded import sending
from connectors.embedded.content import encode
from connectors.embedded.link import open_link
from connectors.embedded.sending import Terms
from connectors.embedded.storing import NewMessage
from correlator.connector import Subscriber, Work
from correlator.events import Message
from correlator.storage.postgres import session_of
from tests.connectors.embedded import QUEUE, TOPIC, Broker

pytestmark = pytest.mark.postgres
DEEP = "queue:deep"
DEPTH = 4000
BATCH = 50
FEW = 20 * BATCH
"""More rows than a statement reads for a batch, also from indexes with dead rows, and fewer than the queue has."""
SHARED = Subscriber("all", durable=True, shared=True)


CONTENT = encode(Message(b"x", {}))


def fill(broker, destination, count=DEPTH):
    entries = [NewMessage("", 0, f"ID:{destination} {number}", CONTENT) for number in range(count)]
    with closing(open_link(broker.store)) as link, link.transaction(synced=False) as connection:
        sending.store(connection, destination, entries, Terms(link, set()))


@pytest.fixture(params=["analyzed while it was empty", "never analyzed", "vacuumed after it was deep"])
def store(request, postgres):
    """A broker whose statistics know nothing of the messages in the queue and the subscription."""
    store = postgres()
    with closing(Broker(store)) as broker:
        make(broker, request.param)
    return store


def make(broker, statistics):
    for destination in (QUEUE, TOPIC, DEEP):
        broker.connection.create(destination)
    broker.subscriber(broker.session(), SHARED).close()
    with psycopg.connect(broker.store, autocommit=True) as server:
        for table in ("broker_delivery", "broker_content"):
            server.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        fill(broker, DEEP, 10 * DEPTH)
        if statistics == "analyzed while it was empty":
            server.execute("ANALYZE")
        elif statistics == "vacuumed after it was deep":
            # The last rows keep the pages: the server takes the table for large and nearly empty.
            for table in ("broker_delivery", "broker_content"):
                server.execute(f"DELETE FROM {table} WHERE number < (SELECT max(number) - 9 FROM {table})")
                server.execute(f"VACUUM (ANALYZE) {table}")
    fill(broker, QUEUE)
    fill(broker, TOPIC)


def few(source, do, *arguments, most=FEW):
    """Do something that reads fewer than so many rows of deliveries and contents."""
    session = session_of(source._link.connection)
    read = (
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables"
        " WHERE relname IN ('broker_delivery', 'broker_content') AND schemaname = current_schema()"
    )

    def so_far():
        with session.alone():
            session.execute("SELECT pg_stat_force_next_flush()")
        with session.alone():
            return session.execute(read).fetchone()[0]

    before = so_far()
    result = do(*arguments)
    count = so_far() - before
    assert count < most, f"{count} rows of {DEPTH} messages were read"
    return result


OFTEN = 8
"""So often that the driver prepares a statement, and the server may plan it without its values."""


def test_few_rows_are_read(store):
    """One after the other, for the messages are many: each consumer gives back what it holds when it ends."""
    for destination in (QUEUE, TOPIC):
        with closing(Broker(store)) as broker:
            check_a_claim_and_what_ends_it_read_few_rows(broker, destination)
    for check in (
        check_an_acknowledgement_of_one_message_reads_nothing_else_that_its_consumer_holds,
        check_a_consumer_with_a_selector_reads_the_queue_once_and_then_what_it_takes,
        check_a_move_counts_what_is_left_and_reads_what_it_moves,
    ):
        with closing(Broker(store)) as broker:
            check(broker)


def check_a_claim_and_what_ends_it_read_few_rows(broker, destination):
    session = broker.session()
    source = broker.source(session) if destination == QUEUE else broker.subscriber(session, SHARED)
    for turn in range(OFTEN):
        claimed = few(source, source.receive, BATCH, 0.0)
        assert len(claimed.tokens) == BATCH
        few(source, source.reject, claimed.tokens[:10])
        few(source, source.release, claimed.tokens[10:20])
        few(source, session.prepare, f"{destination} {turn}", Work([(source, claimed.tokens[20:30])], []))
        few(source, source.acknowledge, claimed.tokens[30:])


def check_an_acknowledgement_of_one_message_reads_nothing_else_that_its_consumer_holds(broker):
    source = broker.source(broker.session())
    tokens = source.receive(FEW, 0.0).tokens
    assert len(tokens) == FEW
    for token in tokens[: 2 * OFTEN]:
        few(source, source.acknowledge, [token], most=FEW // 10)


def check_a_consumer_with_a_selector_reads_the_queue_once_and_then_what_it_takes(broker):
    """Its second look reads the numbers once more, since a message may have become visible after later ones."""
    source = broker.source(broker.session(), selector="n IS NULL")
    for most in (3 * DEPTH + FEW, DEPTH + FEW, *[FEW] * OFTEN):
        claimed = few(source, source.receive, BATCH, 0.0, most=most)
        assert len(claimed.tokens) == BATCH
        few(source, source.acknowledge, claimed.tokens)


def check_a_move_counts_what_is_left_and_reads_what_it_moves(broker):
    source = broker.source(broker.session())
    admin = broker.connection.administration()
    assert few(source, admin.move, QUEUE, DEEP, None, BATCH, most=DEPTH + FEW).done == BATCH
