"""Real servers for tests: ordinary processes on loopback, their data in a directory of their own, ended by process id.

A server that does not start is an error, never a skip.
"""

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psycopg

HOST = "127.0.0.1"
START_TIMEOUT_S = 300
KEPT = Path.home() / ".cache" / "correlator-tests"
"""What one run of the tests leaves to the next: programs that were fetched, and a cache in place of the user's."""
_POSTGRES_VERSION = "15"
_POSTGRES_BINARIES = Path(f"/usr/lib/postgresql/{_POSTGRES_VERSION}/bin")
_READY = "database system is ready to accept"  # connections, or read-only ones
_KILLED = "was terminated by signal 9"


class PostgresServer:
    """A PostgreSQL server of its own; `start` may be called again after `stop` and `kill`."""

    user = "correlator"

    def __init__(self, *, settings: Sequence[str] = (), original: "PostgresServer | None" = None) -> None:
        install_postgres()
        self.password: str = original.password if original else secrets.token_hex(8)
        self.port = free_port()
        self._settings = settings
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-postgres-"))
        self._data = self._directory / "data"
        self._process: subprocess.Popen[str] | None = None
        self._databases = 0
        self._schemas = 0
        self._shared = ""
        if original:
            self._copy_cluster(original)
        else:
            self._make_cluster()

    @property
    def pid(self) -> int:
        """The postmaster."""
        assert self._process is not None
        return self._process.pid

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

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend every process of the server: the system accepts what clients send, and no client gets an answer."""
        assert self._process is not None
        postmaster = self._process.pid
        pids = [postmaster]
        try:
            suspend(postmaster)  # first: it starts no other process from now on
            pids += _children(postmaster)
            for pid in pids[1:]:
                with contextlib.suppress(ProcessLookupError):
                    suspend(pid)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server at once, without a last checkpoint, and remove its data."""
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

    @staticmethod
    def schema_of(url: str) -> str:
        """The schema of an address that `fresh_schema` or `fresh_database` has made."""
        return url.partition("search_path%3D")[2] or "public"

    def dump(self, url: str, schema: str) -> str:
        """The statements that make what a schema of the database of an address contains, but not the schema itself."""
        what = [f"--schema={schema}", "--no-owner", "--inserts"]
        command = [str(_POSTGRES_BINARIES / "pg_dump"), *what, self.url(database_of(url))]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        others = ("\\", "SET ", f"CREATE SCHEMA {schema}", "SELECT pg_catalog.set_config(")
        return "\n".join(line for line in lines if not line.startswith(others))

    def execute(self, statement: str, url: str = "") -> list[tuple[object, ...]]:
        """Run a statement as superuser, outside a transaction, in the database and schema of an address."""
        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def backends(self, url: str) -> list[int]:
        """The processes of the sessions of the database of an address."""
        return [int(str(pid)) for (pid,) in self.execute(_sessions(url))]

    def wait_for_no_backend(self, url: str, *only: int) -> None:
        """Wait until the sessions of the database of an address have ended: each ends a moment after its client.

        With `only`, wait for these processes.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while backends := [one for one in self.backends(url) if not only or one in only]:
            assert time.monotonic() < deadline, backends

    def terminate_backends(self, url: str) -> int:
        """End all sessions of the database of an address; returns how many."""
        name = database_of(url)
        query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
        return len(self.execute(query))

    def kill_backends(self, url: str) -> int:
        """Kill the processes of the database of an address and wait for the recovery; returns how many it were."""
        backends = self.backends(url)
        ready, killed = self._times_said(_READY), self._times_said(_KILLED)
        for pid in backends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with self._said:
            if not backends or not self._said.wait_for(lambda: self._times_said(_KILLED) > killed, START_TIMEOUT_S):
                return 0  # the process was ending anyway, so this call has not killed it
            assert self._said.wait_for(lambda: self._times_said(_READY) > ready, START_TIMEOUT_S), "no recovery"
        return len(backends)

    def replica(self) -> "PostgresServer":
        """Start a replica that follows this server asynchronously; the caller closes it."""
        copy = PostgresServer(original=self)
        try:
            copy.start()
        except BaseException:
            copy.close()
            raise
        return copy

    def wait_replayed(self, primary: "PostgresServer") -> None:
        """Wait until this replica has all that its primary has written."""
        ((position,),) = primary.execute("SELECT pg_current_wal_lsn()")
        for _ in range(1000):
            if self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") == [(True,)]:
                return
        raise AssertionError(f"the replica does not come to {position}")

    def promote(self) -> None:
        """Promote this replica, and wait until it accepts writes."""
        assert self.execute("SELECT pg_promote()") == [(True,)]

    def _times_said(self, what: str) -> int:
        return sum(what in line for line in self._log)

    def _make_cluster(self) -> None:
        password = self._directory / "password"
        password.write_text(self.password)
        _give_to_postgres(self._directory, password)
        arguments = ["--no-sync", "--auth=md5", f"--pwfile={password}", f"--username={self.user}"]
        locale = ["--encoding=UTF8", "--locale=C.UTF-8"]
        command = _as_postgres([_POSTGRES_BINARIES / "initdb", "-D", self._data, *arguments, *locale])
        subprocess.run(command, check=True, capture_output=True, cwd=self._directory)

    def _copy_cluster(self, original: "PostgresServer") -> None:
        _give_to_postgres(self._directory)
        address = [f"--host={HOST}", f"--port={original.port}", f"--username={self.user}"]
        options = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        command = _as_postgres([_POSTGRES_BINARIES / "pg_basebackup", "-D", self._data, *address, *options])
        environment = os.environ | {"PGPASSWORD": self.password}
        subprocess.run(command, check=True, capture_output=True, cwd=self._directory, env=environment)

    def _started(self) -> bool:
        options = [f"-c{setting}" for setting in ("listen_addresses=127.0.0.1", *self._settings)]
        sockets = f"-cunix_socket_directories={self._directory}"
        command = [_POSTGRES_BINARIES / "postgres", "-D", self._data, "-p", str(self.port), sockets, *options]
        self._process = subprocess.Popen(
            _as_postgres(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self._directory
        )
        self._log: list[str] = []
        self._said = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._follow, args=(self._process,))
        self._reader.start()
        with self._said:
            said = self._said.wait_for(lambda: self._ended or self._times_said(_READY), START_TIMEOUT_S)
        assert said, "PostgreSQL says nothing"
        if self._ended:
            self.stop()
        return not self._ended

    def _follow(self, process: "subprocess.Popen[str]") -> None:
        """Keep the log, and tell when the server is ready or gone."""
        assert process.stdout is not None
        for line in process.stdout:
            with self._said:
                self._log.append(line)
                self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()


def database_of(url: str) -> str:
    """The name of the database in an address."""
    return url.rpartition("/")[2].partition("?")[0]


def _sessions(url: str) -> str:
    """A query for those of clients: an autovacuum worker is none."""
    return f"SELECT pid FROM pg_stat_activity WHERE datname = '{database_of(url)}' AND backend_type = 'client backend'"


class Server(Protocol):
    """What every server here can do."""

    def start(self) -> None:
        """Start and wait until it can be used."""

    def close(self) -> None:
        """End it and remove what it has left."""


class ProcessServer(ABC):
    """A server that is one process; `start` may be called again after `stop` and `kill`, on the same data and ports.

    Args:
        name: of the program, for its directory and in errors.

    Attributes:
        directory: has its data, and what it prints in the file `output`.
    """

    def __init__(self, name: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"correlator-{name.lower()}-"))
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it can be used."""

    @property
    def pid(self) -> int:
        """The server's own process."""
        assert self._process is not None
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it in order, or as the signal does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there, and does nothing."""
        suspend(self.pid)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill the server and remove its directory; its data are not needed."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _begin(self, command: Sequence[str | Path], **options: Any) -> None:
        """Start the process, whose output is added to the file."""
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, **options)

    def _wait_until(self, ready: Callable[[], bool], look_again_s: float = 0.1) -> None:
        """Wait until it is ready. Raises `RuntimeError` if it ends before, or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            self._give_time(deadline, look_again_s)

    def _give_time(self, deadline: float, look_again_s: float = 0.1) -> None:
        """Give it some time; raise `RuntimeError` if it ends within, or the deadline has passed.

        Waiting for its end leaves it the processor, unlike asking it again at once.
        """
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(look_again_s)
        if self._process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{self._name} did not start: {(self.directory / 'output').read_text()[-4000:]}")


AnyServer = TypeVar("AnyServer", bound=Server)


@contextlib.contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """The server, started; at the end of the block it is gone, also when it did not start."""
    try:
        server.start()
        yield server
    finally:
        server.close()


def free_port() -> int:
    """Return a TCP port of loopback that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def install_postgres() -> None:
    """Install the Debian package when it is absent: without a cluster of its own, without starting anything."""
    if (_POSTGRES_BINARIES / "postgres").exists():
        return
    clusters = Path("/etc/postgresql-common/createcluster.conf")
    clusters.parent.mkdir(parents=True, exist_ok=True)
    clusters.write_text("create_main_cluster = false\n")
    install_packages(f"postgresql-{_POSTGRES_VERSION}")


class PgBouncer:
    """A connection pooler before a PostgreSQL server."""

    def __init__(self, server: PostgresServer, mode: str) -> None:
        if not shutil.which("pgbouncer"):
            install_packages("pgbouncer")
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-pgbouncer-"))
        self._file = self._directory / "pgbouncer.ini"
        users = self._directory / "users.txt"
        users.write_text(f'"{server.user}" "{server.password}"\n')
        self._server = server
        self._file.write_text(
            f"[databases]\n* = host={HOST} port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = plain\nauth_file = {users}\npool_mode = {mode}\n"
        )
        _give_to_postgres(self._directory, self._file, users)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start, and wait until it says that it is up."""
        command = _as_postgres(["pgbouncer", self._file])
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        lines: list[str] = []
        for line in self._process.stderr:
            lines.append(line)
            if "process up" in line:
                return
        raise RuntimeError(f"pgbouncer ended: {''.join(lines)}")

    def url(self, url: str) -> str:
        """The address of a database by way of the pooler."""
        return url.replace(f":{self._server.port}/", f":{self.port}/")

    def close(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_TIMEOUT_S)
            assert self._process.stderr is not None
            self._process.stderr.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class ClassArchive:
    """The loaded classes of a server in Java, which the first one that ends in order leaves: later ones start faster.

    Args:
        kept: where all test runs have it.
        made: where a server of this run writes it.
    """

    def __init__(self, kept: Path, made: Path) -> None:
        self._kept = kept
        self._made = made

    @property
    def is_kept(self) -> bool:
        """Whether a server can use it."""
        return self._kept.exists()

    def flag(self) -> str:
        """The flag for Java: to use it, or to write it at the end."""
        return f"-XX:SharedArchiveFile={self._kept}" if self.is_kept else f"-XX:ArchiveClassesAtExit={self._made}"

    def keep(self) -> None:
        """Keep what a server that has ended may have written."""
        if self._made.exists() and not self.is_kept:
            beside = self._kept.with_suffix(f".{os.getpid()}")
            shutil.move(self._made, beside)
            beside.rename(self._kept)


def install_java() -> None:
    """Install a compiler and Maven when they are absent."""
    if not (shutil.which("javac") and shutil.which("mvn")):
        install_packages("default-jdk-headless", "maven")


def install_packages(*names: str) -> None:
    """Install Debian packages, without starting a service of theirs; another test run waits with its own meanwhile."""
    with (Path(tempfile.gettempdir()) / "correlator-tests-install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        policy = Path("/usr/sbin/policy-rc.d")
        if not policy.exists() and not Path("/run/systemd/system").exists():
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-q"], check=True, env=environment)
        options = ["--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
        subprocess.run(["apt-get", "install", "-y", "-q", *options, *names], check=True, env=environment)


def suspend(pid: int) -> None:
    """Stop a process, and wait until each of its threads has stopped: one that runs on would still answer.

    Raises `ProcessLookupError` for a process that is gone.
    """
    os.kill(pid, signal.SIGSTOP)
    while set(_states(pid)) - {"T", "t", "Z", "X"}:
        os.sched_yield()


def _states(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            yield thread.read_text().rpartition(")")[2].split()[0]


def _children(pid: int) -> list[int]:
    """The processes that a process with one thread has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _as_postgres(command: Sequence[object]) -> list[str]:
    """PostgreSQL refuses to run as root: run as the user of its package then."""
    prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.geteuid() == 0 else []
    return [*prefix, *map(str, command)]


def _give_to_postgres(*paths: Path) -> None:
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        for path in paths:
            os.chown(path, owner.pw_uid, owner.pw_gid)
