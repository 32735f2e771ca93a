"""A session with a PostgreSQL server that does not wait for ever, and takes no doubtful COMMIT for a good one."""

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.errors import Diagnostic
from psycopg.waiting import Ready

ANSWER_TIMEOUT_S = 30.0
"""How long a server may say nothing before its session is given up, unless that is told to be patient."""
_LOOK_S = 0.1
_NOT_READY = Ready.NONE
"""What the driver tells about a socket on which nothing has happened since its last look."""


class CommitWarned(psycopg.OperationalError):
    """The server has answered COMMIT with a warning: the transaction may be missing on a synchronous standby."""

    sqlstate = "01000"


class Session(psycopg.Connection[Any]):
    """A session that is lost when its server says nothing for `ANSWER_TIMEOUT_S`, whatever it was asked.

    A time-out of TCP does not notice a server that is frozen: its system goes on acknowledging what it is sent. An
    engine asks for nothing that takes so long. What a command or a revision does with a large store may, so these are
    patient: the session lasts as long as its connection, and who started them can end them.

    Attributes:
        patient: whether an answer may take any time.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.patient = False
        self._warnings: list[str] = []
        self.add_notice_handler(self._note)

    def wait(self, gen: Any, interval: float = _LOOK_S, timeout: float | None = None) -> Any:
        """Exchange messages with the server, as the driver does; every call of the driver waits here.

        Raises:
            psycopg.OperationalError: the server said nothing for too long; the session is closed.
        """
        return super().wait(self._answered(gen), interval, timeout)

    def commit(self) -> None:
        """End the transaction.

        Raises:
            CommitWarned: a server that may not wait for its standby any longer (the wait was cancelled, or the session
                is being ended) says so in a warning, and then that the transaction is committed.
        """
        self._warnings.clear()
        super().commit()
        if self._warnings:
            raise CommitWarned(f"COMMIT was answered with a warning: {self._warnings[0]}")

    def _note(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "")

    def _answered(self, exchange: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The exchange, ended when nothing happens in it for too long."""
        heard, ready = time.monotonic(), None
        try:
            while True:
                ready = yield exchange.send(ready)
                if ready != _NOT_READY:
                    heard = time.monotonic()
                elif not self.patient and time.monotonic() - heard > ANSWER_TIMEOUT_S:
                    self.close()
                    raise psycopg.OperationalError(f"the server has said nothing for {ANSWER_TIMEOUT_S:g} s")
        except StopIteration as done:
            return done.value
