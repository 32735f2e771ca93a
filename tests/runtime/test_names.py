"""Classes by name: what is said of a module that cannot be imported (E1501)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from correlator.errors import ConfigError
from correlator.runtime.names import resolve


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of the user's own: one module is good, one lacks what it imports, one raises."""
    package = tmp_path / "trading_desk"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "good.py").write_text("class Trade: ...\n")
    (package / "lacks.py").write_text("import pricing_library\n")
    (package / "raises.py").write_text("def limit():\n    return 1 // 0\n\n\nLIMIT = limit()\n")
    (package / "reads.py").write_text("import json\n\n\nLIMITS = json.loads('{')\n")
    (package / "refused.py").write_text(
        "from correlator.options import check_destination\n\n\ncheck_destination('here', 'nowhere')\n"
    )
    (package / "wrong.py").write_text("class Trade:\n    def:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "trading_desk"]:
        del sys.modules[name]


def test_a_class_of_a_module_that_nobody_has_imported_yet() -> None:
    found = resolve("trading_desk.good:Trade")
    assert (found.__module__, found.__qualname__) == ("trading_desk.good", "Trade")
    assert resolve("trading_desk.good:Trade") is found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:A", "cannot import 'nowhere:A': No module named 'nowhere'"),
        ("trading_desk.bonds:A", "cannot import 'trading_desk.bonds:A': No module named 'trading_desk.bonds'"),
        ("trading_desk.lacks:A", "cannot import 'trading_desk.lacks:A': No module named 'pricing_library'"),
        ("trading_desk.lacks:A", "DIRECTORY/lacks.py:1 in <module>: import pricing_library"),
        (
            "trading_desk.raises:A",
            "cannot import 'trading_desk.raises:A': ZeroDivisionError: integer division or modulo",
        ),
        ("trading_desk.raises:A", "DIRECTORY/raises.py:2 in limit: return 1 // 0"),
        ("trading_desk.reads:A", "DIRECTORY/reads.py:4 in <module>: LIMITS = json.loads('{')"),
        (
            "trading_desk.wrong:A",
            "cannot import 'trading_desk.wrong:A': SyntaxError: invalid syntax (wrong.py, line 2)",
        ),
        ("trading_desk.good:Trades", "'trading_desk.good' has no 'Trades'. Did you mean 'Trade'?"),
        ("trading_desk.raises:limit", "DIRECTORY/raises.py:2 in limit"),
        ("trading_desk", "'trading_desk' is not an import path. Write 'module:Class'"),
        ("trading_desk.good:__name__", "'trading_desk.good:__name__' is no class"),
    ],
)
def test_what_is_wrong_is_told_with_the_lines_of_the_user(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(name, "monitors[0].type")
    assert str(refusal.value).startswith("E1501 monitors[0].type: ")
    assert said.replace("DIRECTORY", str(tmp_path / "trading_desk")) in str(refusal.value)


def test_what_correlator_refuses_in_a_module_is_told_without_the_lines_of_correlator(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve("trading_desk.refused:A")
    file = tmp_path / "trading_desk" / "refused.py"
    assert refusal.value.todo == f"Raised at\n  {file}:4 in <module>: check_destination('here', 'nowhere')"
