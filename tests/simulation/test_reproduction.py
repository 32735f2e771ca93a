"""Failures repeat in another process, and reports are written for programs."""

import json
import stat

import pytest

from correlator.errors import UsageError
from correlator.testing.files import write_json
from correlator.testing.invariants.catalogue import Violation
from correlator.testing.invariants.history import History, Setup
from tests.harness import mutants
from tests.harness.simulation import figures, reproduction
from tests.harness.simulation.campaign import SeedOutcome, SimulationFigures
from tests.harness.simulation.reproduction import Failure


@pytest.mark.campaign
def test_failures_are_repeated_equally_by_another_process():
    report = reproduction.reproduce(5)
    assert (report.failures, report.equal, report.different) == (5, 5, [])
    assert sum(report.by_invariant.values()) == 5
    assert report.mutants > 1


def test_the_command_writes_what_it_prints_and_fails_on_a_difference(monkeypatch, tmp_path, capsys):
    one = Failure("a", 1, "x", "A1")
    runs = iter([[one, one], [one, Failure("a", 1, "y", "A1")]])
    monkeypatch.setattr(reproduction, "in_a_process", lambda *_: next(runs))
    assert reproduction.command(2, 1, tmp_path / "report.json") == 1
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (written["failures"], written["equal"], len(written["different"])) == (2, 1, 1)
    assert "2 failures of 1 mutants repeated, 1 equal" in capsys.readouterr().out


def test_a_run_that_depends_on_the_order_of_sets_is_not_equal():
    pair = [Failure("order_of_a_set", 42)]
    ones = [reproduction.in_a_process(seed, ["--repeat"], pair)[0].digest for seed in ("1", "2", "3", "4")]
    assert len(set(ones)) > 1


def test_no_pair_is_drawn_twice(monkeypatch):
    monkeypatch.setattr(reproduction, "SEEDS", 2)
    drawn = []

    def run(mutant: str, seed: int) -> Failure:
        drawn.append((mutant, seed))
        return Failure(mutant, seed, "", "A1" if seed == 2 else "")

    monkeypatch.setattr(reproduction, "run", run)
    found = list(reproduction.find(30, 1))
    assert len(set(drawn)) == len(drawn) >= 30
    assert {one.seed for one in found} == {2}


def test_the_end_of_a_process_that_fails_is_shown():
    with pytest.raises(SystemExit, match=r"(?s)PYTHONHASHSEED=1 ended with status 1: .*KeyError"):
        reproduction.in_a_process("1", ["--repeat"], [Failure("no such mutant", 1)])


def test_figures_of_a_campaign():
    found = [Violation("A1", "", "x"), Violation("A1", "", "y"), Violation("S2", "", "z")]
    totals = SimulationFigures(cpu_s=1.234)
    totals.add(SeedOutcome(seed=7, crashes=2, found=found, history=History(Setup()), killed_at={"rx.poll": 2}))
    totals.add(SeedOutcome(seed=8, crashes=1, history=History(Setup()), killed_at={"ac.ack": 1}))
    totals.add(SeedOutcome(seed=9, history=History(Setup())))
    report = figures.campaign_report(7, 1, totals)
    assert (report.first_seed, report.runs, report.crashes, report.violations, report.seconds) == (7, 3, 3, 1, 1.23)
    assert report.without_fault == 1
    assert report.by_invariant == {"A1": 1, "S2": 1}
    assert list(report.killed_at.items()) == [("ac.ack", 1), ("rx.poll", 2)]


def test_a_report_is_json_that_its_owner_alone_reads(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("an earlier and longer report, which others may read" * 10, encoding="utf-8")
    path.chmod(0o644)
    write_json(path, mutants.MutantsReport(mutants=1, survived=0, seconds=2.0, caught=[]))
    assert json.loads(path.read_text(encoding="utf-8")) == {"mutants": 1, "survived": 0, "seconds": 2.0, "caught": []}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_e2424_a_report_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="E2424 .*No such file or directory"):
        write_json(tmp_path / "no" / "report.json", {})
