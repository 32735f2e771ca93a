"""Processes that use a broker: one line of words is a command, one line of numbers is its answer.

All clients, in whatever language, understand

    produce COUNT BATCH     send messages of 256 bytes; answers when it began and ended
    consume COUNT BATCH     receive and acknowledge as many; answers when it began and ended
    pace COUNT GAP_MS       send messages that carry their time, with pauses of about GAP_MS; answers 0
    delays COUNT 0          receive them; answers the delay of each, in milliseconds

A batch of 1: each send waits for its confirm, each message is acknowledged by itself. A larger one is the nearest that
the interface has to a transaction. Times are nanoseconds of the monotonic clock, which all processes share.
"""

import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from tests.harness.processes import ROOT, environment

TIMEOUT_S = 900.0
SIZE = 256
BODY = bytes(SIZE)
QUEUE = "bench"

Answer = Sequence[float]


class Span(NamedTuple):
    """When work began and ended, in nanoseconds of the monotonic clock."""

    begin_ns: float
    end_ns: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.begin_ns) / 1e9


class Client:
    """A client process. One command at a time; `ask` and `answer` are separate, so that clients work at the same time."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ask(self, *words: object) -> None:
        """Begin a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float = TIMEOUT_S) -> Answer:
        """Wait for the answer. Raises `RuntimeError` if the client ends instead, or says nothing in time."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            line = ""
        if not line:
            raise RuntimeError(f"no answer of {self._process.args}: exit code {self._process.poll()}")
        return [float(word) for word in line.split()]

    def call(self, *words: object) -> Answer:
        """A command and its answer."""
        self.ask(*words)
        return self.answer()

    def span(self, *words: object) -> Span:
        """A command that answers when it began and ended."""
        return Span(*self.call(*words))

    def close(self) -> None:
        """End of input ends the client; one that does not end is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


def python_client(module: str, *arguments: str) -> list[str]:
    """The command of a client that is a module of this package."""
    return [sys.executable, "-m", f"tests.benchmarks.service.{module}", *arguments]


def serve(commands: Mapping[str, Callable[..., Answer]]) -> None:
    """The main loop of a client in Python: numbers in a command are integers."""
    for line in sys.stdin:
        name, *words = line.split()
        answer = commands[name](*(int(word) if word.isdecimal() else word for word in words))
        print(*answer, flush=True)


def now() -> int:
    """The time of spans."""
    return time.monotonic_ns()


def timed_body() -> bytes:
    """A body that carries the time."""
    return struct.pack(">q", now()).ljust(SIZE, b"\0")


def delay_ms(body: bytes) -> float:
    """How long ago a body was made."""
    return (now() - struct.unpack_from(">q", body)[0]) / 1e6


def pause(gap_ms: int) -> None:
    """Sleep for about so long: at random between half and one and a half of it."""
    time.sleep(random.uniform(0.5, 1.5) * gap_ms / 1e3)
