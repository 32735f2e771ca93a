"""An actor: an object that one thread owns. It works in steps, so that the simulation can drive it without threads.

`step` does all work that is possible now, and returns how many seconds the actor can wait; `wake` ends this wait. An
actor blocks only between two steps, or in a call of a connector to which the actor has given a time-out.
"""

import threading
from collections.abc import Callable

LONGEST_SLEEP_S = 3600.0
"""The longest wait between two steps, in seconds; afterwards a thread calls `step` even without a wake-up."""


class Actor:
    """Base class of all threads of the engine.

    Args:
        name: the thread's name.

    Attributes:
        daemon: whether the process may end while `step` runs. True for actors that call application code, which may
            never return; false for an actor that owns the store (trap T66).
        steps: how many steps its thread has begun. Any thread may read it.
    """

    daemon = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._woken = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.steps = 0

    def step(self) -> float | None:
        """Do all work that is possible now.

        Returns the seconds to wait before the next step: 0 to be called again at once, `None` to wait for a wake-up.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Release what the actor owns; called once in its thread after the last step."""

    def wake(self) -> None:
        """End the wait between two steps; any thread may call it."""
        self._woken.set()

    def take_wake(self) -> bool:
        """Return whether `wake` was called since the last call of `take_wake`. For callers that drive the steps
        themselves.
        """
        if not self._woken.is_set():
            return False
        self._woken.clear()
        return True

    def start(self, failed: "Callable[[Actor, BaseException], None] | None" = None) -> None:
        """Start a thread that runs steps until `stop`.

        Args:
            failed: called in that thread if a step raises; afterwards the thread ends. Without `failed` the exception
                leaves the thread.

        Raises `RuntimeError` if the system cannot start another thread; in this case no step ever runs.
        """
        self._thread = threading.Thread(target=self._run, args=(failed,), name=self.name, daemon=self.daemon)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise

    def is_running_here(self) -> bool:
        """Whether the calling thread is the thread of this actor."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Let the thread end after the current step; does not wait. Any thread may call it."""
        self._stopping = True
        self.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread ends, at most `timeout` seconds; returns whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def ident(self) -> int | None:
        """The identity of its thread; `None` before `start`."""
        return None if self._thread is None else self._thread.ident

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called; the thread ends after the step that is running now. Any thread may read it."""
        return self._stopping

    def _run(self, failed: "Callable[[Actor, BaseException], None] | None") -> None:
        try:
            while not self._stopping:
                self.steps += 1
                delay = self.step()
                if delay != 0:
                    self._woken.wait(None if delay is None else min(delay, LONGEST_SLEEP_S))
                    self._woken.clear()
        except BaseException as error:  # whatever was raised, the engine must stop
            if failed is None:
                raise
            failed(self, error)
        finally:
            self.finish()
