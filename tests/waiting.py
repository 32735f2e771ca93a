"""Waits for what other threads or processes bring about, which send no signal."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], within_s: float = 60.0, every_s: float = 0.02) -> T:
    """Look at intervals until the condition holds; returns what it has returned."""
    deadline = time.monotonic() + within_s
    waiting = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not come"
        waiting.wait(every_s)
    return found


def answer_to(sent: bytes, connection: socket.socket) -> bytes:
    """Send bytes and no more; returns what comes back until the server closes the connection."""
    answer = b""
    with suppress(OSError):  # the server may close before it has read all
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65_536):
            answer += piece
    return answer
