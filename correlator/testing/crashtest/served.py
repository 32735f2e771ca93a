"""Level `broker`: engines are killed over a real PostgreSQL server, which is cut off and whose sessions end."""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from correlator.errors import UsageError, quoted
from correlator.storage.database import location, parse
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.killed import SPARED, Kill9
from correlator.testing.crashtest.runs import Outcome, RunPlan
from correlator.testing.kill9 import disturbances, draws, wire
from correlator.testing.kill9.stores import StoreOfRun, served
from correlator.testing.schedule import BROKER_KINDS, KILL, Fault, Schedule, draw_rates

ENVIRONMENT = "CORRELATOR_CRASH_STORE"
LOOPBACK = ("localhost", "127.0.0.1")
_ELSEWHERE = frozenset({"host", "hostaddr", "port", "service"})


class Broker(Kill9):
    """The level `broker`; see `runs.Level`. Every run has its own schema in the user's database, dropped at the end of
    the run.

    Args:
        configured: the file under test, with a database.
        prepare: import paths; see `wire.Job`.

    Raises:
        UsageError: E2434, there is no database or the file configures no store; E2435, the server is not on this
            machine.
    """

    name = "broker"
    imports = ("psycopg",)
    disturbances = (*BROKER_KINDS, *disturbances.KINDS)

    def __init__(self, configured: Configured, prepare: Sequence[str] = ()) -> None:
        self._database = on_this_machine(configured.database)
        if not configured.persistent:
            what = "has no store, so nothing comes between it and an engine"
            raise UsageError("E2434", quoted(configured.file), what, "", "Use level kill9")
        super().__init__(configured, prepare=prepare)

    def singles(self, reference: Outcome) -> Iterator[tuple[Fault, ...]]:
        """Yield the plans of level `kill9`, and a plan for each kind of fault of the store at each COMMIT."""
        points = dict(reference.points)
        commits = points.pop(disturbances.COMMIT)
        for fault in (*disturbances.singles(commits), *draws.singles(points)):
            yield (fault,)

    @contextlib.contextmanager
    def _stored(self, plan: RunPlan, directory: Path) -> Iterator[StoreOfRun]:
        del directory
        with served(self._database, _disturbances(plan)) as store:
            yield store

    def _kills(self, plan: RunPlan, schedule: Schedule, lives: int) -> deque[wire.Kill]:
        """Return the kills of level `kill9`, and one life more that is not killed, in which faults of
        the store can strike.
        """
        kills = super()._kills(plan, schedule, lives)
        return kills if plan.faults is not None or SPARED in kills else deque([*kills, SPARED])


def on_this_machine(database: str | None) -> str:
    """Return the address of the database. It must be on this machine, since runs create and drop schemas.

    Raises:
        UsageError: E2434, there is no database; E2435, it is on another machine.
    """
    if not database:
        what = "needs a PostgreSQL database, in which it makes and drops schemas"
        todo = f"Give --crash-store (--store of the command) postgresql://…@127.0.0.1/…, or set {ENVIRONMENT}"
        raise UsageError("E2434", "level broker", what, "", todo)
    url = parse(database)
    if url.get_backend_name() != "postgresql":
        raise UsageError("E2434", "level broker", f"{quoted(location(database))} is no PostgreSQL database")
    if url.host not in LOOPBACK or _ELSEWHERE & url.query.keys():
        what = f"{quoted(location(database))} may be on another machine"
        raise UsageError("E2435", "level broker", what, f"Hosts: {', '.join(LOOPBACK)}", "Name a database for tests")
    return database


def _disturbances(plan: RunPlan) -> Sequence[Fault]:
    """Return the faults of the store in the plan, or random ones; none for a seed whose plan contains only kills."""
    if plan.faults is not None:
        return [one for one in plan.faults if one.kind in disturbances.KINDS]
    return disturbances.drawn(plan.seed) if draw_rates(plan.seed).keys() - {KILL} else ()
