"""A member: a process that runs some of the shares of an engine, and takes over those of members that have ended.

One thread (`Keeper`) renews the leases and decides; each share has a thread (`ShareThread`) that starts, watches and
stops the engine of the share. The thread of a share checks its lease itself, so that it stops in time even if the
keeper waits for the database.
"""

import dataclasses
import functools
import hashlib
import secrets
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from correlator.configuration import (
    EngineFile,
    check_member_settings,
    in_schema,
    of_share,
    read_file,
    require,
    schema_of,
)
from correlator.core.backoff import Backoff
from correlator.core.shares import Actions, Assignment, Fate, Lease, valid_for
from correlator.errors import ConfigError, CorrelatorError, Fenced, StoreError, UsageError
from correlator.processes import Maker, new_identity
from correlator.runtime.actor import Actor
from correlator.runtime.clock import Clock, SystemClock
from correlator.runtime.engine import LOOK_FOR_SIGNALS_S, Engine
from correlator.runtime.logs import get_logger
from correlator.runtime.signals import stop_signals
from correlator.settings import EngineSettings
from correlator.storage.leases import LeaseTable, Shares
from correlator.storage.store import SqlStore

LOOK_S = 0.1
"""Seconds between two checks of its lease and its engine by the thread of a share."""
_COMMON = ("name", "destinations", "receivers", "senders", "monitors", "duplicate_detection", "pipelines")
"""The settings that all members must have in common."""
_AGAIN = Backoff(first=1.0, longest=60.0)
"""Seconds between two starts of a share whose engine has failed."""
_UNREACHABLE_S = 1.0
"""The longest wait between two attempts to reach the database."""


class MakeEngine(Protocol):
    """Makes the engine of a share: `Engine`, or a function that calls it with further arguments."""

    def __call__(self, settings: EngineSettings, *, store: SqlStore, identity: str) -> Engine:
        """Return an engine that was not started yet. Raises `ConfigError` if the settings cannot work."""
        ...


def shares_of(settings: EngineSettings) -> Shares:
    """Return the shares of checked settings, and where they are.

    Raises:
        UsageError: E2061, the settings have no shares.
    """
    if settings.shares is None:
        what, todo = "has no shares", "Set 'shares', or use Engine"
        raise UsageError("E2061", f"engine {settings.name}", what, "A member runs shares", todo)
    assert settings.store is not None
    schema = schema_of(settings)
    common = {name: _chosen(getattr(settings, name, ())) for name in _COMMON}
    if settings.bridges:  # without bridges, the digest equals the digest of versions that have no bridges
        common["bridges"] = _chosen(settings.bridges)
    content = msgspec.json.encode(common, enc_hook=lambda one: type(one).__qualname__)
    return Shares(
        url=in_schema(settings.store, f"{schema}_leases"),
        schema=f"{schema}_leases",
        stores=[f"{schema}_{number}" for number in range(settings.shares.count)],
        name=settings.name,
        digest=hashlib.sha256(content).hexdigest(),
        undivided=settings.store,
    )


def _chosen(value: Any) -> Any:
    """Return a value without the settings that have their defaults: later versions may have more of them."""
    if isinstance(value, Mapping):
        return {name: _chosen(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_chosen(one) for one in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    chosen = {}
    for field in dataclasses.fields(value):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if (one := getattr(value, field.name)) != default:
            chosen[field.name] = _chosen(one)
    return {type(value).__name__: chosen}


class ShareThread(threading.Thread):
    """Runs the engine of one share until `tell` lets it stop. If the engine fails, the thread starts it again after a
    while.

    Args:
        lease: the lease of the share.
        valid_until: until when the share may run, on the monotonic clock.
        make: makes an engine of the share.
        turn: the lock that the thread holds while an engine starts. A start makes msgspec learn the classes of the
            application, and msgspec ends the process if two threads let it learn a class at the same time.
        clock: the clock.
        ended: called in this thread at its end.
        unfit: called in this thread with the error if the settings cannot work in this process.

    Attributes:
        valid_until: the argument `valid_until`; the keeper changes it at each renewal.
        engine: the engine that runs now; `None` while there is none.
        problem: code of the error for which the share does not run; "" if there is none.
        totals: what the engines of this share did in this process, as `Status.totals`.
        finished: whether the engine is closed, and the thread about to end.
    """

    def __init__(
        self,
        lease: Lease,
        valid_until: float,
        make: Callable[[int], Engine],
        *,
        turn: threading.Lock,
        clock: Clock,
        ended: Callable[[], None],
        unfit: Callable[[ConfigError], None],
        log: Any,
    ) -> None:
        super().__init__(name=f"share-{lease.number}")
        self.lease = lease
        self.valid_until = valid_until
        self.engine: Engine | None = None
        self.problem = ""
        self.totals: Counter[str] = Counter()
        self.finished = False
        self._make = make
        self._turn = turn
        self._clock = clock
        self._ended = ended
        self._unfit = unfit
        self._log = log.bind(share=lease.number, epoch=lease.epoch)
        self._fate = Fate.RUN
        self._told = threading.Event()

    def tell(self, fate: Fate) -> None:
        """Let the share stop, in order (`LEAVE`) or at once (`DROP`). Any thread may call it."""
        self._fate = fate
        self._told.set()

    def run(self) -> None:
        """Start engines, one after the other, until the share must stop."""
        failures = 0
        try:
            while self._fate is Fate.RUN:
                if not self._valid:
                    self._told.wait(LOOK_S)
                    continue
                began = self._clock.monotonic()
                try:
                    self._live()
                except ConfigError as error:
                    self._unfit(error)
                    self._told.wait()
                except Exception as error:  # noqa: BLE001  # a share that fails must not end the others
                    self.problem = error.code if isinstance(error, CorrelatorError) else type(error).__name__
                    failures = 1 if self._clock.monotonic() - began > _AGAIN.longest else failures + 1
                    wait = _AGAIN.delay(failures, secrets.SystemRandom().random())
                    self._log.error("a share does not run", error=error, again_in_s=round(wait, 1))
                    self._told.wait(wait)
        finally:
            self.finished = True
            self._ended()

    @property
    def _valid(self) -> bool:
        return self._clock.monotonic() < self.valid_until

    def _live(self) -> None:
        """Run one engine until it fails, the share must stop, or the lease is too old; start none while another share
        starts.

        Raises the failure of the engine.
        """
        if not self._turn.acquire(timeout=LOOK_S):
            return
        try:
            engine = self._make(self.lease.number)
            engine.start()
        finally:
            self._turn.release()
        self.engine, self.problem = engine, ""
        try:
            while self._fate is Fate.RUN and self._valid and engine.failure is None:
                self._told.wait(LOOK_S)
            if self._fate is Fate.RUN and engine.failure is None:
                self._log.warning("the lease could not be renewed; the share stops until the renewal succeeds")
        finally:
            engine.stop(drain=self._fate is Fate.LEAVE and self._valid)
            self.engine = None
            self.totals.update(engine.status().totals())
        engine.raise_failure()


class Keeper(Actor):
    """Keeps the leases of a member; owns the table of leases and the threads of the shares.

    Args:
        table: the leases; `join` was called.
        assignment: decides which shares to start, stop and take.
        lease_s: how long a lease lasts.
        begin: makes the thread of a share; its arguments are the lease, and until when the lease is valid.
        clock: the clock.
        log: the log.

    Attributes:
        threads: the thread of each share that runs here, by number. The mapping is replaced, never changed in place.
        totals: what ended shares did in this process, by number, as `Status.totals`.
        drains: whether shares stop in order when the member leaves.
    """

    def __init__(
        self,
        table: LeaseTable,
        assignment: Assignment,
        lease_s: float,
        begin: Callable[[Lease, float], ShareThread],
        *,
        clock: Clock,
        log: Any,
    ) -> None:
        super().__init__("leases")
        self.threads: Mapping[int, ShareThread] = {}
        self.totals: dict[int, Counter[str]] = {}
        self.drains = True
        self._table = table
        self._assignment = assignment
        self._lease_s = lease_s
        self._begin = begin
        self._clock = clock
        self._log = log
        self._returns: list[Lease] = []
        self._noted: dict[int, str] = {}
        self._unreachable = ""
        self._leaves = False

    def leave(self, *, drain: bool) -> None:
        """Let the member give up all shares, and this thread end after that. Any thread may call it."""
        self.drains = drain
        self._leaves = True
        self.wake()

    def step(self) -> float | None:
        """Renew the leases, read them, and carry out the orders; returns the seconds until the next reading.

        Raises:
            Fenced: E3204, the members have another configuration now.
        """
        self._assignment.leaving = self._leaves
        self._collect()
        try:
            wait = self._look()
        except Fenced:
            raise
        except StoreError as error:
            if error.code != self._unreachable:
                self._unreachable = error.code
                self._log.warning("leases cannot be renewed at present", error=error)
            wait = min(_UNREACHABLE_S, self._lease_s / 10)
            for thread in self.threads.values() if self._leaves else ():
                thread.tell(Fate.DROP)
            if self._leaves and not self.threads:
                self.stop()  # the leases end by themselves
            return wait
        self._unreachable = ""
        if self._leaves and not self.threads:
            self.stop()
        return wait

    def finish(self) -> None:
        """Stop the shares at once, if there are any left, and end the session."""
        for thread in self.threads.values():
            thread.tell(Fate.DROP)
        for thread in self.threads.values():
            thread.join()
        self._collect()
        self._table.close()

    def _look(self) -> float:
        while self._returns:
            self._table.give_back(self._returns[-1])
            self._log.info("share given back", share=self._returns.pop().number)
        sent = self._clock.monotonic()
        seen = self._table.renew(leaving=self._leaves)
        for lease in seen.mine:
            thread = self.threads.get(lease.number)
            if thread is not None and thread.lease == lease:
                thread.valid_until = sent + valid_for(self._lease_s)
        orders = self._assignment.look(seen)
        self._start(orders.start, sent)
        self._tell(orders)
        if orders.take:
            sent = self._clock.monotonic()
            self._start(self._assignment.begin(self._table.take(orders.take)), sent)
        self._note()
        return orders.wait

    def _start(self, leases: Iterable[Lease], sent: float) -> None:
        for lease in leases:
            self._log.info("share taken", share=lease.number, epoch=lease.epoch)
            thread = self._begin(lease, sent + valid_for(self._lease_s))
            self.threads = {**self.threads, lease.number: thread}
            thread.start()

    def _tell(self, orders: Actions) -> None:
        for number in orders.leave:
            self.threads[number].tell(Fate.LEAVE if self.drains else Fate.DROP)
        for number in orders.drop:
            self._log.warning("another member has taken over a share", share=number)
            self.threads[number].tell(Fate.DROP)

    def _collect(self) -> None:
        """Forget the shares that have stopped, and note which leases the member must give back."""
        for number, thread in self.threads.items():
            if thread.finished:
                thread.join()
                self.totals.setdefault(number, Counter()).update(thread.totals)
                self.threads = {one: other for one, other in self.threads.items() if one != number}
                self._noted.pop(number, None)
                lease = self._assignment.ended(number)
                if lease is not None:
                    self._returns.append(lease)

    def _note(self) -> None:
        for number, thread in self.threads.items():
            problem = thread.problem
            if self._noted.get(number, "") != problem:
                self._table.note(thread.lease, problem)
                self._noted[number] = problem


class Member:
    """One of the processes that run the shares of an engine together (docs/several-engines.md).

    `start` registers the member; it takes its fair part of the shares, and runs an `Engine` for each. As a context
    manager it starts on entry and stops on exit. A member has one life. If a share fails, the member starts it again,
    so `failure` is set only if the member itself cannot go on.

    One thread calls `start`, `run_forever` and `stop`; any thread may call the other methods. In a forked child `stop`
    and `request_stop` do nothing, and every other method raises `UsageError` E2050.

    Args:
        settings: settings with `shares`. For a file, call `Member.from_yaml`.
        make_engine: makes the engine of a share.
        clock: the clock.
        warnings: warnings about the settings, which the start logs.

    Raises:
        ConfigError: the settings cannot work; `problems` has every problem.
        UsageError: E2061, the settings have no shares.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        make_engine: MakeEngine = Engine,
        clock: Clock | None = None,
        warnings: Sequence[ConfigError] = (),
    ) -> None:
        require(settings, EngineSettings, "Member", "For a file: Member.from_yaml(path)")
        self.settings = settings
        self.failure: BaseException | None = None
        self._warnings = [*check_member_settings(settings), *warnings]
        shares = shares_of(settings)
        assert settings.shares is not None
        self._lease_s = settings.shares.lease
        self._make_engine = make_engine
        self._clock = clock or SystemClock()
        self._maker = Maker()
        self._log = get_logger(engine=settings.name)
        self._changed = threading.Event()
        self._turn = threading.Lock()
        self._started = self._stopped = False
        self._make(0)  # raises for settings that no share can have
        me = str(uuid.uuid4())
        self._table = LeaseTable(shares, me, self._lease_s)
        self._keeper = Keeper(
            self._table, Assignment(me, self._lease_s), self._lease_s, self._begin, clock=self._clock, log=self._log
        )

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> Self:
        """Make a member from a configuration file. Opens nothing but the file.

        Args:
            path: the file. Paths in it are relative to the working directory.
            overrides: keyword arguments of `Member`; not `settings` and `warnings`.

        Raises:
            ConfigError: the file cannot be used; `problems` has every problem, with its line.
        """
        loaded = read_file(Path(path), EngineFile)
        make = functools.partial(Engine, origin=loaded.origin)
        return cls(loaded.settings, warnings=loaded.warnings, **{"make_engine": make, **overrides})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=error is None)

    def start(self) -> None:
        """Register this member. Shares start later, in their threads.

        Raises:
            RecoveryRefused: E4310, E4340, E4341, the settings differ from those with which others run the engine;
                E4342, the engine has run without shares, and its store holds something.
            StoreError: E3xxx, the database cannot be used.
            UsageError: E2051, the member was started before.
        """
        self._maker.check(f"member of {self.settings.name}")
        if self._started:
            raise UsageError("E2051", f"member of {self.settings.name}", "was started before", "", "Make another one")
        self._started = True
        for warning in self._warnings:
            self._log.warning(str(warning))
        try:
            self._table.join()
        except BaseException:
            self._stopped = True
            self._table.close()
            raise
        self._keeper.start(self._failed)

    def run_forever(self) -> None:
        """Wait until SIGTERM or SIGINT comes, `request_stop` is called, or the member fails.

        The call does not stop the member; the end of the `with` block or `stop` does. In the main thread it takes over
        SIGTERM and SIGINT; a second signal ends the process at once. Raises the failure of the member.
        """
        self._maker.check(f"member of {self.settings.name}")
        with stop_signals() as signalled:
            while not self._changed.is_set() and not signalled():
                self._changed.wait(LOOK_FOR_SIGNALS_S)
        self.raise_failure()

    def request_stop(self) -> None:
        """Let `run_forever` return. Returns at once."""
        if not self._maker.is_another_process:
            self._changed.set()

    def raise_failure(self) -> None:
        """Raise the error that ended the member, if there is one."""
        if self.failure is not None:
            raise self.failure

    def stop(self, *, drain: bool = True) -> None:
        """Stop the shares, end their leases, and unregister. Has no effect before a start and after the first call.

        Args:
            drain: see `Engine.stop`.
        """
        if not self._started or self._stopped or self._maker.is_another_process:
            return
        self._stopped = True
        self._keeper.leave(drain=drain)
        self._keeper.join()

    @property
    def engines(self) -> dict[int, Engine]:
        """The running engines, by number of their share."""
        self._maker.check(f"member of {self.settings.name}")
        found = {number: thread.engine for number, thread in self._keeper.threads.items()}
        return {number: engine for number, engine in found.items() if engine is not None}

    @property
    def totals(self) -> dict[int, Counter[str]]:
        """Sums of `Status.totals` of the ended engines in this process, by number of their share."""
        return self._keeper.totals

    def _begin(self, lease: Lease, valid_until: float) -> ShareThread:
        return ShareThread(
            lease,
            valid_until,
            self._make,
            turn=self._turn,
            clock=self._clock,
            ended=self._keeper.wake,
            unfit=self._unfit,
            log=self._log,
        )

    def _make(self, number: int) -> Engine:
        settings = of_share(self.settings, number)
        assert settings.store is not None
        witness = None if settings.witness_directory is None else Path(settings.witness_directory)
        store = SqlStore(settings.store, settings.name, witness_directory=witness, displace=True)
        return self._make_engine(settings, store=store, identity=f"{new_identity()}:{number}")

    def _failed(self, _: Actor, error: BaseException) -> None:
        self.failure = self.failure or error
        self._log.critical("the member stops", error=error)
        self._changed.set()

    def _unfit(self, error: ConfigError) -> None:
        """Stop the member, since an error of the configuration would stop its other shares, too."""
        self.failure = self.failure or error
        self._log.critical("the member stops", error=error)
        self._changed.set()
