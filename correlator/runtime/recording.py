"""Records what an engine takes in (docs/rules.md, section A7): ties the tapes of the contexts to the file."""

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
"""State entries in one record."""


class Recording:
    """One life of an engine on the way into its input log.

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
        """Whether contexts should pause until the disk has taken more."""
        return self._log is not None and self._log.full

    def tape(self, context: str, routes: Routes, engine_time: float, wall_time: float) -> Tape:
        """The tape of a context that is being made."""
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
        """The life begins with this: make the file. Raises `UsageError` E2041."""
        log = self._log = InputLog(Path(self._settings.input_log or ""))
        for tape in self._tapes.values():
            tape.taken()  # what a start restores is seen with the first look
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
        log.step()  # here and now: without its beginning a log is worth nothing, whatever ends the process next
        log.start()

    def changed(self, entries: Sequence[StateEntry]) -> None:
        """The start has changed state, which the first cut writes."""
        self._append(Changed(entries))

    def hook(self, name: str, call: Callable[[], None]) -> None:
        """Call life-cycle methods, and record that."""
        for tape in self._tapes.values():
            tape.refresh()
        try:
            call()
        finally:
            self._append(Hook(name, [tape.taken() for tape in self._tapes.values()]))

    def recovered(self) -> None:
        """The recovery is over: from now on a step that took in and did nothing is left out."""
        for tape in self._tapes.values():
            tape.recovering = False

    def cut(self, cut: Cut) -> None:
        """A cut was taken; the contexts are still parked."""
        commit = cut.commit
        senders = [(outbox.sender, progress.confirmed_through) for outbox, progress in cut.settled]
        taken = [tape.taken() for tape in self._tapes.values()]
        self._append(CutTaken(taken, commit.number, commit.digest, commit.engine_time, senders))

    def added(self, endpoint: Endpoint) -> None:
        """A part was added by code; before anybody can use it."""
        self._append(Added(endpoint))

    def close(self, *, in_order: bool) -> None:
        """The life has ended; all other threads have."""
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
    """What a replay needs of the settings, as JSON: nothing about brokers, stores and intervals."""
    kept = EngineSettings(
        name=settings.name,
        destinations=settings.destinations,
        receivers=settings.receivers,
        senders=settings.senders,
        monitors=settings.monitors,
    )
    return msgspec.json.encode(kept)
