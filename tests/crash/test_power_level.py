"""Level power: real processes whose disk loses power when they are killed."""

import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from correlator.cli.loading import importable
from correlator.cli.main import execute
from correlator.errors import UsageError
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.powered import Powered
from correlator.testing.crashtest.runs import RunPlan
from correlator.testing.kill9.directory import HISTORY
from correlator.testing.kill9.zygote import LOG
from correlator.testing.power import outages
from correlator.testing.power.disk import MEMORY, Disk, Image
from correlator.testing.power.outages import DISK, TRACE, Outages
from correlator.testing.power.place import held
from correlator.testing.power.pragmas import settled_as
from correlator.testing.schedule import Fault
from correlator.testing.syscalls.trace import CallKind, CallRecord, Trace, encoded
from tests.cli.commands import run, write
from tests.crash.projects import ENGINE, TEST, TOTALS, project, run_pytest, screen, searched
from tests.crash.test_kill9_level import CONFIG, SOUND, body

FAULT = Fault("kill syscall", 3)
PAGE = 4096


def call(kind: CallKind, path: str = "", offset: int = 0, content: bytes = b"") -> CallRecord:
    return CallRecord(kind, path, offset, content)


# --- the parts ---


def test_what_a_disk_begins_with_is_durable():
    disk = Disk({"a": b"old", "a-shm": b"memory"})
    disk.apply(call(CallKind.WRITE, "a", 3, b" and new"))
    disk.apply(call(CallKind.CREATE, "b"))
    kinds = set(disk.kinds)
    images = {kind: [disk.draw(kind, random.Random(seed)).files for seed in range(40)] for kind in kinds}
    assert kinds == {"whole", "lost", "absent"}
    assert {bytes(one["a"])[:3] for found in images.values() for one in found} == {b"old"}
    assert b"old" in {bytes(one["a"]) for one in images["lost"]}
    assert all(set(one) == {"a"} for one in images["absent"])


def test_a_trace_that_may_end_anywhere_ends_before_the_record_of_which_a_part_is_missing(tmp_path: Path):
    whole, cut = call(CallKind.CREATE, "a"), call(CallKind.WRITE, "a", 0, b"content")
    first, second = encoded(whole), encoded(cut)
    for size in range(len(second)):
        (tmp_path / "trace").write_bytes(first + second[:size])
        assert list(Trace(tmp_path / "trace", ends_anywhere=True)) == [whole]
    with pytest.raises(UsageError, match="E2403 .* ends within a record"):
        list(Trace(tmp_path / "trace"))


def lived(place: Path, *records: CallRecord, before: dict[str, bytes]) -> Outages:
    """A disk on which a life has died that did this."""
    made = Outages(place, seed=1)
    for name, content in before.items():
        (made.disk / name).write_bytes(content)
    made.begin()
    made.trace.write_bytes(b"".join(map(encoded, records)))
    return made


def test_what_was_synced_is_there_and_what_was_not_may_be_lost(tmp_path: Path):
    before = {"store.db": b"o" * PAGE, "store.db-shm": b"memory"}
    synced = call(CallKind.WRITE, "store.db", 0, b"s" * PAGE), call(CallKind.FDATASYNC, "store.db")
    after = call(CallKind.WRITE, "store.db", PAGE, b"n" * PAGE), call(CallKind.CREATE, "store.db-wal")
    told = set()
    for n in range(40):
        place = tmp_path / str(n)
        place.mkdir()
        told.add(lived(place, *synced, *after, before=before).strike(Fault("kill syscall", n)))
        files = held(place / DISK)
        assert set(files) <= {"store.db", "store.db-wal"}
        assert files["store.db"][:PAGE] == b"s" * PAGE
        assert set(files["store.db"][PAGE:]) <= {0, ord("n")}
    assert told == {
        "writes are lost",
        "a write has arrived in part",
        "the names of files are as they were before",
        "nothing is lost",
    }


def test_a_life_that_changed_nothing_loses_nothing_and_the_same_death_loses_the_same(tmp_path: Path):
    changes = [call(CallKind.WRITE, "store.db", n * PAGE, bytes([n]) * PAGE) for n in range(20)]
    for name in ("first", "second", "idle"):
        (tmp_path / name).mkdir()
        made = lived(tmp_path / name, *(changes if name != "idle" else ()), before={"store.db": b"old"})
        told = made.strike(FAULT)
    assert (told, held(tmp_path / "idle" / DISK)) == ("nothing is lost", {"store.db": b"old"})
    assert held(tmp_path / "first" / DISK) == held(tmp_path / "second" / DISK)


# --- the level ---


@contextmanager
def level_of(directory: Path, *prepare: str) -> Iterator[Powered]:
    """The level for a configuration file with a sound application beside it."""
    (directory / "shop.py").write_text(SOUND)
    file = directory / "shop.yaml"
    file.write_text(CONFIG)
    with importable(file):
        level = Powered(Configured(file), prepare)
        try:
            yield level
        finally:
            level.close()


@pytest.mark.kill9
def test_the_shipped_settings_stand_losses_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And what the disk is taken to hold before each is what its directory holds.

    That can be held against each other where a call died: nobody was within another one. A death elsewhere may have met
    a second thread whose call was done, and not recorded yet; what the disk is taken to hold is what it held before.
    """
    draw, put, strike, told = Disk.draw, outages.put, Outages.strike, []
    replayed: dict[str, bytes] = {}
    struck: list[str] = []

    def noted(outage: Outages, fault: Fault) -> str:
        struck.append(fault.kind)
        return strike(outage, fault)

    def drawn(disk: Disk, kind: str, rng: random.Random) -> Image:
        replayed.clear()
        replayed.update((name, bytes(file.content)) for name, file in disk.names.items())
        return draw(disk, kind, rng)

    def compared(place: Path, files: Mapping[str, bytes]) -> Path:
        if struck[-1] == FAULT.kind:
            assert {name: content for name, content in held(place).items() if not name.endswith(MEMORY)} == replayed
        return put(place, files)

    monkeypatch.setattr(Outages, "strike", noted)
    monkeypatch.setattr(Disk, "draw", drawn)
    monkeypatch.setattr(outages, "put", compared)
    with level_of(tmp_path) as level:
        whole = level.run(body, RunPlan(1, ()))
        assert (whole.violated, whole.crashes, whole.faults) == (None, 0, ())
        calls = whole.points["syscall"]
        plans = [RunPlan(1, (Fault("kill syscall", calls * part // 8),)) for part in range(1, 8)]
        plans += [RunPlan(1, (Fault("kill ck.tx.commit.after", 2), Fault("kill stop.close", 1)))]
        for plan in [*plans, *(RunPlan(seed) for seed in range(1, 5))]:
            outcome = level.run(body, plan)
            assert outcome.violated is None
            told += [one.who for _, one in outcome.history.of("fault") if one.who.startswith("power: ")]
            if plan.faults is not None:
                assert set(outcome.faults) <= set(plan.faults)
    assert len(told) > 8
    assert struck.count(FAULT.kind) >= 7
    assert len(set(told) - {"power: nothing is lost"}) >= 2


FIXTURE = """
from correlator.testing.schedule import Fault


def test_one_world(correlator_power_world):
    world = correlator_power_world("engine.yaml", faults=[Fault("kill syscall", 30)])
    world.publish("queue:orders", [{"id": 1}])
    world.run_until_quiet()
    world.check()
    assert world.state("Totals") == [{"total": 1}]
    assert [one.who for _, one in world.lives.history.of("fault")][1].startswith("power: ")
"""


@pytest.mark.kill9
def test_u8_a_world_without_a_decorator(tmp_path: Path):
    project(tmp_path, test_fixture=FIXTURE)
    result = run_pytest(tmp_path)
    assert (result.returncode, "1 passed" in result.stdout) == (0, True), result.stdout


def normal(life: Any) -> None:
    del life
    settled_as("synchronous = NORMAL")


def off(life: Any) -> None:
    del life
    settled_as("synchronous = OFF")


def only_sqlite(life: Any) -> None:
    """The witness of the store is not synced before it takes its name."""
    del life
    os.fsync = lambda descriptor: None  # type: ignore[assignment]


@pytest.mark.kill9
@pytest.mark.parametrize("weaker", [normal, off, only_sqlite])
def test_a_store_that_syncs_less_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weaker: Callable[[Any], None]
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where it keeps what failed
    with level_of(tmp_path, f"{__name__}:{weaker.__name__}") as level:
        found = searched(level, body, most_runs=500).found
    assert found is not None
    assert found.violated is not None
    assert found.violated.id in {"A1", "G1", "G4", "G8"}
    assert found.kept is not None
    assert {DISK, TRACE, HISTORY, LOG} <= {path.name for path in found.kept.iterdir()}
    assert (found.kept / DISK).stat().st_mode & 0o777 == 0o700


def without_store(config: str) -> str:
    return re.sub("store: .*\n", "", config).replace("EXACTLY_ONCE", "BEST_EFFORT")


def test_a_file_without_a_store_is_refused(tmp_path: Path):
    project(tmp_path, engine=without_store(ENGINE))
    with (
        pytest.raises(UsageError, match=r"^E2433 .*has no store.*Use level kill9"),
        opened("power", tmp_path / "engine.yaml"),
    ):
        pass


def test_without_a_compiler_the_level_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"^E2401 .*there is no C compiler"), level_of(tmp_path):
        pass


# --- as users meet it ---


@pytest.mark.kill9
def test_all_levels_are_those_that_a_file_can_be_run_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    project(tmp_path, TOTALS.replace(", persistent=True", ""), without_store(ENGINE))
    monkeypatch.chdir(tmp_path)
    assert execute(["crashtest", "engine.yaml", "--level", "all", "--budget", "1s"]) == 0
    shown = capsys.readouterr()
    assert "warning: level power is left out: E2433 " in shown.err
    assert all(f"level {name}: " in shown.out for name in ("sim", "kill9"))


WEAK = """
import sys

if sys.argv[0].endswith("zygote.py"):
    from correlator.testing.power.pragmas import settled_as

    settled_as("synchronous = OFF")
"""
"""The store of a user's engines syncs nothing."""


@pytest.mark.kill9
def test_the_plugin_runs_the_level(tmp_path: Path):
    project(tmp_path, test_orders=TEST.replace('budget="300s"', 'budget="3s", levels=["sim", "power"]'))
    result = run_pytest(tmp_path, "--crash-level=power")
    assert (result.returncode, "1 passed, 1 deselected" in result.stdout) == (0, True), result.stdout
    assert "test_orders[power]: level power: " in result.stdout


@pytest.mark.kill9
def test_the_command_finds_a_store_that_syncs_nothing_and_finds_it_again(tmp_path: Path):
    project(tmp_path, WEAK + TOTALS)
    write(tmp_path / "orders.jsonl", [f'{{"id": {n}}}' for n in range(8)])
    environment = {"TMPDIR": str(tmp_path)}  # where it keeps what failed
    asked = "engine.yaml", "--messages", "queue:orders=orders.jsonl"
    found = run("crashtest", *asked, "--level", "power", "--budget", "300s", cwd=tmp_path, env=environment)
    lines = screen(found.stdout)
    assert found.returncode == 1
    assert lines[0].partition(" ")[0] in {"A1", "G1", "G4", "G8"}
    assert any("FAULT power: " in line for line in lines)
    again = run(*lines[1].partition("correlator ")[2].split(), cwd=tmp_path, env=environment)
    assert again.returncode == 1
    assert screen(again.stdout)[0].partition(" ")[0] == lines[0].partition(" ")[0]
