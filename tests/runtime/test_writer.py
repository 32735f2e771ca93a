"""Commits that fail, or whose answer is lost (traps T1 and T2), without threads."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from correlator.core.acknowledgements import Sure
from correlator.core.commit import RegistryCommit
from correlator.core.mapping import Mapped
from correlator.core.registry import endpoint_of
from correlator.errors import CommitUnknown, StoreBusy
from correlator.runtime import writer as writers
from correlator.runtime.engine import Engine
from correlator.runtime.requests import Accepted, ReceiveRequest, RegistryRequest, Request
from correlator.runtime.writer import Writer
from correlator.settings import DuplicateDetectionSettings, EngineSettings
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk, ModelStore
from tests.runtime.world import message, sender
from tests.storage.values import opened


class World:
    """A writer over a disk whose commits fail as told, one after the other."""

    def __init__(self, *faults: Any, windows: DuplicateDetectionSettings | None = None) -> None:
        self.faults = list(faults)
        self.time = 0.0
        self.disk = Disk()
        self.store = ModelStore(self.disk, fault=self.fault)
        windows = windows or DuplicateDetectionSettings()
        self.writer = Writer(self.store, opened(self.store).commit, lambda: self.time, windows)
        self.tried: list[int] = []
        self.done: list[str] = []
        self.accepted: list[Accepted] = []

    def fault(self, number: int, writes: Sequence[Any]) -> Any:
        self.tried.append(number)
        return self.faults.pop(0) if self.faults else None

    def submit(self, name: str) -> None:
        put = RegistryCommit(put=[endpoint_of(sender(name), dynamic=True)])
        self.writer.submit(RegistryRequest(put), lambda _: self.done.append(name))

    def receive(self, batch: int, unique_id: str, sure: Sure) -> None:
        """Commit a batch of one message."""
        mapped = Mapped(messages=[message(unique_id)], events=[unique_id], ids=[unique_id], sources=["s"], digests=[0])
        self.writer.submit(ReceiveRequest(mapped, "r", batch, batch, "d", sure, keep=True), self.accepted.append)
        self.writer.step()


def test_t1_a_commit_that_took_place_is_not_tried_again():
    world = World("lost_reply")
    world.submit("a")
    assert world.writer.step() == pytest.approx(0.02)
    assert (world.done, world.disk.commit) == ([], 1)
    assert world.writer.step() == 0
    assert (world.done, world.disk.commit, world.tried) == (["a"], 1, [1])


def test_t1_a_commit_that_did_not_take_place_is_tried_again_with_what_came_meanwhile():
    world = World("lost_request")
    world.submit("a")
    assert world.writer.step() == pytest.approx(0.02)
    world.submit("b")
    assert world.writer.step() == 0
    assert (world.done, world.disk.commit, world.tried) == (["a", "b"], 1, [1, 1])


def test_t1_what_was_committed_without_an_answer_is_only_that():
    """A request that came after it is in the next transaction."""
    world = World("lost_reply")
    world.submit("a")
    world.writer.step()
    world.submit("b")
    assert world.writer.step() == 0
    assert world.done == ["a"]
    assert world.writer.step() == 0
    assert (world.done, world.disk.commit, world.tried) == (["a", "b"], 2, [1, 2])


def test_t1_a_commit_that_nobody_can_tell_about_ends_the_engine_after_a_while():
    def unreachable(number: int) -> bool:
        raise CommitUnknown("E3105", "model store", "cannot be reached")

    world = World("lost_reply")
    world.store.resolve = unreachable
    world.submit("a")
    waits = [world.writer.step() for _ in range(3)]
    assert waits == [pytest.approx(0.02), pytest.approx(0.04), pytest.approx(0.08)]
    world.time = writers.LONGEST_DOUBT_S
    assert world.writer.step() == pytest.approx(0.16)
    world.time += 1
    with pytest.raises(CommitUnknown, match="E3105"):
        world.writer.step()
    assert world.done == []


def test_t2_time_in_which_transactions_are_rolled_back_is_no_time_in_doubt():
    """A disk that was full for an hour does not end the engine at the next answer that is lost."""
    world = World("lost_request", *["busy"] * 5, "lost_request", "lost_reply")
    world.submit("a")
    while not world.done:
        world.writer.step()
        world.time += 0.3 * writers.LONGEST_DOUBT_S
    assert (world.disk.commit, len(world.tried)) == (1, 8)


def test_t2_a_transaction_that_was_rolled_back_is_tried_again():
    world = World("busy", "busy")
    world.submit("a")
    assert world.writer.failing is False
    assert [world.writer.step() for _ in range(2)] == [pytest.approx(0.02), pytest.approx(0.04)]
    assert world.writer.failing is True
    assert world.writer.step() == 0
    assert world.writer.failing is False
    assert (world.done, world.tried) == (["a"], [1, 1, 1])


def outage(world: World, name: str) -> None:
    """Let time pass until a request is committed."""
    world.submit(name)
    while name not in world.done:
        world.time += world.writer.step() or 0.0


def test_an_outage_of_the_store_is_told_at_doubling_intervals_and_so_is_its_end(logs):
    """A disk that is full for a day is no reason to fill it with lines."""
    world = World(*["busy"] * 43_200)
    outage(world, "a")
    assert world.time > 23 * 3600
    told, (end,) = (
        [line for line in logs if "trying again" in line["event"]],
        [line for line in logs if "tries" in line],
    )
    assert len(told) < 12 + 24
    assert [line["away_s"] for line in told[:4]] == [0.0, pytest.approx(1.26), pytest.approx(4.54), pytest.approx(8.54)]
    assert (end["event"], end["tries"], end["log_level"]) == ("the store takes transactions again", 43_200, "warning")
    assert end["away_s"] == pytest.approx(world.time, abs=0.001)


def test_a_store_that_is_busy_again_and_again_is_told_at_doubling_intervals_too(logs):
    world = World()
    for number in range(1000):
        world.faults = ["busy"]
        outage(world, str(number))
        world.time += 1.0
    assert len([line for line in logs if "trying again" in line["event"]]) < 12
    world.time += 60.0
    logs.clear()
    world.faults = ["busy"]
    outage(world, "after a minute")
    assert len(logs) == 2


def test_an_outage_ends_when_an_idle_engine_is_answered_again(logs):
    """It asks the server who has the lock, and nothing is to be committed."""
    answers = [StoreBusy("E3103", "store", "was rolled back")] * 2

    def confirm_lock() -> float | None:
        if answers:
            raise answers.pop()
        return 5.0

    world = World()
    world.store.confirm_lock = confirm_lock
    assert [world.writer.step() for _ in range(3)] == [pytest.approx(0.02), pytest.approx(0.04), 5.0]
    assert [line.get("tries") for line in logs] == [None, 2]


def test_t2_a_start_waits_between_its_tries():
    """The registry is written before any thread runs."""
    disk, faults = Disk(), ["busy"] * 3
    engine = Engine(
        EngineSettings(name="test", senders=(sender(),)),
        connections={"memory": MemoryBroker().connection()},
        store=ModelStore(disk, fault=lambda number, writes: faults.pop() if faults else None),
        blocking=False,
    )
    begin = time.monotonic()
    engine.recover()
    assert disk.commit >= 1
    assert time.monotonic() - begin >= 0.02 + 0.04 + 0.08


def test_ids_that_are_let_go_are_removed_with_the_batch_that_tells_so():
    """No later batch may come for a long time."""
    world = World(windows=DuplicateDetectionSettings(per_source_window_size=1, expiry_time=0.0))
    world.receive(1, "a", Sure(0, 0, 0))
    world.receive(2, "b", Sure(0, 0, 0))
    assert [ids for _, ids in world.disk.ids] == [1, 2]
    world.receive(3, "c", Sure(2, 0, 2))
    assert [ids for _, ids in world.disk.ids] == [2, 3]


def test_the_result_of_a_batch_says_which_messages_are_duplicates():
    world = World()
    world.receive(1, "a", Sure(0, 0, 0))
    world.receive(2, "a", Sure(0, 0, 0))
    first, second = world.accepted
    assert (first.segment.first, first.events, first.duplicates) == (1, ["a"], [])
    assert (second.segment, second.events, second.duplicates) == (None, [], [0])


def test_a_commit_that_fails_hands_out_no_result():
    world = World("busy")
    world.receive(1, "a", Sure(0, 0, 0))
    assert world.accepted == []
    world.writer.step()
    assert [one.events for one in world.accepted] == [["a"]]


def test_a_store_that_is_busy_while_a_checkpoint_is_planned_leaves_nothing_in_doubt(monkeypatch):
    """It is read to clean old segments of the state; nothing was sent to it yet."""

    class Reads(Request[None]):
        def plan(self, group):
            raise StoreBusy("E3102", "store", "is busy")

    world = World()
    monkeypatch.setattr(world.store, "resolve", lambda _: pytest.fail("looked up a commit that was not sent"))
    world.writer.submit(Reads(), lambda _: None)
    assert world.writer.step() == pytest.approx(0.02)
    assert world.writer.step() == pytest.approx(0.04)
