"""The order in which a part that was removed is forgotten."""

import threading

import pytest

from correlator.runtime.requests import RegistryRequest
from tests.runtime.flows import Hears
from tests.runtime.world import receiver, sender


@pytest.mark.parametrize(("kind", "still_there"), [("sender", True), ("receiver", False)])
def test_a1_16_a1_17_what_is_forgotten_first(world, kind, still_there):
    """When the registry forgets a sender, checkpoints still know its numbers; those of a receiver they have forgotten."""
    with world.engine(monitors=[Hears]) as engine:
        submit, parts_then = engine.writer.submit, []

        def note(request, done):
            if isinstance(request, RegistryRequest) and request.registry.removed:
                parts_then.append({*engine.senders, *engine.receivers})
            submit(request, done)

        if kind == "sender":
            engine.add_sender(sender("part"))
        else:
            engine.add_receiver(receiver("part"))
        engine.writer.submit = note
        engine.remove("part")
        world.wait(lambda: engine.removed("part"))
    assert [("part" in parts) for parts in parts_then] == [still_there]


def test_a_part_is_removed_only_when_the_removal_has_ended(world, gate):
    """Given a registry that has forgotten the part, when the removal is not over, then it is not removed."""
    with world.engine(monitors=[Hears]) as engine:
        engine.add_sender(sender("part"))
        tell, told = engine.remover._removed, threading.Event()

        def linger(part_id: str) -> None:
            tell(part_id)
            told.set()
            gate.wait(120)

        engine.remover._removed = linger
        engine.remove("part")
        assert told.wait(120)
        assert "part" not in engine.registry
        assert not engine.removed("part")
        gate.set()
        world.wait(lambda: engine.removed("part"))
