"""Measures which functions the simulation and each test call, so that a mutant meets only tests that call its function.

The measurement runs in a copy whose functions record their calls. It also proves that the original passes all tests. In
the process that runs the tests, this module is a pytest plugin, which writes the calls of each test to a file.
"""

import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.harness.mutants.copies import Copy
from tests.harness.mutants.operators import telling

RECORDER = "called_functions"
"""The module of a copy that holds the set of called functions."""
FILE = "called.jsonl"
MOST_SECONDS = 10.0
"""The most seconds that the tests of a function may take. Tests of its package come first, quick ones first."""


class Called(msgspec.Struct, frozen=True):
    """The functions that one test has called."""

    test: str
    seconds: float
    functions: list[str]


class Reach(NamedTuple):
    """The callers of each function, by `module:function`; those of a module's own code by `module:`."""

    simulated: frozenset[str]
    tests: Mapping[str, Sequence[str]]


def make_telling(copy: Copy, sources: Mapping[str, str]) -> None:
    """Make the functions of these files, given with their modules, record their calls."""
    (copy.directory / f"{RECORDER}.py").write_text("called: set[str] = set()\n", encoding="utf-8")
    for file, module in sources.items():
        path = copy.directory / file
        path.write_text(telling(module, path.read_text(encoding="utf-8"), RECORDER), encoding="utf-8")


def called_so_far() -> list[str]:
    """Return the functions that this process has called, if they record their calls."""
    recorder = sys.modules.get(RECORDER)
    return sorted(recorder.called) if recorder else []


def reach_of(simulated: Sequence[str], written: Path) -> Reach:
    """Return the measured calls: those of the simulation, and those in the plugin's file."""
    found = [msgspec.json.decode(line, type=Called) for line in written.read_bytes().splitlines()]
    callers: dict[str, list[Called]] = {}
    for one in sorted(found, key=lambda one: one.seconds):
        for function in {*one.functions, *map(_module_of, one.functions)}:
            callers.setdefault(function, []).append(one)
    tests = {function: _within_the_budget(function, ones) for function, ones in callers.items()}
    return Reach(frozenset({*simulated, *map(_module_of, simulated)}), tests)


def _module_of(function: str) -> str:
    return f"{function.partition(':')[0]}:"


def _within_the_budget(function: str, callers: Sequence[Called]) -> list[str]:
    """Choose one test of each file in turn, so that few seconds cover much: the tests of a file are
    about one subject.
    """
    room = f"tests/{function.split('.')[1]}/"
    rank: Counter[str] = Counter()
    ranked: list[tuple[bool, int, Called]] = []
    for one in callers:
        file = one.test.partition("::")[0]
        ranked.append((not file.startswith(room), rank[file], one))
        rank[file] += 1
    taken: list[str] = []
    seconds = 0.0
    for _, _, one in sorted(ranked, key=lambda entry: entry[:2]):
        seconds += one.seconds
        if taken and seconds > MOST_SECONDS:
            break
        taken.append(one.test)
    return taken


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Append the functions that the test has called to `FILE`."""
    called: set[str] = sys.modules[RECORDER].called
    called.clear()
    begin = time.monotonic()
    result = yield
    line = msgspec.json.encode(Called(item.nodeid, time.monotonic() - begin, sorted(called)))
    with Path(FILE).open("ab") as file:
        file.write(line + b"\n")
    return result
