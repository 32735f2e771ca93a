"""Records the inputs of an engine (docs/rules.md, section A7).

Each context has a tape, which makes records of the context's inputs. A `Recording` passes the records of all tapes to
the input log.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from correlator.core.checkpoint import Cut
from correlator.core.commit import Endpoint, Recovered, StateEntry
from correlator.core.registry import entry_without_secrets, without_secret_options
from correlator.core.routes import Routes
from correlator.core.tape import Added, Changed, CutTaken, End, Hook, Record, Start, State, Tape
from correlator.runtime.inputlog import InputLog
from correlator.settings import EngineSettings

PART = 1000
"""The largest number of state entries in one record."""


class Recording:
    """Records one life of an engine.

    Args:
        settings: settings of the engine, in which `input_log` is set.
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
        """Make the tape of a new context.

        Args:
            context: name of the context.
            routes: the routes of the engine; the tape records the requests that handlers make through them.
            engine_time: engine time at which the context begins; the log records it.
            wall_time: seconds of the local calendar at the same moment; the log records them, too.
        """
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
        """Make the file, and record the state with which the life begins. Raises `UsageError` E2041 if no file can be
        made.

        Args:
            recovered: what the store holds.
            state: the entries of the stored state, by owner and key.
            endpoints: all receivers and senders.
            sources: the messageSourceId of each sender, by id.
            persistent: whether the engine has a store.
        """
        log = self._log = InputLog(Path(self._settings.input_log or ""))
        for tape in self._tapes.values():
            tape.taken()  # discarded: the record `Start` has all that the start has restored
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
            endpoints=[entry_without_secrets(one) for one in endpoints],
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
        """Make the call, and record it.

        Args:
            name: name of the life-cycle method of the monitors.
            call: calls this method of the monitors.
        """
        for tape in self._tapes.values():
            tape.refresh()
        try:
            call()
        finally:
            self._append(Hook(name, [tape.taken() for tape in self._tapes.values()]))

    def recovered(self) -> None:
        """Note the end of the recovery: from now on a step without inputs and effects is not recorded."""
        for tape in self._tapes.values():
            tape.recovering = False

    def cut(self, cut: Cut) -> None:
        """Record a cut; called before the contexts go on."""
        commit = cut.commit
        senders = [(outbox.sender, progress.confirmed_through) for outbox, progress in cut.settled]
        taken = [tape.taken() for tape in self._tapes.values()]
        self._append(CutTaken(taken, commit.number, commit.digest, commit.engine_time, senders))

    def flush(self) -> None:
        """Wait until the file has all records that were made before this call; see `InputLog.flush`."""
        assert self._log is not None
        self._log.flush()

    def added(self, endpoint: Endpoint) -> None:
        """Record a part that code has added; called before any monitor can use it."""
        self._append(Added(entry_without_secrets(endpoint)))

    def close(self, *, in_order: bool) -> None:
        """Close the file. Call it after all other threads have ended.

        Args:
            in_order: whether the engine has stopped in order; if so, the last record says it.
        """
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
    """Return the settings that a replay needs, as JSON: they leave out brokers, stores, intervals, and the secrets of
    receivers and senders.
    """
    kept = EngineSettings(
        name=settings.name,
        destinations=settings.destinations,
        receivers=tuple(map(without_secret_options, settings.receivers)),
        senders=tuple(map(without_secret_options, settings.senders)),
        monitors=settings.monitors,
    )
    return msgspec.json.encode(kept)
