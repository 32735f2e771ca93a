"""Deliberate bugs of a start whose configuration differs from that of the last life."""

from typing import Any

import msgspec

from correlator.core import delivery, registry, steps
from correlator.core.classnames import ClassNames
from correlator.core.commit import OutboundSegment
from correlator.core.differences import Verdict
from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue
from correlator.core.unmapped import Unmapped
from correlator.runtime import part_changes, restart
from correlator.runtime.engine import Engine
from tests.harness.mutants.catalogue import Patches, mutant


@mutant("whole_log_for_a_new_context", "a new context is given all that slower ones still need", "K1", "K5", seed=18)
def whole_log_for_a_new_context(patches: Patches) -> None:
    """The start ignores the record of the number after which the context begins."""
    patches.replace(InputQueue, "begin", lambda _: lambda self, receiver, after: None)


@mutant(
    "begins_anew_at_each_start", "a context is given only what comes in after the last start", "K1", "K5", "A2", "A3"
)
def begins_anew_at_each_start(patches: Patches) -> None:
    """The start ignores the registry's record of the number after which the context begins."""

    def make(original: Any) -> Any:
        def compare(endpoint: Any, layout: Any, received: Any) -> Any:
            for one in original(endpoint, layout, received):
                last = received.last_number(endpoint.id)
                yield one if one.after is None else msgspec.structs.replace(one, after=last)

        return compare

    patches.replace(delivery, "_compare", make)


@mutant(
    "waiting_messages_left_behind",
    "a receiver is taken from a context that has not handled all of it",
    "K1",
    "K5",
    seed=8,
)
def waiting_messages_left_behind(patches: Patches) -> None:
    """The start must be refused, but the bug does not ask for unhandled messages."""

    def dropped(endpoint: Any, context: Any, layout: Any, unhandled: Any) -> Any:
        return delivery._difference(endpoint, context, Verdict.CHANGED)

    patches.replace(delivery, "_compare_dropped", lambda _: dropped)


@mutant("domain_by_logical_name", "a logical destination is a domain, wherever it leads", "K2")
def domain_by_logical_name(patches: Patches) -> None:
    """Ids from the destination to which the name has led before are taken for ids of the present destination."""
    patches.replace(registry, "default_domain", lambda original: lambda settings, destinations: original(settings, {}))


@mutant(
    "send_follows_its_logical_name",
    "a stored send goes where its logical destination leads when it leaves",
    "K3",
    budget=400,
    seed=200,
)
def send_follows_its_logical_name(patches: Patches) -> None:
    """The sender ignores the destination in the stored message."""

    def placed(self: Any, segment: Any) -> Any:
        return OutboundSegment(segment.sender, segment.first, segment.messages, self.destination)

    patches.replace(Outbox, "_placed_segment", lambda _: placed)


@mutant(
    "state_by_the_place_of_a_step", "a keyed step goes on with what another definition of it has left", "K6", seed=148
)
def state_by_the_place_of_a_step(patches: Patches) -> None:
    """The fingerprints of the old and the new definition are taken for equal."""
    patches.replace(steps, "changes_between", lambda _: lambda before, after: [])


@mutant("state_not_discarded", "state that was given up stays", "K6", seed=148)
def state_not_discarded(patches: Patches) -> None:
    """The start accepts the user's decision but does not write it."""
    patches.replace(restart, "changes_of", lambda _: lambda differences, state: [])


@mutant("written_before_compared", "a start writes before it compares", "K4")
def written_before_compared(patches: Patches) -> None:
    """The start takes the next epoch before it compares the configuration with the store."""

    def open_store(self: Any) -> Any:
        if self._store is None:
            return self._restart(restart.NOTHING)
        recovered = self._store.read()
        self._store.take_over(recovered)
        return self._restart(recovered)

    patches.replace(Engine, "_open_store", lambda _: open_store)


@mutant(
    "letter_of_each_context",
    "a stored message that no longer maps is a dead letter of each context",
    "K7",
    budget=2500,
    seed=2142,
)
def letter_of_each_context(patches: Patches) -> None:
    """A dead letter is kept until all contexts have passed its message, and each writes it."""

    def make(original: Any) -> Any:
        def cut(self: Any, queues: Any, consumed: Any) -> Any:
            letters = dict(self._letters)
            done = original(self, queues, consumed)
            self._letters.update(letters)
            return done

        return cut

    patches.replace(Unmapped, "cut", make)


@mutant("settings_of_code_unchecked", "code adds a receiver with settings that no start accepts", "G8", "K4", seed=5)
def settings_of_code_unchecked(patches: Patches) -> None:
    """The registry then holds a receiver for which every later start is refused."""
    patches.replace(part_changes, "check_part_settings", lambda _: lambda *_: ())


@mutant("state_of_a_hidden_class", "a monitor is stored whose class no start can import", "G7", "G8")
def state_of_a_hidden_class(patches: Patches) -> None:
    """The handler must fail at the call, but the store takes what no later start can read."""
    patches.replace(ClassNames, "check", lambda _: lambda self, monitor, cls: None)
