"""docs/spark-programs.md: its programs and the engine do what the page says."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.docs.test_pages import ROOT

PAGE = ROOT / "docs" / "spark-programs.md"
_FILE = re.compile(r"^```\w*\n# FILE (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = "import sys; sys.path.insert(0, '.'); from correlator.cli.entry import main; main()"
PROGRAMS = """
import runpy, sys
for name in sys.stdin:
    runpy.run_path(name.strip(), run_name="__main__")
    print("END", flush=True)
"""
"""Runs programs one after the other, for which Spark starts once."""
PATIENCE_S = 120.0


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Runs a program of the page, and returns what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as in an active environment of Python
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAMS],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        def run(name: str) -> str:
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            lines = []
            while (line := process.stdout.readline()) != "END\n":
                assert line, (tmp_path / "errors").read_text()
                lines.append(line)
            return "".join(lines)

        yield run
        process.stdin.close()
    assert process.returncode == 0, (tmp_path / "errors").read_text()


@pytest.mark.spark
def test_the_programs_of_the_page(program: Callable[[str], str], tmp_path: Path) -> None:
    text = PAGE.read_text()
    for name, content in _FILE.findall(text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert program("copy_orders.py") == ""
    engine = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", str(ROOT / "config" / "spark-to-lake.yaml")],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (rows := orders(tmp_path)) and time.monotonic() < deadline and engine.poll() is None:
            time.sleep(0.1)
        engine.send_signal(signal.SIGTERM)
        _, errors = engine.communicate(timeout=PATIENCE_S)
    finally:
        engine.kill()
    assert (engine.returncode, rows) == (128 + signal.SIGTERM, [1, 2]), errors
    (shown,) = re.findall(r"^```\n(1 orders .*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert program("show_letters.py") == shown
    assert program("follow_letters.py") == ""
    written = [path.read_text() for path in (tmp_path / "letters").glob("*.json")]
    followed = [json.loads(line) for text in written for line in text.splitlines()]
    assert [(one["number"], one["body"]) for one in followed] == [(1, '{"order": "three"}')]


def orders(place: Path) -> list[int]:
    """The orders of the table; empty while there is none."""
    if not (place / "lake" / "orders" / "_delta_log").exists():
        return []
    table = QueryBuilder().register("orders", DeltaTable(place / "lake" / "orders"))
    return pa.table(table.execute('SELECT "order" FROM orders ORDER BY 1').read_all())["order"].to_pylist()
