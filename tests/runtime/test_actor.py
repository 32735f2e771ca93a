"""Wake-ups of actors that run in threads."""

import threading

from correlator.runtime.actor import Actor

PATIENCE_S = 120.0


class Steps(Actor):
    """Does one thing for each step."""

    def __init__(self, *things) -> None:
        super().__init__("steps")
        self._things = list(things)
        self.done = threading.Event()

    def step(self) -> float | None:
        if not self._things:
            self.done.set()
            return None
        return self._things.pop(0)(self)


def wakes_itself(actor: Actor) -> None:
    """As another thread might between the end of a step and the wait."""
    actor.wake()


def run(*things) -> None:
    actor = Steps(*things)
    actor.start()
    try:
        assert actor.done.wait(PATIENCE_S)
    finally:
        actor.stop()
        assert actor.join(PATIENCE_S)


def test_a_wake_up_during_a_step_is_not_lost():
    run(wakes_itself, wakes_itself)


def test_a_wake_up_during_a_step_ends_a_long_wait():
    def waits_long(actor: Actor) -> float:
        actor.wake()
        return 3000.0

    run(waits_long)


def test_a_wake_up_counts_once():
    """The step that it was for takes it; then there is nothing to do."""
    actor = Steps(wakes_itself)
    assert not actor.take_wake()
    actor.step()
    assert actor.take_wake()
    assert not actor.take_wake()
