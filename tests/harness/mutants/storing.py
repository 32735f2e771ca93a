"""Deliberate bugs between memory and the store: the content of checkpoints, when they count, who may write."""

from typing import Any

import msgspec

from correlator.core import checkpoint as checkpoints
from correlator.core.checkpoint import Checkpoint, Cut
from correlator.core.context import Context
from correlator.core.queue import InputQueue, Run
from correlator.core.staging import Staging
from correlator.core.state import StateTable
from correlator.core.statelog import StateLog
from correlator.errors import StoreBusy
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.requests import CheckpointRequest
from correlator.runtime.writer import Writer
from correlator.testing.store import ModelStore
from tests.harness.mutants.catalogue import Patches, mutant


@mutant("released_before_commit", "sends leave as the commit begins", "S1", "S9")
def released_before_commit(patches: Patches) -> None:
    """If the commit fails, messages have left that the next life does not know."""

    def make(original: Any) -> Any:
        def plan(self: Any, group: Any) -> Any:
            if getattr(group.domains, "released", None) is not self:
                group.domains.released = self
                self.cut.release()
                for sender in group.domains.open_senders():
                    sender.step()
            return original(self, group)

        return plan

    def begin(original: Any) -> Any:
        def begun(self: Any) -> Any:
            self._writer.domains.open_senders = lambda: [
                actor for actor in self._released.__self__.senders.values() if actor.is_open
            ]
            return original(self)

        return begun

    patches.replace(CheckpointRequest, "plan", make)
    patches.replace(Checkpointer, "_take_cut", begin)
    patches.replace(Checkpointer, "_release", _release_nothing)


def _release_nothing(original: Any) -> Any:
    class Released:
        """Replaces a cut whose sends were released before."""

        def __init__(self, cut: Any) -> None:
            self.commit = cut.commit
            self.changes = cut.changes

        def release(self) -> None:
            """Do nothing."""

    def release(self: Any, cut: Any) -> Any:
        original(self, Released(cut))

    return release


@mutant(
    "all_rows_pruned", "a checkpoint deletes every received row, also what waits", "A2", "A3", "N1", "G1", "G8", seed=4
)
def all_rows_pruned(patches: Patches) -> None:
    """Messages that wait in contexts are lost if the engine dies."""
    patches.replace(checkpoints, "consumed", lambda _: lambda queues, routes: dict.fromkeys(routes, 10**6))


@mutant("state_in_another_commit", "state is written one checkpoint late", "G1", "M5", "S9", "A3", seed=3)
def state_in_another_commit(patches: Patches) -> None:
    """If the engine dies, the messages count as handled but their changes of state are missing."""

    def make(original: Any) -> Any:
        def cut(self: Any, *arguments: Any, **options: Any) -> Any:
            made = original(self, *arguments, **options)
            if made is None:
                return None
            late, self.late = getattr(self, "late", []), made.changes
            keys = {(one.owner, one.key) for one in made.changes}
            return Cut(
                commit=made.commit,
                changes=[one for one in late if (one.owner, one.key) not in keys],
                settled=made.settled,
            )

        return cut

    patches.replace(Checkpoint, "cut", make)


@mutant("state_without_queue", "contexts are cut at different moments", "G1", "M4", "S9", "A3", seed=8)
def state_without_queue(patches: Patches) -> None:
    """The second context handles more events between the cut of its queue and the cut of its state."""

    def make(original: Any) -> Any:
        def take_state(self: Any) -> Any:
            requested, self.cut_requested = self.cut_requested, False
            self.work(2, self._calls.moment.engine_time)
            self.cut_requested = requested
            return original(self)

        return take_state

    patches.replace(Context, "take_state", make)


@mutant(
    "store_error_swallowed",
    "a transaction that was rolled back is taken for committed",
    "A1",
    "G1",
    "S1",
    "G4",
    "G3",
    "N1",
    budget=300,
    seed=10,
)
def store_error_swallowed(patches: Patches) -> None:
    """The engine acknowledges and sends as if the transaction had taken place."""

    def make(original: Any) -> Any:
        def commit(self: Any, number: Any, writes: Any) -> Any:
            try:
                original(self, number, writes)
            except StoreBusy:
                self._disk.commit = number

        return commit

    patches.replace(ModelStore, "commit", make)


@mutant(
    "unknown_taken_for_done",
    "a commit whose answer was lost is taken for committed",
    "A1",
    "G1",
    "S1",
    "G4",
    "G3",
    "N1",
    budget=300,
)
def unknown_taken_for_done(patches: Patches) -> None:
    """Trap T1: the transaction may have been rolled back; the engine must ask the store."""

    def make(original: Any) -> Any:
        def resolve(self: Any, number: Any) -> Any:
            original(self, number)
            self._disk.commit = number
            return True

        return resolve

    patches.replace(ModelStore, "resolve", make)


@mutant(
    "no_epoch",
    "a paused engine may commit after another has taken over",
    "G4",
    "G1",
    "S4",
    "S9",
    "G3",
    "N1",
    budget=600,
    seed=5,
)
def no_epoch(patches: Patches) -> None:
    """Nothing fences off the older engine."""

    def check(self: Any, *numbers: Any) -> Any:
        del numbers
        self._epoch = self._epoch or self._disk.epoch

    patches.replace(ModelStore, "_check_owner", lambda _: check)


@mutant("checkpoint_number_stands", "two checkpoints have one number", "G3", "G1", "G2")
def checkpoint_number_stands(patches: Patches) -> None:
    """A number must name one checkpoint."""

    def make(original: Any) -> Any:
        def cut(self: Any, *arguments: Any, **options: Any) -> Any:
            made = original(self, *arguments, **options)
            if made is not None and self.number > 2:
                self.number -= 1
            return made

        return cut

    patches.replace(Checkpoint, "cut", make)


@mutant("inbox_not_drained", "what was delivered to a context and not looked at is not in the cut", "M4", "G1", seed=8)
def inbox_not_drained(patches: Patches) -> None:
    """An event in the inbox is in no cut, while the state of its sender is."""

    def make(original: Any) -> Any:
        def cut(self: Any, encode: Any) -> Any:
            inbox, self._inbox = self._inbox, type(self._inbox)()
            made = original(self, encode)
            self._inbox = inbox
            return made

        return cut

    patches.replace(InputQueue, "cut", make)


@mutant("channel_events_lost", "events from inside are not recorded", "M4", "G1", "M3", seed=8)
def channel_events_lost(patches: Patches) -> None:
    """The cut records only references to the receive log."""

    def make(original: Any) -> Any:
        def cut(self: Any, encode: Any) -> Any:
            entered, recorded = original(self, encode)
            return entered, [run for run in recorded if run.receiver]

        return cut

    patches.replace(InputQueue, "cut", make)


@mutant("notices_recorded", "notices of this life come back in the next one", "F2", "C1", "X1", "C3", "A2", budget=300)
def notices_recorded(patches: Patches) -> None:
    """Notices concern the sends and batches of one life."""

    def make(original: Any) -> Any:
        def init(self: Any, receiver: Any, first: Any, messages: Any, events: Any, *, stored: Any) -> Any:
            original(self, receiver, first, messages, events, stored=stored or not receiver)

        return init

    patches.replace(Run, "__init__", make)


@mutant(
    "head_counted_twice", "the cut records the event that was just handled as waiting", "A3", "G1", "S9", "M3", seed=3
)
def head_counted_twice(patches: Patches) -> None:
    """After a start, the event is handled a second time."""

    def make(original: Any) -> Any:
        def cut(self: Any, encode: Any) -> Any:
            for run in self._runs:
                run.position = max(0, run.position - 1)
                break
            return original(self, encode)

        return cut

    patches.replace(InputQueue, "cut", make)


@mutant(
    "unhandled_rows_consumed",
    "a row is deleted when one of two contexts has handled it",
    "A2",
    "A3",
    "G1",
    "G8",
    "K4",
    seed=10,
)
def unhandled_rows_consumed(patches: Patches) -> None:
    """The bug takes the maximum of the contexts' positions for the minimum."""

    def consumed(queues: Any, routes: Any) -> Any:
        done = {}
        for receiver, names in routes.items():
            through = [
                queues[name].needed_from().get(receiver, queues[name].entered.get(receiver, 0) + 1) - 1
                for name in names
            ]
            done[receiver] = max(through)
        return done

    patches.replace(checkpoints, "consumed", lambda _: consumed)


@mutant("monitor_not_marked", "a monitor that handled an event is not written", "G1", "A3", "A2")
def monitor_not_marked(patches: Patches) -> None:
    """A checkpoint writes only the state that is marked as changed, and this bug loses a mark."""

    def make(original: Any) -> Any:
        def take_state(self: Any) -> Any:
            for instance in list(self._calls.changed)[1:]:
                del self._calls.changed[instance]
            return original(self)

        return take_state

    patches.replace(Context, "take_state", make)


@mutant("table_reads_untracked", "a value of a table that is changed in place is not written", "M5", "G1")
def table_reads_untracked(patches: Patches) -> None:
    """A handler may have changed a value in place after reading it, so the checkpoint must write the value."""

    def make(original: Any) -> Any:
        def init(self: Any, *arguments: Any) -> Any:
            original(self, *arguments)
            self._tracks_reads = False

        return init

    patches.replace(StateTable, "__init__", make)


@mutant(
    "living_entry_cleaned",
    "cleaning the state log drops an entry that is alive",
    "G1",
    "M5",
    "A3",
    "A2",
    "S9",
    budget=300,
)
def living_entry_cleaned(patches: Patches) -> None:
    """The last entry that is still needed is lost."""

    def make(original: Any) -> Any:
        def plan(self: Any, changes: Any, cleaned: Any) -> Any:
            made = original(self, changes, cleaned)
            survivors = sum(len(one.entries) for one in made.segments) - len(changes)
            if not survivors:
                return made
            last = made.segments[-1]
            segments = [*made.segments[:-1], msgspec.structs.replace(last, entries=last.entries[:-1])]
            return msgspec.structs.replace(made, segments=segments)

        return plan

    patches.replace(StateLog, "plan", make)


@mutant(
    "handler_dead_letters_lost", "what a handler failed on is kept nowhere", "G6", "A2", "A3", "P1", budget=200, seed=5
)
def handler_dead_letters_lost(patches: Patches) -> None:
    """The message is lost without a record."""

    def make(original: Any) -> Any:
        def take(self: Any) -> Any:
            original(self)
            return []

        return take

    patches.replace(Staging, "take_dead_letters", make)


@mutant("order_of_a_set", "a checkpoint goes through the senders in the order of a set of text", "G9")
def order_of_a_set(patches: Patches) -> None:
    """The order differs between processes, and so does the history."""

    def make(original: Any) -> Any:
        def cut(self: Any, contexts: Any, outboxes: Any, *arguments: Any, **options: Any) -> Any:
            by_name = {outbox.sender: outbox for outbox in outboxes}
            return original(self, contexts, [by_name[name] for name in set(by_name)], *arguments, **options)

        return cut

    patches.replace(Checkpoint, "cut", make)


@mutant(
    "group_commit_loses_one",
    "of requests that share a transaction the last is not written",
    "A1",
    "G1",
    "S1",
    "N1",
    "S3",
    "G3",
    "E2",
    "G7",
)
def group_commit_loses_one(patches: Patches) -> None:
    """The engine acknowledges or releases what the transaction lacks."""

    def make(original: Any) -> Any:
        def commit_waiting(self: Any) -> Any:
            store = self.store
            self.store = _ShortStore(store)
            try:
                return original(self)
            finally:
                self.store = store

        return commit_waiting

    patches.replace(Writer, "_commit_waiting", make)


class _ShortStore:
    """A store that leaves out the last of several writes."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def commit(self, number: int, writes: Any) -> None:
        """Commit all writes but the last."""
        self._store.commit(number, writes[:-1] if len(writes) > 1 else writes)

    def read_state(self, numbers: Any) -> Any:
        """Read as the real store does."""
        return self._store.read_state(numbers)
