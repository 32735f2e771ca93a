"""Controls that must fail: what would be found if the promise were not kept, or were taken for a stronger one.

A crash test that cannot fail proves nothing; each of these is a world that is right but for one thing.
"""

import pytest

from correlator.connector import Features
from correlator.testing.crashtest.campaign import CrashTestFigures
from correlator.testing.crashtest.runs import RunPlan
from correlator.testing.schedule import Fault
from tests.crash.projects import ENGINE, assert_holds, searched, simulated
from tests.harness import mutants


def checked(world):
    world.publish("queue:orders", [{"id": number} for number in range(10)])
    world.run_until_quiet()
    world.check()


def once(world):
    """The assertion that holds for EXACTLY_ONCE alone."""
    world.publish("queue:orders", [{"id": number} for number in range(10)])
    world.run_until_quiet()
    assert world.sent("bills").ids() == world.published("queue:orders").ids()


def found(place, body, engine=ENGINE):
    with simulated(place, engine=engine) as level:
        result = searched(level, body)
    assert result.shrunk is not None
    return result.shrunk.violated


def test_the_world_is_right(tmp_path):
    assert_holds(tmp_path, checked)
    assert_holds(tmp_path, once)


@pytest.mark.parametrize(("body", "ids"), [(checked, {"E1", "E8"}), (once, {"test"})])
def test_without_duplicate_detection_what_comes_again_is_handled_again(tmp_path, body, ids):
    with mutants.applied("no_duplicate_detection"):
        assert found(tmp_path, body).id in ids


@pytest.mark.parametrize("mutant", ["ids_not_reloaded", "acknowledged_before_commit", "outbox_not_restored"])
def test_other_promises_that_are_broken_are_found_in_worlds_of_users_too(tmp_path, mutant):
    with mutants.applied(mutant):
        assert found(tmp_path, checked).id in mutants.CATALOGUE[mutant].expected


def test_at_least_once_is_not_exactly_once(tmp_path):
    engine = ENGINE.replace("EXACTLY_ONCE, event", "AT_LEAST_ONCE, event")
    assert found(tmp_path, once, engine).id == "test"
    assert_holds(tmp_path, checked, engine=engine)


def test_an_at_least_once_sender_repeats_unless_the_broker_deduplicates(tmp_path):
    engine = ENGINE.replace('bills", reliability: EXACTLY_ONCE', 'bills", reliability: AT_LEAST_ONCE')
    assert_holds(tmp_path, once, engine=engine)
    with simulated(tmp_path, engine=engine) as level:
        level._configured.brokers = {"local": Features()}
        result = searched(level, once)
    assert result.found.violated.id == "test"


def test_a_fault_that_never_strikes_is_counted_as_none(tmp_path):
    figures = CrashTestFigures("sim")
    with simulated(tmp_path) as level:
        for faults in ((Fault("kill", 1_000_000),), (Fault("kill", 30),)):
            figures.add(level.run(checked, RunPlan(1, faults)))
    assert (figures.runs, figures.without_fault, figures.crashes) == (2, 1, 1)
    assert "2 runs (1 without a fault)" in figures.line()
