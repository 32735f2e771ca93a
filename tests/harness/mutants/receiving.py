"""Deliberate bugs in receiving: acknowledgement, numbering, duplicate detection."""

from dataclasses import replace
from typing import Any

import msgspec

from correlator.core import admission, intake, registry
from correlator.core.binding import ContextBinding
from correlator.core.commit import IdRun
from correlator.core.dedup import DetectionPlan, DuplicateDetector
from correlator.core.intake import Intake, ReceiverState
from correlator.core.mapping import ReceiveMapping
from correlator.core.redeliveries import Redeliveries
from correlator.reliability import RECEIVING, Receiving, Reliability
from correlator.runtime import parts
from correlator.runtime.receiver import Receiver
from correlator.runtime.requests import ReceiveRequest
from correlator.runtime.restart import Restart
from correlator.runtime.targets import Delivery
from correlator.testing import memory
from correlator.testing.invariants.facts import NEVER
from tests.harness.mutants.catalogue import Patches, mutant


@mutant("acknowledged_before_commit", "the broker is told before the batch is in the store", "A1", "A2", "E2", "E3")
def acknowledged_before_commit(patches: Patches) -> None:
    """If the engine dies before the commit, the messages are lost."""

    def make(original: Any) -> Any:
        def store(self: Any, mapped: Any, writer: Any) -> Any:
            self._source.acknowledge(self.intake.batch.tokens)
            original(self, mapped, writer)

        return store

    patches.replace(Receiver, "_store", make)


@mutant(
    "memory_before_commit", "the detector remembers ids before their commit, which may fail", "A1", "A2", "E2", seed=10
)
def memory_before_commit(patches: Patches) -> None:
    """If the commit fails, the redelivered messages are taken for duplicates and lost."""

    def make(original: Any) -> Any:
        def plan(self: Any, group: Any) -> Any:
            planned = original(self, group)
            planned.apply()
            return planned._replace(apply=lambda: None)

        return plan

    patches.replace(ReceiveRequest, "plan", make)


@mutant("ids_not_persisted", "ids are remembered in memory alone", "E1", "E6")
def ids_not_persisted(patches: Patches) -> None:
    """After a start, redelivered messages are handled again."""
    _change_write(patches, ids=None, rewritten=(), forgotten=())


@mutant("ids_not_reloaded", "a start does not read the ids", "A4", "E1", "E6")
def ids_not_reloaded(patches: Patches) -> None:
    """After a start, redelivered messages are handled again."""
    patches.replace(DuplicateDetector, "restore", lambda _: lambda self, segments, confirmed: None)


@mutant("no_duplicate_detection", "nothing is a duplicate", "E1", "E8")
def no_duplicate_detection(patches: Patches) -> None:
    """Every redelivered message is handled again."""
    patches.replace(
        DuplicateDetector, "_duplicates", lambda _: lambda self, candidates, seen: ([], [], candidates.digests)
    )


@mutant("duplicates_in_a_batch_unseen", "a batch is compared with earlier ones only", "E1", "E8")
def duplicates_in_a_batch_unseen(patches: Patches) -> None:
    """A repeat within one batch is handled twice."""

    def duplicates(self: Any, candidates: Any, seen: Any) -> Any:
        found = [at for at, one in enumerate(candidates.ids) if one and (one in self._entries or one in seen)]
        return found, [], candidates.digests

    patches.replace(DuplicateDetector, "_duplicates", lambda _: duplicates)


@mutant("ids_in_another_commit", "ids are written one transaction after their messages", "E6")
def ids_in_another_commit(patches: Patches) -> None:
    """If the engine dies between the two commits, redelivered messages are handled again."""

    def make(original: Any) -> Any:
        def plan(self: Any, group: Any) -> Any:
            planned = original(self, group)
            domains = group.domains
            late, domains.late = getattr(domains, "late", None), planned.write.ids
            return planned._replace(write=msgspec.structs.replace(planned.write, ids=late))

        return plan

    patches.replace(ReceiveRequest, "plan", make)


@mutant("window_too_small", "windows are smaller than configured", "E1", budget=400, seed=18)
def window_too_small(patches: Patches) -> None:
    """Duplicates within the configured windows are handled again."""

    def make(original: Any) -> Any:
        def init(self: Any, domain: Any, per_source_window_size: Any, expiry_time: Any) -> Any:
            original(self, domain, per_source_window_size // 4, expiry_time / 10)

        return init

    patches.replace(DuplicateDetector, "__init__", make)


@mutant("batch_in_reverse", "a batch enters the queues in reverse", "A4", "S9", "BE3")
def batch_in_reverse(patches: Patches) -> None:
    """Contexts handle messages of one receiver in the wrong order."""

    def make(original: Any) -> Any:
        def deliver(self: Any, messages: Any, events: Any) -> Any:
            original(self, list(reversed(messages)), list(reversed(events)))

        return deliver

    patches.replace(Delivery, "deliver", make)


@mutant("number_used_again", "numbers of the receive log begin anew once its rows are deleted", "N1", "A2", seed=4)
def number_used_again(patches: Patches) -> None:
    """The next number is computed from the rows that are left."""

    def make(original: Any) -> Any:
        def numbers(self: Any, settings: Any) -> Any:
            found = original(self, settings)
            return msgspec.structs.replace(found, next_number=self._receive_log.last_number(settings.id) + 1)

        return numbers

    patches.replace(Restart, "_numbers", make)


@mutant("pins_ignored", "ids are forgotten though their acknowledgement is in doubt", "E1", "E9")
def pins_ignored(patches: Patches) -> None:
    """A run shows it only if windows are smaller than the number of messages that may be redelivered."""

    def make(original: Any) -> Any:
        def enter(self: Any, stored: Any, *, pinned: Any, all_new: Any = False) -> Any:
            del pinned
            original(self, stored, pinned=False, all_new=all_new)

        return enter

    patches.replace(DuplicateDetector, "_enter", make)


@mutant(
    "second_loss_forgets_the_first",
    "a second loss forgets what the first left in doubt",
    "E9",
    "E1",
    budget=1000,
    seed=1167,
)
def second_loss_forgets_the_first(patches: Patches) -> None:
    """The number of messages that the last loss concerns ends the doubt about the messages of all losses."""

    def make(original: Any) -> Any:
        def lost(self: Any, under_way: int, last_batch: int) -> None:
            before, self._in_doubt = self._in_doubt, 0
            original(self, under_way, last_batch)
            self._in_doubt = self._in_doubt or before

        return lost

    patches.replace(Redeliveries, "lost", make)


@mutant(
    "doubts_of_neighbours_unknown",
    "what other receivers of a queue may give back is not counted with",
    "E9",
    "E1",
    budget=400,
    seed=705,
)
def doubts_of_neighbours_unknown(patches: Patches) -> None:
    """Redelivered messages of other receivers end the doubt about messages of this receiver."""
    patches.replace(parts.Parts, "_beside", lambda _: lambda self, settings: ())


@mutant(
    "repeats_settle_at_once",
    "the first batch after a loss ends the doubt of all that was lost",
    "E9",
    "E1",
    budget=400,
    seed=31,
)
def repeats_settle_at_once(patches: Patches) -> None:
    """Messages that are redelivered in later batches are then handled again."""

    def make(original: Any) -> Any:
        def acknowledged(self: Any, batch: int, size: int, now: float) -> None:
            self.awaited = 0
            original(self, batch, size, now)

        return acknowledged

    patches.replace(Redeliveries, "acknowledged", make)


@mutant("late_losses_unknown", "a broker is taken to notice a lost line at once", "E9", "E1", seed=205)
def late_losses_unknown(patches: Patches) -> None:
    """Newer messages end the doubt about messages that the broker still assigns to the lost consumer."""

    def make(original: Any) -> Any:
        def init(self: Any, features: Any, **fields: Any) -> None:
            original(self, replace(features, notices_loss_within_s=0.0), **fields)

        return init

    patches.replace(Redeliveries, "__init__", make)


@mutant("repeat_not_renewed", "an id that is seen again keeps its old place in the windows", "E1", "E6", budget=1500)
def repeat_not_renewed(patches: Patches) -> None:
    """The id is evicted as early as if it had not been seen again."""

    def make(original: Any) -> Any:
        def plan(self: Any, candidates: Any, now: Any, after: Any = ()) -> Any:
            made: DetectionPlan = original(self, candidates, now, after)
            if made.segment is None or not made.duplicates:
                return made
            run = made.segment.runs[0]
            new = [at for at, one in enumerate(run.ids) if one not in self._entries]
            kept = msgspec.structs.replace(made.segment, runs=[_at(run, new)])
            return msgspec.structs.replace(made, segment=kept if new else None)

        return plan

    patches.replace(DuplicateDetector, "plan", make)


@mutant("survivor_lost", "a rewritten segment of ids loses one that is alive", "E1", "E6", budget=2500, seed=230)
def survivor_lost(patches: Patches) -> None:
    """A run shows it only after a crash, within the windows."""

    def make(original: Any) -> Any:
        def survivors(self: Any, number: Any) -> Any:
            segment = original(self, number)
            run = segment.runs[-1]
            fewer = _at(run, list(range(len(run.ids) - 1)))
            return msgspec.structs.replace(segment, runs=[*segment.runs[:-1], fewer])

        return survivors

    patches.replace(DuplicateDetector, "_survivors", make)


@mutant("ids_never_expire", "ids are never forgotten", "E7", budget=400, seed=8)
def ids_never_expire(patches: Patches) -> None:
    """The number of remembered ids grows beyond its bound."""
    patches.replace(DuplicateDetector, "_expire", lambda _: lambda self: None)


@mutant("missing_id_is_an_id", "messages without id are repeats of one another", "E3", "A1", "A2", seed=3)
def missing_id_is_an_id(patches: Patches) -> None:
    """Without an id, a message must never be taken for a duplicate."""

    def make(original: Any) -> Any:
        def duplicates(self: Any, candidates: Any, seen: Any) -> Any:
            found, *rest = original(self, candidates, seen)
            without = [at for at, one in enumerate(candidates.ids) if not one]
            return sorted({*found, *without[1:]}), *rest

        return duplicates

    patches.replace(DuplicateDetector, "_duplicates", make)


@mutant("one_domain_for_all", "all receivers share one domain", "E2", "E4", "A1")
def one_domain_for_all(patches: Patches) -> None:
    """Equal ids of independent systems are then taken for duplicates."""
    patches.replace(registry, "default_domain", lambda _: lambda settings, destinations: "memory:orders")


@mutant("duplicates_unacknowledged", "a batch of duplicates alone is not acknowledged", "G7", "E5", "A5")
def duplicates_unacknowledged(patches: Patches) -> None:
    """The duplicates stay in flight and use up the room of the receiver."""

    def make(original: Any) -> Any:
        def committed(self: Any) -> Any:
            if self._stored is not None and self._stored[1].segment is None and self._stored[1].duplicates:
                self.intake.batch.tokens.clear()
            return original(self)

        return committed

    patches.replace(Receiver, "_committed", make)


@mutant(
    "dead_letter_not_persisted",
    "a message that cannot be mapped is acknowledged and kept nowhere",
    "A1",
    "C7",
    "E3",
    "G6",
)
def dead_letter_not_persisted(patches: Patches) -> None:
    """The message is lost without a record."""
    _change_write(patches, dead_letters=())


@mutant("id_of_a_dead_letter_lost", "the id of a message that cannot be mapped is stored nowhere", "E6", "E2", "E5")
def id_of_a_dead_letter_lost(patches: Patches) -> None:
    """If the engine crashes, the redelivered message becomes a second dead letter, and a replay sends both."""

    def make(original: Any) -> Any:
        def failed(self: Any, message: Any, error: Any, engine_time: float) -> Any:
            mapped = original(self, message, error, engine_time)
            return msgspec.structs.replace(mapped, ids=[""] * len(mapped.ids))

        return failed

    patches.replace(ReceiveMapping, "_failed", make)


@mutant("acknowledged_unasked", "an APP_CONTROLLED batch is acknowledged as it is delivered", "C1", "X1")
def acknowledged_unasked(patches: Patches) -> None:
    """The broker deletes messages before the application has acknowledged them."""
    mode = Receiving(stored=False, deduplicated=False, acknowledged_by_application=False)
    _change_mode(patches, Reliability.APP_CONTROLLED, mode)


@mutant("window_ignored", "a receiver with flow control fills its batches whatever its window", "W1")
def window_ignored(patches: Patches) -> None:
    """The receiver delivers more messages than the application has allowed."""
    patches.replace(Intake, "room", lambda _: property(lambda self: self.batch.room))


@mutant("window_outlives_the_engine", "a start takes it that what was allowed before is allowed for ever", "W1", seed=4)
def window_outlives_the_engine(patches: Patches) -> None:
    """A start must begin with a closed window, since a window is not part of the state."""

    def make(original: Any) -> Any:
        def init(self: Any, *args: Any, **fields: Any) -> None:
            original(self, *args, **fields)
            if self.next_number > 1:
                self._allowed_through = NEVER

        return init

    patches.replace(Intake, "__init__", make)


@mutant("no_marker_at_start", "a receiver with flow control says nothing before its first batch", "G7")
def no_marker_at_start(patches: Patches) -> None:
    """The application gets no marker, so it never opens the window."""

    def make(original: Any) -> Any:
        def mark(self: Any) -> None:
            if self._intake.state is not ReceiverState.DISCONNECTED:
                original(self)

        return mark

    patches.replace(Delivery, "mark", make)


@mutant("no_marker_behind_batches", "a receiver with flow control says how far it is only once", "G7")
def no_marker_behind_batches(patches: Patches) -> None:
    """The application gets no further marker, so it never renews the window after it is used up."""

    def make(original: Any) -> Any:
        def mark(self: Any) -> None:
            if self._intake.state is ReceiverState.DISCONNECTED:
                original(self)

        return mark

    patches.replace(Delivery, "mark", make)


@mutant("grant_unheard", "a receiver that waits for its window is not woken when it grows", "G7")
def grant_unheard(patches: Patches) -> None:
    """The receiver waits although the application allows more messages."""

    def grant(self: Any, through: int) -> None:
        self.intake.allow(through)

    patches.replace(Receiver, "grant", lambda _: grant)


@mutant("best_effort_stored", "a BEST_EFFORT receiver writes its messages to the store", "BE1", "G8")
def best_effort_stored(patches: Patches) -> None:
    """BEST_EFFORT receivers must write nothing to the store."""
    mode = Receiving(stored=True, deduplicated=False, acknowledged_by_application=False)
    _change_mode(patches, Reliability.BEST_EFFORT, mode)


@mutant("receives_while_suspended", "a suspended receiver goes on receiving", "C2", "C3", "A5", "C1", "X1", seed=14)
def receives_while_suspended(patches: Patches) -> None:
    """The batch of which the application was notified then grows."""

    def make(original: Any) -> Any:
        def act(self: Any) -> Any:
            batch = self.intake.batch
            if self.intake.suspended() is not None and batch.room:
                chunk = self._source.receive(batch.room, 0.0)
                if chunk.messages:
                    batch.add(chunk.messages, chunk.tokens, self._clock.monotonic(), self._clock.wall())
            return original(self)

        return act

    patches.replace(Receiver, "_act", make)


@mutant("resumed_twice", "the application may acknowledge at any time", "C6", "C1")
def resumed_twice(patches: Patches) -> None:
    """The second acknowledgement must be refused."""

    def acknowledge(self: Any, monitor: Any, receiver: Any) -> Any:
        del monitor
        self._calls.add_effect(lambda resume: resume(), self._routes.resume[receiver](self._context))

    def resume(self: Any, context: Any) -> Any:
        del context
        return lambda: self._resume(self.intake.batch)

    patches.replace(ContextBinding, "acknowledge_and_resume", lambda _: acknowledge)
    patches.replace(Receiver, "resume", lambda _: resume)


@mutant(
    "resume_survives_the_connection",
    "a call made before the connection was lost acknowledges the next batch",
    "C1",
    "X1",
    budget=600,
    seed=15,
)
def resume_survives_the_connection(patches: Patches) -> None:
    """Against invariant C5: such a call must acknowledge nothing."""

    def make(original: Any) -> Any:
        def lost(self: Any, error: Any) -> Any:
            delay = original(self, error)
            self.intake.resume(self.intake.batch)
            return delay

        return lost

    patches.replace(Receiver, "_lost", make)


@mutant("batch_too_large", "more is received than the batch size allows", "A5")
def batch_too_large(patches: Patches) -> None:
    """The source asks the broker for more messages than `max_batch_size` allows."""

    def make(original: Any) -> Any:
        def init(self: Any, broker: Any, receiver: Any) -> Any:
            original(self, broker, receiver)
            self._max_held += 3

        return init

    def receive(original: Any) -> Any:
        return lambda self, max_messages, timeout_s: original(self, max_messages + 3, timeout_s)

    patches.replace(memory.MemorySource, "__init__", make)
    patches.replace(memory.MemorySource, "receive", receive)


@mutant(
    "duplicates_by_state_of_entry", "an id that left its source window is forgotten at once", "E1", budget=800, seed=16
)
def duplicates_by_state_of_entry(patches: Patches) -> None:
    """The id is still in the window by time, which this bug does not look into."""

    def make(original: Any) -> Any:
        def duplicates(self: Any, candidates: Any, seen: Any) -> Any:
            found, *rest = original(self, candidates, seen)
            windows = {entry.id for window in self._windows.values() for entry in window.queue if entry.place == 0}
            return [at for at in found if candidates.ids[at] in windows or candidates.ids[at] in seen], *rest

        return duplicates

    patches.replace(DuplicateDetector, "_duplicates", make)


@mutant("selector_ignored", "a receiver takes what its selector does not match", "A7", seed=9)
def selector_ignored(patches: Patches) -> None:
    """It concerns messages of a topic; the broker applies the selector of a queue."""
    patches.replace(parts, "selection", lambda _: lambda receiver, where, *, selects, shares: None)


@mutant("selector_takes_the_rest", "a receiver drops what its selector matches", "A1", "A2", "G6", seed=9)
def selector_takes_the_rest(patches: Patches) -> None:
    """It concerns messages of a topic; the broker applies the selector of a queue."""

    def make(original: Any) -> Any:
        def wanted(self: Any, messages: Any, wall_ms: float) -> Any:
            selector = self._selector
            if selector is None or not self._settings.destination.startswith("topic:"):
                return original(self, messages, wall_ms)
            return [message for message in messages if not selector.matches(message)]

        return wanted

    patches.replace(Intake, "_wanted", make)


@mutant("unselected_not_acknowledged", "a batch of which nothing is selected is taken and forgotten", "G7", seed=12)
def unselected_not_acknowledged(patches: Patches) -> None:
    """The broker would redeliver the messages at each reconnect."""

    def make(original: Any) -> Any:
        def take(self: Any) -> Any:
            waited = original(self)
            if self.intake._selector is not None and not self.mapper._messages:
                self.intake.batch = self.intake._new_batch()
            return waited

        return take

    patches.replace(Receiver, "_take_chunk", make)


def _at(run: IdRun, positions: list[int]) -> IdRun:
    return IdRun(
        run.time,
        [run.ids[at] for at in positions],
        [run.sources[at] for at in positions],
        [run.digests[at] for at in positions],
        run.held,
    )


def _change_write(patches: Patches, **fields: Any) -> None:
    def make(original: Any) -> Any:
        def plan(self: Any, group: Any) -> Any:
            planned = original(self, group)
            return planned._replace(write=msgspec.structs.replace(planned.write, **fields))

        return plan

    patches.replace(ReceiveRequest, "plan", make)


def _change_mode(patches: Patches, reliability: Reliability, mode: Receiving) -> None:
    changed = {**RECEIVING, reliability: mode}
    for module in (intake, admission, parts):
        patches.replace(module, "RECEIVING", lambda _: changed)
