"""The embedded broker after a crash of its PostgreSQL server, which loses the claims that did not wait for the disk."""

import pytest

from correlator.errors import ConnectionLost, UsageError
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


# --- sessions that an administrator ends ---


def end_sessions(server, *links):
    for link in links:
        pid = link.connection.connection.driver_connection.info.backend_pid
        assert server.execute(f"SELECT pg_terminate_backend({pid}, 5000)") == [(True,)]


def test_a_client_keeps_its_id_while_one_of_its_sessions_lives(server, broker):
    client = broker.client("desk")
    session = broker.opened(client.session())
    source = broker.source(session)
    reply = client.create_temporary("queue")
    end_sessions(server, client._link)
    with pytest.raises(UsageError, match="^E7515"):
        broker.client("desk")
    broker.send("a")
    assert bodies(source.receive(1, 0.0)) == ["a"]
    client.create_temporary("queue")  # registers again
    assert broker.send("b", destination=reply) == [None]
    session.close()
    with pytest.raises(UsageError, match="^E7515"):
        broker.client("desk")
    client.close()
    broker.client("desk").close()
    broker.close()


def test_a_client_whose_id_another_one_has_got_is_told(server, broker):
    client = broker.client("desk")
    session = broker.opened(client.session())
    source = broker.source(session)
    end_sessions(server, client._link, session._access._link)
    other = broker.client("desk")
    with pytest.raises(ConnectionLost, match="^E7003"):
        source.receive(1, 0.0)
    with pytest.raises(UsageError, match="^E7515"):
        source.connect()
    other.close()
    source.connect()
    with pytest.raises(UsageError, match="^E7515"):
        broker.client("desk")
    broker.close()
