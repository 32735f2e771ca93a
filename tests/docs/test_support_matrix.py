"""The tables of supported features: each line has a state, and a test that exists (rule S5.7)."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "pulsar-support.md"
STATES = ("native", "emulated", "ignored", "refused", "warned of", "missing")
UNTESTED = "missing"


def lines():
    rows = [line.strip("| ").split("|") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[*(cell.strip() for cell in row), ""][:3] for row in rows[1:]]


def test_s5_7_each_line_has_a_state_and_a_test_that_is_there():
    there = {
        name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))
    }
    assert len(lines()) > 40
    for feature, state, test in lines():
        assert state.startswith(STATES), f"{feature}: {state}"
        if test or not state.startswith(UNTESTED):
            assert test.strip("`") in there, f"{feature}: {test}"


def test_each_feature_of_sessions_has_a_state_for_each_connector_and_a_test_that_is_there():
    page = PAGE.with_name("session-support.md")
    there = {
        name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))
    }
    rows = [line.strip("| ").split(" | ") for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    for feature, *states, test in rows[1:]:
        assert len(states) == 3, feature
        assert all(state in ("native", "emulated", "refused", "ignored", "missing") for state in states), feature
        assert test.strip("`") in there, feature
