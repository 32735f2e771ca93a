"""The tables of supported features: each line has a state, and a test that exists (rule S5.7)."""

import re
import subprocess
import sys
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


SESSIONS = PAGE.with_name("session-support.md")
CONNECTORS = {"embedded": "TestOverEmbedded", "rabbit": "TestOverRabbitMQ", "pulsar": "TestOverPulsar"}
"""The connectors in the order of the columns: how parameters of tests name them, and classes of tests."""
NOT_AVAILABLE = {"refused", "ignored", "missing"}


def features_of_sessions():
    """Each row as the feature, its states by connector, and the name of its test."""
    rows = [line.strip("| ").split(" | ") for line in SESSIONS.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    for feature, *states, test in rows[1:]:
        yield feature, dict(zip(CONNECTORS, states, strict=True)), test.strip("`")


def collected(names):
    """The connectors with which pytest runs each of these tests, by the name of the test."""
    texts = {path: path.read_text("utf-8") for path in sorted((TESTS / "connectors").glob("test_*.py"))}
    named = re.compile(rf"def ({'|'.join(names)})\(|OverEveryBroker\)")
    files = [str(path) for path, text in texts.items() if named.search(text)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    told = subprocess.run(command, cwd=TESTS.parent, check=True, capture_output=True, text=True).stdout
    found = {name: set() for name in names}
    for node in re.finditer(r"::(?:(\w+)::)?(test_\w+)(?:\[(.*)\])?$", told, re.MULTILINE):
        class_, name, parameters = node.groups()
        if name in found:
            among = {class_, *(parameters or "").split("-")}
            found[name] |= {connector for connector, over in CONNECTORS.items() if {connector, over} & among}
    return found


def test_each_feature_of_sessions_has_a_state_for_each_connector_and_a_test_that_runs_with_it():
    rows = list(features_of_sessions())
    runs_with = collected({test for *_, test in rows})
    for feature, states, test in rows:
        assert set(states.values()) <= {"native", "emulated", *NOT_AVAILABLE}, feature
        claimed = {connector for connector, state in states.items() if state != "missing"}
        assert claimed <= runs_with[test], f"{feature}: {test} runs with {runs_with[test]}"


def test_each_feature_of_sessions_that_a_connector_does_not_have_has_a_reason():
    reasons = re.findall(r"^- (.+?): ", SESSIONS.read_text("utf-8").partition("## Why")[2], re.MULTILINE)
    assert reasons == [feature for feature, states, _ in features_of_sessions() if NOT_AVAILABLE & set(states.values())]
