"""Checks which thread may use a session, and which calls are not allowed in its callbacks."""

from threading import Thread, current_thread

from correlator.errors import UsageError
from correlator.processes import Maker


class Owner:
    """The owner of a session: the thread of its listeners while they are called, otherwise the thread of its user.

    Any thread may call its methods. The thread of the completions never owns the session.
    """

    def __init__(self) -> None:
        self.maker = Maker()
        self.listening: Thread | None = None
        """The thread that calls the listeners; it may have ended."""
        self.completing: Thread | None = None
        """The thread that calls the completions."""
        self._user: object = None
        """The last thread that passed `check`; see `Maker.thread`."""

    def check(self, where: str) -> None:
        """Raise `UsageError` E7505 if the session belongs to another thread, E2050 in a forked child.

        A forked child must not use the session of its parent; `close` does nothing there.
        """
        self.maker.check(where)
        if self.listening is not None or self.completing is not None:
            self._check_thread(where)
        self._user = Maker.thread()

    def _check_thread(self, where: str) -> None:
        if self.is_completing:
            what = "it is used by a completion, whose thread is not that of the session"
            raise UsageError("E7505", where, what, "", "Let the session's own thread do it, or use another session")
        if self.listening is not None and self.listening.is_alive() and not self.is_listening:
            what = "its session has listeners, and belongs to their thread while the connection is started"
            raise UsageError("E7505", where, what, "", "Stop the connection first, or use another session")

    @property
    def is_another_thread(self) -> bool:
        """Return whether the last user of the session was another thread than the caller's, and may be
        within a call.
        """
        return self._user not in (None, Maker.thread())

    def check_may_await_completions(self, where: str) -> None:
        """Raise `UsageError` E7506 within a completion: the call would wait for its own end."""
        if self.is_completing:
            raise _waits_for_itself(where, "completion")

    def check_may_await_listeners(self, where: str) -> None:
        """Raise `UsageError` E7506 within a listener or completion: the call would wait for its own end."""
        self.check_may_await_completions(where)
        if self.is_listening:
            raise _waits_for_itself(where, "listener")

    @property
    def is_listening(self) -> bool:
        """Whether the calling thread calls the listeners."""
        return current_thread() is self.listening

    @property
    def is_completing(self) -> bool:
        """Whether the calling thread calls the completions."""
        return current_thread() is self.completing


def _waits_for_itself(where: str, callback: str) -> UsageError:
    what = f"the call waits until no {callback} runs, and a {callback} makes it"
    return UsageError("E7506", where, what, "", "Let another thread make the call")
