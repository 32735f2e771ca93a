"""Real servers for tests: ordinary processes on loopback, their data in a directory of their own, ended by process id.

A server that does not start is an error, never a skip.
"""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

START_TIMEOUT_S = 60
_POSTGRES_VERSION = "15"
_POSTGRES_BINARIES = Path(f"/usr/lib/postgresql/{_POSTGRES_VERSION}/bin")
_READY = "database system is ready to accept connections"


class PostgresServer:
    """A PostgreSQL server of its own; `start` may be called again after `stop` and `kill`."""

    user = "correlator"

    def __init__(self, *, settings: Sequence[str] = ()) -> None:
        install_postgres()
        self.password = secrets.token_hex(8)
        self.port = free_port()
        self._settings = settings
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-postgres-"))
        self._data = self._directory / "data"
        self._process: subprocess.Popen[str] | None = None
        self._databases = 0
        self._schemas = 0
        self._shared = ""
        self._make_cluster()

    def start(self) -> None:
        """Start and wait until it accepts connections; tries again while children of a killed one still live."""
        for _ in range(50):
            if self._started():
                return
        raise RuntimeError(f"PostgreSQL did not start in {self._directory}: {''.join(self._log)}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT is a fast shutdown, SIGQUIT an immediate one with recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_TIMEOUT_S)
            self._reader.join(START_TIMEOUT_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def kill(self) -> None:
        """Kill the postmaster, and wait until it is gone: its pid file would block the next start."""
        self.stop(signal.SIGKILL)

    def crash(self) -> None:
        """An immediate stop and a start: every session is lost, what was committed is recovered."""
        self.stop(signal.SIGQUIT)
        self.start()

    def close(self) -> None:
        """Stop it at once (nobody needs its last checkpoint) and remove its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._directory, ignore_errors=True)

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The address of a database, through another port where a proxy listens."""
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{port or self.port}/{database}"

    def fresh_database(self, options: str = "") -> str:
        """Make an empty database and return its address."""
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        self.execute(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def fresh_schema(self) -> str:
        """Make an empty schema in a database that all tests share, 30 times cheaper, and return its address."""
        if not self._shared:
            self._shared = self.fresh_database()
        self._schemas += 1
        self.execute(f"CREATE SCHEMA s{self._schemas}", self._shared)
        return f"{self._shared}?options=-csearch_path%3Ds{self._schemas}"

    def execute(self, statement: str, url: str = "") -> list[tuple[object, ...]]:
        """Run a statement as superuser, outside a transaction, in the database and schema of an address."""
        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def terminate_backends(self, url: str) -> int:
        """End all sessions of the database of an address; returns how many."""
        name = database_of(url)
        query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
        return len(self.execute(query))

    def _make_cluster(self) -> None:
        password = self._directory / "password"
        password.write_text(self.password)
        _give_to_postgres(self._directory, password)
        arguments = ["--no-sync", "--auth=scram-sha-256", f"--pwfile={password}", f"--username={self.user}"]
        locale = ["--encoding=UTF8", "--locale=C.UTF-8"]
        command = _as_postgres([_POSTGRES_BINARIES / "initdb", "-D", self._data, *arguments, *locale])
        subprocess.run(command, check=True, capture_output=True, cwd=self._directory)

    def _started(self) -> bool:
        options = [f"-c{setting}" for setting in ("listen_addresses=127.0.0.1", *self._settings)]
        sockets = f"-cunix_socket_directories={self._directory}"
        command = [_POSTGRES_BINARIES / "postgres", "-D", self._data, "-p", str(self.port), sockets, *options]
        self._process = subprocess.Popen(
            _as_postgres(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self._directory
        )
        self._log: list[str] = []
        self._settled = threading.Event()
        self._reader = threading.Thread(target=self._follow, args=(self._process,))
        self._reader.start()
        assert self._settled.wait(START_TIMEOUT_S), "PostgreSQL says nothing"
        ready = any(_READY in line for line in self._log)
        if not ready:
            self.stop()
        return ready

    def _follow(self, process: "subprocess.Popen[str]") -> None:
        """Keep the log, and tell when the server is ready or gone."""
        assert process.stdout is not None
        for line in process.stdout:
            self._log.append(line)
            if _READY in line:
                self._settled.set()
        self._settled.set()


class CutProxy:
    """A TCP proxy in front of PostgreSQL that loses one message of the protocol and then cuts the connection.

    Args:
        port: where the server listens.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lose = ""
        self._threads: list[threading.Thread] = []
        self.cuts = 0
        self._run(self._accept)

    def lose(self, what: str) -> None:
        """From now on: `request` drops the next COMMIT, `reply` drops the answer to it; "" nothing."""
        self._lose = what

    def close(self) -> None:
        """Stop listening and wait for the connections that still live."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(START_TIMEOUT_S)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            committed = threading.Event()
            self._run(self._requests, client, server, committed)
            self._run(self._replies, server, client, committed)

    def _requests(self, client: socket.socket, server: socket.socket, committed: threading.Event) -> None:
        for data in _received(client):
            if self._lose and re.search(rb"COMMIT", data):
                if self._lose == "request":
                    break
                committed.set()
            _send(server, data)
        self._cut(client, server)

    def _replies(self, server: socket.socket, client: socket.socket, committed: threading.Event) -> None:
        for data in _received(server):
            if committed.is_set():
                break
            _send(client, data)
        self._cut(client, server)

    def _cut(self, *ends: socket.socket) -> None:
        if self._lose:
            self.cuts += 1
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def database_of(url: str) -> str:
    """The name of the database in an address."""
    return url.rpartition("/")[2].partition("?")[0]


def free_port() -> int:
    """A TCP port of loopback that nobody uses at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def install_postgres() -> None:
    """Install the Debian package when it is absent: without a cluster of its own, without starting anything."""
    if (_POSTGRES_BINARIES / "postgres").exists():
        return
    clusters = Path("/etc/postgresql-common/createcluster.conf")
    clusters.parent.mkdir(parents=True, exist_ok=True)
    clusters.write_text("create_main_cluster = false\n")
    policy = Path("/usr/sbin/policy-rc.d")
    if not policy.exists() and not Path("/run/systemd/system").exists():
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    package = f"postgresql-{_POSTGRES_VERSION}"
    subprocess.run(["apt-get", "update", "-q"], check=True, env=environment)
    options = ["--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
    subprocess.run(["apt-get", "install", "-y", "-q", *options, package], check=True, env=environment)


def _as_postgres(command: Sequence[object]) -> list[str]:
    """PostgreSQL refuses to run as root: run as the user of its package then."""
    prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.geteuid() == 0 else []
    return [*prefix, *map(str, command)]


def _give_to_postgres(*paths: Path) -> None:
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        for path in paths:
            os.chown(path, owner.pw_uid, owner.pw_gid)


def _received(end: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            data = end.recv(65536)
        except OSError:
            return
        if not data:
            return
        yield data


def _send(end: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        end.sendall(data)
