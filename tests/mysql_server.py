"""A real MariaDB server for tests: an ordinary process on loopback, its data in a directory of its own.

A server that does not start is an error, never a skip.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pymysql

from tests.rabbit_server import make_certificates
from tests.servers import HOST, START_TIMEOUT_S, free_port, install_packages, suspend

_LOOK_AGAIN_S = 0.05
_PACKAGE = "mariadb-server-core"
_SERVER, _STATEMENTS = Path("/usr/sbin/mariadbd"), Path("/usr/share/mysql")
"""The program, and the directory of what it executes to make its own tables."""
_SMALL = (
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    "--performance-schema=OFF",
    "--skip-name-resolve",
    "--max-allowed-packet=1M",
)
"""It needs little memory, and starts quickly."""
_CARELESS = ("--sql-mode=", "--default-time-zone=+03:00")
"""What a sender and a receiver must not rely on."""


class MysqlServer:
    """A MariaDB server of its own; `start` may be called again after `stop` and `kill`, on the same data and port.

    Args:
        settings: further arguments of the server.
    """

    user = "correlator"

    def __init__(self, settings: Sequence[str] = ()) -> None:
        install_mariadb()
        self.password = secrets.token_hex(8)
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="correlator-mariadb-"))
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._make_data()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it accepts sessions."""
        here = self.directory
        tls = [f"--ssl-ca={here / 'ca.pem'}", f"--ssl-cert={here / 'server.pem'}", f"--ssl-key={here / 'server.key'}"]
        own = [f"--port={self.port}", f"--init-file={here / 'users.sql'}"]
        arguments = [*own, *tls, *_SMALL, *_CARELESS, *self._settings]
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(self._command(*arguments), stdout=output, stderr=output)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._ends_within(_LOOK_AGAIN_S) or time.monotonic() > deadline:
                raise RuntimeError(f"MariaDB did not start: {(self.directory / 'output').read_text()[-4000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it in order, or as the signal does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self.stop(signal.SIGKILL)

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

    def url(self, database: str, parameters: str = "ssl_disabled=true") -> str:
        """The address of a database."""
        return f"mysql+pymysql://{self.user}:{self.password}@{HOST}:{self.port}/{database}?{parameters}"

    def fresh_database(self) -> str:
        """Make an empty database and return its address."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self.url(name)

    def execute(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements outside of a transaction; returns the rows of the last one."""
        with self._session() as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def sessions(self, url: str) -> list[int]:
        """The sessions of clients of the database of an address."""
        name = url.rpartition("/")[2].partition("?")[0]
        query = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        return [int(str(one)) for (one,) in self.execute(query)]

    def kill_sessions(self, url: str) -> None:
        """End all sessions of the database of an address."""
        for one in self.sessions(url):
            with contextlib.suppress(pymysql.Error):  # it has ended meanwhile
                self.execute(f"KILL {one}")

    def _session(self) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            host=HOST, port=self.port, user=self.user, password=self.password, autocommit=True, ssl_disabled=True
        )

    def _answers(self) -> bool:
        try:
            self._session().close()
        except pymysql.Error:
            return False
        return True

    def _ends_within(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _make_data(self) -> None:
        make_certificates(self.directory)
        (self.directory / "users.sql").write_text(
            f"CREATE USER IF NOT EXISTS {self.user}@'{HOST}' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {self.user}@'{HOST}' WITH GRANT OPTION;\n"
        )
        (self.directory / "data" / "mysql").mkdir(parents=True)
        parts = [(_STATEMENTS / f"mysql_system_tables{part}.sql").read_text() for part in ("", "_data")]
        statements = "\n".join(["USE mysql;", *parts])
        subprocess.run(
            self._command("--bootstrap", *_SMALL), check=True, capture_output=True, text=True, input=statements
        )

    def _command(self, *arguments: str) -> list[str]:
        own = [
            f"--datadir={self.directory / 'data'}",
            f"--socket={self.directory / 'socket'}",
            f"--bind-address={HOST}",
        ]
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        return [str(_SERVER), "--no-defaults", *own, *as_root, *arguments]


def install_mariadb() -> None:
    """Install the Debian package of the program alone when it is absent: it has no service that could start."""
    if not _SERVER.exists():
        install_packages(_PACKAGE)
