"""Listens at the control socket, reads one request of each connection, and answers it."""

import contextlib
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from correlator.durable import PRIVATE_FILE, is_private, make_private_directory
from correlator.errors import CorrelatorError, NotDone, UsageError
from correlator.processes import keep, not_forking
from correlator.runtime.control.address import LONGEST_PATH, fits
from correlator.runtime.control.protocol import LONGEST_REQUEST, Answer, Problem, line
from correlator.runtime.logs import get_logger

MOST_CONNECTIONS = 16
READ_S = 5.0
"""How long a client may take to send its request, or to take its answer."""
LOOK_S = 5.0
"""Seconds between two looks whether the file of the socket is still there."""
STOP_S = 1.0
_CREDENTIALS = struct.Struct("3i")

Answering = Callable[[bytes, Callable[[], bool]], dict[str, Any]]


class ControlServer:
    """One thread listens from `open` to `close`, and each connection has a thread for its one request.

    An engine without the socket works as one with it: what keeps the socket from being made is logged (W1605). Other
    users cannot connect. A forked child has no copy of the socket.

    Args:
        place: returns where the socket may be; it is made at the first path at which this is possible.
        answer: carries a request out; gets its line, and a function that says whether the client still waits.
    """

    def __init__(self, place: Callable[[], Sequence[Path]], answer: Answering) -> None:
        self._place = place
        self._answer = answer
        self._log = get_logger(part="control")
        self._socket: socket.socket | None = None
        self._woken: socket.socket | None = None
        self._wake: socket.socket | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._clients = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.path: Path | None = None
        self._identity: tuple[int, int] | None = None
        self._lacking = False

    def open(self, *, displace: bool) -> None:
        """Make the socket and begin to listen.

        Args:
            displace: whether this engine owns the place of the socket, because it owns the store. If it does, it
                replaces an existing socket, which an earlier engine has left. If not, it keeps a socket whose engine
                answers.
        """
        reasons = []
        self._woken, self._wake = socket.socketpair()
        for path in self._place():
            try:
                self._make(path, displace=displace)
                break
            except FileExistsError as error:
                reasons.append(f"{path}: {error}")
                break  # at another path commands would ask the other engine
            except OSError as error:
                reasons.append(f"{path}: {(error.strerror or str(error)).lower()}")
        if self._socket is None:
            self._log.warning("W1605 no command can control this engine", reason="; ".join(reasons))
            return
        self._thread = threading.Thread(target=self._listen, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, let requests that wait be answered, and remove the socket. May be called again."""
        self._closing.set()
        if self._thread is not None and self._wake is not None:
            self._wake.send(b"x")
            self._thread.join(STOP_S)
            self._wait_for_clients()
            self._thread = None
        self._remove()
        for one in (self._socket, self._woken, self._wake):
            if one is not None:
                one.close()

    def _wait_for_clients(self) -> None:
        deadline = time.monotonic() + STOP_S
        for _ in range(MOST_CONNECTIONS):
            self._clients.acquire(timeout=max(0.0, deadline - time.monotonic()))

    # --- the file ---

    def _make(self, path: Path, *, displace: bool) -> None:
        """Make the socket under another name, then give it its own: nobody sees it before it is private."""
        if not fits(path):
            raise OSError(f"the path has more than {LONGEST_PATH} bytes; set control_directory")
        make_private_directory(path.parent)
        if not is_private(path.parent):
            raise OSError(f"{path.parent} is open to other users")
        if not displace and _answers(path):
            raise FileExistsError("another engine of this name, without a store, answers there")
        partial = path.with_name(f".{secrets.token_hex(4)}")  # shorter than any name of a socket
        with not_forking():
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            keep(made)
        try:
            made.bind(str(partial))
            partial.chmod(PRIVATE_FILE)
            made.setblocking(False)  # the method has no name for it
            made.listen(MOST_CONNECTIONS)
            partial.replace(path)
        except OSError:
            made.close()
            partial.unlink(missing_ok=True)
            raise
        if self._socket is not None:
            self._socket.close()
        self._socket, self.path, self._identity = made, path, _identity(path)

    def _look(self) -> None:
        """Make the socket again if somebody has removed its file. If that fails, log it once, and try again later."""
        path = self.path
        if path is None or os.path.lexists(path):
            return
        try:
            self._make(path, displace=False)
        except OSError as error:
            if not self._lacking:
                reason = f"{path}: {error.strerror or error}"
                self._log.warning("W1605 no command can control this engine", reason=reason)
            self._lacking = True
        else:
            self._lacking = False

    def _remove(self) -> None:
        """Remove the file, unless another engine has put its own there."""
        if self.path is not None and _identity(self.path) == self._identity:
            with contextlib.suppress(OSError):
                self.path.unlink()

    # --- connections ---

    def _listen(self) -> None:
        while not self._closing.is_set():
            assert self._socket is not None
            assert self._woken is not None
            waiting = select.poll()  # `select` takes no descriptor above 1023, and a program may have many files open
            waiting.register(self._socket, select.POLLIN)
            waiting.register(self._woken, select.POLLIN)
            readable = [descriptor for descriptor, _ in waiting.poll(LOOK_S * 1000)]
            if self._socket.fileno() in readable:
                self._accept(self._socket)
            elif not readable:
                self._look()

    def _accept(self, listening: socket.socket) -> None:
        try:
            with not_forking():
                client, _ = listening.accept()
                keep(client)
        except OSError:  # the client is gone, or this process has too many open files
            self._closing.wait(0.01)
            return
        if not _may_control(client):
            client.close()
        elif not self._clients.acquire(blocking=False):
            what, allowed = "the engine answers too many commands now", f"At most {MOST_CONNECTIONS} at a time"
            client.setblocking(False)
            with client, contextlib.suppress(OSError):
                client.send(line(_refusal(NotDone("E2049", "control socket", what, allowed, "Repeat the command"))))
        else:
            threading.Thread(target=self._serve, args=(client,), name="control-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError):
                request = _read(client)
                client.settimeout(0)
                answer = self._answer_to(request, lambda: not self._closing.is_set() and _is_there(client))
                client.settimeout(READ_S)
                client.sendall(line(answer))
        finally:
            self._clients.release()

    def _answer_to(self, request: bytes | None, wanted: Callable[[], bool]) -> Answer:
        if request is None:
            what = f"no line of at most {LONGEST_REQUEST} bytes has come within {READ_S:g} s"
            return _refusal(UsageError("E2047", "request", what))
        return answer_to(request, wanted, self._answer)


def answer_to(request: bytes, wanted: Callable[[], bool], answer: Answering) -> Answer:
    """Let a request be carried out; a request that was not is answered with its problem.

    Args:
        request: the request, as a line without its end.
        wanted: returns whether somebody still waits for the answer.
        answer: carries it out.
    """
    try:
        return Answer(result=answer(request, wanted))
    except CorrelatorError as error:
        return _refusal(error)
    except Exception as error:  # noqa: BLE001  # a bug of a command must neither end the engine nor be silent
        incident = secrets.token_hex(4)
        get_logger(part="control").error("internal error of a command", incident=incident, error=error, exc_info=True)
        what = f"internal error {type(error).__name__} (incident {incident}); the log of the engine has it"
        return _refusal(UsageError("E2070", "correlator", what, "This is a bug of correlator", "Report it"))


def _refusal(error: CorrelatorError) -> Answer:
    return Answer(problem=Problem.of(error))


def _read(client: socket.socket) -> bytes | None:
    """Return the first line; `None` if it is too long, or does not come in time."""
    deadline, read = time.monotonic() + READ_S, b""
    while b"\n" not in read:
        left = deadline - time.monotonic()
        if left <= 0 or len(read) > LONGEST_REQUEST:
            return None
        client.settimeout(left)
        try:
            piece = client.recv(LONGEST_REQUEST)
        except TimeoutError:
            return None
        if not piece:
            return None
        read += piece
    found = read.partition(b"\n")[0]
    return found if len(found) <= LONGEST_REQUEST else None


def _is_there(client: socket.socket) -> bool:
    """Whether the client has not hung up."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _may_control(client: socket.socket) -> bool:
    """Whether the program at the other end belongs to this user, or to root."""
    return uid_of(client) in (os.geteuid(), 0)


def uid_of(connected: socket.socket) -> int:
    """The user to whom the program at the other end of a connection belongs."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user)


def _answers(path: Path) -> bool:
    """Whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.settimeout(READ_S)
            asking.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
        return True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
