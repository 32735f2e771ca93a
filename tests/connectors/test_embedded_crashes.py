"""The embedded broker after a crash of its PostgreSQL server, which loses the claims that did not wait for the disk."""

import pytest

from tests.connectors.embedded import Broker, bodies, counts, message
from tests.servers import PostgresServer, running

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server():
    """A server that writes only what somebody waits for, so that a crash loses the rest."""
    with running(PostgresServer(settings=["wal_writer_delay=10000ms"])) as own:
        yield own


@pytest.fixture
def broker(server):
    return Broker(server.fresh_database())


def kill_sessions(server, store):
    """The postmaster goes on, and lets the server recover."""
    assert server.kill_backends(store)


def kill_server(server, _):
    server.kill()
    server.start()


def restart(server, _):
    server.stop()
    server.start()


@pytest.mark.parametrize("crash", [kill_sessions, kill_server])
def test_what_a_program_has_seen_before_a_crash_is_marked(server, broker, crash):
    broker.send("a", "b", message("old", priority=0))
    source = broker.plain()
    assert bodies(source.receive(2, 0.0)) == ["a", "b"]
    crash(server, broker.store)
    assert broker.count("SELECT count(*) FROM broker_delivery WHERE consumer > 0") == 0, "the crash has lost the claims"
    again = broker.plain()
    broker.send("c")
    chunk = again.receive(9, 0.0)
    assert bodies(chunk) == ["a", "b", "c", "old"]
    assert [redelivered for redelivered, _ in counts(chunk)] == [True, True, False, True]
    broker.close()


def test_after_an_orderly_restart_only_what_was_held_is_marked(server, broker):
    broker.send("a", "b")
    source = broker.plain()
    assert bodies(source.receive(1, 0.0)) == ["a"]
    restart(server, broker.store)
    again = broker.plain()
    assert counts(again.receive(9, 0.0)) == [(True, 2), (False, 1)]
    broker.close()
