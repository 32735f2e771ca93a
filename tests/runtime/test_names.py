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
        ("nowhere:A", "cannot import 'nowhere': No module named 'nowhere'"),
        ("nowhere.at.all:A", "cannot import 'nowhere.at.all': No module named 'nowhere'"),
        ("trading_desk.bonds:A", "cannot import 'trading_desk.bonds': No module named 'trading_desk.bonds'"),
        ("trading_desk.lacks:A", "importing 'trading_desk.lacks' failed: No module named 'pricing_library'"),
        (
            "trading_desk.raises:A",
            "importing 'trading_desk.raises' raised ZeroDivisionError: integer division or modulo by zero. At line 2",
        ),
    ],
)
def test_a_module_that_is_missing_is_told_from_one_that_fails(name: str, said: str) -> None:
    """The first is a slip in the configuration, the others are to be mended in the module."""
    with pytest.raises(ConfigError) as refusal:
        resolve(name, "monitors[0].type")
    assert str(refusal.value).startswith(f"E1501 monitors[0].type: {said}")
