"""Level kill9: real processes, really killed. The long form is `python -m tests.harness.kill9 --kills 25000`."""

import random
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from correlator.cli.loading import importable
from correlator.errors import StoreError, UsageError
from correlator.reliability import Reliability
from correlator.storage.store import SqlStore
from correlator.testing.crashtest.campaign import repeated
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.killed import Kill9
from correlator.testing.crashtest.runs import RunPlan
from correlator.testing.kill9 import lives
from correlator.testing.kill9.directory import HISTORY
from correlator.testing.kill9.intents import AnnouncedTransaction, Intents
from correlator.testing.kill9.wire import Job, Kill, Reader, frame
from correlator.testing.kill9.zygote import LOG, Zygote
from correlator.testing.schedule import KILL, Fault, draw_rates
from correlator.testing.syscalls.library import Action, CallFault, arm
from correlator.testing.syscalls.trace import CallKind
from tests.harness.kill9 import campaign as campaigns
from tests.harness.kill9 import reference
from tests.harness.kill9.campaign import KillCampaign, KillFigures, pairs
from tests.harness.mutants import CATALOGUE
from tests.harness.mutants.catalogue import Patches
from tests.harness.points import points

pytestmark = pytest.mark.kill9
KILLS = 60
ENOUGH = 500
"""Kills within which a mutant is caught."""

CONFIG = """\
version: 1
name: shop
store: sqlite:///never-made.db
checkpoint: {interval: 5ms}
connections:
  local: {type: embedded}
receivers:
  - {id: orders, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "shop:Order",
     max_batch_size: 3}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: EXACTLY_ONCE}
monitors:
  - {type: "shop:Billing"}
"""
MODULE = """\
from correlator import Monitor, event, on


@event
class Order:
    id: int


class Billing(Monitor, persistent=True):
    seen: list[int] = []
    {attribute}

    @on(Order)
    def order(self, order: Order) -> None:
        self.seen.append(order.id)
        {counting}
        self.send({{"id": order.id, "number": self.count}}, to="bills")
"""
SOUND = MODULE.format(attribute="count: int = 0", counting="self.count += 1")


@contextmanager
def level_of(directory: Path, module: str, config: str = CONFIG) -> Iterator[Kill9]:
    """The level for a configuration file with an application beside it."""
    (directory / "shop.py").write_text(module)
    file = directory / "shop.yaml"
    file.write_text(config)
    with importable(file):
        level = Kill9(Configured(file))
        try:
            yield level
        finally:
            level.close()


def body(world: Any, destination: str = "queue:orders") -> None:
    world.publish(destination, [{"id": number} for number in range(12)])
    world.run_until_quiet()
    world.check()
    assert world.sent("bills").ids() == list(range(12))
    assert world.sent("bills").values("number") == list(range(1, 13))
    assert [sorted(one["seen"]) for one in world.state("Billing")] == [list(range(12))]


# --- what took place ---


def intent(number: int, epoch: int = 1) -> AnnouncedTransaction:
    return AnnouncedTransaction(epoch, number, ())


def test_a_commit_that_was_done_took_place():
    intents = Intents()
    intents.announced(intent(1))
    assert intents.done(1) == intent(1)
    assert (intents.open, intents.last) == (None, 1)


@pytest.mark.parametrize(
    ("commit", "took_place"), [(0, None), (1, intent(1))], ids=["killed before it", "killed after it"]
)
def test_a_commit_that_the_child_did_not_survive_is_looked_up(commit: int, took_place: AnnouncedTransaction | None):
    intents = Intents()
    intents.announced(intent(1))
    assert intents.settled(1, commit) == took_place
    assert (intents.open, intents.last) == (None, commit)


def test_a_commit_that_was_rolled_back_is_announced_again():
    intents = Intents()
    intents.announced(intent(1))
    intents.announced(AnnouncedTransaction(1, 1, ("other",)))
    assert intents.done(1).writes == ("other",)


def test_each_life_goes_on_where_the_store_is():
    intents = Intents()
    intents.announced(intent(1, epoch=1))
    assert intents.settled(1, 1) == intent(1, epoch=1)
    intents.announced(intent(2, epoch=2))
    assert intents.settled(2, 1) is None
    intents.announced(intent(2, epoch=3))
    assert intents.done(2) == intent(2, epoch=3)


def test_a_number_of_another_epoch_is_another_transaction():
    intents = Intents()
    intents.announced(intent(1))
    with pytest.raises(
        ValueError, match="the store holds transaction 1 of epoch 2, but the child reported 0 and an announced 1"
    ):
        intents.settled(2, 1)


@pytest.mark.parametrize("number", [1, 3])
def test_what_nobody_announced_cannot_be_done(number: int):
    intents = Intents()
    intents.announced(intent(2))
    with pytest.raises(ValueError, match=f"transaction {number} was reported as done, but 2 was announced"):
        intents.done(number)


def test_a_store_that_went_back_is_noticed():
    intents = Intents()
    intents.announced(intent(1))
    intents.done(1)
    intents.announced(intent(2))
    with pytest.raises(
        ValueError, match="the store holds transaction 0 of epoch 1, but the child reported 1 and an announced 2"
    ):
        intents.settled(1, 0)


# --- the line ---


def test_frames_that_come_together_are_read_one_by_one():
    """The process id of a child and its status: a child that dies at once has died before anybody reads."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.sendall(frame(1) + frame(2) + frame(3)[:-1])
        reader = Reader(ours)
        assert [msgspec.msgpack.decode(reader.one()) for _ in range(2)] == [1, 2]
        theirs.sendall(frame(3)[-1:])
        assert msgspec.msgpack.decode(reader.one()) == 3
        theirs.close()
        with pytest.raises(EOFError):
            reader.one()


# --- our own workload ---


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote([*reference.APPLICATION, __name__])
    try:
        yield made
    finally:
        made.close()


ELSEWHERE = {
    "app.batch": "pipelines: tests/crash/test_flights.py kills them",
    "ck.resolve_ambiguous": "only PostgreSQL loses an answer",
    "dl.tx.discard": "only when somebody brings dead letters back, or discards them",
    "dl.tx.commit.before": "the command `deadletter`, not an engine",
    "dl.tx.commit.after": "the same",
}
SEEDS = (26, 8, 1, 5, *range(100, 140))
"""The first ones have what is rare; the others stand by for what threads did in another order."""


@pytest.mark.campaign
def test_kills_of_every_kind_violate_nothing_and_our_workload_passes_every_fault_point(zygote: Zygote):
    campaign, figures = KillCampaign(zygote), KillFigures()
    missing = {point.name for point in points()} - ELSEWHERE.keys()
    for seed in SEEDS:
        campaign.drawn(seed, KILLS)
        figures = campaign.figures
        missing -= campaign.passed.keys()
        if figures.kills >= KILLS and not missing:
            break
    assert figures.found == []
    assert missing == set()
    assert set(figures.by_kind) == {"point", "syscall", "time"}


@pytest.mark.campaign
def test_a_kill_at_every_passing_of_every_point_violates_nothing(zygote: Zygote):
    """The other modes take minutes, and are what `python -m tests.harness.kill9 --pairs MODE` is for."""
    mode = Reliability.EXACTLY_ONCE
    campaign = KillCampaign(zygote)
    pairs(campaign, mode, kills=0, seed=1)
    figures = campaign.figures
    assert (figures.found, figures.pairs_tried) == ([], 0)
    assert figures.pairs > 2000
    passed = campaign.exactly(reference.smallest(mode)).passed_at_last
    assert passed.keys() - {"syscall"} - figures.by_point.keys() == set()
    assert {"rec.on_begin", "rec.migrate.step", "cfg.tx.put"} <= figures.by_point.keys()
    assert {"rec.replay", "rec.tx.suspects"} <= campaign.passed.keys()  # there was something to recover


def test_trails_have_every_pair_once():
    hits = [Kill(point="a", hit=n) for n in range(9)]
    follows = {hit: [other for other in hits if (hit.hit + other.hit) % 3] for hit in hits}
    trails, gone = campaigns.Trails(follows, random.Random(1)), []
    while trail := trails.one():
        if len(gone) < 5:
            trails.put_back(trail[2:])
            trail = trail[:3]
        gone += pairwise(trail)
    assert sorted(gone, key=str) == sorted(((one, other) for one in hits for other in follows[one]), key=str)


def test_pairs_are_two_kills_in_two_lives_that_follow_one_another(zygote: Zygote, monkeypatch: pytest.MonkeyPatch):
    """A kill that no life reaches ends its run; the pairs behind it are tried in another, and its own once more."""
    commit, never, begin = (
        Kill(point="rx.tx.commit.after", hit=1),
        Kill(point="stop.begin", hit=9),
        Kill(point="rec.on_begin", hit=1),
    )
    migrate = Kill(point="rec.migrate.step", hit=2)
    lists = iter([[commit, begin], [commit, never], [commit, begin], [commit, migrate], [commit, never]])
    monkeypatch.setattr(campaigns, "_hits", lambda _: list(next(lists)))
    campaign = KillCampaign(zygote)
    pairs(campaign, Reliability.EXACTLY_ONCE, kills=None, seed=1)
    figures = campaign.figures
    assert figures.found == []
    assert (figures.pairs, figures.pairs_tried, figures.missed) == (4 + 2, 3 + 1, 1 + 1)


def caught(zygote: Zygote, *prepare: str) -> str:
    """The id of the first invariant that is violated."""
    campaign = KillCampaign(zygote, prepare)
    seed = 0
    while not campaign.figures.found and campaign.figures.kills < ENOUGH:
        seed += 1
        campaign.drawn(seed, KILLS)
    (found,) = campaign.figures.found
    shutil.rmtree(found.kept)
    return found.violated.split(" ")[0]


def acknowledged_before_commit(life: Any) -> None:
    CATALOGUE["acknowledged_before_commit"].patch(Patches())


def outbox_not_restored(life: Any) -> None:
    CATALOGUE["outbox_not_restored"].patch(Patches())


def ids_not_reloaded(life: Any) -> None:
    CATALOGUE["ids_not_reloaded"].patch(Patches())


@pytest.mark.parametrize("patch", [acknowledged_before_commit, outbox_not_restored, ids_not_reloaded])
def test_a_mutant_in_the_child_is_caught(zygote: Zygote, patch: Any):
    also = {"D2"}  # parts that come and go lose what all others lose
    assert caught(zygote, f"{__name__}:{patch.__name__}") in CATALOGUE[patch.__name__].expected | also


def error_at_commit(life: Any) -> None:
    """The second life's disk refuses a sync."""
    if life.number == 2:
        fault = CallFault(action=Action.EIO, at=3, kinds=frozenset({CallKind.FDATASYNC}), suffix="-wal")
        arm(life.directory, fault=fault)


def error_at_commit_ignored(life: Any) -> None:
    """The store carries on after it."""
    error_at_commit(life)
    commit = SqlStore.commit

    def carry_on(self: SqlStore, number: int, writes: Any) -> None:
        with suppress(StoreError):
            commit(self, number, writes)

    SqlStore.commit = carry_on  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("prepare", "ids"), [(error_at_commit, {"G8"}), (error_at_commit_ignored, {"G1", "G4", "A1", "A2"})]
)
def test_carrying_on_after_an_error_at_commit_is_caught(zygote: Zygote, prepare: Any, ids: set[str]):
    """Without the mutant the engine stops with the error, which is a finding here too: nobody has planned it."""
    campaign = KillCampaign(zygote, [f"{__name__}:{prepare.__name__}"])
    kills = Kill(point="rx.poll", hit=1), Kill(point="ck.release.after", hit=2)
    campaign.exactly(reference.smallest(Reliability.EXACTLY_ONCE), *kills)
    (found,) = campaign.figures.found
    assert found.violated.split(" ")[0] in ids
    assert ("E3104" in found.violated) == (ids == {"G8"})
    shutil.rmtree(found.kept)


# --- the user's own configuration file ---


def test_a_sound_application_stands_every_kind_of_kill(tmp_path: Path):
    with level_of(tmp_path, SOUND) as level:
        whole = level.run(body, RunPlan(1, ()))
        assert (whole.violated, whole.crashes, whole.faults) == (None, 0, ())
        singles = [faults[0] for faults in level.singles(whole)]
        assert {"kill rx.ack.after", "kill ck.tx.commit.before", "kill stop.close", "kill syscall"} <= {
            fault.kind for fault in singles
        }
        for fault in (
            Fault("kill rx.ack.before", 1),
            Fault("kill ck.tx.commit.after", 1),
            Fault("kill stop.close", 1),
            Fault("kill syscall", 30),
        ):
            outcome = level.run(body, RunPlan(1, (fault,)))
            assert (outcome.violated, outcome.crashes, outcome.faults) == (None, 1, (fault,))
        drawn_ones = [level.run(body, RunPlan(seed)) for seed in range(1, 5)]
    assert [one.violated for one in drawn_ones] == [None] * 4
    assert sum(one.crashes for one in drawn_ones) > 0


def test_state_that_the_checkpoint_does_not_hold_is_found(tmp_path: Path):
    forgetful = MODULE.format(attribute="count = 0", counting="type(self).count += 1")
    with level_of(tmp_path, forgetful, CONFIG.replace("max_batch_size: 3", "max_batch_size: 1")) as level:
        assert level.run(body, RunPlan(1, ())).violated is None
        plans = (RunPlan(1, (Fault("kill ck.tx.commit.after", n),)) for n in (2, 3, 4, 5))
        outcome = next(one for plan in plans if (one := level.run(body, plan)).violated is not None)
    assert outcome.violated is not None
    assert outcome.violated.id == "test"
    assert outcome.kept is not None
    kept = {path.name: stat.S_IMODE(path.stat().st_mode) for path in outcome.kept.iterdir()}
    assert {"store.db", HISTORY, LOG} <= kept.keys()
    assert set(kept.values()) == {0o600}
    assert stat.S_IMODE(outcome.kept.stat().st_mode) == 0o700
    records = [msgspec.json.decode(line) for line in (outcome.kept / HISTORY).read_bytes().splitlines()]
    assert len(records) == len(outcome.history)
    shutil.rmtree(outcome.kept)


def test_a_drawn_failure_is_repeated_with_its_shares(tmp_path: Path):
    """What a life has to do when it dies is of the plan: all messages at once would be another run."""
    forgetful = MODULE.format(attribute="count = 0", counting="type(self).count += 1")
    with level_of(tmp_path, forgetful) as level:
        drawn = (level.run(body, RunPlan(seed)) for seed in range(1, 200))
        failure = next(one for one in drawn if one.violated is not None and one.plan.shares > 2)
        again = repeated(level, body, RunPlan(failure.plan.seed, tuple(failure.faults), failure.plan.shares))
    assert again.found is not None
    for one in (failure, again.found):
        shutil.rmtree(one.kept)


@pytest.mark.parametrize("plan", [RunPlan(1, (Fault("receive.cut", 1), Fault("send.lost", 1))), RunPlan(44)], ids=str)
def test_faults_of_brokers_strike_without_any_kill(tmp_path: Path, plan: RunPlan):
    """They need a life under faults, which no kill gives them."""
    if plan.faults is None:
        assert draw_rates(plan.seed)[KILL] == 0
    with level_of(tmp_path, SOUND) as level:
        outcome = level.run(body, plan)
    assert (outcome.violated, outcome.crashes) == (None, 0)
    assert outcome.faults if plan.faults is None else outcome.faults == plan.faults


def test_a_kill_that_is_not_reached_changes_nothing(tmp_path: Path):
    with level_of(tmp_path, SOUND) as level:
        outcome = level.run(body, RunPlan(1, (Fault("kill rx.ack.after", 10_000), Fault("kill rec.lock", 1))))
    assert (outcome.violated, outcome.crashes, outcome.faults) == (None, 0, ())


@pytest.mark.parametrize(
    ("broken", "violated", "text"),
    [
        ('raise SystemExit("away")', "G7", "away"),
        ("import os; os._exit(3)", "G8", "status 3"),
        ('raise ValueError("never handled")', "G7", "never handled"),
    ],
)
def test_a_child_that_ends_by_itself_is_a_finding(tmp_path: Path, broken: str, violated: str, text: str):
    module = MODULE.format(attribute="count: int = 0", counting=broken)
    with level_of(tmp_path, module) as level:
        outcome = level.run(body, RunPlan(1, ()))
    assert outcome.violated is not None
    assert outcome.violated.id == violated
    assert text in outcome.violated.what
    assert outcome.kept is not None
    shutil.rmtree(outcome.kept)


def test_while_the_harness_stands_still_no_patience_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in a debugger, or while the machine sleeps; the life behind it goes on and comes to rest."""

    class StandsStill:
        looks = 0

        def monotonic(self) -> float:
            self.looks += 1
            return time.monotonic() + (1000 if self.looks > 20 else 0)

    monkeypatch.setattr(lives, "time", clock := StandsStill())
    with level_of(tmp_path, SOUND) as level:
        assert level.run(body, RunPlan(1, ())).violated is None
    assert clock.looks > 20


def test_a_world_can_be_used_without_the_campaign(tmp_path: Path):
    with level_of(tmp_path, SOUND) as level, level.world(RunPlan(1, ())) as world:
        body(world)
        world.publish("queue:orders", [b"no order"])
        world.run_until_quiet()
        (letter,) = world.dead_letters()
        assert (letter.kind, letter.origin, letter.message.body) == ("mapping", "orders", b"no order")
        assert len(world.published("queue:orders")) == 13
        with pytest.raises(UsageError, match="E2420"):
            world.publish("queue:nobody", [b"x"])


def test_faults_of_another_level_are_refused(tmp_path: Path):
    with level_of(tmp_path, SOUND) as level, pytest.raises(UsageError, match="E2432"):
        level.run(body, RunPlan(1, (Fault("commit.busy", 1),)))


@pytest.mark.postgres
def test_an_engine_over_postgres_is_killed(tmp_path: Path, postgres: Callable[[], str]):
    with level_of(tmp_path, SOUND) as level:
        over_postgres = Kill9(level.configured, postgres)
        plan = RunPlan(1, (Fault("kill rx.tx.commit.after", 1), Fault("kill ck.tx.commit.before", 1)))
        outcome = over_postgres.run(body, plan)
        over_postgres.close()
    assert (outcome.violated, outcome.faults) == (None, plan.faults)


def test_a_server_that_cannot_import_a_module_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings = reference.smallest(Reliability.BEST_EFFORT).scenario.settings
    job = Job(
        life=1, directory=str(tmp_path), settings=settings, pipelines="", brokers={}, kill=None, slice=1,
        awaits_timers=False, told=True, prepare=[],
    )  # fmt: skip
    made = Zygote(["no_such_module"])
    with pytest.raises(
        UsageError, match="E2431 processes of a crash test: the server of the children ended with status 1"
    ):
        made.fork(job)
    made.close()
    assert "no_such_module" in capfd.readouterr().err
