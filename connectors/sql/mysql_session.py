"""A session with MySQL or MariaDB that does not wait for ever, and that sends no statement longer than
the server allows.
"""

import ssl
import struct
from collections.abc import Mapping
from typing import Any

from pymysql import Connection, DataError, Error, OperationalError
from pymysql.constants import CR, ER

from correlator.errors import ConnectionLost

_ANSWER_TIMEOUT_S = 30
"""Seconds without an answer after which a session counts as lost: no statement of a sender or receiver
takes that long.
"""
_NO_SERVER = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, struct.error)
"""Errors that the driver raises if no MySQL answers, or if it cannot log in because it lacks a package."""


class MysqlSession(Connection):  # type: ignore[misc]  # the driver has no types
    """A session that counts as lost if its server sends nothing for `_ANSWER_TIMEOUT_S` while an answer is due.

    Attributes:
        largest: size in bytes at which the server would end the session instead of taking a statement; 0 if unknown.
    """

    largest = 0

    def connect(self, sock: Any = None) -> None:
        """Connect and log in. Raises `pymysql.OperationalError`, even if another program than MySQL answers."""
        try:
            super().connect(sock)
        except _NO_SERVER as error:
            raise OperationalError(CR.CR_CONN_HOST_ERROR, f"no session with MySQL: {error}") from error

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 when it is closed."""
        return -1 if self._sock is None else int(self._sock.fileno())

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        """Send a statement. Raises `pymysql.DataError` if it is too long; the session stays usable."""
        sent = sql.encode(self.encoding) if isinstance(sql, str) else sql
        if self.largest and len(sent) + 1 >= self.largest:  # one byte marks it as a statement
            what = f"{len(sent)} bytes are more than max_allowed_packet, {self.largest}"
            raise DataError(ER.NET_PACKET_TOO_LARGE, what, sqlstate="22001")
        return super().query(sent, unbuffered)


def dial(where: str, arguments: Mapping[str, Any]) -> MysqlSession:
    """Open a session.

    Args:
        where: the place of the sender or receiver.
        arguments: arguments of the driver.

    Raises:
        ConnectionLost: E7016, no encrypted session.
        pymysql.Error: the session cannot be opened.
    """
    try:
        return MysqlSession(**arguments, read_timeout=_ANSWER_TIMEOUT_S, write_timeout=_ANSWER_TIMEOUT_S)
    except Error as error:
        untrusted = isinstance(getattr(error, "original_exception", None), ssl.SSLError)
        if not untrusted and error.args[:1] != (CR.CR_SSL_CONNECTION_ERROR,):
            raise
        what = f"no TLS with {arguments['host']}: {error.args[-1]}"
        todo = "Name the certificate of the authority in ssl_ca, or append ?ssl_disabled=true to the address"
        raise ConnectionLost("E7016", where, what, "", todo) from error
