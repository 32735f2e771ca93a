"""The harness catches every deliberate bug within its budget of seeds."""

import itertools
import json
import re

import pytest

from correlator.testing.simulation.small_world import small_world
from tests.harness import mutants
from tests.harness.simulation.campaign import run_seed
from tests.harness.simulation.scenario import draw


@pytest.mark.campaign
@pytest.mark.parametrize("name", mutants.CATALOGUE)
def test_a_mutant_is_caught(name: str) -> None:
    caught = mutants.hunt(name)
    assert caught is not None, f"{name} survived {mutants.CATALOGUE[name].budget} seeds"
    found = {violation.id for violation in caught.outcome.found}
    assert found & mutants.CATALOGUE[name].expected, f"{name} was caught by {sorted(found)}"


@pytest.mark.parametrize("deduplicating", [True, False])
@pytest.mark.parametrize(
    "name", ["neighbour_of_a_refused_one_given_up", "flight_fails_with_one", "refused_one_skipped"]
)
def test_one_that_fails_in_a_flight_is_watched_at_brokers_with_and_without_deduplication(
    name: str, deduplicating: bool
) -> None:
    seeds = (seed for seed in range(1, 400) if draw(seed)[0].setup.deduplicating is deduplicating)
    expected = mutants.CATALOGUE[name].expected
    with small_world(), mutants.applied(name):
        assert any(
            violation.id in expected for seed in itertools.islice(seeds, 40) for violation in run_seed(seed).found
        )


def test_a_mutant_leaves_nothing_behind() -> None:
    for name in mutants.CATALOGUE:
        with mutants.applied(name):
            pass
    with small_world():
        assert not run_seed(1).failed


def test_what_cannot_be_caught_has_a_proof() -> None:
    assert all(len(proof) > 100 for proof in mutants.EQUIVALENT.values())


def test_the_command_ends_with_status_1_when_a_mutant_survives(monkeypatch, capsys, tmp_path) -> None:
    found, survives = mutants.CATALOGUE["acknowledged_before_commit"], mutants.CATALOGUE["ids_not_reloaded"]
    chosen = {found.name: found, survives.name: survives._replace(budget=0)}
    monkeypatch.setattr(mutants, "CATALOGUE", chosen)
    assert mutants.command(tmp_path / "report.json") == 1
    printed = capsys.readouterr().out
    assert re.search(r"^acknowledged_before_commit +killed after +\d+ runs by A1", printed, re.MULTILINE)
    assert re.search(r"^ids_not_reloaded +SURVIVED 0 runs$", printed, re.MULTILINE)
    assert "2 mutants, 1 survived" in printed
    caught = json.loads((tmp_path / "report.json").read_text())["caught"]
    assert [(one["name"], one["runs"] > 0) for one in caught] == [(found.name, True), (survives.name, False)]
