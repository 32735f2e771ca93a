"""The progress line of a terminal: it comes before the slow imports, garbles nothing, and leaves nothing behind."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios

import pytest

from correlator.cli import progress
from correlator.cli.progress import Above, ProgressLine
from correlator.testing.clock import ManualClock
from tests.cli.commands import COMMAND, PATIENCE_S, environment, run, write
from tests.cli.conftest import ENGINE

ESCAPE = re.compile(r"\x1b\[(\?7[lh]|2K|K)")


def screen(shown: str) -> list[str]:
    """The lines that a terminal shows in the end, the last one being that of the cursor."""
    lines, column = [""], 0
    for piece in re.split(r"(\r|\n|\x1b\[(?:\?7[lh]|2K|K))", shown):
        if piece == "\n":
            lines.append("")
        elif piece == "\x1b[2K":
            lines[-1] = ""
        elif piece == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif piece not in ("\r", "\x1b[?7l", "\x1b[?7h") and not ESCAPE.fullmatch(piece):
            lines[-1] = lines[-1][:column].ljust(column) + piece + lines[-1][column + len(piece) :]
            column += len(piece)
            continue
        column = 0 if piece in ("\r", "\n") else column
    return lines


class Terminal:
    """A terminal with a process, or with a line."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (24, 100))
        self.shown = ""

    def start(self, *command, cwd=".", **env) -> subprocess.Popen[bytes]:
        variables = environment({"TERM": "xterm", **env})
        streams = {"stdin": subprocess.DEVNULL, "stdout": self.slave, "stderr": self.slave}
        process = subprocess.Popen(command, cwd=cwd, env=variables, **streams)
        os.close(self.slave)
        return process

    def read(self, until: str | None = None) -> str:
        """What the process writes until a text comes, or to its end."""
        while until is None or until not in self.shown:
            assert select.select([self.master], [], [], PATIENCE_S)[0]
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # the other end is closed
                break
            self.shown += piece.decode()
        return self.shown

    def written(self) -> str:
        """What a line of this process has written."""
        while select.select([self.master], [], [], 0)[0]:
            self.shown += os.read(self.master, 65536).decode()
        return self.shown


@pytest.fixture
def terminal():
    one = Terminal()
    yield one
    os.close(one.master)


class Line:
    """A line without a thread, on a terminal, with a stream above it."""

    def __init__(self, terminal: Terminal, encoding: str = "utf-8") -> None:
        self.clock = ManualClock()
        self.line = ProgressLine(terminal.slave, encoding, self.clock.monotonic)
        self.stream = open(terminal.slave, "w", encoding=encoding, closefd=False)  # noqa: SIM115
        self.above = Above(self.stream, self.line)


@pytest.fixture
def line(terminal):
    made = Line(terminal)
    yield made
    made.stream.close()
    os.close(terminal.slave)


def test_texts_appear_whole_above_the_line(line, terminal):
    line.line.begin("starting")
    print("first", file=line.above)
    print("x" * 300, file=line.above)
    assert screen(terminal.written()) == ["first", "x" * 300, "⠋ starting"]
    line.line.show("working")
    line.line.end()
    line.line.end()
    print("last", file=line.above)
    assert screen(terminal.written()) == ["first", "x" * 300, "last", ""]


def test_a_question_is_not_disturbed(line, terminal):
    line.line.begin("starting")
    print("Empty it? [y/N] ", end="", file=line.above, flush=True)
    line.line.begin("reading the store")
    assert screen(terminal.written()) == ["Empty it? [y/N] "]
    print("\ncleared", file=line.above)
    assert screen(terminal.written()) == ["Empty it? [y/N] ", "cleared", "⠋ reading the store"]


def test_a_line_that_ends_within_the_line_of_somebody_else_erases_nothing(line, terminal):
    line.line.begin("starting")
    line.above.write("half")
    line.line.end()
    assert screen(terminal.written()) == ["half"]


def test_a_signal_within_the_line_of_somebody_else_erases_nothing(line, terminal):
    line.line.begin("starting")
    line.above.write("half")
    line.line.abandon()
    assert screen(terminal.written()) == ["half", ""]


def test_a_phase_shows_its_seconds(line, terminal):
    line.line.begin("starting Spark")
    line.clock.advance(3.2)
    line.line._show("starting Spark", line.line._since)
    assert screen(terminal.written()) == ["⠋ starting Spark 3 s"]
    line.line.show("received 5")
    assert screen(terminal.written()) == ["⠋ received 5"]


def test_a_name_of_the_file_can_neither_steer_the_terminal_nor_break_the_line(line, terminal):
    line.line.begin("test 1 of 1: \x1b[31mred\n" + "long " * 100)
    (shown,) = screen(terminal.written())
    assert shown.startswith("⠋ test 1 of 1: ?[31mred?long ")
    assert len(shown) == 99


def test_a_terminal_without_unicode(terminal):
    made = Line(terminal, "ascii")
    made.line.begin("pipeline naïve")
    made.stream.close()
    assert screen(terminal.written()) == ["| pipeline na\\xefve"]
    os.close(terminal.slave)


def test_a_terminal_that_is_gone_is_no_error(line, terminal):
    nowhere = os.open(os.devnull, os.O_RDONLY)
    gone = ProgressLine(nowhere, "utf-8")
    gone.begin("starting")
    gone.end()
    os.close(nowhere)


def test_a_forked_child_waits_for_no_lock_of_its_parent(line, terminal):
    line.line.begin("starting")
    line.line._lock.acquire()
    line.line.leave_to_parent()
    print("from the child", file=line.above)
    line.line.show("working")
    line.line.end()
    assert screen(terminal.written()) == ["⠋ startingfrom the child", ""]


FORKS = """
import os, sys
from correlator.cli import progress
progress.begin(["correlator", "run"])
line = progress.present()
line.begin("working")
with line._lock:
    pid = os.fork()
if not pid:
    print("child")
    progress.end()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("parent")
progress.end()
"""


def test_a_fork_while_the_line_is_drawn(terminal):
    process = terminal.start(sys.executable, "-c", FORKS)
    shown = screen(terminal.read())
    assert process.wait(PATIENCE_S) == 0
    assert shown[0].endswith("workingchild")
    assert shown[1:] == ["parent", ""]


# --- commands ---


def test_the_line_is_there_before_the_slow_imports():
    program = (
        "import sys; import correlator.cli.entry;"
        "print({'pyspark', 'rich', 'typer', 'msgspec', 'structlog', 'sqlalchemy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_run_leaves_its_log_and_its_table(place, terminal):
    process = terminal.start(COMMAND, "run", "engine.yaml", cwd=place, COLUMNS="200")
    shown = terminal.read()
    assert process.wait(PATIENCE_S) == 0
    for text in ("loading correlator", "reading the store", "received ", "stopping"):
        assert text in shown
    lines = screen(re.sub(r"\x1b\[\d*m", "", shown))
    assert [one.split()[0] for one in lines if one and "[info" not in one] == [
        "Done",
        "part",
        "receiver",
        "sender",
        "total",
    ]
    assert [one for one in lines if "loading" in one or "stopping" in one] == []
    assert lines[-1] == ""


def test_an_error_stands_alone(place, terminal):
    process = terminal.start(COMMAND, "run", "missing.yaml", cwd=place)
    first, last = screen(terminal.read())
    assert process.wait(PATIENCE_S) == 2
    assert (first[:5], last) == ("E1001", "")


def test_an_interrupt_during_the_imports_leaves_nothing(place, terminal):
    (place / "typer.py").write_text("import signal\n\nsignal.pause()\n")  # an import that takes until the signal
    process = terminal.start(COMMAND, "run", "engine.yaml", cwd=place, PYTHONPATH=str(place))
    terminal.read("loading correlator")
    process.send_signal(signal.SIGINT)
    assert screen(terminal.read()) == [""]
    assert process.wait(PATIENCE_S) == -signal.SIGINT


@pytest.mark.parametrize(("signals", "status", "left"), [(1, 130, "Stopped"), (2, 130, "SIGINT")])
def test_an_interrupt_of_a_run_leaves_no_line(signals, status, left, place, terminal):
    file = "endless.yaml" if signals == 1 else "stuck.yaml"
    process = terminal.start(COMMAND, "run", file, cwd=place)
    terminal.read("running" if signals == 1 else "no connection")
    process.send_signal(signal.SIGINT)
    if signals == 2:
        terminal.read("SIGINT")
        process.send_signal(signal.SIGINT)
    lines = screen(terminal.read())
    assert process.wait(PATIENCE_S) == status
    assert lines[-1] == ""
    assert any(left in one for one in lines)
    assert not any(one.startswith(tuple("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")) for one in lines)


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (["run", "engine.yaml", "--log-json"], {}),
        (["plan", "engine.yaml", "--json"], {}),
        (["run", "engine.yaml"], {"TERM": "dumb"}),
        (["lint", "engine.yaml"], {}),
    ],
)
def test_where_nobody_wants_a_line(command, env, place, terminal):
    process = terminal.start(COMMAND, *command, cwd=place, **env)
    shown = terminal.read()
    assert process.wait(PATIENCE_S) == 0
    assert "loading" not in shown
    assert "\x1b[K" not in shown


def test_without_a_terminal_there_is_no_line(place):
    result = run("plan", "engine.yaml", cwd=place, env={"TERM": "xterm"})
    assert (result.returncode, result.stderr) == (0, "")


def test_a_process_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    progress.begin(["correlator", "run"])
    assert progress.present() is None


def test_a_locale_without_our_characters(place, terminal):
    write(place / "engine.yaml", [ENGINE, "colour: rød"])
    c = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = terminal.start(COMMAND, "run", "engine.yaml", cwd=place, **c)
    lines = screen(terminal.read())
    assert process.wait(PATIENCE_S) == 2
    assert "| loading correlator" in terminal.shown
    assert any(one.startswith("E1020 engine.yaml:") for one in lines)
