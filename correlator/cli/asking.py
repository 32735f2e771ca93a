"""Sends a request to the control socket of a running engine, and returns the answer or raises the refusal."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from correlator.cli.failures import INTERRUPTED_STATUS
from correlator.cli.loading import refuse_shares
from correlator.configuration import of_share
from correlator.errors import ConnectionLost, CorrelatorError, UsageError
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.control.address import sockets_of
from correlator.runtime.control.protocol import LONGEST_ANSWER, Answer, Problem, Request, decode_answer, line
from correlator.runtime.control.server import uid_of

PATIENCE_S = 10.0
"""Seconds that an engine may take to answer, in addition to the time that the request allows."""
NOT_RUNNING = (FileNotFoundError, ConnectionRefusedError)
"""The errors of a connection attempt that mean that no engine runs there."""


class RefusedByEngine(CorrelatorError):
    """A refusal by the engine; the command ends with the status that the engine names."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code, problem.where, problem.what, problem.allowed, problem.todo)
        self.exit_status = problem.exit_status if 0 < problem.exit_status < INTERRUPTED_STATUS else 1  # type: ignore[misc]


def place_of(file: Path, settings: PipelineFile, share: int | None) -> Sequence[Path]:
    """Return where the control socket of an engine may be. Raises `UsageError` E2060 without the number of a share.

    An engine without a store is looked for by its file first, and then by its name, because code may have made it.
    """
    if share is not None:
        settings = of_share(settings, share)
    refuse_shares(str(file), settings)
    return list(dict.fromkeys([*sockets_of(settings, file.resolve()), *sockets_of(settings)]))


def ask(place: Sequence[Path], request: Request, wait_s: float = 0.0) -> dict[str, Any]:
    """Send a request to the engine, and return its result.

    Args:
        place: the possible paths of its socket.
        request: the request.
        wait_s: how long the request lets the engine wait.

    Raises:
        Refused: the engine has not carried out the request.
        ConnectionLost: E7050, no engine answers.
        UsageError: E2046, the program that answers is no engine, or belongs to another user.
    """
    where, engine = _connected(place)
    with engine:
        user = uid_of(engine)
        if os.geteuid() not in (0, user) and user != 0:
            raise UsageError("E2046", where, f"belongs to user {user}", "", "Use the user of the engine, or root")
        try:
            engine.settimeout(wait_s + PATIENCE_S)
            with suppress(BrokenPipeError):  # an engine that answers too many commands refuses without reading
                engine.sendall(line(request))
            answer = decode_answer(_line(engine))
        except msgspec.MsgspecError as error:
            raise UsageError("E2046", where, "is no engine: the answer does not fit the request") from error
        except OSError as error:
            raise _no_answer(where, error) from error
    if answer.problem is not None:
        raise RefusedByEngine(answer.problem)
    return _result(answer, where)


def _result(answer: Answer, where: str) -> dict[str, Any]:
    if answer.result is None:
        raise UsageError("E2046", where, "is no engine: the answer does not fit the request")
    return answer.result


def _connected(place: Sequence[Path]) -> tuple[str, socket.socket]:
    error: OSError | None = None
    for path in place:
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asking.settimeout(PATIENCE_S)
        try:
            asking.connect(str(path))
        except OSError as failure:
            asking.close()
            if error is None or not isinstance(failure, FileNotFoundError):
                error = failure
        else:
            return str(path), asking
    assert error is not None
    raise _no_answer(str(place[0]), error) from error


def _no_answer(where: str, error: OSError) -> ConnectionLost:
    if isinstance(error, PermissionError):
        return ConnectionLost("E7050", where, "belongs to another user", "", "Use the user of the engine, or root")
    missing = isinstance(error, NOT_RUNNING)
    why = "it does not run" if missing else (error.strerror or str(error) or type(error).__name__).lower()
    todo = "Start it: correlator run FILE" if missing else "Look at its log, and repeat the command"
    return ConnectionLost("E7050", where, f"no engine answers: {why}", "", todo)


def _line(engine: socket.socket) -> bytes:
    read = bytearray()
    while not read.endswith(b"\n") and len(read) <= LONGEST_ANSWER:
        piece = engine.recv(1 << 16)
        if not piece:  # the engine has ended, perhaps within its answer
            raise ConnectionResetError(0, "it has hung up")
        read += piece
    return bytes(read)
