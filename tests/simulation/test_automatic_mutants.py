"""Mutants that nobody chose: how they are made, how they are judged, and that a handful of each kind is killed."""

import ast
import json
from collections import defaultdict
from hashlib import sha256

import pytest

from tests.harness.mutants import automatic, reach
from tests.harness.mutants.automatic import PlacedMutant, Verdict
from tests.harness.mutants.copies import Copy
from tests.harness.mutants.operators import AutomaticMutant, SourceEdit, SourceText, mutants_of, telling
from tests.harness.mutants.reach import Reach
from tests.harness.processes import ROOT

SOURCE = '''\
"""Documentation."""
LIMIT = 3


class Queue:
    """Documentation."""

    def take(self, most: int = 7, spare: str = "") -> int | None:
        """Documentation."""
        assert most > 0
        point("q.take")
        del spare
        taken = min(most, len(self.items))
        self.taken = self.taken + 1
        for number in range(taken):
            if number >= LIMIT and not self.closed:
                break
            self.wake()
        self.note(f"{taken + 1}")
        return None if taken == 0 else self.items.popleft()

    @property
    def empty(self) -> bool:
        return True
'''
TAKE = "m:Queue.take"


def made() -> dict[str, AutomaticMutant]:
    return {mutant.id: mutant for mutant in mutants_of("m", SOURCE)}


def slips(kind: str) -> set[str]:
    """What the mutants of one kind have put in, a line each."""
    return {
        line[1:].strip()
        for mutant in made().values()
        if mutant.edit.kind == kind
        for line in mutant.diff.splitlines()
        if line.startswith("+")
    }


# --- how they are made ---


def test_every_mutant_is_python_and_differs_in_its_meaning():
    original = ast.dump(ast.parse(SOURCE))
    for mutant in made().values():
        assert ast.dump(ast.parse(mutant.source)) != original, mutant.id


def test_ids_are_unique_and_stable():
    ids = [mutant.id for mutant in mutants_of("m", SOURCE)]
    assert len(ids) == len(set(ids))
    assert ids == [mutant.id for mutant in mutants_of("m", SOURCE)]
    assert {f"{TAKE}:remove:1", f"{TAKE}:empty:1", "m::number:1", "m:Queue.empty:boolean:1"} <= set(ids)


@pytest.mark.parametrize(
    ("kind", "slip"),
    [
        ("number", "LIMIT = (4)"),
        ("opposite", "taken = (max)(most, len(self.items))"),
        ("opposite", "return None if taken == 0 else (self.items.pop)()"),
        ("arithmetic", "self.taken = (self.taken - 1)"),
        ("arithmetic", "self.taken = (self.taken)"),
        ("compare", "if (number > LIMIT) and not self.closed:"),
        ("compare", "if (number < LIMIT) and not self.closed:"),
        ("boolean", "if (number >= LIMIT or not self.closed):"),
        ("boolean", "if number >= LIMIT and (self.closed):"),
        ("boolean", "return (False)"),
        ("operand", "if (number >= LIMIT):"),
        ("branch", "return (self.items.popleft() if taken == 0 else None)"),
        ("leave", "continue"),
        ("return", "return None"),
        ("empty", "return None"),
        ("remove", "pass"),
        ("swap", "self.taken = self.taken + 1"),
    ],
)
def test_each_operator_makes_its_slip(kind, slip):
    assert slip in slips(kind)


def test_a_slip_is_one_place_and_nothing_else_moves():
    mutant = made()[f"{TAKE}:remove:4"]
    assert mutant.diff.count("\n-") + mutant.diff.count("\n+") <= 4
    assert mutant.source.count("\n") in (SOURCE.count("\n"), SOURCE.count("\n") - 2)


def test_what_is_no_behaviour_is_left_alone():
    for mutant in made().values():
        removed = [line[1:].strip() for line in mutant.diff.splitlines() if line.startswith("-")]
        for kept in (
            '"""Documentation."""',
            "assert most > 0",
            'point("q.take")',
            "del self",
            'self.note(f"{taken + 1}")',
        ):
            assert kept not in removed or mutant.edit.kind in ("remove", "swap")
        assert "most: int = 7" in mutant.source
        assert 'point("q.take")' in mutant.source


def test_functions_that_tell_do_what_they_did():
    lines = telling("m", SOURCE, "recorder").splitlines()
    assert lines[:2] == ['"""Documentation."""', "from recorder import called as _called"]
    assert "        _called.add('m:Queue.take')" in lines
    assert "        _called.add('m:Queue.empty')" in lines


def test_tests_of_a_function_are_those_of_its_room_of_each_file_the_quickest_first(tmp_path):
    """As many as the budget allows, and at least one."""
    f, g, h = "correlator.core.a:f", "correlator.runtime.b:g", "correlator.runtime.c:h"
    called = {
        "tests/core/test_a.py::slow": (3, [f]),
        "tests/core/test_a.py::quick": (1, [f]),
        "tests/core/test_c.py::slower": (4, [f]),
        "tests/runtime/test_b.py::quickest": (0.1, [f, g]),
        "tests/runtime/test_b.py::too_slow": (5, [f]),
        "tests/runtime/test_b.py::very_slow": (90, [h]),
    }
    lines = [json.dumps({"test": test, "seconds": time, "functions": by}) for test, (time, by) in called.items()]
    (tmp_path / reach.FILE).write_text("\n".join(lines), encoding="utf-8")
    found = reach.reach_of(["correlator.core.d:f"], tmp_path / reach.FILE)
    assert found.simulated == {"correlator.core.d:f", "correlator.core.d:"}
    names = ["core/test_a.py::quick", "core/test_c.py::slower", "core/test_a.py::slow", "runtime/test_b.py::quickest"]
    assert found.tests[f] == found.tests["correlator.core.a:"] == [f"tests/{name}" for name in names]
    assert found.tests[g] == ["tests/runtime/test_b.py::quickest"]
    assert found.tests[h] == ["tests/runtime/test_b.py::very_slow"]


# --- how they are judged ---


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


def place(file: str, name: str) -> PlacedMutant:
    module = file.removesuffix(".py").replace("/", ".")
    return next(one for one in mutants_in(file) if one.mutant.id == f"{module}:{name}")


def mutants_in(file: str) -> list[PlacedMutant]:
    module = file.removesuffix(".py").replace("/", ".")
    text = (ROOT / file).read_text(encoding="utf-8")
    return [PlacedMutant(mutant, file) for mutant in mutants_of(module, text)]


def slip(file: str, text: str) -> PlacedMutant:
    """Something put before the first statement of a module."""
    module = file.removesuffix(".py").replace("/", ".")
    original = SourceText((ROOT / file).read_text(encoding="utf-8"))
    first = original.tree.body[1]
    return PlacedMutant(
        AutomaticMutant(
            f"{module}:f:made:1", SourceEdit("made", first, f"{text}\n{original.of(first)}", first), original
        ),
        file,
    )


FEW_SEEDS = 8
EVERYWHERE = Reach(frozenset({f"{module}:f" for module in ("correlator.core.queue", "correlator.core.outbox")}), {})


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small budgets."""
    monkeypatch.setattr(automatic, "SEEDS", FEW_SEEDS)
    monkeypatch.setattr(automatic, "HUNT_CPU_S", 4)


def judged(copy: Copy, one: PlacedMutant, reach: Reach = EVERYWHERE) -> Verdict:
    """With the proof that the copy is the original again, and the product untouched."""
    before = (copy.directory / one.file).read_bytes()
    verdict = automatic.judge(copy, one, reach)
    assert (copy.directory / one.file).read_bytes() == before == (ROOT / one.file).read_bytes()
    return verdict


def test_an_invariant_kills(copy, hasty):
    killed = place("correlator/core/outbox.py", "Outbox.release:empty:1")
    verdict = judged(copy, killed, Reach(frozenset({killed.mutant.function}), {}))
    assert (verdict.fate, verdict.kind) == ("simulation", "empty")
    assert verdict.by
    assert 1 <= verdict.seeds <= FEW_SEEDS


def test_a_module_that_does_not_run_is_a_kill(copy, hasty):
    verdict = judged(copy, slip("correlator/core/queue.py", "raise ValueError"))
    assert (verdict.fate, verdict.by) == ("simulation", ["ValueError"])


def test_what_does_not_end_is_a_kill(copy, hasty, monkeypatch):
    monkeypatch.setattr(automatic, "HUNT_CPU_S", 1)
    assert judged(copy, slip("correlator/core/queue.py", "while True: pass")).fate == "timeout"


def test_unit_tests_kill_what_the_simulation_does_not_call(copy):
    killed = place("correlator/core/queue.py", "InputQueue.backlog:return:1")
    tests = {killed.mutant.function: ["tests/core/test_input_queue.py"]}
    verdict = judged(copy, killed, Reach(frozenset(), tests))
    assert verdict.fate == "tests"
    assert verdict.by[0].startswith("tests/core/test_input_queue.py::")
    assert verdict.seeds == 0


def test_a_harmless_slip_survives_with_its_diff(copy, hasty):
    verdict = judged(copy, slip("correlator/core/queue.py", "HARMLESS = 1"))
    assert (verdict.fate, verdict.by, verdict.seeds) == ("survived", [], FEW_SEEDS)
    assert "+HARMLESS = 1" in verdict.diff


def test_a_report_counts_what_became_of_the_sample():
    def verdict(fate: automatic.Fate, *by: str) -> Verdict:
        values = {"mutant": "m:f:swap:1", "file": "m.py", "line": 1, "seeds": 1, "seconds": 0.1, "diff": ""}
        return Verdict(kind="swap", fate=fate, by=list(by), **values)

    report = automatic.report_of(
        [verdict("simulation", "A1", "A2"), verdict("survived"), verdict("tests", "t")], 1, 9, 2.0
    )
    assert report.fates == {"simulation": 1, "survived": 1, "tests": 1}
    assert report.by_kind == {"swap": {"simulation": 1, "survived": 1, "tests": 1}}
    assert report.by_invariant == {"A1": 1, "A2": 1}
    assert (report.sample, report.mutants) == (3, 9)


# --- a handful of each kind ---

TESTS_OF = {
    "correlator/core/outbox.py": ["tests/core/test_outbox.py"],
    "correlator/core/queue.py": ["tests/core/test_input_queue.py"],
    "correlator/core/dedup.py": ["tests/core/test_duplicate_detector.py", "tests/core/test_sightings.py"],
    "correlator/core/intake.py": ["tests/core/test_receiver_cycle.py", "tests/core/test_intake.py"],
    "correlator/core/admission.py": ["tests/core/test_admission.py"],
}
OF_EACH_KIND = 1
SURVIVORS = 0.25
"""The budgets of this test are small, and some slips change nothing: the whole sample is run by the command."""


def handful() -> list[PlacedMutant]:
    by_kind: dict[str, list[PlacedMutant]] = defaultdict(list)
    for file in TESTS_OF:
        for one in mutants_in(file):
            by_kind[one.mutant.edit.kind].append(one)
    # By a digest of the id, so that a change of the source replaces none of the others.
    drawn = [sorted(found, key=lambda one: sha256(one.mutant.id.encode()).digest()) for found in by_kind.values()]
    return [one for found in drawn for one in found[:OF_EACH_KIND]]


@pytest.mark.campaign
def test_most_of_a_handful_of_each_kind_are_killed(copy, hasty):
    places = handful()
    survived = []
    for one in places:
        function = one.mutant.function
        verdict = judged(copy, one, Reach(frozenset({function}), {function: TESTS_OF[one.file]}))
        if verdict.fate == "survived":
            survived.append(f"{verdict.mutant}\n{verdict.diff}")
    assert len(survived) <= SURVIVORS * len(places), "\n".join(survived)


def test_what_is_explained_is_a_mutant_of_the_source_as_it_is():
    ids = {one.mutant.id for one in automatic.all_mutants()}
    rows = [line.split("`")[1] for line in automatic.explained().splitlines() if line.startswith("| `")]
    assert [name for name in rows if name not in ids] == []
    assert rows == sorted(rows)
