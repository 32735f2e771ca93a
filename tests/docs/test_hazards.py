"""docs/hazards.md: every trap, bad input and invariant that is named somewhere is on it, and a test names each of them.

A trap is named by its number (`trap T41`, `test_t41_…`), a bad input by `bad inputs 114 to 137` or by a number at the
beginning of a test's name (`test_111_…`), an invariant by `invariants E1 and E6` or `test_f2_…`. Numbers of rules, codes
of errors and states of SQL, which names of tests begin with as well, are none of these.
"""

import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from correlator.testing.invariants.catalogue import CATALOGUE
from tests.docs.test_pages import ROOT
from tests.docs.test_rules import PLACES, READ_BY_USERS, after_docstring, files, said, shown
from tests.harness.mutants import catalogue as mutants
from tests.harness.simulation.invariants import GROUPS

PAGE = ROOT / "docs" / "hazards.md"
CRASH_TESTS = ROOT / "docs" / "crash-tests.md"
ROWS = ROOT / "tests" / "configuration" / "test_bad_inputs.py"
SECTIONS = ("Invariants", "Traps", "Bad inputs")

_INVARIANT = r"(?:BE|[A-GKMNPSWX])\d{1,2}"
_DEFINED = re.compile(r"^- \*\*([A-Z]{0,2}\d{1,3})\*\* (.+(?:\n  .+)*)", re.MULTILINE)
_TRAP = re.compile(r"(?<![\w.])T\d{1,2}(?![\w.]*\d)")
_LIST = r"({0}(?:(?:,[\s#]+and|,|[\s#]+and|[\s#]+to)[\s#]+{0})*)(?!\w)"
_BAD_INPUTS = re.compile(r"\bbad[\s#]+inputs?[\s#]+" + _LIST.format(r"\d{1,3}"), re.IGNORECASE)
_INVARIANTS = re.compile(r"\binvariants?[\s#]+" + _LIST.format(_INVARIANT), re.IGNORECASE)
_SPAN = re.compile(r"(\d{1,3})(?:[\s#]+to[\s#]+(\d{1,3}))?")
_ROW = re.compile(r"\bRow\(\s*(\d{1,3}),")
_VIOLATED = re.compile(r'\bViolation\(\s*"(\w+)"')
_TEST = re.compile(r"\btest_((?:[a-z]{0,2}\d[0-9a-z]{0,5}_)+)")
_IN_NAME = re.compile(
    r"(?:[as]\d_\d{1,2}|[qruz]\d{1,2}|[eiw]\d{4}|\d[0-9a-z]{4,5})_"  # rules, codes, states of SQL, large numbers
    r"|(t\d{1,2}|\d{1,3}|(?:be|[a-gkmnpswx])\d{1,2})_"
)
_ABSENT = re.compile(r"\b(?:RELIABILITY|PITFALLS|(?:STYLE|SERVERS|SERVICE|SPARK|OPERATED|REACH)\.md)\b")


def in_text(text: str) -> set[str]:
    """The hazards that comments, docstrings and prose name."""
    found = set(_TRAP.findall(text))
    for listed in _BAD_INPUTS.findall(text):
        for first, last in _SPAN.findall(listed):
            found |= {str(number) for number in range(int(first), int(last or first) + 1)}
    return found | {one for listed in _INVARIANTS.findall(text) for one in re.findall(_INVARIANT, listed)}


def in_names(text: str) -> set[str]:
    """The hazards that names of tests begin with."""
    return {one.upper() for name in _TEST.findall(text) for one in _IN_NAME.findall(name) if one}


def in_rows(path: Path, text: str) -> set[str]:
    """The bad inputs of the table of configuration files."""
    return set(_ROW.findall(text)) if path == ROWS else set()


@functools.cache
def others() -> dict[Path, str]:
    """All files but this test, with their text."""
    return {path: path.read_text("utf-8") for path in files(*PLACES) if path != Path(__file__)}


def sections() -> dict[str, dict[str, str]]:
    """The hazards of the page with their sentences, by its sections."""
    parts = re.split(r"^## (.+)\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], map(_DEFINED.findall, parts[2::2]), strict=True))
    assert tuple(found) == SECTIONS
    return {name: dict(listed) for name, listed in found.items()}


DEFINED = {hazard for listed in sections().values() for hazard in listed}


@pytest.mark.parametrize(
    ("text", "hazards"),
    [
        ("A token never means another chunk (trap T41).", {"T41"}),
        ("(traps T1 and T34, bad inputs 155, 156 and 187)", {"T1", "T34", "155", "156", "187"}),
        ("Bad inputs 53 to 55, and\n    68: what users type", {"53", "54", "55", "68"}),
        ("# nothing changes (invariant E6), nor by invariants\n# G11 to G13", {"E6", "G11", "G13"}),
        ("T201, S603, B905, F401, 2026-05-05T08:00:00Z, A1, C5, 111, a bad input of 5 bytes, G7", set()),
    ],
)
def test_hazards_in_a_text(text, hazards):
    assert in_text(text) == hazards


@pytest.mark.parametrize(
    ("name", "hazards"),
    [
        ("test_t26_110_a_message_that_aborts", {"T26", "110"}),
        ("test_a3_6_89_90_messages_without_id", {"89", "90"}),
        ("test_a8_7_a8_8_e4_a_topic_and_a_queue", {"E4"}),
        ("test_a9_15_t7_a_backup, test_u1_a2_2_t13_state", {"T7", "T13"}),
        ("test_159_40p01_a_deadlock, test_159_57014_55p03_a_statement", {"159"}),
        ("test_109_w5501_comes_after_the_time", {"109"}),
        ("test_e7011_a_file, test_100000_channels, test_a1_7_to_a1_12_what, test_of_32_bits, test_t26", set()),
    ],
)
def test_hazards_in_names_of_tests(name, hazards):
    assert in_names(name) == hazards


def test_no_hazard_is_given_twice():
    counts = Counter(hazard for hazard, _ in _DEFINED.findall(PAGE.read_text("utf-8")))
    assert len(counts) > 300
    assert [hazard for hazard, count in counts.items() if count > 1] == []


def test_a_hazard_is_in_the_section_of_its_kind():
    kinds = {"Invariants": _INVARIANT, "Traps": r"T\d+", "Bad inputs": r"\d+"}
    wrong = [(name, one) for name, listed in sections().items() for one in listed if not re.fullmatch(kinds[name], one)]
    assert wrong == []


def test_every_number_that_is_named_is_a_hazard():
    unknown = {}
    for path, text in others().items():
        named = in_text(text) | in_names(text) | in_rows(path, text) | set(_VIOLATED.findall(text))
        if path == CRASH_TESTS:
            named |= set(re.findall(rf"\b{_INVARIANT}\b", text))
        if wrong := named - DEFINED:
            unknown[shown(path)] = sorted(wrong)
    assert unknown == {}


def test_every_trap_and_every_bad_input_is_named_by_a_test():
    """By its name, or by a docstring or comment within or beside it: the docstring of a module is too far away."""
    named: set[str] = set()
    for path, text in others().items():
        if path.name.startswith("test_"):
            named |= in_names(text) | in_text(after_docstring(text)) | in_rows(path, text)
    found = sections()
    assert [one for name in ("Traps", "Bad inputs") for one in found[name] if one not in named] == []


def test_the_page_has_the_invariants_of_the_catalogue_and_those_that_others_judge():
    assert GROUPS
    listed = sections()["Invariants"]
    told = {name: _plain(sentence) for name, sentence in listed.items()}
    assert {name: told.get(name) for name in CATALOGUE} == {one.id: _plain(one.sentence) for one in CATALOGUE.values()}
    elsewhere = {
        one for text in others().values() for one in (*_VIOLATED.findall(text), *in_text(text), *in_names(text))
    }
    assert set(listed) - set(CATALOGUE) - elsewhere == set()


def test_the_page_of_crash_tests_names_what_holds_for_every_application():
    """No more: what only the application of the project tells is no promise to users."""
    table = CRASH_TESTS.read_text("utf-8").partition("\n| mode | statements |\n")[2].partition("\n\n")[0]
    named = set()
    for listed in re.findall(r"\(([^()]*)\)", table):
        for group, first, last in re.findall(r"\b([A-Z]{1,2})(\d+)(?: to [A-Z]+(\d+))?", listed):
            named |= {f"{group}{number}" for number in range(int(first), int(last or first) + 1)}
    checked = {one.id for one in CATALOGUE.values() if one.checks[0].__module__.startswith("correlator.testing.")}
    assert named == checked | {"G8"}


def _plain(sentence: str) -> str:
    return re.sub(r"\s+", " ", sentence).replace("`", "").rstrip(".").lower()


def test_deliberate_bugs_violate_invariants_of_the_page():
    violated = {one for mutant in mutants.CATALOGUE.values() for one in mutant.expected}
    assert violated - set(sections()["Invariants"]) == set()


def test_what_users_read_needs_no_numbers_of_hazards():
    found = {shown(path): sorted(named) for path in files(*READ_BY_USERS) if path != PAGE and (named := _in(path))}
    assert found == {}


def _in(path: Path) -> set[str]:
    return in_text(path.read_text("utf-8"))


def test_what_the_program_says_needs_no_numbers_of_hazards():
    found = {
        f"{shown(path)}:{line}": text
        for path in files("correlator", "connectors")
        if path.suffix == ".py"
        for line, text in said(path)
        if in_text(text)
    }
    assert found == {}


def test_no_file_names_one_of_these_documents():
    assert [shown(path) for path, text in others().items() if _ABSENT.search(text)] == []
