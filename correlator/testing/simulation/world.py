"""One run: engines that live and die one after another over one disk and one broker, stepped by a seeded scheduler.

Theory of operation. Everything happens in one thread. The world owns what survives (disk, broker, history, clock); an
engine is built by `Engine.recover`, its actors are stepped in random order, and virtual time moves on when none can do
anything. A crash is an exception raised at a fault point: whatever the engine held is dropped, its connections close.
A part that fails by itself leaves the others one more step each, as threads would have it. A *zombie* is an engine that
was paused, not killed: it goes on for a while after the next one has taken over the store.

A run has phases: workload with faults; healing; rest, which must be reached in bounded virtual time; and the end, where
a fresh engine reads back what the disk holds.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from correlator.core import faults
from correlator.errors import CorrelatorError, RecoveryRefused
from correlator.runtime.actor import Actor
from correlator.runtime.engine import Engine
from correlator.testing.clock import ManualClock
from correlator.testing.invariants.history import Death, Declined, History, Kind
from correlator.testing.memory import MemoryConnection
from correlator.testing.schedule import KILL, Schedule
from correlator.testing.simulation import application, changes, churn, inspection
from correlator.testing.simulation.brokers import Brokers, Known, Parcel
from correlator.testing.simulation.doubts import Doubts
from correlator.testing.simulation.recorder import DiskRecorder, WorldProbe
from correlator.testing.simulation.scenario import Scenario, Workload
from correlator.testing.store import Disk, ModelStore

REST_PATIENCE_S = 120.0
REST_STEPS = 6000
REST_STEPS_OF_A_MESSAGE = 40
MOST_DEATHS_AT_REST = 40
"""Engines that may die of messages before the run counts as one that never rests."""
STEPS_OF_A_LIFE = 250
LIVES_WITHOUT_KILLS = 4
ZOMBIE_STEPS = 30
CHANGED = 0.6
"""How often a life is started with another configuration, where it changes."""
CHURN = 0.03
"""How often, of all steps, a part comes or goes where any do."""


class Killed(BaseException):
    """The process dies here."""


class Life:
    """One engine and its actors.

    Args:
        number: counted from 1.
        engine: not yet recovered.
        connections: of the engine, closed when it dies.
    """

    def __init__(self, number: int, engine: Engine, connections: Collection[MemoryConnection]) -> None:
        self.number = number
        self.engine = engine
        self.actors: list[Actor] = []
        self.due: list[float] = []
        self._connections = connections
        self._woken: list[threading.Event] = []

    def begin(self) -> None:
        """Recovered: every actor may run."""
        self.actors = self.engine.actors()
        self.due = [0.0] * len(self.actors)
        self._woken = [actor._woken for actor in self.actors]  # noqa: SLF001  # asked a hundred times for each crash

    def runnable(self, now: float) -> list[int]:
        """Positions of the actors that have something to do."""
        woken = self._woken
        return [at for at, when in enumerate(self.due) if when <= now or woken[at].is_set()]

    def step(self, at: int, now: float) -> None:
        """Let one actor do a step."""
        actor = self.actors[at]
        actor.take_wake()
        if actor.stopping:  # it was removed
            actor.finish()
            self.due[at] = float("inf")
            return
        delay = actor.step()
        self.due[at] = float("inf") if delay is None else now + delay

    def adopt(self, actor: Actor | None) -> None:
        """One that was added while the engine runs."""
        if actor is not None:
            self.actors.append(actor)
            self.due.append(0.0)
            self._woken.append(actor._woken)  # noqa: SLF001

    def end(self) -> None:
        """Dead: its connections are closed, all else is forgotten."""
        for connection in self._connections:
            connection.close()


class World:
    """One run.

    Args:
        scenario: what it consists of.
        schedule: what goes wrong.
        known: see `Brokers`.
        renew: called before each engine is made, as a process begins with modules of its own.
    """

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        known: Known | None = None,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self.scenario = scenario
        self.schedule = schedule
        self.history = History(scenario.setup)
        self.clock = ManualClock()
        self.disk = Disk()
        self.crashes = 0
        self.killed_at: dict[str, int] = {}
        self.passed: Counter[str] = Counter()
        self.struck: list[str] = []
        self.acting = 0
        self.engine: Engine | None = None
        self.brokers = Brokers(
            scenario,
            schedule,
            self.history,
            strikes=self.strikes,
            acting=lambda: self.acting,
            clock=self.clock.monotonic,
            known=known,
        )
        self._renew = renew
        self._recorder = DiskRecorder(self.record, self._engine_time)
        self._doubts = Doubts(self.history)
        self._began: dict[int, tuple[float, float]] = {}
        self._random = random.Random(f"order {scenario.seed}")
        self._pending: list[Parcel] = []
        self._life: Life | None = None
        self._zombie: Life | None = None
        self._zombie_steps = 0
        self._lives = 0
        self._asked: int | None = None
        self._kills = KILL in schedule.rates
        self._published = 0
        self._churns = False
        self._hits_left = 0
        self._down_until: float | None = None
        self._accepted = scenario.first
        if self._accepted is not None and not self._kills:  # there is one life, which leaves nothing behind
            self._accepted = self._accepted.healed()
        self._other_windows = changes.windows(scenario.seed, scenario.settings.duplicate_detection)
        self._putting_back = False

    def _engine_time(self) -> float | None:
        """Engine time of the acting engine as this clock counts it since it recovered."""
        began = self._began.get(self.acting)
        return None if began is None else began[1] + self.clock.now - began[0]

    def record(self, kind: Kind, who: str = "", data: Any = None) -> None:
        """Add to the history what the acting engine did."""
        self.history.add(self.acting, kind, who, data)

    def strikes(self, kind: str) -> bool:
        """Whether a fault strikes now; recorded when it does."""
        struck = self.schedule.strikes(kind)
        if struck:
            self.struck.append(f"{kind} (opportunity {self.schedule.fired[-1].n})")
            self.record("fault", kind)
        return struck

    # --- the run ---

    def publish(self, parcels: Iterable[Parcel]) -> None:
        """Have messages published in this order, some time while engines run."""
        self._pending.extend(parcels)
        self._churns = self._churns or any(one.destination == churn.SOURCE for one in self._pending)

    def run(self, workload: Workload) -> History:
        """Everything, top to bottom: messages of all destinations mixed, the n-th ones next to each other."""
        places = [(name, at) for name, ones in workload.messages.items() for at in range(len(ones))]
        self._random.shuffle(places)
        places.sort(key=lambda place: place[1])
        connection = next(iter(self.brokers.of))
        self.publish(
            Parcel(connection, name, workload.published[name][at], workload.messages[name][at]) for name, at in places
        )
        return self.run_until_rest()

    def run_until_rest(self) -> History:
        """Lives under faults, then healing, then rest."""
        self.schedule.on = True
        probe = WorldProbe(self.record, self._open_receivers, self._kill)
        application.watch(probe)
        faults.install(self._at_point)
        try:
            lives = self.scenario.lives if self._kills or not self.scenario.ends_lives else LIVES_WITHOUT_KILLS
            for lives_left in range(lives, 0, -1):
                self._live_and_die(-(-len(self._pending) // lives_left))
            self._heal()
            self._come_to_rest()
        finally:
            faults.install(None)
            application.watch(application.Probe())
        return self.history

    def _live_and_die(self, publish: int) -> None:
        """One life under faults: until it is killed, it fails, or its steps are used up."""
        self._plan_kill()
        if not self._rise():
            return
        for _ in range(STEPS_OF_A_LIFE):
            if publish and self._pending and self._random.random() < 0.2:
                publish -= 1
                self._publish()
            self._meddle()
            if not self._churn() or not self._step():
                return
        self._publish_some(publish)
        if self._kills and self.scenario.ends_lives:
            self._die("at the end of its steps")

    def _rise(self) -> bool:
        """A new engine recovers; says whether it survived that."""
        if self._life is not None:
            return True
        self._renew()
        self._lives += 1
        self.acting = self._lives
        connections = {name: broker.connection(name) for name, broker in self.brokers.of.items()}
        store = None
        if self.scenario.persistent:
            store = ModelStore(self.disk, fault=self._commit_fault, committed=self._recorder.committed)
        configuration = self._configure()
        settings = self.scenario.settings
        engine = Engine(
            configuration.settings(settings) if configuration is not None else settings,
            processors=configuration.processors() if configuration is not None else (),
            connections=connections,
            clock=self.clock,
            store=store,
            blocking=False,
            identity=f"life{self._lives}",
            jitter=random.Random(f"jitter {self.scenario.seed} {self._lives}").random,
        )
        self._life = Life(self._lives, engine, connections.values())
        self.engine = engine
        recovered = self._recovers(engine, configuration)
        if not recovered or self.engine is not engine:  # it was refused, and another one stands in its place
            return recovered
        self._life.begin()
        self._began[self._lives] = (self.clock.now, engine.status().engine_time)
        self._watch_cuts(engine)
        for thread in engine.contexts.values():
            thread.slice = self.scenario.slice  # type: ignore[union-attr]
        lineage = engine.checkpointer.checkpoint if engine.checkpointer else None
        if lineage is not None:
            self.record("began", "", (self.disk.epoch, lineage.number, lineage.digest, engine.status().engine_time))
        return True

    def _recovers(self, engine: Engine, configuration: changes.Configuration | None) -> bool:
        """Whether the engine survives its recovery, in the end with the configuration put back if that was refused."""
        epoch = self.disk.epoch
        before = self.disk.content() if configuration is not None else None  # only a configuration may be refused
        try:
            engine.recover()
        except Killed as killed:
            if self.disk.epoch > epoch:  # else nothing has looked at the configuration yet
                self._accepted = configuration
            return self._dies(str(killed))
        except RecoveryRefused as error:
            if configuration is None:
                raise
            return self._declined(configuration, error, before)
        except CorrelatorError as error:
            self._accepted = configuration
            self.record("warned", "recovery", str(error))
            return self._dies(str(error))
        self._accepted = configuration
        return True

    def _configure(self) -> changes.Configuration | None:
        """What the next life is started with; told to the history where it may change."""
        accepted = self._accepted
        if accepted is None:
            return None
        chosen = accepted
        if not self.schedule.on:
            chosen = accepted.healed()
        elif self._kills and self._lives > 1 and not self._putting_back and self._random.random() < CHANGED:
            chosen = changes.change(accepted, self._other_windows, self._random)
        self.record("configured", "", chosen.told())
        return chosen

    def _declined(self, configuration: changes.Configuration, error: RecoveryRefused, before: object) -> bool:
        """A refused start: whoever made the change puts it back and starts again."""
        assert self._life is not None
        assert self._accepted is not None
        again = configuration in (self._accepted, self._accepted.healed())
        unchanged = self.disk.content() == before
        self.record("declined", error.code, Declined(unchanged, again, str(error)))
        self._life.end()
        self._life = self.engine = None
        if again:
            return False
        self._putting_back = True
        try:
            return self._rise()
        finally:
            self._putting_back = False

    def _watch_cuts(self, engine: Engine) -> None:
        """No context may work while a cut is taken."""
        if engine.checkpointer is None:
            return
        checkpoint, life = engine.checkpointer.checkpoint, self._lives
        take = checkpoint.cut

        def watched(*parts: Any, **options: Any) -> Any:
            loose = inspection.unlocked(engine)
            cut = take(*parts, **options)
            if loose := [*loose, *inspection.unlocked(engine)]:
                self.history.add(life, "unlocked", "", tuple(loose))
            return cut

        setattr(checkpoint, "cut", watched)  # noqa: B010  # a method of this object is watched

    def _step(self) -> bool:
        """One step of somebody; says whether the engine still lives."""
        life = self._life
        assert life is not None
        if self._zombie is not None and self._random.random() < 0.3:
            self._step_zombie(self._zombie)
        now = self.clock.now
        runnable = life.runnable(now)
        if not runnable:
            self._let_time_pass(life)
            return True
        at = runnable[int(self._random.random() * len(runnable))]
        self.acting, self.engine = life.number, life.engine
        try:
            life.step(at, now)
        except Killed as killed:
            return self._dies(str(killed))
        except CorrelatorError as error:
            self.record("warned", life.actors[at].name, str(error))
            self._others_finish(life, at)
            return self._dies(f"{life.actors[at].name}: {error}")
        if lost := self._doubts.forgotten(life.engine):
            self.record("forgotten", "", tuple(lost))
        if few := self._doubts.uncounted(life.engine):
            self.record("uncounted", "", tuple(few))
        if self._random.random() < 0.2:
            self.clock.advance(self._random.random() * 0.01)
        return True

    def _dies(self, where: str) -> bool:
        self._die(where)
        return False

    def _others_finish(self, life: Life, failed: int) -> None:
        """The part that failed has ended its thread; each other thread may complete a step before it sees that.

        A checkpoint may have been waiting for just that part to let go of its context.
        """
        others = [at for at in range(len(life.actors)) if at != failed]
        self._random.shuffle(others)
        if life.engine.checkpointer is not None and self._random.random() < 0.3:
            life.engine.checkpointer.ask()
        for at in others:
            if self._random.random() < 0.5:
                try:
                    life.step(at, self.clock.now)
                except (Killed, CorrelatorError):
                    return

    def _let_time_pass(self, life: Life) -> None:
        soonest = min(life.due)
        if self._down_until is not None:
            soonest = min(soonest, self._down_until)
        self.clock.advance(max(0.0, min(soonest - self.clock.now, 1.0)) + 1e-6)

    def _die(self, where: str) -> None:
        life = self._life
        assert life is not None
        self.acting = life.number
        self.record("died", where, Death(self._engine_time(), inspection.awaits_time(life.engine)))
        self.crashes += 1
        self._life = None
        self.engine = None
        self._bury_zombie()
        if self.scenario.overtakes and life.actors and self.strikes("zombie"):
            self._zombie, self._zombie_steps = life, ZOMBIE_STEPS
        else:
            life.end()
        if self._random.random() < 0.2:
            self.clock.advance(self._random.random() * 3)

    # --- what the world does besides ---

    def _publish(self) -> None:
        self._published += 1
        self.brokers.publish(self._pending.pop(0))

    def _churn(self) -> bool:
        """Parts come and go; says whether the engine still lives."""
        life = self._life
        if not self._churns or life is None or self._random.random() > CHURN:
            return True
        self.acting, self.engine = life.number, life.engine
        try:
            life.adopt(churn.churn(life.engine, self._random))
        except (Killed, CorrelatorError) as error:
            return self._dies(str(error))
        return True

    def _publish_some(self, count: int) -> None:
        for _ in range(min(count, len(self._pending))):
            self._publish()

    def _meddle(self) -> None:
        """The broker goes down and comes back, lines are cut, the machine stands still."""
        if self._down_until is not None:
            if self.clock.now >= self._down_until:
                self._down_until = None
                self.brokers.set_down(down=False)
        elif self.strikes("broker.down"):
            self._down_until = self.clock.now + self.schedule.detail("broker.down", 20) / 10
            self.brokers.set_down(down=True)
        if self.strikes("broker.cut"):
            self.brokers.cut()
        if self.strikes("pause"):
            self.clock.advance(self.schedule.detail("pause", 50) / 10)

    def _step_zombie(self, zombie: Life) -> None:
        self._zombie_steps -= 1
        runnable = zombie.runnable(self.clock.now)
        if not self._zombie_steps:
            self._bury_zombie()
        elif runnable:
            self.acting, self.engine = zombie.number, zombie.engine
            at = runnable[int(self._random.random() * len(runnable))]
            try:
                zombie.step(at, self.clock.now)
            except (Killed, CorrelatorError):
                self._others_finish(zombie, at)
                self._bury_zombie()

    def _bury_zombie(self) -> None:
        if self._zombie is not None:
            acting, self.acting = self.acting, self._zombie.number
            self._zombie.end()
            self.record("died", "zombie")
            self._zombie = None
            self.acting = acting

    def _commit_fault(self, number: int, writes: Sequence[Any]) -> Any:
        del number, writes
        for kind in ("busy", "lost_request", "lost_reply", "failed", "failed_committed"):
            if self.strikes(f"commit.{kind}"):
                return kind
        return None

    def _plan_kill(self) -> None:
        """Some die during recovery, most while they work, a few after a long life."""
        longest = self._random.choice(self.scenario.longest_lives)
        self._hits_left = self._random.randint(1, longest)

    def _at_point(self, name: str) -> None:
        if name == "ck.snapshot":
            self._note_contexts("snapshot", 1)
        elif name == "rec.on_begin":
            self._note_contexts("restored", 0)
        if self.schedule.on:
            self.passed[name] += 1
        self._hits_left -= 1
        planned = self._hits_left == 0 and self._kills
        if self.schedule.kills(planned):
            self.struck.append(f"kill at {name} (passing {self.passed[name]})")
            self.killed_at[name] = self.killed_at.get(name, 0) + 1
            raise Killed(name)

    @staticmethod
    def _kill(where: str) -> None:
        raise Killed(where)

    def _note_contexts(self, kind: Kind, ahead: int) -> None:
        engine = self.engine
        if engine is None or not self.scenario.persistent:
            return
        if engine.checkpointer is not None:
            number = engine.checkpointer.checkpoint.number + ahead
            found = inspection.fingerprint(engine, self.scenario.settings)
            self.record(kind, "", (number, found, self._engine_time()) if kind == "snapshot" else (number, found))

    def _open_receivers(self) -> tuple[str, ...]:
        assert self.engine is not None
        return tuple(name for name, receiver in self.engine.receivers.items() if receiver.is_open)

    # --- the end ---

    def _heal(self) -> None:
        self.schedule.on = False
        self._bury_zombie()
        self.acting = 0
        self._down_until = None
        self.brokers.set_down(down=False)
        self.brokers.cut()
        self._publish_some(len(self._pending))

    def _come_to_rest(self) -> None:
        """Until nothing is left to do: everything handled, sent, confirmed, checkpointed, deleted."""
        begin, crashes = self.clock.now, self.crashes
        reached, self._asked = False, None
        for count in range(REST_STEPS + REST_STEPS_OF_A_MESSAGE * self._published):
            alive = self._rise() and self._step()
            if not alive:
                self._asked = None
            elif self._churns and self._life is not None:
                self._life.adopt(churn.settle(self._life.engine))
            reached = alive and count % 8 == 0 and self._rests()
            if reached or self.clock.now - begin > REST_PATIENCE_S or self.crashes - crashes > MOST_DEATHS_AT_REST:
                break
        seconds = self.clock.now - begin
        engine = self._life.engine if self._life is not None else None
        ids = inspection.remembered_ids(engine, self.disk) if engine else {}
        self._look_back(reached=reached, seconds=seconds, ids=ids)

    def _rests(self) -> bool:
        """Whether nothing is left to do, and a checkpoint that was asked for after that has found nothing either."""
        assert self._life is not None
        engine = self._life.engine
        if not inspection.at_rest(engine, self.disk, self.brokers.left(), awaits_timers=self.scenario.awaits_timers):
            self._asked = None
        elif engine.checkpointer is None:
            return True
        elif self._asked is None:
            self._asked = engine.checkpointer.ask()
        else:
            return engine.checkpointer.answered(self._asked)
        return False

    def _look_back(self, *, reached: bool, seconds: float, ids: dict[str, tuple[int, int, int]]) -> None:
        """A fresh engine reads what the disk holds; it handles nothing since nothing waits."""
        unacknowledged = self.brokers.left()
        outbox_rows, receive_rows = len(self.disk.outbound), len(self.disk.receive_log)
        state = inspection.state_of_disk(self.disk)
        before = inspection.known_ids(self.engine)
        if self._life is not None and reached:
            self._life.end()
            self._life = None
            self._rise()
        after = inspection.known_ids(self.engine)
        self.acting = 0
        self.history.add(
            0,
            "rest",
            "",
            inspection.rest(
                reached=reached,
                unacknowledged=unacknowledged,
                outbox_rows=outbox_rows,
                receive_rows=receive_rows,
                ids=ids,
                state=state,
                memory={domain: (known, after.get(domain, ())) for domain, known in before.items()},
                seconds=seconds,
            ),
        )
