"""The store of a run: a file, or a schema of a PostgreSQL server behind a proxy that loses, cuts and delays bytes."""

import contextlib
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Connection

from correlator.storage.database import administering, parse
from correlator.testing.kill9 import disturbances
from correlator.testing.network import POSTGRES_COMMIT, FaultProxy, lost_reply
from correlator.testing.network.link import HOST
from correlator.testing.schedule import Fault

PORT = 5432
SCHEMA = "crashtest_"
"""Names of the schemas of runs begin with this text."""
END_S = 10


class StoreOfRun:
    """A store without faults of its own; only engines die. Used by the oracle's thread.

    Args:
        url: address of the store; `None` for no store.

    Attributes:
        url: the address that engines use.
        direct: its address without the proxy.
    """

    def __init__(self, url: str | None) -> None:
        self.url = self.direct = url

    def announced(self) -> None:
        """Note that an engine is about to commit."""

    def struck(self) -> Sequence[Fault]:
        """Return the faults that have struck since the last call."""
        return ()

    def seen(self) -> Mapping[str, int]:
        """Return how often each opportunity for a fault occurred, by kind."""
        return {}

    def left(self) -> None:
        """Wait until the server does nothing more that the dead engine asked for."""

    def heal(self) -> None:
        """Let no fault strike from now on."""


class ServedStore(StoreOfRun):
    """A schema of a server. Engines reach it through a proxy.

    Args:
        url: address for engines, through the proxy.
        direct: address for all others, without the proxy.
        name: application name of the sessions of engines.
        session: a session with the server, without the proxy.
        proxy: the proxy in front of the server.
        faults: the faults that are to strike.
    """

    def __init__(
        self, url: str, direct: str, name: str, session: Connection, proxy: FaultProxy, faults: Sequence[Fault]
    ) -> None:
        super().__init__(url)
        self.direct = direct
        self._name = name
        self._session = session
        self._proxy = proxy
        network = {**disturbances.AT_COMMIT, **disturbances.ANYWHERE}
        faults = list(dict.fromkeys(faults))  # of two faults at one place only the first one acts
        self._counter = proxy.inject(lost_reply(POSTGRES_COMMIT, hit=sys.maxsize))
        self._injected = {one: proxy.inject(network[one.kind](one.n)) for one in faults if one.kind in network}
        self._ends = {one for one in faults if one.kind == disturbances.BACKEND}
        self._ended: list[Fault] = []
        self._announced = 0

    def announced(self) -> None:
        """End the session of the engine if the plan says so; it ends before, within or after the transaction."""
        self._announced += 1
        fault = Fault(disturbances.BACKEND, self._announced)
        if fault in self._ends and self._end_sessions(0):
            self._ended.append(fault)

    def struck(self) -> Sequence[Fault]:
        """Return the faults of the network and of the sessions that have struck since the last call, each once."""
        acted = [fault for fault, injection in self._injected.items() if injection.fired]
        for fault in acted:
            del self._injected[fault]
        ended, self._ended = self._ended, []
        return acted + ended

    def seen(self) -> Mapping[str, int]:
        """Return how many COMMITs of engines the proxy has seen, as the only kind of opportunity for a fault."""
        return {disturbances.COMMIT: self._counter.hits}

    def left(self) -> None:
        """End the sessions of the engine, also those that the server still works for or takes for alive."""
        self._end_sessions(END_S)

    def heal(self) -> None:
        """Withdraw all faults and let the proxy accept connections, so that nothing goes wrong from now on."""
        self._ends.clear()
        self._proxy.heal()

    def _end_sessions(self, wait_s: int) -> int:
        """End the sessions of engines, wait at most `wait_s` seconds until they are gone, and return their number."""
        ended: int = self._session.exec_driver_sql(
            "SELECT count(pg_terminate_backend(pid, %(wait_ms)s)) FROM pg_stat_activity"
            " WHERE application_name = %(name)s",
            {"wait_ms": wait_s * 1000, "name": self._name},
        ).scalar_one()
        return ended


@contextlib.contextmanager
def served(database: str, faults: Sequence[Fault]) -> Iterator[ServedStore]:
    """Make a schema in a database on this machine, and drop it at the end of the block.

    Args:
        database: address of the database.
        faults: the faults that are to strike; see `disturbances`.

    Raises `StoreError` E31xx, E33xx when the server cannot be used.
    """
    name = f"{SCHEMA}{secrets.token_hex(8)}"
    port = parse(database).port or PORT
    with administering(_address(database, port)) as session, FaultProxy(port) as proxy:
        session.exec_driver_sql(f"CREATE SCHEMA {name}")
        schema = _address(database, port, schema=name)
        # A proxy cannot read encrypted traffic.
        behind = _address(schema, proxy.port, application_name=name, sslmode="disable", gssencmode="disable")
        store = ServedStore(behind, schema, name, session, proxy, faults)
        try:
            yield store
        finally:
            store.left()
            session.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")


def _address(database: str, port: int, *, schema: str = "", **query: str) -> str:
    """Return the address of the same database at a port of loopback, whatever the environment says."""
    parsed = parse(database)
    if schema:
        query["options"] = f"{parsed.query.get('options', '')} -csearch_path={schema}"
    query["hostaddr"] = HOST
    return parsed.set(port=port).update_query_dict(query).render_as_string(hide_password=False)
