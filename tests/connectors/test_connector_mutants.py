"""The quick form of the hunt for deliberate bugs of connectors: some that need no server. And that a hunt can fail."""

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness import connector_mutants
from tests.harness.connector_mutants import CATALOGUE, Mutant
from tests.harness.processes import ROOT

QUICK = (
    "count_of_rows_unread",
    "log_let_go_while_changes_wait",
    "answered_before_the_commit",
    "new_key_at_a_repeat",
    "another_object_removed",
)


@pytest.mark.campaign
@pytest.mark.parametrize("name", QUICK)
def test_a_deliberate_bug_is_found(name: str) -> None:
    fate = connector_mutants.hunt(name)
    assert fate.found, fate.output


@pytest.mark.parametrize("mutant", CATALOGUE.values(), ids=CATALOGUE)
def test_each_mutant_changes_the_code_and_has_a_test(mutant: Mutant) -> None:
    spec = find_spec(mutant.edit.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    changed = mutant.edit.applied(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    file, _, test = mutant.test.partition("::")
    tests = ast.parse((ROOT / "tests" / "connectors" / file).read_text())
    assert test.partition("[")[0] in {one.name for one in tests.body if isinstance(one, ast.FunctionDef)}
    assert re.compile(mutant.says)


@pytest.mark.parametrize(
    ("status", "output", "found"),
    [
        (1, "E   Failed: DID NOT RAISE ConnectionLost\nFAILED tests/connectors/t.py::t", True),
        (1, "E   AssertionError: something else\nFAILED tests/connectors/t.py::t", False),
        (1, "E   Failed: DID NOT RAISE ConnectionLost\nERROR tests/connectors/t.py::t", False),
        (0, "1 passed", False),
        (4, "no such test", False),
        (None, "it did not end", False),
    ],
)
def test_only_a_failure_for_the_stated_reason_finds_a_bug(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    status: int | None,
    output: str,
    found: bool,
) -> None:
    ends = iter([(0, "1 passed"), (status, output)])
    monkeypatch.setattr(connector_mutants, "_ended", lambda _: next(ends))
    report = tmp_path / "report.json"
    assert connector_mutants.command(["count_of_rows_unread"], report) == (0 if found else 1)
    assert ("SURVIVED" in capsys.readouterr().out) is not found
    assert json.loads(report.read_text())["survived"] == (0 if found else 1)


def test_a_test_that_fails_without_a_bug_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = (1, "E   Failed: DID NOT RAISE ConnectionLost\nFAILED tests/connectors/t.py::t")
    monkeypatch.setattr(connector_mutants, "_ended", lambda _: failed)
    assert connector_mutants.command(["count_of_rows_unread"], None) == 1
    assert "without a bug: FAILED tests/connectors/t.py::t" in capsys.readouterr().out
