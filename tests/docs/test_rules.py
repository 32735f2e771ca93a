"""docs/rules.md: every number that is named somewhere leads to a rule, and every rule is named by a test.

A number is named by `rule R9` and `rules A1.5 to A1.13`, by a dotted number alone, and by the beginning of a test's name
(`test_a9_5_…`, `test_a1_16_a1_17_…`). Other numbers in such names, as in `test_t26_…`, are no rules.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT

PAGE = ROOT / "docs" / "rules.md"
PLACES = ("correlator", "connectors", "tests", "docs", "config", "README.md", "CHANGELOG.md", "pyproject.toml")
READ_BY_USERS = ("docs", "config", "README.md", "CHANGELOG.md")
SUFFIXES = {".py", ".md", ".yaml", ".json", ".toml", ".java", ".txt", ".sh", ".mako"}
DATA = ROOT / "config" / "data"

_DOTTED = r"[AS][1-9]\.\d{1,2}"
_NUMBER = rf"(?:{_DOTTED}|[QRUZ]\d{{1,2}})"
_BETWEEN = r"(?:,[\s#]+and[\s#]+|,[\s#]+|[\s#]+(?:and|to)[\s#]+)"
_DEFINED = re.compile(rf"^- \*\*({_NUMBER})\*\* ", re.MULTILINE)
_LISTED = re.compile(rf"\brules?[\s#]+({_NUMBER}(?:{_BETWEEN}{_NUMBER})*)(?!\w)", re.IGNORECASE)
_ALONE = re.compile(rf"(?<![\w.]){_DOTTED}(?![\w.]*\d)")
_SECTIONS = re.compile(r"docs/rules\.md, sections? ([A-Z]\d?(?:(?:, | and )[A-Z]\d?)*)")
_HEADING = re.compile(r"^## ([A-Z]\d?)\. ", re.MULTILINE)
_TEST = re.compile(r"\btest_((?:(?:[as][1-9]_\d{1,2}|[a-z]\d{1,3}|to)_)+)")
_IN_NAME = re.compile(r"(?<![a-z0-9])(?:([as][1-9])_(\d{1,2})|([qruz]\d{1,2}))_")
_PARENTHESES = re.compile(rf"\({_NUMBER}(?:, {_NUMBER})*\)")
BACKGROUND = re.compile(r"(?<!\w)(?:FEATURES|DESIGN)(?!\w)")


def in_text(text: str) -> set[str]:
    """The rules that comments, docstrings and prose name."""
    listed = {number for match in _LISTED.finditer(text) for number in re.findall(_NUMBER, match[1])}
    return listed | set(_ALONE.findall(text))


def in_names(text: str) -> set[str]:
    """The rules that names of tests begin with."""
    found = [one for name in _TEST.finditer(text) for one in _IN_NAME.finditer(name[1])]
    return {f"{one[1]}.{one[2]}".upper() if one[1] else one[3].upper() for one in found}


def files(*places: str) -> Iterator[Path]:
    """All files with text below these places, but this one and recorded data."""
    for place in places:
        path = ROOT / place
        for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if one.suffix in SUFFIXES and one != Path(__file__) and DATA not in one.parents:
                yield one


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("A sender waits (rule A2.15).", {"A2.15"}),
        ("Rules R1 to R9 are those of browsers.", {"R1", "R9"}),
        ("rules A1.5, A1.16, and\n    Z7", {"A1.5", "A1.16", "Z7"}),
        ("# the oldest one (rule\n# S5.6)", {"S5.6"}),
        ("rule Q17: it comes again; U6 is none here", {"Q17"}),
        ('("A6.1", "given stable storage")', {"A6.1"}),
        ("S603, B905, F401, A1, T24, U+2028, C111, 169, E7101, version 1.A1.5.2, A1.125", set()),
    ],
)
def test_rules_in_a_text(text, rules):
    assert in_text(text) == rules


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("test_a9_15_a_backup_is_of_one_moment", {"A9.15"}),
        ("test_a1_16_a1_17_what_is_forgotten_first", {"A1.16", "A1.17"}),
        ("test_a1_7_to_a1_12_what_a_start_refuses", {"A1.7", "A1.12"}),
        ("test_a3_6_89_90_messages_without_id", {"A3.6"}),
        ("test_a4_8_z2_a_monitor_of_another_context", {"A4.8", "Z2"}),
        ("test_t26_z8_of_both", {"Z8"}),
        ("test_u8_levels_points_seeds_and_reports", {"U8"}),
        ("test_1_missing_file, test_40_41_what_the_check_says, test_t70_r_is_none, test_a_rule_a9_5", set()),
    ],
)
def test_rules_in_names_of_tests(name, rules):
    assert in_names(name) == rules


def test_no_number_is_given_twice():
    counts = Counter(_DEFINED.findall(PAGE.read_text("utf-8")))
    assert len(counts) > 150
    assert [number for number, count in counts.items() if count > 1] == []


def test_a_rule_is_in_the_section_of_its_letter():
    _, *parts = _HEADING.split(PAGE.read_text("utf-8"))
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    wrong = {
        number: letter
        for letter, text in sections.items()
        for number in _DEFINED.findall(text)
        if (number.partition(".")[0] if "." in number else number[0]) != letter
    }
    assert wrong == {}


def test_every_number_that_is_named_is_a_rule():
    page = PAGE.read_text("utf-8")
    rules, sections = set(_DEFINED.findall(page)), set(_HEADING.findall(page))
    unknown = {}
    for path in files(*PLACES):
        text = path.read_text("utf-8")
        named = {letter for one in _SECTIONS.findall(text) for letter in re.findall(r"[A-Z]\d?", one)}
        if wrong := (in_text(text) | in_names(text)) - rules | named - sections:
            unknown[shown(path)] = sorted(wrong)
    assert unknown == {}


def test_every_rule_is_named_by_a_test():
    """By its name, or by a docstring or comment within or beside it: the docstring of a module is too far away."""
    named: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            text = path.read_text("utf-8")
            named |= in_names(text) | in_text(after_docstring(text))
    assert [number for number in _DEFINED.findall(PAGE.read_text("utf-8")) if number not in named] == []


def test_every_rule_of_sessions_is_named_by_the_name_of_a_test():
    """A user who looks for the proof of a row finds the function by its name."""
    named = {
        rule
        for path in (ROOT / "tests").rglob("test_*.py")
        for function in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
        for rule in in_names(function)
    }
    wanted = [number for number in _DEFINED.findall(PAGE.read_text("utf-8")) if number[0] in "QRS"]
    assert len(wanted) > 60
    assert [number for number in wanted if number not in named] == []


def after_docstring(text: str) -> str:
    """A module without its own docstring."""
    body = ast.parse(text).body
    first = body[0].end_lineno if body and isinstance(body[0], ast.Expr) else 0
    return "\n".join(text.splitlines()[first:])


def test_what_users_read_needs_no_numbers():
    found = {
        shown(path): numbers
        for path in files(*READ_BY_USERS)
        if path != PAGE and (numbers := in_text(text := path.read_text("utf-8")) | set(_PARENTHESES.findall(text)))
    }
    assert found == {}


def test_what_the_program_says_needs_no_numbers():
    found = {
        f"{shown(path)}:{line}": text
        for path in files("correlator", "connectors")
        if path.suffix == ".py"
        for line, text in said(path)
        if in_text(text) or _PARENTHESES.search(text)
    }
    assert found == {}


def said(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


def test_no_file_names_a_document_that_is_not_there():
    assert [shown(path) for path in files(*PLACES) if BACKGROUND.search(path.read_text("utf-8"))] == []
