"""One run: children that live and die one after another over one store, with the brokers and the truth outside.

Everything here happens in the thread of the test, in a process that does not die. A run has lives that are killed, then
healing, then lives that are not, until one is quiet and stops in order; at the end the store is read. Whatever a child
said of a commit that it did not survive is settled by a look at the store.
"""

import contextlib
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

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


class ProcessRun:
    """One run.

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
        self._pipelines = pipelines
        self._patience = PATIENCE_WITH_SPARK_S if pipelines else PATIENCE_S
        self._prepare = prepare
        self._store = store or StoreOfRun(scenario.settings.store)
        self._outages = outages
        self._recorder = DiskRecorder(self._record)
        self._intents = Intents()
        self._pending: deque[Parcel] = deque()
        self._share = 0
        self._one_each = False
        self._seen: set[str] = set()
        self._life = 0
        self._session: Session
        self._unburied = False
        self._kill: wire.Kill | None = None
        self._kill_at = float("inf")
        self._looked_at = self._watched = 0.0
        self._killed = self._disturbed = False
        self._last: Statement | None = None

    @property
    def store(self) -> str | None:
        """The address of the store, for who looks at it from outside."""
        return self._store.direct

    @property
    def points(self) -> Mapping[str, int]:
        """How often each fault point was passed in one life, and what was seen on the way to the store."""
        return {**self.passed, **self._store.seen()}

    @property
    def killed(self) -> int:
        """How many planned kills struck."""
        return sum(fault.kind.startswith(draws.KILL) for fault in self._schedule.fired)

    def publish(self, parcels: Iterable[Parcel]) -> None:
        """Have messages published in this order, in shares, as lives begin."""
        self._pending.extend(parcels)

    def run(self, kills: deque[wire.Kill], *, shares: int, one_each: bool = False) -> None:
        """Lives with these kills, then healing, then lives without, until nothing is left to do.

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
        if self._unburied:
            self._unburied = False
            self._session.kill()
            self._session.status()
            self._session.close()

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
        self._life += 1
        self._kill, self._killed, self._disturbed, self._last = kill, False, False, None
        self.brokers.life = self._life
        scenario, outages = self._scenario, self._outages
        if outages is not None:
            outages.begin()
        job = wire.Job(
            life=self._life,
            directory=str(self._directory),
            settings=scenario.settings,
            pipelines=self._pipelines,
            brokers=dict(scenario.brokers),
            kill=kill,
            slice=scenario.slice,
            awaits_timers=scenario.awaits_timers,
            told=scenario.setup.told,
            prepare=list(self._prepare),
            disk=str(outages.disk) if outages is not None else "",
            trace=str(outages.trace) if outages is not None else "",
        )
        self._session = Session(self._zygote, job, self.brokers, self._seen, self._stated)
        self._unburied = True
        self._looked_at, self._watched = time.monotonic(), 0.0
        self._kill_at = float("inf")
        if kill is not None and kill.after_ms:
            self._kill_at = time.monotonic() + kill.after_ms / 1000

    def _work(self) -> bool:
        """Until the child is quiet and nothing waits for it; `False` when it died before."""
        while self._until(lambda: self.brokers.forgetful or not self.brokers.left()):
            self._session.command("rest")
            if not self._until(lambda: isinstance(self._last, wire.Quiet)):
                return False
            self._last = None
            if self.brokers.forgetful:
                self.brokers.cut()
            elif not self.brokers.left() and not self._rows():
                if self._one_each or not self._pending:
                    return True
                self._publish(self._share)
        return False

    def _stop(self) -> wire.Ended | None:
        """Stop the child in order: its last words; `None` when it died before."""
        self._session.command("stop")
        if not self._until(lambda: isinstance(self._last, wire.Ended)):
            return None
        ended = self._last
        assert isinstance(ended, wire.Ended)
        self.passed |= ended.points
        self.passed_at_last = ended.points
        self._unburied = False
        self._session.status()
        self._session.close()
        return ended

    def _until(self, reached: Callable[[], bool]) -> bool:
        """Serve the child until this is so; `False` when it has died before, and is buried."""
        while self._session.alive:
            if reached():
                return True
            now = self._look()
            if now >= self._kill_at:
                self._kill_at, self._killed = float("inf"), True
                self._session.kill()
            elif self._watched >= self._patience:
                self._give_up()
            self._session.serve(min(self._kill_at - now, LOOK_S) if self._kill_at > now else LOOK_S)
            self._note_disturbances()
        self._bury()
        return False

    def _look(self) -> float:
        """The time now. Only what is seen counts: while this process stands still itself, its child may not go on."""
        now = time.monotonic()
        self._watched += min(now - self._looked_at, LONGEST_LOOK_S)
        self._looked_at = now
        return now

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
                if not isinstance(self._last, wire.Dying):
                    self._last = said

    def _record(self, kind: Kind, who: str, data: object) -> None:
        self.history.add(self._life, kind, who, data)

    # --- death ---

    def _bury(self) -> None:
        """The child is dead: why, what of its last words took place, and back with what it held."""
        self._unburied = False
        status = self._session.status()
        try:
            self._store.left()
            self._note_disturbances()
            cause = self._cause(status)
            if self._intents.open is not None or (self._outages is not None and self._intents.last):
                self._settle()
            self._record("died", cause, None)
            self.crashes += 1
        finally:
            self._session.close()

    def _cause(self, status: int) -> str:
        """The place of death; raises `InvariantViolated` G8 when nobody has killed it."""
        kill, last = self._kill or wire.Kill(), self._last
        if isinstance(last, wire.Dying):
            self.passed |= last.points
            if last.hit:
                self._struck(f"kill {last.where}", last.hit)
            return last.where
        if isinstance(last, wire.Failed) and last.by_application:
            self._record("warned", "engine", last.text)
            return last.text
        if self._came_to_nothing() and self._disturbed:
            return OUT_OF_REACH
        if status == -signal.SIGKILL and self._killed:
            self._struck("kill time", kill.after_ms)
            return "time"
        if status == -signal.SIGKILL and kill.syscall:
            self._struck("kill syscall", kill.syscall)
            return "syscall"
        what = last.text if isinstance(last, wire.Failed) else f"ended with status {status}: {self._log()}"
        raise InvariantViolated(Violation("G8", G8, f"life {self._life}: {what}"))

    def _came_to_nothing(self) -> bool:
        """Whether the child did not reach its store, and so could not start."""
        return isinstance(self._last, wire.Failed) and self._last.unreachable

    def _struck(self, kind: str, n: int) -> None:
        fault = Fault(kind, n)
        self._schedule.fired.append(fault)
        self._record("fault", kind, None)
        if self._outages is not None:
            self._record("fault", f"power: {self._outages.strike(fault)}", None)

    def _note_disturbances(self) -> None:
        """What has struck the store since it was last looked at."""
        for fault in self._store.struck():
            self._disturbed = True
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

    def _give_up(self) -> NoReturn:
        what = f"life {self._life} is neither dead nor quiet after {self._patience:.0f} s; left: {self.brokers.left()}"
        raise self._restless(f"{what}; {self._log()}")

    def _log(self) -> str:
        """The last words of the engines."""
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
