"""The harness catches every deliberate bug within its budget of seeds."""

import pytest

from correlator.testing import mutants
from correlator.testing.simulation.campaign import run_seed, small_world


@pytest.mark.campaign
@pytest.mark.parametrize("name", mutants.CATALOGUE)
def test_a_mutant_is_caught(name: str) -> None:
    caught = mutants.hunt(name)
    assert caught is not None, f"{name} survived {mutants.CATALOGUE[name].budget} seeds"
    found = {violation.id for violation in caught.outcome.found}
    assert found & mutants.CATALOGUE[name].expected, f"{name} was caught by {sorted(found)}"


def test_a_mutant_leaves_nothing_behind() -> None:
    for name in mutants.CATALOGUE:
        with mutants.applied(name):
            pass
    with small_world():
        assert not run_seed(1).failed


def test_what_cannot_be_caught_has_a_proof() -> None:
    assert all(len(proof) > 100 for proof in mutants.EQUIVALENT.values())
