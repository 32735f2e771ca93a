"""Deliberate bugs in expressions and subscriptions: what an attempt has seen, when it ends, how it is stored."""

from typing import Any

import msgspec

from correlator.core.attempts import Attempts
from correlator.core.expressions import Plan
from correlator.core.loaded import LoadedMonitors
from tests.harness.mutants.catalogue import Patches, mutant


@mutant("attempts_not_stored", "a checkpoint leaves out attempts at expressions", "M7", "M8", "G1")
def attempts_not_stored(patches: Patches) -> None:
    """A start restores only the listeners themselves."""

    def make(original: Any) -> Any:
        return lambda self: [entry for entry in original(self) if b"." not in entry.key]

    patches.replace(Attempts, "take_changes", make)


@mutant("ended_attempts_stay", "an attempt that has ended stays in the store", "M7", "M8", "G1")
def ended_attempts_stay(patches: Patches) -> None:
    """A start restores the attempt, and its expression becomes true a second time."""

    def make(original: Any) -> Any:
        return lambda self: [entry for entry in original(self) if entry.value is not None]

    patches.replace(Attempts, "take_changes", make)


@mutant(
    "progress_not_noted", "a step of an attempt that has begun is not part of the next checkpoint", "M7", "M8", "G1"
)
def progress_not_noted(patches: Patches) -> None:
    """A start restores the attempt as it was before the step."""

    def make(original: Any) -> Any:
        def go_on(self: Any, attempt: Any, progress: Any) -> None:
            if attempt.stored:
                attempt.progress = progress
                self._arm(attempt)
            else:
                original(self, attempt, progress)

        return go_on

    patches.replace(Attempts, "_go_on", make)


@mutant("attempt_goes_on_when_true", "an attempt whose expression was true waits on", "M7", "M8", "G7")
def attempt_goes_on_when_true(patches: Patches) -> None:
    """The attempt is true again at the next event of the kind, or without end if a clock makes it true."""

    def make(original: Any) -> Any:
        def complete(self: Any, attempt: Any) -> None:
            if attempt.progress.due:
                original(self, attempt)

        return complete

    patches.replace(Attempts, "_complete", make)


@mutant(
    "attempt_numbers_used_again", "after a start, attempts get the numbers of living ones", "M7", "M8", "G1", seed=8
)
def attempt_numbers_used_again(patches: Patches) -> None:
    """One attempt overwrites another in the store."""

    def make(original: Any) -> Any:
        def restore(self: Any, instance: Any, specs: Any, resolve: Any, stored: Any) -> Any:
            missing = original(self, instance, specs, resolve, stored)
            instance.next_attempt = 1
            return missing

        return restore

    patches.replace(Attempts, "restore", make)


@mutant("clocks_begin_anew", "the clocks of an attempt begin anew with a start", "M8", "G1", "G2", seed=4)
def clocks_begin_anew(patches: Patches) -> None:
    """The store does not hold the time at which a clock ends."""

    def make(original: Any) -> Any:
        def decoded(self: Any, listener: Any, kept: Any) -> Any:
            late = {
                key: msgspec.structs.replace(one, due={part: due + 0.2 for part, due in one.due.items()})
                for key, one in kept.items()
            }
            original(self, listener, late)

        return decoded

    patches.replace(Attempts, "_restore_listener", make)


@mutant("deadlines_not_restored", "attempts come back without their deadlines", "M8", "M9", seed=7)
def deadlines_not_restored(patches: Patches) -> None:
    """Nothing looks at the clocks of the restored attempts any more."""

    def make(original: Any) -> Any:
        def restore(self: Any, *arguments: Any) -> Any:
            set_deadline, self._set_deadline = self._set_deadline, lambda attempt: None
            try:
                return original(self, *arguments)
            finally:
                self._set_deadline = set_deadline

        return restore

    patches.replace(Attempts, "restore", make)


@mutant("unless_ignored", "what must not come first may come first", "M8")
def unless_ignored(patches: Patches) -> None:
    """The right side of `& ~` makes no expression false."""

    def make(original: Any) -> Any:
        def truth(self: Any, number: int, progress: Any) -> Any:
            if type(self.parts[number]).__name__ == "Unless":
                return original(self, self._below[number][0], progress)
            return original(self, number, progress)

        return truth

    patches.replace(Plan, "_truth", make)


@mutant("references_ignored", "a value of an earlier event is not asked for", "M7", "M8")
def references_ignored(patches: Patches) -> None:
    """Any event of the type matches, whatever its values are."""

    def make(_: Any) -> Any:
        def pattern(self: Any, number: int, progress: Any) -> Any:
            del progress
            part = self.parts[number]
            return msgspec.structs.replace(part, fields=(), values=()) if self._references[number] else part

        return pattern

    patches.replace(Plan, "pattern", make)


@mutant("first_step_taken_once", "a listener for all waits for the first step of its sequence once only", "M7", "M8")
def first_step_taken_once(patches: Patches) -> None:
    """No attempt follows the first one."""

    def make(original: Any) -> Any:
        def attempt(self: Any, listener: Any) -> None:
            if not listener.attempts:
                original(self, listener)

        return attempt

    patches.replace(Attempts, "_attempt", make)


@mutant(
    "subscription_forgotten", "a subscription does not survive", "M4", "G7", "G8", "A3", "A2", "G1", "M1", "M3", "S9"
)
def subscription_forgotten(patches: Patches) -> None:
    """After a start, no monitor receives the events of the channel."""

    def make(original: Any) -> Any:
        def stored(self: Any, instance: Any) -> Any:
            kept, instance.subscriptions = instance.subscriptions, {}
            try:
                return original(self, instance)
            finally:
                instance.subscriptions = kept

        return stored

    patches.replace(LoadedMonitors, "_stored", make)


@mutant("kept_events_handed_out", "a handler is given the events that its attempt keeps", "M7", "M8")
def kept_events_handed_out(patches: Patches) -> None:
    """Handlers that get the event later see the changes of the first one."""

    def make(original: Any) -> Any:
        return lambda self, listener, progress, data, event: original(self, listener, progress, {}, event)

    patches.replace(Attempts, "_call", make)
