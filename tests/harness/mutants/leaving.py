"""Deliberate bugs of parts that are added and removed: their messages, and their place in registry and checkpoints."""

from typing import Any

from correlator.core.commit import RegistryCommit
from correlator.runtime.parts import Parts
from correlator.runtime.registry import Registry
from correlator.runtime.remover import Remover, _Stage
from tests.harness.mutants.catalogue import Patches, mutant


@mutant(
    "sender_forgotten_first",
    "a checkpoint forgets a sender before the registry does",
    "D2",
    "G8",
    budget=1500,
    seed=1326,
)
def sender_forgotten_first(patches: Patches) -> None:
    """If the registry restores the sender, it uses the numbers of its source again."""

    def take_leave(self: Any, removal: Any) -> None:
        self._forget(removal.part_id)
        removal.asked = self._ask()
        removal.stage = _Stage.RECORDING_GONE

    patches.replace(Remover, "_take_leave", lambda _: take_leave)


@mutant(
    "removed_while_full", "a part is removed with whatever it still holds", "D1", "D2", "G1", "G8", budget=800, seed=80
)
def removed_while_full(patches: Patches) -> None:
    """Against rules A1.16 and A1.17: a part may be removed only when it holds no messages any more."""
    patches.replace(Remover, "_empty", lambda _: lambda self, part_id: True)


@mutant(
    "removed_receiver_left_in_queues", "contexts remember the numbers of a removed receiver", "D1", budget=400, seed=590
)
def removed_receiver_left_in_queues(patches: Patches) -> None:
    """A receiver that is added again under its id begins at 1, and its messages count as handled."""

    def make(original: Any) -> Any:
        def forget(self: Any, part_id: str) -> None:
            queues = {name: dict(thread.queue._entered) for name, thread in self.contexts.items()}
            original(self, part_id)
            for name, thread in self.contexts.items():
                thread.queue._entered.update(queues[name])

        return forget

    patches.replace(Parts, "forget", make)
    patches.replace(Parts, "numbers_of_new", lambda original: lambda self, receiver: type(original(self, receiver))())


@mutant("dynamic_part_unrecorded", "a part that was added is not in the registry", "D1", "G7", "G8", seed=8)
def dynamic_part_unrecorded(patches: Patches) -> None:
    """Against rule A1.5: after a crash the part is gone, with the messages that it should have brought."""

    def make(original: Any) -> Any:
        def commit(self: Any, commit: RegistryCommit) -> None:
            if not commit.put or commit.put[0].origin == "static":
                original(self, commit)

        return commit

    patches.replace(Registry, "commit", make)
