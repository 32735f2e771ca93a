"""The list of codes is the truth: what the source uses is in it, and nothing else is."""

import re
from pathlib import Path

from correlator.cli.codes import CODES, FAMILIES

ROOT = Path(__file__).parents[2]
LIST = ROOT / "correlator" / "cli" / "codes.py"
CODE = re.compile(r"\b[EWI]\d{4}\b")


def used() -> set[str]:
    sources = [
        path for name in ("correlator", "connectors", "pyspark_correlator") for path in (ROOT / name).rglob("*.py")
    ]
    return {code for path in sources if path != LIST for code in CODE.findall(path.read_text(encoding="utf-8"))}


def test_every_code_in_the_source_is_explained():
    assert sorted(used() - set(CODES)) == []


def test_every_explained_code_is_in_the_source():
    assert sorted(set(CODES) - used()) == []


def test_an_explanation_is_one_sentence():
    wrong = [
        code for code, text in CODES.items() if not (text[0].isupper() and text.endswith(".") and "\n" not in text)
    ]
    assert wrong == []


def test_every_code_has_a_family():
    assert {code[1] for code in CODES} <= set(FAMILIES)
