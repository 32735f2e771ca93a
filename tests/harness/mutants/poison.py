"""Deliberate bugs in finding the message that ends the process (trap T26)."""

from typing import Any

from correlator.core import poison
from correlator.runtime import suspects
from correlator.runtime.restart import Restart
from correlator.runtime.suspects import Suspects
from correlator.testing.store import Disk
from tests.harness.mutants.catalogue import Patches, mutant


@mutant(
    "poison_never_condemned", "a message that ends the process is handled for ever", "P1", "G7", budget=300, seed=10
)
def poison_never_condemned(patches: Patches) -> None:
    """The engine crashes at every start."""
    for module in (poison, suspects):
        patches.replace(module, "is_condemned", lambda _: lambda suspect: False)


@mutant(
    "condemned_at_once", "a single message is condemned when it is found noted for the first time", "P2", "P3", seed=5
)
def condemned_at_once(patches: Patches) -> None:
    """A kill from outside, while a single message waits, then condemns an innocent message."""
    patches.replace(poison, "DEATHS", lambda _: 1)


@mutant("whole_portion_condemned", "what is accused is condemned without being divided", "P2", "P3", seed=5)
def whole_portion_condemned(patches: Patches) -> None:
    """Innocent messages that are handled together with the poison message are condemned with it."""
    patches.replace(poison, "is_condemned", lambda _: lambda suspect: suspect.deaths >= 1)


@mutant("noted_too_late", "what is handled is noted when it has been handled", "P1", "G7", "P3", budget=300, seed=10)
def noted_too_late(patches: Patches) -> None:
    """A crash in a handler leaves no note, so the poison message is never found."""

    def make(original: Any) -> Any:
        def note(self: Any, suspects: Any = ()) -> None:
            held = getattr(self, "held", ())
            self.held = suspects
            original(self, held)

        return note

    patches.replace(Suspects, "note", make)


@mutant("notes_forgotten", "a start does not see what was noted", "P1", "G7", "K4", budget=300, seed=9)
def notes_forgotten(patches: Patches) -> None:
    """The poison message is never found."""

    def make(original: Any) -> Any:
        def recovered(self: Any) -> Any:
            self.suspects = []
            return original(self)

        return recovered

    patches.replace(Disk, "recovered", make)


@mutant(
    "accused_beside_others", "what is accused is noted beside portions of other contexts", "P3", budget=600, seed=54
)
def accused_beside_others(patches: Patches) -> None:
    """If one of these messages ends the process, all of them are blamed."""

    def make(original: Any) -> Any:
        def work(self: Any, threads: Any, suspects: Any) -> Any:
            portion = suspects.portion

            def alone_when_condemned(*args: Any) -> Any:
                found = portion(*args)
                return found._replace(accused=found.condemned)

            suspects.portion = alone_when_condemned
            try:
                return original(self, threads, suspects)
            finally:
                suspects.portion = portion

        return work

    patches.replace(Restart, "_work_portions", make)


@mutant("poison_dropped", "what is condemned is left out without a dead letter", "P1", "A2", budget=300, seed=5)
def poison_dropped(patches: Patches) -> None:
    """The message is lost without a record."""

    def make(_: Any) -> Any:
        def leave_out(self: Any, suspect: Any, do: Any) -> None:
            staging = do.__self__.context.staging
            do(suspect)
            staging.dead_letters = staging.take_dead_letters()[:-1]
            self._left_out.append(suspect)

        return leave_out

    patches.replace(Suspects, "leave_out", make)
