"""What the documentation shows of commands is what they show: transcripts are run, page after page, in one directory.

A line that begins with `$ ` is a command for the shell; what follows is what it writes to both streams. `…` stands for
any text, and alone on a line for any lines. Files are the examples whose first line is `# NAME.yaml` or `# FILE NAME`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from correlator.cli import entry
from tests import forked

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("commands.md", "create.md", "dead-letters.md", "embedded.md", "operations.md", "tracing.md")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# (FILE )?(\S+\.\w+)\n")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each example."""
    return _BLOCK.findall((DOCS / page).read_text())


def commands(transcript: str) -> list[tuple[str, list[str]]]:
    """Each command with the lines that it shows."""
    found: list[tuple[str, list[str]]] = []
    for line in transcript.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def pattern(lines: list[str]) -> str:
    """A regular expression for the lines."""
    return "".join(
        "(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n" for line in lines
    )


@pytest.fixture
def place(tmp_path):
    """A directory with the files of the pages, which only their owner can read."""
    for page in PAGES:
        files_of(page, tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "store").mkdir(mode=0o700)
    return tmp_path


def files_of(page: str, place: Path) -> None:
    """Write the files of a page into a directory."""
    for _, text in blocks(page):
        if named := _NAMED.match(text):
            content = text[named.end() :] if named[2].endswith(".jsonl") else text
            (place / named[2]).write_text(content)
            (place / named[2]).chmod(0o600)


def environment() -> dict[str, str]:
    """The environment of the tests, with the commands of this installation first in the path."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(command: str, place: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell does; `correlator` alone, without anything that the shell interprets, needs none."""
    words = command.split()
    if words[0] == "correlator" and shlex.join(words) == command and forked.can_fork(variables):
        return forked.run(entry.main, words, place, variables, together=True)
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=place,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_transcripts(examples: list[tuple[str, str]], place: Path, variables: dict[str, str]) -> int:
    """Run the commands among the examples of a page; returns how many have shown what the page says."""
    shown = commands("".join(text for language, text in examples if language == "console"))
    for command, lines in shown:
        done = run(command, place, variables)
        assert re.fullmatch(pattern(lines), done.stdout), f"$ {command}\n{done.stdout}"
    return len(shown)


def test_u6_commands_show_what_the_pages_say(place):
    assert sum(run_transcripts(blocks(page), place, environment()) for page in PAGES) > 15
