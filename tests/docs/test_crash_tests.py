"""What docs/crash-tests.md and the README show of crash tests is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.crash.projects import INSTALLED, run_pytest
from tests.docs.test_pages import ROOT
from tests.docs.test_pages import blocks as examples
from tests.docs.test_transcripts import blocks, commands, pattern

_NAMED = re.compile(r"# (?:FILE )?(\S+\.\w+)\n")


def write_files(page, place):
    for _, text in blocks(page):
        if named := _NAMED.match(text):
            (place / named[1]).write_text(text[named.end() :])
            (place / named[1]).chmod(0o600)


VARIES = (
    (r"[0-9a-f]{8}\.json", "FILE.json"),
    (r"at [a-z_]+\.[a-z_.]+", "at POINT"),
    (r"\d+(\.\d+)?", "0"),
    (r"([ =_])\1+", r"\1"),
)


def plain(text):
    """The text without what varies: numbers, names of fault points and of files, widths."""
    for written, shown in VARIES:
        text = re.sub(written, shown, text)
    return text


def mend(module):
    """As the page says: an annotated attribute of the class in place of `__init__`."""
    text = re.sub(
        r"    def __init__.*?= {}\n", "    totals: dict[str, int] = {}\n", module.read_text(), flags=re.DOTALL
    )
    assert text != module.read_text()
    module.write_text(text)


def test_u8_the_page_shows_what_happens(tmp_path):
    write_files("crash-tests.md", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly\n")
    # The page shows a terminal: where these are set, pytest does not shorten the lines of its summary to its width.
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    environment = {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}",
        "PYTEST_ADDOPTS": "" if INSTALLED else "-p correlator.testing.plugin",
        "COLUMNS": "80",
    }
    transcripts = [text for language, text in blocks("crash-tests.md") if language == "console"]
    seen = 0
    for command, lines in commands("".join(transcripts)):
        if "--crash-replay" in command:
            mend(tmp_path / "orders.py")
        kept = next((tmp_path / ".crash").glob("*"), Path())
        shell = ["/bin/sh", "-c", re.sub(r"\w{8}\.json", kept.name, command)]
        done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        shown = [plain(line) for line in lines]
        assert re.fullmatch(pattern(shown), plain(done.stdout)), f"$ {command}\n{done.stdout}{done.stderr}"
        seen += 1
    assert seen == 3
    single = run_pytest(tmp_path, "test_one.py")
    assert "1 passed" in single.stdout


def test_u8_the_five_lines_of_the_readme(tmp_path):
    texts = [text for language, text in examples(ROOT / "README.md") if language in ("python", "py", "yaml")]
    (tmp_path / "test_risk.py").write_text(next(text for text in texts if "crash_test" in text))
    (tmp_path / "risk.py").write_text(next(text for text in texts if "class Positions" in text))
    (tmp_path / "risk.yaml").write_text(next(text for text in texts if "name: risk" in text))
    result = run_pytest(tmp_path, "--crash-budget=2s")
    assert "1 passed" in result.stdout, result.stdout
