"""The registry of fault points, and that our own suite kills an engine at every one of them."""

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

from correlator.core import faults
from correlator.testing.simulation.small_world import small_world
from tests.harness import points
from tests.harness.simulation import campaign
from tests.runtime.test_killed import POINTS as KILLED_WHILE_RUNNING
from tests.storage import victim

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"(rx|app|ck|tx|flush|ac|rec|stop|cfg|dl)(\.[a-z]+(_[a-z]+)*)+")
"""The family is the way on which a point lies; `dl` is the way of a dead letter that is brought back."""
KILLED_ELSEWHERE = {
    "app.batch": "tests/runtime/test_killed_pipelines.py",
    "dl.tx.discard": "tests/runtime/test_returning.py",
    "dl.tx.commit.before": "tests/runtime/test_dead_letters.py",
    "dl.tx.commit.after": "tests/runtime/test_dead_letters.py",
}
"""Points that only a pipeline, a command or an order passes."""
RARE_SEEDS = {100_286: "tx.retry", 100_377: "rx.map.error", 100_533: "ac.ack", 100_363: "rx.flow.wait"}
"""They kill where few kills strike: at the first point one of some 4,000, where a message that a broker refused is tried
again; at the second and third one of some 1,700; at the last one of some 850."""
CRASHES, MOST_CRASHES = 1_500, 12_000
"""The second only if those seeds no longer kill there, because the simulation draws otherwise: then name others."""


def names() -> set[str]:
    return {point.name for point in points.points()}


def package(directory: Path, source: str) -> Path:
    (directory / "part").mkdir()
    (directory / "part" / "module.py").write_text(source, encoding="utf-8")
    return directory / "part"


# --- what is in it ---


def test_a_name_is_written_at_one_place():
    assert [name for name, count in Counter(point.name for point in points.points()).items() if count > 1] == []


def test_names_say_on_which_way_they_lie():
    assert [name for name in names() if not NAME.fullmatch(name)] == []


def test_a_point_is_where_the_registry_says():
    for point in points.points():
        line = (ROOT / point.file).read_text(encoding="utf-8").splitlines()[point.line - 1]
        assert f'"{point.name}"' in line


def test_the_registry_has_what_comes_through_values_and_parameters():
    assert names() >= {"rx.poll", "ck.tx.fence", "cfg.tx.commit.after", "rx.tx.insert", "ck.tx.dead_letter"}


def test_a_commit_has_a_point_before_and_one_after():
    befores = {name.removesuffix(".before") for name in names() if name.endswith("commit.before")}
    afters = {name.removesuffix(".after") for name in names() if name.endswith("commit.after")}
    assert befores == afters != set()


# --- how it is made ---


def test_a_name_is_followed_to_where_it_is_written(tmp_path):
    source = """\
class Step:
    number: int
    point: str

def straight(late):
    point("a.b")
    point("c.late" if late else "c.early")

def through_a_field(step):
    point(step.point)

def through_a_parameter(value, name):
    point(name)

class Store:
    def commit(self, name):
        self.inner(Step(1, name))

    def all(self):
        self.commit("d.first")
        self.commit(name="d.second")
        through_a_parameter(1, "e.f")
        Step(number=2, point="g.h")
"""
    found = points.points_of(package(tmp_path, source), tmp_path)
    assert sorted((one.name, one.line) for one in found) == [
        ("a.b", 6),
        ("c.early", 7),
        ("c.late", 7),
        ("d.first", 20),
        ("d.second", 21),
        ("e.f", 22),
        ("g.h", 23),
    ]
    assert {one.file for one in found} == {"part/module.py"}


@pytest.mark.parametrize("made", ['f"{kind}.x"', "kind", "names()[0]", "kind.name"])
def test_a_name_that_cannot_be_read_is_an_error(tmp_path, made):
    with pytest.raises(ValueError, match=r"part/module\.py:3: .* cannot be traced"):
        points.points_of(package(tmp_path, f"\ndef commit(kind):\n    point({made})\n"), tmp_path)


# --- who kills there ---


def killed_in_storage(directory: Path) -> set[str]:
    """`tests/storage/test_kill9.py` kills at every point that this passes."""
    passed: set[str] = set()
    faults.install(passed.add)
    try:
        victim.work_of_an_engine(f"sqlite:///{directory}/engine.db", victim.Report(-1, 0))
    finally:
        faults.install(None)
    return passed


def test_those_elsewhere_are_named_there():
    assert [
        name for name, file in KILLED_ELSEWHERE.items() if f'"{name}"' not in (ROOT / file).read_text("utf-8")
    ] == []


@pytest.mark.campaign
def test_the_simulation_violates_no_invariant_and_our_tests_kill_at_every_point(tmp_path):
    """The quick campaign: its model of the store has the points of the real one, and what it lacks others kill at."""
    running = {point for stage in KILLED_WHILE_RUNNING.values() for point in stage}
    simulated = names() - running - killed_in_storage(tmp_path) - set(KILLED_ELSEWHERE)
    totals = campaign.SimulationFigures()
    with small_world():
        for seed in itertools.chain(RARE_SEEDS, itertools.count(100_000)):
            totals.add(campaign.run_seed(seed))
            missing = simulated - totals.killed_at.keys()
            if totals.failures or totals.crashes >= (MOST_CRASHES if missing else CRASHES):
                break
    assert not totals.failures, "\n".join(
        campaign.report(failure, campaign.shrink(failure)) for failure in totals.failures
    )
    assert totals.killed_at.keys() - names() == set()
    assert missing == set()
