"""Deliberate bugs of a start: what it reads from the store, in which order, and when receivers open."""

from typing import Any

import msgspec

from correlator.core.context import Context
from correlator.core.loaded import LoadedMonitors
from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue
from correlator.core.recovery import ReceiveLog
from correlator.core.state import StateTable
from correlator.runtime import engine as engines
from correlator.runtime.engine import Engine
from correlator.runtime.registry import Registry
from correlator.runtime.restart import Restart
from tests.harness.mutants.catalogue import Patches, mutant


@mutant("rows_not_replayed", "received messages that were in no checkpoint are not delivered again", "A2", "A3", "K1")
def rows_not_replayed(patches: Patches) -> None:
    """The messages are acknowledged, so nobody delivers them again: they are lost."""
    patches.replace(Restart, "_deliver_beyond", lambda _: lambda self, context, queue, receiver, events: None)


@mutant("replayed_in_reverse", "received messages come back in reverse", "A4", "S9", "G1", "K1")
def replayed_in_reverse(patches: Patches) -> None:
    """Contexts handle the messages in the wrong order."""

    def make(original: Any) -> Any:
        def beyond(self: Any, context: Any, receiver: Any, entered: Any) -> Any:
            for first, messages in original(self, context, receiver, entered):
                yield first, list(reversed(messages))

        return beyond

    patches.replace(ReceiveLog, "beyond", make)


@mutant("queue_not_restored", "what waited in a context at the checkpoint is gone", "G1", "A2", "A3", "M4", seed=8)
def queue_not_restored(patches: Patches) -> None:
    """Against rule A3.16: events that wait in a queue survive a crash."""

    def make(original: Any) -> Any:
        return lambda self, entered, runs: original(self, entered, ())

    patches.replace(InputQueue, "restore", make)


@mutant("outbox_not_restored", "released sends are forgotten at a start", "S2", "S3", "S7", "G7", seed=8)
def outbox_not_restored(patches: Patches) -> None:
    """The sends were released, so no handler makes them again: they are lost."""

    def make(original: Any) -> Any:
        def restore(self: Any, cut: Any, segments: Any) -> Any:
            del segments
            original(self, msgspec.structs.replace(cut, confirmed_through=cut.next_sequence - 1), ())

        return restore

    patches.replace(Outbox, "restore", make)


@mutant("spawned_not_restored", "monitors that were spawned do not come back", "G1", "M3", "M2", "K4")
def spawned_not_restored(patches: Patches) -> None:
    """Against rule A9.14: a start restores spawned monitors."""
    patches.replace(Restart, "_restore_spawned", lambda _: lambda self, *parts: None)


@mutant(
    "spawn_numbers_not_restored",
    "instance numbers begin anew and one monitor overwrites another",
    "M3",
    "G1",
    budget=300,
    seed=8,
)
def spawn_numbers_not_restored(patches: Patches) -> None:
    """The number of an instance must never be used again."""

    def make(original: Any) -> Any:
        return lambda self, cut, runs, time: original(self, msgspec.structs.replace(cut, spawned={}), runs, time)

    patches.replace(Context, "restore", make)


@mutant("timers_lost", "timers do not come back", "G1", "M1", "G7")
def timers_lost(patches: Patches) -> None:
    """Against rule A9.14: a start restores timers."""

    def make(original: Any) -> Any:
        return lambda self, instance, stored: original(self, instance, _replace(stored, timers=[]))

    patches.replace(LoadedMonitors, "_restore_waiting", make)


@mutant("listeners_lost", "listeners that were added while running do not come back", "G1", "M2", "M3")
def listeners_lost(patches: Patches) -> None:
    """Against rule A9.14: a start restores listeners."""

    def make(original: Any) -> Any:
        return lambda self, instance, stored: original(self, instance, _replace(stored, listeners=[]))

    patches.replace(LoadedMonitors, "_restore_waiting", make)


@mutant("receivers_open_early", "receivers are open before on_conclude_recovery has returned", "A6")
def receivers_open_early(patches: Patches) -> None:
    """Messages arrive while the application still recovers."""

    def make(original: Any) -> Any:
        def run_hooks(self: Any) -> Any:
            for receiver in self._parts.receivers.values():
                receiver.open()
            original(self)

        return run_hooks

    patches.replace(Restart, "run_hooks", make)


@mutant("engine_time_begins_anew", "engine time is not taken from the checkpoint", "G11", "M6", "E1")
def engine_time_begins_anew(patches: Patches) -> None:
    """Trap T22: engine time must never go back."""
    patches.replace(engines, "EngineTime", lambda original: lambda clock, start=0.0: original(clock, 0.0))


@mutant("digest_not_restored", "the chained digest begins anew", "G1")
def digest_not_restored(patches: Patches) -> None:
    """Two lives with the same checkpoints then have different digests."""

    def make(original: Any) -> Any:
        def make_checkpointer(self: Any, restart: Any) -> Any:
            restart.recovered = msgspec.structs.replace(restart.recovered, digest=b"anew")
            return original(self, restart)

        return make_checkpointer

    patches.replace(Engine, "_make_checkpointer", make)


@mutant("source_kept_for_best_effort", "a BEST_EFFORT sender has one source in all lives", "B2", "S4", seed=1)
def source_kept_for_best_effort(patches: Patches) -> None:
    """A BEST_EFFORT sender counts from 1 in each life, so consumers would take its messages for repeats."""
    patches.replace(Registry, "_new_source", lambda _: lambda self: "always:S01")


@mutant("tables_not_restored", "tables come back empty", "G1", "M5", "M3")
def tables_not_restored(patches: Patches) -> None:
    """The attributes are restored, but not the tables."""
    patches.replace(StateTable, "load", lambda _: lambda self, stored: None)


def _replace(stored: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(stored, **fields)
