"""The edges of a life: a second start, a start that fails half way, parts that come while it begins or ends."""

import threading
from typing import Any

import pytest

from correlator.core.batch_context import BatchContext, Effects
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.errors import StoreBusy, StoreError, UsageError
from correlator.runtime import checkpointer
from correlator.runtime.clock import EngineTime, SystemClock
from correlator.runtime.contexts import ProcessorThread
from correlator.storage.store import SqlStore
from tests.runtime.flows import Idles, Keeps
from tests.runtime.world import PATIENCE_S, World, message, numbered, receiver, sender


def test_an_engine_has_one_life(world: World, script: Any) -> None:
    engine = world.engine(receiver(), sender(), monitors=[Keeps])
    with engine:
        with pytest.raises(UsageError, match="E2051 engine world: was started before"):
            engine.start()
        world.publish(*numbered(3))
        world.wait(lambda: script.of("Keeps") == ["m1", "m2", "m3"])
    with pytest.raises(UsageError, match="E2051"):
        engine.start()


def test_an_engine_that_could_not_start_has_had_its_life(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = world.engine(receiver(), sender(), monitors=[Keeps])
    with world.engine(receiver(), sender(), monitors=[Keeps]):
        with pytest.raises(StoreError, match="E3201"):
            engine.start()
        monkeypatch.setattr(engine, "_close_all", lambda **_: pytest.fail("closed a second time"))
        engine.stop()


@pytest.mark.parametrize("which", ["store-writer", "context-main", "checkpointer", "receiver-in"])
def test_a_start_for_which_the_system_has_no_thread_leaves_nothing_open(
    world: World, script: Any, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    start, before = threading.Thread.start, set(threading.enumerate())

    def refuse(thread: threading.Thread) -> None:
        if thread.name == which:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            world.engine(receiver(), sender(), monitors=[Keeps]).start()
    assert set(threading.enumerate()) <= before
    with world.engine(receiver(), sender(), monitors=[Keeps]):
        world.publish(*numbered(3))
        world.wait(lambda: script.of("Keeps") == ["m1", "m2", "m3"])


def test_a_part_is_refused_to_another_thread_while_the_engine_starts(world: World) -> None:
    (opening,) = world.hold_at("rec.open_senders")
    engine = world.engine(receiver(), sender(), monitors=[Keeps])
    starting = threading.Thread(target=engine.start)
    starting.start()
    opening.wait_reached()
    with pytest.raises(UsageError, match="E8305 'more': the engine is starting, in another thread"):
        engine.add_sender(sender("more"))
    opening.open()
    starting.join(PATIENCE_S)
    engine.add_sender(sender("more"))
    engine.stop()


def test_a_receiver_that_is_added_while_the_engine_stops_is_drained(world: World) -> None:
    (draining,) = world.hold_at("stop.drain")
    engine = world.engine(receiver(), sender(), monitors=[Keeps])
    engine.start()
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    draining.wait_reached()
    late = engine.add_receiver(receiver("more", destination="queue:more"))
    world.wait(lambda: late.quiet)
    draining.open()
    stopping.join(PATIENCE_S)


def test_a_stop_ends_a_start_that_waits_for_its_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []

    def busy(_store: Any, number: int, _writes: Any) -> None:
        commits.append(number)
        engine.request_stop()
        raise StoreBusy("E3102", "store", "is busy")

    monkeypatch.setattr(SqlStore, "commit", busy)
    engine = world.engine(receiver(), sender(), monitors=[Keeps])
    with pytest.raises(
        StoreError, match="E3110 store: has not confirmed a change within 60 s, or before the engine stopped; it may"
    ):
        engine.start()
    assert len(commits) == 1


class Concludes(Idles):
    """Notes in which order it is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def process(self, batch: Any, state: Any, engine_time: float) -> Effects:
        self.calls.append("process")
        return Effects()

    def conclude(self, state: Any, engine_time: float) -> Effects:
        self.calls.append("conclude")
        return Effects()


def test_a_pipeline_concludes_behind_a_batch_that_came_while_it_found_its_queue_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor, context = Concludes(), BatchContext("p")
    thread = ProcessorThread(
        processor,
        context,
        Routes(),
        EngineTime(SystemClock()),
        lambda: False,
        persistent=False,
        processed=lambda: None,
        told=lambda name, **values: None,
    )
    take = context.take

    def the_last_batch_comes(*limits: int) -> Any:
        monkeypatch.setattr(context, "take", take)
        found = take(*limits)
        context.queue.deliver(Run("in", 1, [message("last")], [], stored=True))
        thread.conclude()
        return found

    monkeypatch.setattr(context, "take", the_last_batch_comes)
    for _ in range(4):
        thread.step()
    assert processor.calls == ["process", "conclude"]


def test_a_checkpoint_that_a_stop_has_ended_before_its_cut_is_not_taken_for_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler does not return, so there is no cut, while a thread waits for the checkpoint."""
    monkeypatch.setattr(checkpointer, "CUT_PATIENCE_S", 0.001)
    engine = world.engine(receiver(), sender(), monitors=[Keeps], interval=3600.0)
    with engine:
        taker = engine.checkpointer
        assert taker is not None
        with engine.contexts["main"].lock:
            number = taker.ask()
            world.wait(lambda: taker.counters.cut_retries > 0)
            taker.stop()
            taker.join()
        assert not taker.answered(number)
