"""A real MariaDB or MySQL server for tests: an ordinary process on loopback, its data in a directory of its own.

The tests run with MariaDB. To run them with MySQL, name its program: MYSQLD=/usr/sbin/mysqld pytest -m mysql.
A server that does not start is an error, never a skip.
"""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pymysql

from tests.rabbit_server import make_certificates
from tests.servers import HOST, ProcessServer, free_port, install_packages

_LOOK_AGAIN_S = 0.05
_PACKAGE = "mariadb-server-core"
_MARIADB, _STATEMENTS = Path("/usr/sbin/mariadbd"), Path("/usr/share/mysql")
"""The program of MariaDB, and the directory of what it executes to make its own tables."""
_MYSQL = os.environ.get("MYSQLD", "")
IS_MARIADB = not _MYSQL
_SMALL = (
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M" if IS_MARIADB else "--innodb-redo-log-capacity=16M",
    "--performance-schema=OFF",
    "--skip-name-resolve",
    "--max-allowed-packet=1M",
    *(() if IS_MARIADB else ("--mysqlx=OFF", "--skip-log-bin", "--secure-file-priv=NULL")),
)
"""It needs little memory, starts quickly, and listens and writes nowhere else."""
_CARELESS = ("--sql-mode=", "--default-time-zone=+03:00")
"""What a sender and a receiver must not rely on."""


class MysqlServer(ProcessServer):
    """A server of its own, of MariaDB or MySQL; `start` may be called again after `stop` and `kill`, on the same data and port.

    Args:
        settings: further arguments of the server.
    """

    user = "correlator"

    def __init__(self, settings: Sequence[str] = ()) -> None:
        if IS_MARIADB:
            install_mariadb()
        self.password = secrets.token_hex(8)
        self.port = free_port()
        super().__init__("MariaDB" if IS_MARIADB else "MySQL")
        self._settings = settings
        self._databases = 0
        self._make_data()

    def start(self) -> None:
        """Start and wait until it accepts sessions."""
        here = self.directory
        tls = [f"--ssl-ca={here / 'ca.pem'}", f"--ssl-cert={here / 'server.pem'}", f"--ssl-key={here / 'server.key'}"]
        own = [f"--port={self.port}", f"--init-file={here / 'users.sql'}"]
        arguments = [*own, *tls, *_SMALL, *_CARELESS, *self._settings]
        self._begin(self._command(*arguments))
        self._wait_until(self._answers, _LOOK_AGAIN_S)

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

    def _make_data(self) -> None:
        make_certificates(self.directory)
        (self.directory / "users.sql").write_text(
            f"CREATE USER IF NOT EXISTS {self.user}@'{HOST}' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {self.user}@'{HOST}' WITH GRANT OPTION;\n"
        )
        if not IS_MARIADB:
            subprocess.run(self._command("--initialize-insecure", *_SMALL), check=True, capture_output=True)
            return
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
            f"--pid-file={self.directory / 'pid'}",
        ]
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        return [_MYSQL or str(_MARIADB), "--no-defaults", *own, *as_root, *arguments]


def install_mariadb() -> None:
    """Install the Debian package of the program alone when it is absent: it has no service that could start."""
    if not _MARIADB.exists():
        install_packages(_PACKAGE)
