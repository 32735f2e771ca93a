"""Records what an engine takes in (docs/rules.md, section A7): gives the records of all tapes to the input log."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from correlator.core.checkpoint import Cut
from correlator.core.commit import Endpoint, Recovered, StateEntry
from correlator.core.routes import Routes
from correlator.core.tape import Added, Changed, CutTaken, End, Hook, Record, Start, State, Tape
from correlator.runtime.inputlog import InputLog
from correlator.settings import EngineSettings

PART = 1000
"""Most state entries in one record."""


class Recording:
    """Records one life of an engine.

    Args:
        settings: of the engine; `input_log` is set.
    """

    def __init__(self, settings: EngineSettings) -> None:
        assert settings.input_log is not None
        self._settings = settings
        self._log: InputLog | None = None
        self._tapes: dict[str, Tape] = {}
        self._began: dict[str, tuple[float, float]] = {}

    @property
    def full(self) -> bool:
        """Whether contexts should pause until the input log has written more."""
        return self._log is not None and self._log.full

    def tape(self, context: str, routes: Routes, engine_time: float, wall_time: float) -> Tape:
        """Make the tape of a new context; its first times are recorded."""
        self._began[context] = engine_time, wall_time
        tape = self._tapes[context] = Tape(context, routes, self._append)
        return tape

    def begin(
        self,
        recovered: Recovered,
        state: Mapping[str, Mapping[bytes, bytes]],
        endpoints: list[Endpoint],
        sources: dict[str, str],
        *,
        persistent: bool,
    ) -> None:
        """Make the file, and record the state with which the life begins. Raises `UsageError` E2041."""
        log = self._log = InputLog(Path(self._settings.input_log or ""))
        for tape in self._tapes.values():
            tape.taken()  # the first look shows what the start has restored
        entries = [StateEntry(owner, key, value) for owner, kept in state.items() for key, value in kept.items()]
        parts = [entries[at : at + PART] for at in range(0, len(entries), PART)]
        start = Start(
            settings=replayable(self._settings),
            product=f"correlator {version('correlator')}",
            persistent=persistent,
            checkpoint=recovered.checkpoint,
            digest=recovered.digest,
            engine_time=recovered.engine_time,
            contexts=list(recovered.contexts),
            senders=list(recovered.senders),
            receive_log=list(recovered.receive_log),
            endpoints=endpoints,
            began=self._began,
            sources=sources,
            states=len(parts),
        )
        self._append(start)
        for part in parts:
            self._append(State(part))
        log.step()  # write it now: a log without its beginning is useless, and the process may end at any time
        log.start()

    def changed(self, entries: Sequence[StateEntry]) -> None:
        """Record that the start has changed state; the first cut writes the change."""
        self._append(Changed(entries))

    def hook(self, name: str, call: Callable[[], None]) -> None:
        """Make `call`, which calls a life-cycle method of the monitors, and record it under `name`."""
        for tape in self._tapes.values():
            tape.refresh()
        try:
            call()
        finally:
            self._append(Hook(name, [tape.taken() for tape in self._tapes.values()]))

    def recovered(self) -> None:
        """Note the end of the recovery: from now on, steps that took in and did nothing are not recorded."""
        for tape in self._tapes.values():
            tape.recovering = False

    def cut(self, cut: Cut) -> None:
        """Record a cut; called before the contexts go on."""
        commit = cut.commit
        senders = [(outbox.sender, progress.confirmed_through) for outbox, progress in cut.settled]
        taken = [tape.taken() for tape in self._tapes.values()]
        self._append(CutTaken(taken, commit.number, commit.digest, commit.engine_time, senders))

    def flush(self) -> None:
        """Wait until the log has what was recorded before this call."""
        assert self._log is not None
        self._log.flush()

    def added(self, endpoint: Endpoint) -> None:
        """Record a part that code has added; called before any monitor can use it."""
        self._append(Added(endpoint))

    def close(self, *, in_order: bool) -> None:
        """Close the file; called when all other threads have ended."""
        if self._log is None:
            return
        if in_order:
            self._append(End())
        self._log.stop()
        self._log.join()

    def _append(self, record: Record) -> None:
        assert self._log is not None
        self._log.append(record)


def replayable(settings: EngineSettings) -> bytes:
    """The settings that a replay needs, as JSON; they say nothing about brokers, stores and intervals."""
    kept = EngineSettings(
        name=settings.name,
        destinations=settings.destinations,
        receivers=settings.receivers,
        senders=settings.senders,
        monitors=settings.monitors,
    )
    return msgspec.json.encode(kept)
