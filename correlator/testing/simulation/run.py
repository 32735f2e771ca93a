"""One simulated run: engines live and die one after another over one disk; a seed decides the order of all steps.

Everything happens in one thread. The run owns what survives: disk, brokers, history and clock. It makes an engine,
calls `Engine.recover`, and steps its actors in a random order. If no actor can do anything, virtual time moves on. A
crash is an exception that is raised at a fault point: the run drops the engine and closes its connections. If a part
fails by itself, each other actor may do one more step, as threads do. A *zombie* is an engine that was paused, not
killed: it continues for a while after the next engine has taken over the store.

A run has four phases: messages are published while faults strike; all faults end; the engine comes to rest, within
bounded virtual time; a new engine reads what the disk holds.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any

from correlator.core import faults
from correlator.errors import CorrelatorError, RecoveryRefused
from correlator.runtime.engine import Engine
from correlator.testing.clock import ManualClock
from correlator.testing.invariants.history import Death, Declined, History, Kind
from correlator.testing.schedule import Schedule
from correlator.testing.simulation import inspection
from correlator.testing.simulation.brokers import Known, Parcel, SimulatedBrokers
from correlator.testing.simulation.doubts import Doubts
from correlator.testing.simulation.kills import Killed, Kills
from correlator.testing.simulation.life import SimulatedLife
from correlator.testing.simulation.operating import Operator, StartOfLife
from correlator.testing.simulation.recorder import DiskRecorder
from correlator.testing.simulation.rest import RestCheck
from correlator.testing.simulation.scenario import Scenario
from correlator.testing.store import Disk, ModelStore

REST_PATIENCE_S = 120.0
REST_STEPS = 6000
REST_STEPS_OF_A_MESSAGE = 40
MOST_DEATHS_AT_REST = 40
"""Number of engines that may die of messages before the run counts as one that never comes to rest."""
STEPS_OF_A_LIFE = 250
LIVES_WITHOUT_KILLS = 4
ZOMBIE_STEPS = 30


class SimulatedRun:
    """One run. Used by one thread.

    Args:
        scenario: the parameters of the run.
        schedule: which faults strike.
        known: see `Brokers`.
        operator: starts the engines.
        order: the source of the random order; by default made from the seed of the scenario.

    Attributes:
        history: the record of the run.
        clock: the virtual clock of all engines.
        disk: the disk of all engines.
        brokers: the brokers of all engines.
        crashes: number of engines that died.
        kills: decides at which fault points engines die.
        struck: texts about the faults and kills that struck.
        acting: number of the life to which records belong; 0 for records that belong to no engine.
        engine: the engine that is stepped; `None` between two lives.
    """

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        known: Known | None = None,
        operator: Operator | None = None,
        order: random.Random | None = None,
    ) -> None:
        self.scenario = scenario
        self.schedule = schedule
        self.history = History(scenario.setup)
        self.clock = ManualClock()
        self.disk = Disk()
        self.crashes = 0
        self.struck: list[str] = []
        self.acting = 0
        self.engine: Engine | None = None
        self.brokers = SimulatedBrokers(
            scenario,
            schedule,
            self.history,
            strikes=self.strikes,
            acting=lambda: self.acting,
            clock=self.clock.monotonic,
            known=known,
        )
        self._random = order or random.Random(f"order {scenario.seed}")
        self.kills = Kills(schedule, scenario.longest_lives, self._random)
        self._operator = operator or Operator()
        self._doubts = Doubts(self.history)
        self._pending: list[Parcel] = []
        self._life: SimulatedLife | None = None
        self._zombie: SimulatedLife | None = None
        self._lives = 0

    def _engine_time(self) -> float | None:
        """Engine time of the acting engine as this clock counts it since recovery."""
        for life in (self._life, self._zombie):
            if life is not None and life.number == self.acting:
                return life.engine_time(self.clock.now)
        return None

    def record(self, kind: Kind, who: str = "", data: Any = None) -> None:
        """Add a record about the acting engine to the history."""
        self.history.add(self.acting, kind, who, data)

    def strikes(self, kind: str) -> bool:
        """Return whether a fault strikes now, and record it if it does."""
        struck = self.schedule.strikes(kind)
        if struck:
            self.struck.append(f"{kind} (opportunity {self.schedule.fired[-1].n})")
            self.record("fault", kind)
        return struck

    # --- the run ---

    def publish(self, parcels: Iterable[Parcel]) -> None:
        """Queue messages; the run publishes them in this order while engines run."""
        self._pending.extend(parcels)

    def run_until_rest(self) -> History:
        """Run lives under faults, end all faults, and continue until the engine is at rest; return the history."""
        self.schedule.on = True
        faults.install(self._at_point)
        try:
            lives = self.scenario.lives if self.kills.planned or not self.scenario.ends_lives else LIVES_WITHOUT_KILLS
            for lives_left in range(lives, 0, -1):
                self._live_and_die(-(-len(self._pending) // lives_left))
            self._heal()
            self._come_to_rest()
        finally:
            faults.install(None)
        return self.history

    def _live_and_die(self, publish: int) -> None:
        """Run one life under faults: until it is killed, it fails, or its steps are used up."""
        self.kills.plan()
        if not self._rise():
            return
        for _ in range(STEPS_OF_A_LIFE):
            if publish and self._pending and self._random.random() < 0.2:
                publish -= 1
                self._publish()
            self.brokers.meddle()
            if self.strikes("pause"):
                self.clock.advance(self.schedule.detail("pause", 50) / 10)
            if not self._operate() or not self._step():
                return
        self._publish_some(publish)
        if self.kills.planned and self.scenario.ends_lives:
            self._die("at the end of its steps")

    def _rise(self) -> bool:
        """Let a new engine recover; return whether it survives that."""
        if self._life is not None:
            return True
        self._lives += 1
        self.acting = self._lives
        connections = {name: broker.connection(name) for name, broker in self.brokers.of.items()}
        store = None
        if self.scenario.persistent:
            recorder = DiskRecorder(self.record, self._engine_time)
            store = ModelStore(self.disk, fault=self._commit_fault, committed=recorder.committed)
        start = self._operator.start(self.scenario.settings, self._lives, faults=self.schedule.on)
        if start.configured is not None:
            self.record("configured", "", start.configured)
        engine = Engine(
            start.settings,
            processors=start.processors,
            connections=connections,
            clock=self.clock,
            store=store,
            blocking=False,
            identity=f"life{self._lives}",
            jitter=random.Random(f"jitter {self.scenario.seed} {self._lives}").random,
        )
        self._life = SimulatedLife(self._lives, engine, connections.values())
        self.engine = engine
        recovered = self._recovers(engine, start)
        if not recovered or self.engine is not engine:  # it was refused, and another engine has replaced it
            return recovered
        self._life.begin(self.clock.now)
        self._watch_cuts(engine)
        for thread in engine.contexts.values():
            thread.slice = self.scenario.slice  # type: ignore[union-attr]
        lineage = engine.checkpointer.checkpoint if engine.checkpointer else None
        if lineage is not None:
            self.record("began", "", (self.disk.epoch, lineage.number, lineage.digest, engine.parts.engine_time.now()))
        return True

    def _recovers(self, engine: Engine, start: StartOfLife) -> bool:
        """Return whether an engine survives the recovery: this one, or one with the previous
        configuration after a refusal.
        """
        epoch = self.disk.epoch
        before = self.disk.content() if start.configured is not None else None
        try:
            engine.recover()
        except Killed as killed:
            if self.disk.epoch > epoch:  # otherwise nothing has read the configuration yet
                self._operator.accepted()
            return self._dies(str(killed))
        except RecoveryRefused as error:
            if start.configured is None:
                raise
            return self._declined(error, before)
        except CorrelatorError as error:
            self._operator.accepted()
            self.record("warned", "recovery", str(error))
            return self._dies(str(error))
        self._operator.accepted()
        return True

    def _declined(self, error: RecoveryRefused, before: object) -> bool:
        """Record a refused start; return whether another engine survives its recovery with the previous
        configuration.
        """
        assert self._life is not None
        again = self._operator.refused()
        unchanged = self.disk.content() == before
        self.record("declined", error.code, Declined(unchanged, again, str(error)))
        self._life.end()
        self._life = self.engine = None
        return not again and self._rise()

    def _watch_cuts(self, engine: Engine) -> None:
        """Record contexts that could work while a cut is taken."""
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

        setattr(checkpoint, "cut", watched)  # noqa: B010  # wraps a method of this object

    def _step(self) -> bool:
        """Step one actor; return whether the engine still lives."""
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

    def _others_finish(self, life: SimulatedLife, failed: int) -> None:
        """Step other actors after a part has failed: each thread may complete a step before it sees the failure.

        A checkpoint may have been waiting until that part released its context.
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

    def _let_time_pass(self, life: SimulatedLife) -> None:
        soonest = min(life.due)
        if self.brokers.back_at is not None:
            soonest = min(soonest, self.brokers.back_at)
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
            self._zombie, life.steps_left = life, ZOMBIE_STEPS
        else:
            life.end()
        if self._random.random() < 0.2:
            self.clock.advance(self._random.random() * 3)

    # --- what the world does besides ---

    def _publish(self) -> None:
        self.brokers.publish(self._pending.pop(0))

    def _operate(self) -> bool:
        """Let the operator add or remove a part now and then; return whether the engine still lives."""
        life = self._life
        if life is None or not self._operator.intervenes():
            return True
        self.acting, self.engine = life.number, life.engine
        try:
            life.adopt(self._operator.intervene(life.engine))
        except (Killed, CorrelatorError) as error:
            return self._dies(str(error))
        return True

    def _publish_some(self, count: int) -> None:
        for _ in range(min(count, len(self._pending))):
            self._publish()

    def _step_zombie(self, zombie: SimulatedLife) -> None:
        zombie.steps_left -= 1
        runnable = zombie.runnable(self.clock.now)
        if not zombie.steps_left:
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

    def _at_point(self, name: str) -> None:
        if name == "ck.snapshot":
            self._note_contexts("snapshot", 1)
        elif name == "rec.on_begin":
            self._note_contexts("restored", 0)
        if self.kills.strikes(name):
            self.struck.append(f"kill at {name} (passing {self.kills.passed[name]})")
            raise Killed(name)

    def _note_contexts(self, kind: Kind, ahead: int) -> None:
        engine = self.engine
        if engine is None or not self.scenario.persistent:
            return
        if engine.checkpointer is not None:
            number = engine.checkpointer.checkpoint.number + ahead
            found = inspection.fingerprint(engine, self.scenario.settings)
            self.record(kind, "", (number, found, self._engine_time()) if kind == "snapshot" else (number, found))

    def open_receivers(self) -> tuple[str, ...]:
        """The receivers of the acting engine that are open."""
        assert self.engine is not None
        return tuple(name for name, receiver in self.engine.receivers.items() if receiver.is_open)

    # --- the end ---

    def _heal(self) -> None:
        self.schedule.on = False
        self._bury_zombie()
        self.acting = 0
        self.brokers.heal()
        self._publish_some(len(self._pending))

    def _come_to_rest(self) -> None:
        """Run until nothing is left to do: everything is handled, sent, confirmed, checkpointed and deleted."""
        begin, crashes = self.clock.now, self.crashes
        reached = False
        check = RestCheck(self.disk, self.brokers, awaits_timers=self.scenario.awaits_timers)
        for count in range(REST_STEPS + REST_STEPS_OF_A_MESSAGE * self.brokers.published):
            alive = self._rise() and self._step()
            if not alive:
                check.restart()
            elif self._life is not None:
                self._life.adopt(self._operator.settle(self._life.engine))
            reached = alive and count % 8 == 0 and self._life is not None and check.reached(self._life.engine)
            if reached or self.clock.now - begin > REST_PATIENCE_S or self.crashes - crashes > MOST_DEATHS_AT_REST:
                break
        seconds = self.clock.now - begin
        engine = self._life.engine if self._life is not None else None
        ids = inspection.remembered_ids(engine, self.disk) if engine else {}
        self._look_back(reached=reached, seconds=seconds, ids=ids)

    def _look_back(self, *, reached: bool, seconds: float, ids: dict[str, tuple[int, int, int]]) -> None:
        """Let a new engine read what the disk holds, and record it; the engine handles nothing, since nothing waits."""
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
