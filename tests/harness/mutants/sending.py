"""Deliberate bugs in sending: numbers, order, confirms, notices of flushes."""

from typing import Any

import msgspec

from correlator.core import outbox as outboxes
from correlator.core.binding import ContextBinding
from correlator.core.commit import OutboundSegment
from correlator.core.dispatch import Dispatcher
from correlator.core.outbox import FlushRequest, Outbox
from correlator.errors import ConnectionLost
from correlator.reliability import SENDING, Reliability, Sending
from correlator.runtime.sender import Sender
from correlator.testing.memory import MemorySink
from tests.harness.mutants.catalogue import Patches, mutant


@mutant("sent_at_once", "a reliable send leaves before any checkpoint", "S1", "S3", "S9", "S5", "G5", "G8")
def sent_at_once(patches: Patches) -> None:
    """If the engine dies before the checkpoint, the handler runs again and its send leaves twice."""

    def make(original: Any) -> Any:
        def send(self: Any, monitor: Any, event: Any, to: Any, *details: Any) -> Any:
            original(self, monitor, event, to, *details)
            outbox = self._routes.outboxes.get(to)
            if outbox is not None and outbox.stored:
                message = self._calls._effects[-1][1]
                first = outbox._next_sequence + self._staging.count(to)
                outbox._waiting.append((OutboundSegment(to, first, [message], outbox.destination), 0))

        return send

    patches.replace(ContextBinding, "send", make)


@mutant("number_not_persisted", "the next number of a sender is not in the checkpoint", "S3", "S4", "S9", seed=4)
def number_not_persisted(patches: Patches) -> None:
    """After a start, the sender gives a number that an earlier message has."""

    def make(original: Any) -> Any:
        def restore(self: Any, cut: Any, segments: Any) -> Any:
            original(self, cut, segments)
            self._next_sequence = max(1, cut.next_sequence - 1)

        return restore

    patches.replace(Outbox, "restore", make)


@mutant("deleted_before_sent", "a send is deleted by the checkpoint after the one that released it", "S7", "S2", "G7")
def deleted_before_sent(patches: Patches) -> None:
    """If the engine dies before the broker's confirm, the send is lost."""

    def make(original: Any) -> Any:
        def cut(self: Any, staged: Any) -> Any:
            through = self._next_sequence - 1
            made, segment, dead = original(self, staged)
            return msgspec.structs.replace(made, confirmed_through=through), segment, dead

        return cut

    patches.replace(Outbox, "cut", make)


@mutant("refusal_ignored", "a refused send counts as confirmed", "S7", "S2", "F1", "X1", "B1")
def refusal_ignored(patches: Patches) -> None:
    """The engine neither tries the send again nor keeps a dead letter of it."""
    _change_sink(patches, lambda results: [None] * len(results))


@mutant(
    "loss_ignored", "a batch whose connection was lost counts as confirmed", "S7", "S2", "S3", "F1", "X1", "B1", seed=10
)
def loss_ignored(patches: Patches) -> None:
    """The engine does not send the batch again, though the broker may have stored nothing of it."""

    def make(original: Any) -> Any:
        def send(self: Any, batch: Any) -> Any:
            try:
                original(self, batch)
            except ConnectionLost:
                if not batch.refusals:
                    self.outbox.settle(batch.sends, [])
                raise

        return send

    patches.replace(Sender, "_send", make)


@mutant("new_id_on_resend", "a send that is repeated gets another id", "S4", "S9", "S3", "S6", seed=10)
def new_id_on_resend(patches: Patches) -> None:
    """The broker and consumers cannot recognise the second message as a repeat."""

    def make(original: Any) -> Any:
        def lost(self: Any, error: Any) -> Any:
            self.outbox.source += "'"
            return original(self, error)

        return lost

    patches.replace(Sender, "_lost", make)


@mutant("sent_in_reverse", "a batch leaves in reverse", "S5", "S6", "F1", "X1")
def sent_in_reverse(patches: Patches) -> None:
    """Messages of one sender reach the broker in another order than the handlers sent them."""

    def make(original: Any) -> Any:
        return lambda self, batch: list(reversed(original(self, list(reversed(batch)))))

    patches.replace(MemorySink, "send", make)


@mutant("flushed_on_handover", "a flush is notified when sends are handed over", "F1", "X1")
def flushed_on_handover(patches: Patches) -> None:
    """The notice says that the broker has confirmed sends which are still in flight."""

    def take_flush(self: Any) -> Any:
        for position, item in enumerate(self._live):
            if isinstance(item, FlushRequest):
                del self._live[position]
                return item
        return None

    patches.replace(Outbox, "take_flush", lambda _: take_flush)


@mutant("flush_overtakes", "a flush request enters before the sends that wait", "F1", "X1", "F3")
def flush_overtakes(patches: Patches) -> None:
    """The request is put at the front of the queue."""

    def make(original: Any) -> Any:
        def enqueue(self: Any, item: Any) -> Any:
            if isinstance(item, FlushRequest):
                self._live.appendleft(item)
            else:
                original(self, item)

        return enqueue

    patches.replace(Outbox, "enqueue", make)


@mutant("flush_notified_twice", "a notice comes twice", "F2", "C1", "C6")
def flush_notified_twice(patches: Patches) -> None:
    """An application that acknowledges at a notice does so twice."""

    def make(original: Any) -> Any:
        def send_next(self: Any) -> Any:
            if self.outbox._live and isinstance(self.outbox._live[0], FlushRequest):
                self._flushed(self.settings.id, self.outbox._live[0], 0)
            return original(self)

        return send_next

    patches.replace(Sender, "_send_next", make)


@mutant("flush_lost", "a flush request behind which nothing is sent is never notified", "F4", "G7", "C4", seed=6)
def flush_lost(patches: Patches) -> None:
    """The application waits for the notice for ever."""

    def make(original: Any) -> Any:
        def take_flush(self: Any) -> Any:
            if len(self._live) == 1 and self._settled_through == 0 and isinstance(self._live[0], FlushRequest):
                self._live.clear()
            return original(self)

        return take_flush

    patches.replace(Outbox, "take_flush", make)


@mutant("flush_dropped_at_a_loss", "a lost connection drops the flush requests that wait", "F4", seed=59)
def flush_dropped_at_a_loss(patches: Patches) -> None:
    """The application gets no notice of them in this life."""

    def make(original: Any) -> Any:
        def lost(self: Any, error: Any) -> Any:
            live = self.outbox._live
            kept = [item for item in live if not isinstance(item, FlushRequest)]
            live.clear()
            live.extend(kept)
            return original(self, error)

        return lost

    patches.replace(Sender, "_lost", make)


@mutant(
    "neighbour_of_a_refused_one_given_up",
    "the refusal of one send is taken for that of the next",
    "S7",
    "S2",
    "S3",
    "S5",
)
def neighbour_of_a_refused_one_given_up(patches: Patches) -> None:
    """The flight goes on, but the wrong message is tried again and becomes the dead letter."""
    _change_results(patches, lambda results: [results[-1], *results[:-1]])


@mutant("flight_fails_with_one", "all sends behind a refused one of the same flight count as refused", "S8", "S7")
def flight_fails_with_one(patches: Patches) -> None:
    """Messages that the broker has stored are sent again, or become dead letters."""

    def change(results: Any) -> Any:
        refused = next((one for one in results if one is not None), None)
        at = results.index(refused) if refused is not None else len(results)
        return [*results[:at], *([refused] * (len(results) - at))]

    _change_results(patches, change)


@mutant("refused_one_skipped", "a flight with a refused send settles without it", "S7", "S3", "S2", "B1", "F1", "X1")
def refused_one_skipped(patches: Patches) -> None:
    """The refused message is neither tried again nor kept as a dead letter."""

    def make(original: Any) -> Any:
        def settle(self: Any, batch: Any, results: Any, *times: Any) -> Any:
            return original(self, batch, [None] * len(results) if self.outbox.outstanding > 1 else results, *times)

        return settle

    patches.replace(Dispatcher, "settle", make)


@mutant("outbox_never_pruned", "confirmed sends stay in the store", "G7")
def outbox_never_pruned(patches: Patches) -> None:
    """The outbox in the store grows without bound."""

    def make(original: Any) -> Any:
        def cut(self: Any, staged: Any) -> Any:
            made, segment, dead = original(self, staged)
            return msgspec.structs.replace(made, confirmed_through=0), segment, dead

        return cut

    patches.replace(Outbox, "cut", make)


@mutant(
    "given_up_after_losses", "a send is given up after three lost connections", "S7", "S2", "X1", "F1", "B1", seed=10
)
def given_up_after_losses(patches: Patches) -> None:
    """Against rule A2.12: a lost connection never uses up the tries of a send."""

    def make(original: Any) -> Any:
        def lost(self: Any, error: Any) -> Any:
            batch = self.outbox.take(self.settings.max_batch_size)
            if self.counters.connection_errors % 3 == 2 and batch:
                self.outbox.settle(batch, [])
            return original(self, error)

        return lost

    patches.replace(Sender, "_lost", make)


@mutant("dead_sends_not_persisted", "a send that was given up is deleted without a dead letter", "S7", budget=200)
def dead_sends_not_persisted(patches: Patches) -> None:
    """Against rule Z7: a send that is given up leaves a dead letter."""

    def make(original: Any) -> Any:
        def cut(self: Any, staged: Any) -> Any:
            made, segment, _ = original(self, staged)
            return made, segment, []

        return cut

    patches.replace(Outbox, "cut", make)


@mutant(
    "dead_sends_forgotten_early",
    "dead letters that arose after the cut are dropped with those in it",
    "S7",
    budget=1500,
    seed=39,
)
def dead_sends_forgotten_early(patches: Patches) -> None:
    """A sender may give up further sends between the cut of a checkpoint and its commit."""
    patches.replace(Outbox, "forget_settled", lambda _: lambda self, cut: self._dead.clear())


@mutant("best_effort_staged", "BEST_EFFORT sends wait for a checkpoint and enter the store", "B3", "S4", "B2", "G7")
def best_effort_staged(patches: Patches) -> None:
    """BEST_EFFORT sends must leave at once and write nothing to the store."""
    changed = {**SENDING, Reliability.BEST_EFFORT: Sending(stored=True, stamps_id=True)}
    patches.replace(outboxes, "SENDING", lambda _: changed)


@mutant(
    "sends_skipped_behind_a_batch",
    "a batch that ends inside a segment skips the rest of it",
    "S2",
    "S3",
    "S7",
    "G7",
    "S9",
)
def sends_skipped_behind_a_batch(patches: Patches) -> None:
    """The sender loses its position within a segment of the outbox."""

    def make(original: Any) -> Any:
        def settle(self: Any, batch: Any, dead: Any, refused: Any = ()) -> Any:
            before = len(self._waiting)
            original(self, batch, dead, refused)
            if self.stored and before and len(self._waiting) == before and len(batch) > 1:
                segment, _ = self._waiting.popleft()
                self._taken_through = segment.first + len(segment.messages) - 1
                self._advance(())

        return settle

    patches.replace(Outbox, "settle", make)


@mutant("sender_not_woken", "nobody tells a sender that sends were released", "G7")
def sender_not_woken(patches: Patches) -> None:
    """The sends wait until something else wakes the sender."""

    def make(original: Any) -> Any:
        def step(self: Any) -> Any:
            delay = original(self)
            self._woken.clear()
            self.wake = lambda: None
            return delay

        return step

    patches.replace(Sender, "step", make)


def _change_results(patches: Patches, change: Any) -> None:
    def make(original: Any) -> Any:
        return lambda self, batch: change(list(original(self, batch)))

    patches.replace(MemorySink, "send", make)


def _change_sink(patches: Patches, change: Any) -> None:
    def make(original: Any) -> Any:
        def send(self: Any, batch: Any) -> Any:
            sink = self._sink
            self._sink = _ChangedSink(sink, change)
            try:
                original(self, batch)
            finally:
                self._sink = sink

        return send

    patches.replace(Sender, "_send", make)


class _ChangedSink:
    """A sink whose results are changed."""

    def __init__(self, sink: Any, change: Any) -> None:
        self._sink = sink
        self._change = change

    def send(self, batch: Any) -> Any:
        """Send, and change the results of the broker."""
        return self._change(self._sink.send(batch))
