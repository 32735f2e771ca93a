"""Whose a session is, and which calls its own callbacks may not make."""

from threading import Thread, current_thread

from correlator.errors import UsageError
from correlator.processes import Maker


class Owner:
    """A session belongs to one thread at a time: to that of its listeners while they are called, else to its user's.

    Asked by any thread. The thread that a session has for its completions never owns it.
    """

    def __init__(self) -> None:
        self.maker = Maker()
        self.listening: Thread | None = None
        """Calls the listeners; may have ended."""
        self.completing: Thread | None = None
        """Calls the completions."""

    def check(self, where: str) -> None:
        """Raises `UsageError` E7505 when the session belongs to another thread than the calling one, E2050 in a child.

        What a process has opened is not for the children that it forks; to close it does nothing there.
        """
        self.maker.check(where)
        if self.listening is None and self.completing is None:
            return
        if self.is_completing:
            what = "it is used by a completion, whose thread is not that of the session"
            raise UsageError("E7505", where, what, "", "Tell the session's own thread, or use another session")
        if self.listening is not None and self.listening.is_alive() and not self.is_listening:
            what = "its session has listeners, and belongs to their thread while the connection is started"
            raise UsageError("E7505", where, what, "", "Stop the connection first, or use another session")

    def check_may_await_completions(self, where: str) -> None:
        """Raises `UsageError` E7506 within a completion, which a call that awaits its end would wait for."""
        if self.is_completing:
            raise _waits_for_itself(where, "completion")

    def check_may_await_listeners(self, where: str) -> None:
        """Raises `UsageError` E7506 within a listener or completion: a listener may wait for completions."""
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
    return UsageError("E7506", where, what, "", "Tell another thread to make it")
