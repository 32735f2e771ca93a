"""A session with a PostgreSQL server that does not wait for ever, and that raises an error if COMMIT brings a
warning.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import generators, pq
from psycopg.errors import Diagnostic
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready

ANSWER_TIMEOUT_S = 30.0
"""Seconds without any answer after which a session counts as lost, unless it is patient."""
_LOOK_S = 0.1
Argument = str | bytes | int | Sequence[int]
"""An argument of `PostgresSession.call`."""
_NOT_READY = Ready.NONE
"""The value that the driver passes if nothing has happened on the socket since the last call."""


class CommitWarned(psycopg.OperationalError):
    """The server has answered COMMIT with a warning: the transaction may be missing on a synchronous standby."""

    sqlstate = "01000"


class PostgresSession(psycopg.Connection[Any]):
    """A session that counts as lost if its server sends nothing for `ANSWER_TIMEOUT_S` while an answer is due.

    A time-out of TCP does not notice a frozen server, whose operating system still acknowledges packets. No statement
    of an engine takes so long. Commands and revisions may take longer on a large store, so their sessions are patient:
    the person who has started the command can end it.

    Attributes:
        patient: whether the session waits for an answer without a time limit.
        answer_timeout_s: replaces `ANSWER_TIMEOUT_S`.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.patient = False
        self.answer_timeout_s: float | None = None
        self._warnings: list[str] = []
        self._functions: dict[str, list[int]] = {}
        self.add_notice_handler(self._note)

    def wait(self, gen: Any, interval: float = _LOOK_S, timeout: float | None = None) -> Any:
        """Exchange messages with the server; every call of the driver waits here.

        Raises:
            psycopg.OperationalError: no answer came in time; the session is closed.
        """
        return super().wait(self._answered(gen), interval, timeout)

    def commit(self) -> None:
        """End the transaction.

        Raises:
            CommitWarned: the server has committed, but warned that it did not wait for its standby (the wait was
                cancelled, or the session is being ended).
        """
        self._warnings.clear()
        super().commit()
        self._refuse_warnings()

    @contextmanager
    def each_alone(self) -> Iterator[None]:
        """Let each statement of the block be a transaction of its own, which saves the round trips of BEGIN and COMMIT.

        Statements that write belong into `alone`, which also raises an error if their commit brings a warning.
        """
        self.autocommit = True
        try:
            yield
        finally:
            with suppress(psycopg.Error):  # the session is lost
                self.autocommit = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let the statement of the block be a transaction of its own, as `each_alone` does.

        Raises:
            CommitWarned: as `commit`.
        """
        self._warnings.clear()
        with self.each_alone():
            yield
        self._refuse_warnings()

    def call(self, function: str, *arguments: Argument) -> bool:
        """Call a function of the server that returns a boolean, in a transaction of its own and in one round trip.

        Takes a fifth of the processor time of a statement of the driver, which chooses for each value how to convert
        it. The session prepares the call once: later calls have arguments of the same types.

        Raises:
            psycopg.ProgrammingError: the session is in a transaction.
            psycopg.Error: as a statement of the driver.
            CommitWarned: as `commit`.
        """
        with self.lock:
            if self.pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
                raise psycopg.ProgrammingError(f"{function} was called in a transaction")
            self._warnings.clear()
            try:
                called = self._called(function, arguments)
            except psycopg.errors.InvalidSqlStatementName:  # the driver deallocates all statements after a rollback
                self._functions.clear()
                called = self._called(function, arguments)
        self._refuse_warnings()
        return called

    def _called(self, function: str, arguments: Sequence[Argument]) -> bool:
        formats = self._functions.get(function) or self._prepare(function, arguments)
        self.pgconn.send_query_prepared(function.encode(), [*map(_encoded, arguments)], formats)
        return self._result().get_value(0, 0) == b"t"

    def _prepare(self, function: str, arguments: Sequence[Argument]) -> list[int]:
        """Prepare calls of a function, and return the format of each argument: texts and bytes go as they are."""
        numbered = ", ".join(f"${number}" for number in range(1, len(arguments) + 1))
        self.pgconn.send_prepare(function.encode(), f"SELECT {function}({numbered})".encode())
        self._result()
        formats = [pq.Format.BINARY if isinstance(one, str | bytes) else pq.Format.TEXT for one in arguments]
        self._functions[function] = [*map(int, formats)]
        return self._functions[function]

    def _result(self) -> PGresult:
        results: list[PGresult] = self.wait(generators.execute(self.pgconn))
        (result,) = results
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, self.info.encoding)
        return result

    def _refuse_warnings(self) -> None:
        if self._warnings:
            raise CommitWarned(f"COMMIT was answered with a warning: {self._warnings[0]}")

    def _note(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "")

    def _answered(self, exchange: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run the exchange with the server; raise an error if nothing happens in it for too long."""
        heard, ready = time.monotonic(), None
        try:
            while True:
                ready = yield exchange.send(ready)
                if ready != _NOT_READY:
                    heard = time.monotonic()
                elif not self.patient and time.monotonic() - heard > (self.answer_timeout_s or ANSWER_TIMEOUT_S):
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server has said nothing for {self.answer_timeout_s or ANSWER_TIMEOUT_S:g} s"
                    )
        except StopIteration as done:
            return done.value


def _encoded(argument: Argument) -> bytes:
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, int):
        return b"%d" % argument
    return f"{{{','.join(map(str, argument))}}}".encode()
