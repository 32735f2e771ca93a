"""The page on HTTP: its table of metrics is what the engine exports. Run as a program, this module writes the table."""

import re
from pathlib import Path

from correlator.runtime.http.metrics import described

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
TABLE = re.compile(r"(?<=<!-- metrics -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table() -> str:
    rows = [f"| `{name}` | {kind} | {label} | {text.rstrip('.')} |\n" for name, kind, label, text in described()]
    return "| metric | type | label | meaning |\n|---|---|---|---|\n" + "".join(rows)


def test_the_page_has_all_metrics():
    assert TABLE.search(PAGE.read_text())[0] == table(), f"write it anew: python {Path(__file__).name}"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
