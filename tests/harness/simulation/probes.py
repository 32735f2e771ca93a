"""Records the reports of the project's own application in the history."""

from collections.abc import Callable

from correlator.testing.invariants.history import POISONED, Kind
from tests.harness.simulation.application import Probe


class WorldProbe(Probe):
    """Records the reports of monitors in the history.

    Args:
        record: adds to the history.
        open_receivers: returns the open receivers of the acting engine.
        kill: ends the acting engine.
    """

    def __init__(
        self,
        record: Callable[[Kind, str, object], None],
        open_receivers: Callable[[], tuple[str, ...]],
        kill: Callable[[str], None],
    ) -> None:
        self._record = record
        self._open_receivers = open_receivers
        self._kill = kill
        self._failed: set[str] = set()
        self._given = 0

    def sent(self, sender: str, context: str, body: bytes) -> None:
        """A BEST_EFFORT message was sent."""
        self._record("sent", sender, (context, body))

    def derived(self, receiver: str, message_id: str, body: bytes) -> None:
        """An APP_CONTROLLED input caused this output."""
        self._record("derived", receiver, (message_id, body))

    def handled(self, monitor: str, message_id: str) -> None:
        """A message was handled."""
        self._record("handled", monitor, message_id)

    def suspended(self, receiver: str) -> None:
        """The application was notified that the receiver is suspended."""
        self._record("suspended", receiver, None)

    def resumed(self, receiver: str) -> None:
        """The application acknowledges the batch of this receiver."""
        self._record("resumed", receiver, None)

    def granted(self, receiver: str, through: int) -> None:
        """The application allows the receiver to deliver up to this number."""
        self._record("granted", receiver, through)

    def flush(self, sender: str, context: str, request_id: int) -> None:
        """A flush was requested."""
        self._record("flush", sender, (context, request_id))

    def flushed(self, sender: str, context: str, request_id: int, failed: int) -> None:
        """The application was notified of a flush."""
        self._record("flushed", sender, (context, request_id, failed))

    def attempt(self, call: str, code: str) -> None:
        """A call that must be refused was made; `code` is the error, "" if it was not refused."""
        self._record("attempt", call, code)

    def heard(self, message_id: str) -> None:
        """A monitor that exists only in some lives was called."""
        self._record("heard", "", message_id)

    def hook(self, name: str) -> None:
        """A life-cycle method was called."""
        self._record("hooks", name, self._open_receivers())

    def ticked(self, monitor: str, period: float, engine_time: float) -> None:
        """A timer of a monitor without lasting state fired."""
        self._record("ticked", monitor, (period, engine_time))

    def fails_now(self, message_id: str) -> bool:
        """Return whether the handler fails: a poison message fails the first time."""
        if message_id in self._failed:
            return False
        self._failed.add(message_id)
        return True

    def ends_the_process(self, message_id: str) -> None:
        """End the engine, in whatever thread the handler runs."""
        self._kill(f"{POISONED}{message_id}")

    def unique(self) -> int:
        """Return a number that no life has given before."""
        self._given += 1
        return self._given
