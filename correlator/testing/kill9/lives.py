"""One run in real processes: children live and die one after another over one store; brokers and history are outside.

Everything here happens in the thread of the test, in a process that does not die. First come the lives that are killed.
Then all faults end, and lives follow that are not killed, until one is quiet and stops in an orderly way. At the end
the oracle reads the store. If a child dies during a commit, the store shows whether the commit happened.
"""

import contextlib
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

import msgspec

from correlator.errors import CorrelatorError
from correlator.storage import inspect
from correlator.testing.invariants.catalogue import InvariantViolated, Violation
from correlator.testing.invariants.history import History, Kind, Rest
from correlator.testing.invariants.violations import violations
from correlator.testing.kill9 import draws, stored, wire
from correlator.testing.kill9.brokers import ServedBrokers
from correlator.testing.kill9.intents import AnnouncedTransaction, Intents
from correlator.testing.kill9.session import Session, Statement
from correlator.testing.kill9.stores import StoreOfRun
from correlator.testing.kill9.zygote import LOG, Zygote
from correlator.testing.power.outages import Outages
from correlator.testing.schedule import Fault, Schedule
from correlator.testing.simulation.brokers import Known, Parcel
from correlator.testing.simulation.recorder import DiskRecorder
from correlator.testing.simulation.scenario import Scenario

PATIENCE_S = 60.0
PATIENCE_WITH_SPARK_S = 400.0
"""Seconds after which a life that is neither quiet nor dead counts as hung."""
MOST_DEATHS_AT_REST = 40
"""Number of engines that may die by themselves before the run counts as one that never comes to rest."""
LOOK_S = 0.25
"""Longest time in seconds between two looks of the oracle at its own deadlines."""
LONGEST_LOOK_S = 1.0
"""The most seconds that one look adds to the time that a life has been watched."""
LINES = 5
OUT_OF_REACH = "a start without its store"
"""Cause of a death that a fault of the store explains; the next start may succeed."""
G4 = "what an engine takes for committed is in the store, and nothing else is"
G7 = "at rest nothing is left: unacknowledged 0, outbox 0, receive log 0, ids within the bound"
G8 = "an engine starts, and fails only by documented errors"


class WatchedChild:
    """The child of one life, as the oracle sees it.

    Args:
        session: the session with the child.
        kill: how the child is to die; `None` if it is spared.

    Attributes:
        kill_at: when to kill it from outside, by the monotonic clock; infinity for never.
        killed: whether it was killed from outside.
        disturbed: whether a fault has struck the store of the child.
        last: its last message about quiet, failure or end; after `Dying` no other message counts.
        watched: seconds for which the oracle has watched the child.
        buried: whether the oracle has waited for the end of the process.
    """

    def __init__(self, session: Session, kill: wire.Kill | None) -> None:
        self.session = session
        self.kill_at = float("inf")
        if kill is not None and kill.after_ms:
            self.kill_at = time.monotonic() + kill.after_ms / 1000
        self.killed = self.disturbed = self.buried = False
        self.last: Statement | None = None
        self.watched = 0.0
        self._looked_at = time.monotonic()

    def look(self) -> float:
        """Return the time now, and add the time since the last look to `watched`.

        A look adds `LONGEST_LOOK_S` at most: while this process was suspended, its child may have been suspended, too.
        """
        now = time.monotonic()
        self.watched += min(now - self._looked_at, LONGEST_LOOK_S)
        self._looked_at = now
        return now

    def kill(self) -> None:
        """Kill the child from outside, as planned."""
        self.kill_at, self.killed = float("inf"), True
        self.session.kill()

    def wait(self) -> int:
        """Wait until the child has ended, and return its status as `Session.status`."""
        self.buried = True
        return self.session.status()

    def bury(self) -> None:
        """Wait until the child has ended, and return the messages that it held to the brokers."""
        self.wait()
        self.session.close()


class ProcessRun:
    """One run in real processes. Used by one thread.

    Args:
        scenario: the scenario of the run; its settings name the store.
        schedule: decides about the faults of the brokers, and records the faults that struck.
        zygote: forks the children.
        directory: directory of the run.
        known: see `Brokers`.
        pipelines: path of the configuration file if it has pipelines, else "".
        prepare: import paths; see `wire.Job`.
        store: the store of the run; by default one without faults of its own.
        outages: if given, the disk of the store loses power with each life that is killed.
    """

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        zygote: Zygote,
        directory: Path,
        *,
        known: Known | None = None,
        pipelines: str = "",
        prepare: Sequence[str] = (),
        store: StoreOfRun | None = None,
        outages: Outages | None = None,
    ) -> None:
        self.history = History(scenario.setup)
        self.brokers = ServedBrokers(scenario, schedule, self.history, known)
        self.crashes = 0
        self.passed: Counter[str] = Counter()
        self.passed_at_last: Mapping[str, int] = {}
        self._scenario = scenario
        self._schedule = schedule
        self._zygote = zygote
        self._directory = directory
        self._job = wire.Job(
            life=0,
            directory=str(directory),
            settings=scenario.settings,
            pipelines=pipelines,
            brokers=dict(scenario.brokers),
            kill=None,
            slice=scenario.slice,
            awaits_timers=scenario.awaits_timers,
            told=scenario.setup.told,
            prepare=list(prepare),
            disk=str(outages.disk) if outages is not None else "",
            trace=str(outages.trace) if outages is not None else "",
        )
        self._store = store or StoreOfRun(scenario.settings.store)
        self._outages = outages
        self._recorder = DiskRecorder(self._record)
        self._intents = Intents()
        self._pending: deque[Parcel] = deque()
        self._share = 0
        self._one_each = False
        self._seen: set[str] = set()
        self._child: WatchedChild | None = None

    @property
    def store(self) -> str | None:
        """The address of the store without the proxy; `None` without a store."""
        return self._store.direct

    @property
    def points(self) -> Mapping[str, int]:
        """How often a life passed each fault point, and how many opportunities for faults the store saw."""
        return {**self.passed, **self._store.seen()}

    @property
    def killed(self) -> int:
        """How many of the planned kills struck."""
        return sum(fault.kind.startswith(draws.KILL) for fault in self._schedule.fired)

    def publish(self, parcels: Iterable[Parcel]) -> None:
        """Queue messages; each life publishes the next share of them, in this order."""
        self._pending.extend(parcels)

    def run(self, kills: deque[wire.Kill], *, shares: int, one_each: bool = False) -> None:
        """Run lives with these kills, end all faults, and run lives without kills until nothing is left to do.

        Args:
            kills: one for each life that reaches its store; the run removes those that it has used.
            shares: number of parts into which the messages are divided: one for each life.
            one_each: whether a life stops when it has done its share; otherwise it gets the next one.

        Raises `InvariantViolated`: G8 if a child ended in a way that is not allowed, G7 if the run does not come to
        rest.
        """
        self._schedule.on = True
        self._share = -(-len(self._pending) // shares)
        self._one_each = one_each
        while kills:
            kill = kills.popleft()
            self._begin(kill)
            self._publish(self._share)
            if self._work() and self._stop() is not None:
                break
            if self._came_to_nothing():
                kills.appendleft(kill)
        self.brokers.heal()
        self._store.heal()
        self._publish(len(self._pending))
        self._come_to_rest()

    def close(self) -> None:
        """Kill a child that still lives, and wait for its end."""
        if self._child is not None and not self._child.buried:
            self._child.session.kill()
            self._child.bury()

    def _come_to_rest(self) -> None:
        begin = time.monotonic()
        for _ in range(MOST_DEATHS_AT_REST):
            self._begin(None)
            if self._work() and (ended := self._stop()) is not None:
                self._look_back(ended, time.monotonic() - begin)
                return
        what = f"{MOST_DEATHS_AT_REST} engines ended by themselves; the last lines of their log: {self._log()}"
        raise self._restless(what)

    def _publish(self, count: int) -> None:
        for _ in range(min(count, len(self._pending))):
            self.brokers.publish(self._pending.popleft())

    # --- one life ---

    def _begin(self, kill: wire.Kill | None) -> None:
        """Start a new child."""
        self._job = msgspec.structs.replace(self._job, life=self._job.life + 1, kill=kill)
        self.brokers.life = self._job.life
        if self._outages is not None:
            self._outages.begin()
        session = Session(self._zygote, self._job, self.brokers, self._seen, self._stated)
        self._child = WatchedChild(session, kill)

    def _work(self) -> bool:
        """Wait until the child is quiet and no message waits for it; return `False` if it died before."""
        child = self._living
        while self._until(lambda: self.brokers.forgetful or not self.brokers.left()):
            child.session.command("rest")
            if not self._until(lambda: isinstance(child.last, wire.Quiet)):
                return False
            child.last = None
            if self.brokers.forgetful:
                self.brokers.cut()
            elif not self.brokers.left() and not self._rows():
                if self._one_each or not self._pending:
                    return True
                self._publish(self._share)
        return False

    def _stop(self) -> wire.Ended | None:
        """Stop the child in an orderly way and return its last message; `None` if it died before."""
        child = self._living
        child.session.command("stop")
        if not self._until(lambda: isinstance(child.last, wire.Ended)):
            return None
        ended = child.last
        assert isinstance(ended, wire.Ended)
        self.passed |= ended.points
        self.passed_at_last = ended.points
        child.bury()
        return ended

    def _until(self, reached: Callable[[], bool]) -> bool:
        """Serve the child until `reached` returns true; return `False` if it died before; it is then buried."""
        child, patience = self._living, PATIENCE_WITH_SPARK_S if self._job.pipelines else PATIENCE_S
        while child.session.alive:
            if reached():
                return True
            now = child.look()
            if now >= child.kill_at:
                child.kill()
            elif child.watched >= patience:
                self._give_up(patience)
            child.session.serve(min(child.kill_at - now, LOOK_S) if child.kill_at > now else LOOK_S)
            self._note_disturbances()
        self._bury(child)
        return False

    def _stated(self, said: Statement) -> None:
        """Take a message of the child that is not a call of a broker."""
        match said:
            case wire.Intent():
                self._intents.announced(AnnouncedTransaction(said.epoch, said.number, wire.unpacked(said.writes)))
                self._store.announced()
            case wire.Done():
                with _disagreement():
                    self._recorder.committed(*self._intents.done(said.number))
            case wire.Told():
                self._record(cast("Kind", said.kind), said.who, said.data)
            case _:
                if not isinstance(self._living.last, wire.Dying):
                    self._living.last = said

    @property
    def _living(self) -> "WatchedChild":
        """The child of this life."""
        assert self._child is not None
        return self._child

    def _record(self, kind: Kind, who: str, data: object) -> None:
        self.history.add(self._job.life, kind, who, data)

    # --- death ---

    def _bury(self, child: "WatchedChild") -> None:
        """Record the death of the child and its cause, decide about its last commit, and return what it held to the
        brokers.
        """
        try:
            status = child.wait()
            self._store.left()
            self._note_disturbances()
            cause = self._cause(child, status)
            if self._intents.open is not None or (self._outages is not None and self._intents.last):
                self._settle()
            self._record("died", cause, None)
            self.crashes += 1
        finally:
            child.session.close()

    def _cause(self, child: "WatchedChild", status: int) -> str:
        """Return the place of death; raises `InvariantViolated` G8 when nobody has killed the child."""
        kill, last = self._job.kill or wire.Kill(), child.last
        if isinstance(last, wire.Dying):
            self.passed |= last.points
            if last.hit:
                self._struck(f"kill {last.where}", last.hit)
            return last.where
        if isinstance(last, wire.Failed) and last.by_application:
            self._record("warned", "engine", last.text)
            return last.text
        if self._came_to_nothing() and child.disturbed:
            return OUT_OF_REACH
        if status == -signal.SIGKILL and child.killed:
            self._struck("kill time", kill.after_ms)
            return "time"
        if status == -signal.SIGKILL and kill.syscall:
            self._struck("kill syscall", kill.syscall)
            return "syscall"
        what = last.text if isinstance(last, wire.Failed) else f"ended with status {status}: {self._log()}"
        raise InvariantViolated(Violation("G8", G8, f"life {self._job.life}: {what}"))

    def _came_to_nothing(self) -> bool:
        """Return whether the child could not start because it did not reach its store."""
        last = self._living.last
        return isinstance(last, wire.Failed) and last.unreachable

    def _struck(self, kind: str, n: int) -> None:
        fault = Fault(kind, n)
        self._schedule.fired.append(fault)
        self._record("fault", kind, None)
        if self._outages is not None:
            self._record("fault", f"power: {self._outages.strike(fault)}", None)

    def _note_disturbances(self) -> None:
        """Record the faults that have struck the store since the last call."""
        for fault in self._store.struck():
            self._living.disturbed = True
            self._struck(*fault)

    def _settle(self) -> None:
        """Compare the reported commits with the store, which decides about a commit that the child did not survive."""
        assert self.store is not None
        with _disagreement():
            instance = inspect.instance(self.store)
            far = (instance.epoch, instance.commit) if instance is not None else (0, 0)
            intent = self._intents.settled(*far)
        if intent is not None:
            self._recorder.committed(*intent)

    def _restless(self, what: str) -> InvariantViolated:
        """Return the violation to raise if the run does not come to rest: another one if there is one, as its probable
        cause.
        """
        others = (one for one in violations(self.history) if one.id != "G7")
        return InvariantViolated(next(others, Violation("G7", G7, what)))

    def _give_up(self, patience: float) -> NoReturn:
        what = f"life {self._job.life} is neither dead nor quiet after {patience:.0f} s; left: {self.brokers.left()}"
        raise self._restless(f"{what}; {self._log()}")

    def _log(self) -> str:
        """Return the last lines of the engines' log."""
        log = self._directory / LOG
        lines = log.read_text(errors="replace").splitlines()[-LINES:] if log.exists() else []
        return " | ".join(lines) or "nothing in the log"

    # --- the end ---

    def _rows(self) -> int:
        """Return the number of rows in the store's receive log and outbox."""
        if self.store is None:
            return 0
        return len(inspect.receive_log(self.store)) + len(inspect.outbox(self.store))

    def _look_back(self, ended: wire.Ended, seconds: float) -> None:
        """Record what the store contains after the last engine has stopped."""
        rest = Rest(unacknowledged=self.brokers.left(), seconds=seconds)
        if self.store is not None:
            self._settle()
            rest = stored.rest(self.store, self._scenario, ended.known, rest)
        self.history.add(0, "rest", "", rest)


@contextlib.contextmanager
def _disagreement() -> Iterator[None]:
    """Report a difference between the reported commits and the store, or an unreadable store, as a violation of G4."""
    try:
        yield
    except (ValueError, CorrelatorError) as error:
        raise InvariantViolated(Violation("G4", G4, str(error))) from error
