"""The progress line: the last line of a terminal, on which a command shows what it does at present.

The line appears before the slow imports, so this module imports only what Python has loaded already or loads within a
millisecond; `rich` alone would take longer than Python's own start. It hides neither the cursor nor anything else that
a process would have to restore: the terminal stays usable, even if the process is killed.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from correlator.runtime import phases

COMMANDS = ("run", "test", "plan")
"""The commands that can take many seconds before they print anything."""
_SILENT = {"--json", "--log-json", "--help"}
_DUMB = ("", "dumb")
_EVERY_S = 0.1
_FRAMES, _PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_ERASED = b"\r\x1b[2K"
_DRAWN = "\r\x1b[?7l{}\x1b[K\x1b[?7h"
"""The text for a line that is never wrapped, and that replaces a longer one."""


class ProgressLine:
    """Draws the line, from a thread of its own. Any thread may call the methods.

    Args:
        descriptor: the terminal.
        encoding: the encoding of the terminal.
        now: returns monotonic seconds.
    """

    def __init__(self, descriptor: int, encoding: str, now: Callable[[], float] = time.monotonic) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._now = now
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._frames = _FRAMES if _can_encode(_FRAMES, encoding) else _PLAIN_FRAMES
        self._frame = 0
        self._text = ""
        self._since: float | None = None
        self._active = True
        self._at_begin = True
        """Whether the cursor is at the beginning of a line; if not, another writer has not finished its line."""
        self._thread = threading.Thread(target=self._turn, name="progress-line", daemon=True)

    def start(self) -> None:
        """Begin to draw the line again and again."""
        self._thread.start()

    def begin(self, text: str) -> None:
        """Show the text of a phase that begins now; after its first second the line also shows its seconds."""
        self._show(text, self._now())

    def show(self, text: str) -> None:
        """Show a text from now on, without seconds, until the next `begin` or `show`. Any thread may call it."""
        self._show(text, None)

    def write(self, stream: TextIO, text: str) -> int:
        """Write a text of another writer above the line. The line appears again when the text ends with a complete
        line.
        """
        with self._lock:
            if self._active and self._at_begin and text:
                self._put(_ERASED)
            if text:  # before the text is written: a signal may call `abandon` at any time
                self._at_begin = text.endswith("\n")
            written = stream.write(text)
            stream.flush()
            self._draw()
            return written

    def end(self) -> None:
        """Erase the line for good. Further calls do nothing."""
        with self._lock:
            if not self._active:
                return
            if self._at_begin:
                self._put(_ERASED)
            self._active = False
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def abandon(self) -> None:
        """Erase the line like `end`, in a handler of a signal that ends the process: waits for no lock.

        An incomplete text of another writer stays, on a line of its own.
        """
        if self._active:
            self._active = False
            self._put(_ERASED if self._at_begin else b"\n")

    def leave_to_parent(self) -> None:
        """Draw nothing any more in a forked child, since only the parent has the thread. Touches no lock of the
        parent.
        """
        self._lock = threading.Lock()
        self._active = False

    def _turn(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with self._lock:
                self._frame += 1
                self._draw()

    def _show(self, text: str, since: float | None) -> None:
        with self._lock:
            self._text, self._since = text, since
            self._draw()

    def _draw(self) -> None:
        if not self._active or not self._at_begin or not self._text:
            return
        passed = 0.0 if self._since is None else self._now() - self._since
        seconds = f" {passed:.0f} s" if passed >= 1 else ""
        text = f"{self._frames[self._frame % len(self._frames)]} {_harmless(self._text)}{seconds}"
        self._put(_DRAWN.format(text[: self._width() - 1]).encode(self._encoding, "backslashreplace"))

    def _width(self) -> int:
        with contextlib.suppress(OSError):
            if columns := os.get_terminal_size(self._descriptor).columns:
                return columns
        columns_named = os.environ.get("COLUMNS", "")
        return max(2, int(columns_named)) if columns_named.isdecimal() else 80

    def _put(self, data: bytes) -> None:
        """Write without buffers: in a forked child, a thread of the parent may hold their locks."""
        try:
            os.write(self._descriptor, data)
        except OSError:
            self._active = False


class Above:
    """A standard stream whose texts appear above the progress line."""

    def __init__(self, stream: TextIO, line: ProgressLine) -> None:
        self._stream = stream
        self._line = line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text; raises what the stream raises."""
        return self._line.write(self._stream, text)


class _Present:
    """The line of this process, if it has one."""

    line: ProgressLine | None = None


def begin(arguments: Sequence[str]) -> None:
    """Show the line if a command with these arguments may show one, and standard error is a terminal.

    Args:
        arguments: the arguments of the process, with its own name.
    """
    if not _is_wanted(arguments) or not _is_terminal(sys.stderr):
        return
    line = ProgressLine(sys.stderr.fileno(), sys.stderr.encoding)
    sys.stderr = Above(sys.stderr, line)
    if _is_terminal(sys.stdout):
        sys.stdout = Above(sys.stdout, line)
    phases.listen(line.begin)
    _Present.line = line
    line.begin("loading correlator")
    line.start()


def present() -> ProgressLine | None:
    """The line that `begin` has shown, if it was not ended."""
    return _Present.line


def end() -> None:
    """Erase the line of this process, if it has one."""
    line, _Present.line = _Present.line, None
    if line is not None:
        phases.ignore(line.begin)
        line.end()


def _leave_to_parent() -> None:
    if _Present.line is not None:
        _Present.line.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def _is_wanted(arguments: Sequence[str]) -> bool:
    return len(arguments) > 1 and arguments[1] in COMMANDS and not _SILENT.intersection(arguments)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in _DUMB


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeError:
        return False
    return True


def _harmless(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
