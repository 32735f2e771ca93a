"""The embedded broker with many messages: what it does for one of them does not grow with their number.

The tests count instructions of SQLite, rows and transactions. `tests.benchmarks.service.scale` measures times.
"""

from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from connectors.embedded import browsing, destinations, expiring, source, sweeping
from connectors.embedded.browsing import Browser
from connectors.embedded.database import raw_sqlite
from connectors.embedded.link import open_link
from connectors.embedded.sweeping import Round
from tests.connectors.embedded import DEAD, QUEUE, Broker, bodies, bodies_of, message, steps

SHALLOW, DEEP = 300, 6000


@pytest.fixture
def on_file(tmp_path):
    broker = Broker(f"sqlite:///{tmp_path}/broker.db")
    yield broker
    broker.close()


def execute(broker, statement):
    with closing(open_link(broker.store)) as link, link.transaction() as connection:
        connection.exec_driver_sql(statement)


# --- browsing ---


def test_a_browse_in_pages_has_the_order_of_claims(broker, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", 2)
    priorities = (4, 9, 0, 4, 9, 4, 9, 4, 4, 0)
    broker.send(*(message(f"{at}", priority=priority) for at, priority in enumerate(priorities)))
    broker.send(message("delayed", priority=9, delivery_delay_ms=600_000), message("gone", time_to_live_ms=1))
    assert bodies(broker.plain().receive(2, 0.0)) == ["1", "4"]  # held messages are shown, too
    execute(broker, "UPDATE broker_delivery SET expires = 1 WHERE expires > 0")
    right = ["1", "4", "6", "delayed", "0", "3", "5", "7", "8", "2", "9"]
    assert bodies_of(broker, QUEUE) == right
    for limit in range(len(right) + 1):
        assert [one.body.decode() for one in broker.connection.browse(QUEUE, limit)] == right[:limit]


def test_a_browse_ends_with_what_was_there_when_it_began(broker, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", 2)
    broker.send("a", "b", "c")
    looking, pages = broker.connection._looking, []

    @contextmanager
    def looked():
        with looking() as connection:
            yield connection
        pages.append(1)
        broker.send(message("later"))

    assert [one.body for one in browsing.browse(looked, QUEUE, 99)] == [b"a", b"b", b"c"]
    assert len(pages) == 2


def test_no_snapshot_is_open_between_two_pages(on_file, monkeypatch):
    """Else the log could not begin anew, and would grow as long as somebody browses."""
    monkeypatch.setattr(browsing, "PAGE", 10)
    on_file.send(*["x"] * 95)
    looking, pages = on_file.connection._looking, []
    with closing(open_link(on_file.store)) as writer:

        @contextmanager
        def looked():
            with looking() as connection:
                yield connection
            with writer.transaction() as connection:
                connection.exec_driver_sql("UPDATE broker_store SET starts = starts + 1")
            pages.append(raw_sqlite(writer.connection).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())

        assert len(browsing.browse(looked, QUEUE, 10**6)) == 95
    assert pages == [(0, 0, 0)] * 10  # not busy, and nothing is left in the log


def test_a_browse_of_a_file_rests_between_pages_for_as_long_as_it_reads(broker, monkeypatch):
    """Else hardly any commit would find nobody reading, and the log would grow."""
    monkeypatch.setattr(browsing, "PAGE", 10)
    broker.send(*["x"] * 35)
    now, rests = [0.0], []

    def sleep(seconds):
        rests.append(seconds)
        now[0] += seconds

    @contextmanager
    def looked(looking=broker.connection._looking):
        with looking() as connection:
            now[0] += 0.25
            yield connection

    monkeypatch.setattr(browsing, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert len(browsing.browse(looked, QUEUE, 99)) == 35
    assert rests == ([0.25] * 3 if broker.store.startswith("sqlite") else [])


def test_the_cost_of_a_page_does_not_grow_with_the_depth_of_a_queue(on_file):
    taken = []
    for depth in (SHALLOW, DEEP):
        on_file.send(*["x"] * (depth - on_file.count()))
        with closing(open_link(on_file.store)) as link, link.reading() as connection:
            browser = Browser(connection, QUEUE)
            taken.append(steps(connection, lambda: browser.page(connection, 50)))  # noqa: B023
            assert browser.more
    assert taken[1] < 1.2 * taken[0]


# --- expiring ---


def test_the_cost_of_ending_a_slice_does_not_grow_with_the_number_of_expired_messages(on_file):
    taken = []
    for depth in (SHALLOW, DEEP):
        on_file.send(*[message("x", time_to_live_ms=600_000)] * (depth - on_file.count()))
        execute(on_file, "UPDATE broker_delivery SET expires = number WHERE expires > 0")
        with closing(open_link(on_file.store)) as link, link.transaction() as connection:
            taken.append(steps(connection, lambda: expiring.end(connection, 50)))
    assert taken[1] < 1.5 * taken[0]
    assert on_file.count("SELECT count(*) FROM broker_delivery WHERE expires = 0") == 100


def test_the_cost_of_a_send_to_a_full_queue_does_not_grow_with_its_depth(on_file):
    taken = []
    for depth in (SHALLOW, DEEP):
        name = f"queue:{depth}"
        on_file.connection.create(name, {"max_num_msgs": depth})
        on_file.send(*["x"] * depth, destination=name)
        with closing(open_link(on_file.store)) as link, link.transaction() as connection:
            readers = destinations.subscriptions(connection, destinations.find(connection, name).id)
            taken.append(steps(connection, lambda: expiring.end_of(connection, readers)))  # noqa: B023
    assert taken[1] < 1.2 * taken[0] + 10


def test_a_full_queue_ends_its_own_expired_messages_only(broker):
    for name in ("queue:a", "queue:b"):
        broker.connection.create(name, {"max_num_msgs": 2})
        broker.send(message(f"old {name}", time_to_live_ms=600_000), "stays", destination=name)
    execute(broker, "UPDATE broker_delivery SET expires = 1 WHERE expires > 0")
    assert broker.send("new", destination="queue:b") == [None]
    assert bodies_of(broker, "queue:b") == ["stays", "new"]
    assert bodies_of(broker, DEAD) == ["old queue:b"]


def test_many_messages_expire_in_small_transactions_with_pauses(broker, monkeypatch):
    monkeypatch.setattr(expiring, "MOST", 400)
    broker.send(*[message("x", time_to_live_ms=600_000)] * 2000)
    execute(broker, "UPDATE broker_delivery SET expires = 1")
    ended, at_once = [], expiring.end
    monkeypatch.setattr(expiring, "end", lambda *given: ended.append(at_once(*given)) or ended[-1])
    clock = iter(range(10**6))
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: next(clock) / 1000))  # each takes 1 ms
    pauses = []
    with closing(open_link(broker.store)) as link:
        assert Round(link, lambda s: pauses.append(s) or False).expire()
    assert ended == [100, 200, 400, 400, 400, 400, 100, 0]
    assert pauses == [pytest.approx(0.003)] * 7 + [0.0]  # others have three quarters of the time
    assert broker.count("SELECT count(*) FROM broker_delivery WHERE expires = 0") == 2000


def test_the_sweeper_does_not_take_its_wait_for_the_turn_for_work(monkeypatch):
    """It would end one message at a time where others write all the time, and would never be done."""
    now, sizes = [0.0], []

    class Busy:
        @contextmanager
        def transaction(self, *, synced):
            now[0] += 1.0
            yield self

    def end(_, most):
        sizes.append(most)
        now[0] += most / 1e6
        return most if len(sizes) < 6 else 0

    monkeypatch.setattr(expiring, "end", end)
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pauses = []
    assert Round(Busy(), lambda s: pauses.append(s) or False).expire()
    assert sizes == [100, 200, 400, 800, 1000, 1000]
    assert max(pauses) == pytest.approx(3 * 1000 / 1e6)


def test_a_receive_whose_time_is_over_leaves_further_expired_messages_for_the_next_one(broker, monkeypatch):
    monkeypatch.setattr(source, "LONGEST_OVERRUN_S", 0.0)
    broker.send(*(message(f"{at}", time_to_live_ms=600_000) for at in range(3)), message("lives"))
    execute(broker, "UPDATE broker_delivery SET expires = 1 WHERE expires > 0")
    consumer = broker.plain()
    for left in (2, 1, 0):
        assert consumer.receive(1, 0.0).messages == ()
        assert broker.count("SELECT count(*) FROM broker_delivery WHERE expires > 0") == left
    assert bodies(consumer.receive(1, 0.0)) == ["lives"]
    assert (
        broker.count(
            f"SELECT count(*) FROM broker_content c JOIN broker_destination n ON n.id = c.destination WHERE n.name = '{DEAD}'"
        )
        == 3
    )
