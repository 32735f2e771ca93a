"""What the simulation promises about itself: equal seeds, small failures. The quick campaign is in test_points.py."""

import itertools
import os
import subprocess
import sys
from collections import Counter

import pytest

from correlator.testing.schedule import CUT_AGAIN, KILL, LOST_BESIDE, draw_rates, is_doubtful
from tests.harness import mutants
from tests.harness.simulation import campaign
from tests.harness.simulation.scenario import draw


def test_swarms_hold_controls_and_kills_alone() -> None:
    rates = [draw_rates(seed) for seed in range(300)]
    assert 10 < sum(not one for one in rates) < 60
    assert 10 < sum(set(one) == {KILL} for one in rates) < 60


def test_lines_are_lost_again_before_a_loss_is_settled_and_on_both_sides_of_a_queue() -> None:
    """Counted in the faults that struck: of both kinds there are enough to find something by them."""
    struck: Counter[str] = Counter()
    with campaign.small_world():
        for seed in (seed for seed in range(1, 80) if is_doubtful(seed)):
            struck.update(fault.kind for fault in campaign.run_seed(seed).faults)
            if struck[CUT_AGAIN] > 20 and struck[LOST_BESIDE] > 2:
                break
    assert struck[CUT_AGAIN] > 20
    assert struck[LOST_BESIDE] > 2


def test_lives_begin_with_other_configurations_of_which_starts_refuse_some() -> None:
    """Counted in what engines did: changes that nothing refuses, or that nothing accepts, would find nothing."""
    refused: Counter[str] = Counter()
    accepted = 0

    def are_enough() -> bool:
        return accepted > 50 and min(refused[code] for code in ("E4301", "E4315", "E4316", "E4331")) > 2

    with campaign.small_world():
        for seed in (seed for seed in range(1, 120) if draw(seed)[1].first is not None):
            history = campaign.run_seed(seed).history
            refused.update(record.who for _, record in history.of("declined"))
            lives = {record.life: record.data for _, record in history.of("configured")}
            began = [lives[record.life] for _, record in history.of("began")]
            accepted += sum(one != other for one, other in itertools.pairwise(began))
            if are_enough():
                break
    assert are_enough(), (accepted, refused)


@pytest.mark.parametrize("seed", [3, 17, 42])
def test_the_same_seed_makes_the_same_history(seed: int) -> None:
    with campaign.small_world():
        first, second = (campaign.run_seed(seed).history.digest() for _ in range(2))
    assert first == second


def digest_in_a_process(seed: int, hash_seed: str) -> str:
    """The hash of a history, made in a process with another order of sets of text."""
    command = [sys.executable, "-m", "tests.harness.simulation", "--digest", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout


def test_the_history_does_not_depend_on_the_order_of_sets() -> None:
    """A dependence would be noticed: the mutant `order_of_a_set` is hunted like this."""
    assert digest_in_a_process(42, "1") == digest_in_a_process(42, "2") != ""


def test_a_failure_is_shrunk_and_shown_on_one_screen() -> None:
    caught = mutants.hunt("store_error_swallowed")
    assert caught is not None
    with mutants.applied("store_error_swallowed"):
        shrunk = campaign.shrink(caught.outcome)
    shown = campaign.report(caught.outcome, shrunk)
    assert shrunk.failed
    assert len(shrunk.faults) < len(caught.outcome.faults)
    assert f"--only {caught.outcome.seed}" in shown
    assert shrunk.found[0].sentence in shown
    assert len(shown.splitlines()) <= 25
