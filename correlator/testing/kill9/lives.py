"""One run in real processes: children live and die one after another over one store; brokers and history are outside.

Everything here happens in the thread of the test, in a process that does not die. A run has lives that are killed, then
the end of all faults, then lives that are not killed, until one is quiet and stops in order; at the end the store is
read. If a child dies during a commit, the store says whether the commit happened.
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
from correlator.testing.kill9.intents import Intent, Intents
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
"""How long one life may take to be quiet or to die."""
MOST_DEATHS_AT_REST = 40
"""Engines that may die by themselves before the run counts as one that never rests."""
LOOK_S = 0.25
"""Longest wait of the oracle between two looks at its own deadlines."""
LONGEST_LOOK_S = 1.0
"""What a look counts at most of the patience with a life."""
LINES = 5
OUT_OF_REACH = "a start without its store"
"""The cause of a death that is due to what disturbed the store; the start after it may succeed."""
G4 = "what an engine takes for committed is in the store, and nothing else is"
G7 = "at rest nothing is left: unacknowledged 0, outbox 0, receive log 0, ids within the bound"
G8 = "an engine starts, and fails only by documented errors"


class WatchedChild:
    """The child of one life, as the oracle sees it.

    Args:
        session: with the child.
        kill: how the child is to die; `None` if it is spared.

    Attributes:
        kill_at: when it is killed from outside, by the monotonic clock; infinite if not.
        killed: whether it was killed from outside.
        disturbed: whether a fault has struck its store.
        last: its last statement that tells how it goes on or ends; nothing follows on `Dying`.
        watched: seconds for which the oracle has watched it.
        buried: whether its process was waited for.
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
        """The time now. Only what is seen counts: while this process stands still itself, its child may not go on."""
        now = time.monotonic()
        self.watched += min(now - self._looked_at, LONGEST_LOOK_S)
        self._looked_at = now
        return now

    def kill(self) -> None:
        """Kill it from outside, as was planned."""
        self.kill_at, self.killed = float("inf"), True
        self.session.kill()

    def wait(self) -> int:
        """Wait for its end, and return its status as `Session.status`."""
        self.buried = True
        return self.session.status()

    def bury(self) -> None:
        """Wait for its end, and give back what it held."""
        self.wait()
        self.session.close()


class ProcessRun:
    """One run in real processes. Used by one thread.

    Args:
        scenario: what it consists of; its settings name the store.
        schedule: what goes wrong with brokers, and where faults that struck are noted.
        zygote: makes children.
        directory: of the run.
        known: see `Brokers`.
        pipelines: the configuration file when it has pipelines, else "".
        prepare: import paths; see `wire.Job`.
        store: where it is, when more goes wrong with it than the deaths of engines.
        outages: when given, the power of the store's disk goes with every life that is killed.
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
        """How often each fault point was passed in one life, and what was seen on the way to the store."""
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
            kills: one for each life that reaches its store; those that lives came to are taken out.
            shares: in how many parts messages are published: one for each life.
            one_each: whether a life that has done its share is stopped; otherwise it is given the next one.

        Raises `InvariantViolated` G8 for a child that ended as none may, G7 when they do not come to rest.
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
        """End a child that still lives, or has stopped and is not yet buried."""
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
        """A new child."""
        self._job = msgspec.structs.replace(self._job, life=self._job.life + 1, kill=kill)
        self.brokers.life = self._job.life
        if self._outages is not None:
            self._outages.begin()
        session = Session(self._zygote, self._job, self.brokers, self._seen, self._stated)
        self._child = WatchedChild(session, kill)

    def _work(self) -> bool:
        """Until the child is quiet and nothing waits for it; `False` when it died before."""
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
        """Stop the child in order: its last words; `None` when it died before."""
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
        """Serve the child until this is so; `False` when it has died before, and is buried."""
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
        """The child says something that is no call."""
        match said:
            case wire.Intent():
                self._intents.announced(Intent(said.epoch, said.number, wire.unpacked(said.writes)))
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
        """The child is dead: why, what of its last words took place, and back with what it held."""
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
        """The place of death; raises `InvariantViolated` G8 when nobody has killed it."""
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
        """Whether the child did not reach its store, and so could not start."""
        last = self._living.last
        return isinstance(last, wire.Failed) and last.unreachable

    def _struck(self, kind: str, n: int) -> None:
        fault = Fault(kind, n)
        self._schedule.fired.append(fault)
        self._record("fault", kind, None)
        if self._outages is not None:
            self._record("fault", f"power: {self._outages.strike(fault)}", None)

    def _note_disturbances(self) -> None:
        """What has struck the store since it was last looked at."""
        for fault in self._store.struck():
            self._living.disturbed = True
            self._struck(*fault)

    def _settle(self) -> None:
        """Hold what was said of commits against the store, which tells of one that the child did not survive."""
        assert self.store is not None
        with _disagreement():
            instance = inspect.instance(self.store)
            far = (instance.epoch, instance.commit) if instance is not None else (0, 0)
            intent = self._intents.settled(*far)
        if intent is not None:
            self._recorder.committed(*intent)

    def _restless(self, what: str) -> InvariantViolated:
        """The run does not come to rest; or what else is wrong with it, which will be why."""
        others = (one for one in violations(self.history) if one.id != "G7")
        return InvariantViolated(next(others, Violation("G7", G7, what)))

    def _give_up(self, patience: float) -> NoReturn:
        what = f"life {self._job.life} is neither dead nor quiet after {patience:.0f} s; left: {self.brokers.left()}"
        raise self._restless(f"{what}; {self._log()}")

    def _log(self) -> str:
        """The last lines of the engines' log."""
        log = self._directory / LOG
        lines = log.read_text(errors="replace").splitlines()[-LINES:] if log.exists() else []
        return " | ".join(lines) or "nothing in the log"

    # --- the end ---

    def _rows(self) -> int:
        """What is left in the store's receive log and outbox."""
        if self.store is None:
            return 0
        return len(inspect.receive_log(self.store)) + len(inspect.outbox(self.store))

    def _look_back(self, ended: wire.Ended, seconds: float) -> None:
        """What the store holds when the last engine has stopped."""
        rest = Rest(unacknowledged=self.brokers.left(), seconds=seconds)
        if self.store is not None:
            self._settle()
            rest = stored.rest(self.store, self._scenario, ended.known, rest)
        self.history.add(0, "rest", "", rest)


@contextlib.contextmanager
def _disagreement() -> Iterator[None]:
    """What a child said of its commits is not what the store holds, or the store cannot even be read."""
    try:
        yield
    except (ValueError, CorrelatorError) as error:
        raise InvariantViolated(Violation("G4", G4, str(error))) from error
