"""Whether a receiver may begin a batch: it must be open, and neither drained nor paused (docs/control.md)."""


class Gate:
    """The orders to one receiver whether to begin batches, and whether it has come to rest.

    The thread of the receiver calls `note`. Any thread may call the other methods, but only one at a time calls `pause`
    and `go_on`.

    Attributes:
        is_open: whether the receiver may connect and receive.
        draining: whether the receiver begins no further batch but finishes the present one.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.draining = False
        self._pause: object | None = None
        """Stands for one pause: whoever rests in an earlier one does not yet rest in this one."""
        self._rests_in: object | None = None
        self._drained = False

    @property
    def paused(self) -> bool:
        """Whether there is a pause: as `draining`, but not for good."""
        return self._pause is not None

    @property
    def shut(self) -> bool:
        """Whether the receiver begins no batch now, because it drains or is paused."""
        return self.draining or self.paused

    @property
    def quiet(self) -> bool:
        """Whether the receiver takes no further messages and holds none, because it has finished draining, is paused or
        is not open.
        """
        return self._drained or not self.is_open or (self.paused and self._rests_in is self._pause)

    def open(self) -> None:
        """Let the receiver connect and receive."""
        self.is_open = True

    def drain(self) -> None:
        """Let the receiver finish the present batch and begin no other one."""
        self.draining = True

    def pause(self) -> None:
        """As `drain`, but until `go_on`."""
        self._pause = object()

    def go_on(self) -> None:
        """End the pause, if there is one."""
        self._pause = None

    def note(self, *, idle: bool, empty: bool) -> None:
        """Note what the receiver holds before a step. It obeys the orders that it has seen here.

        Args:
            idle: whether it has no batch to finish; see `Intake.idle`.
            empty: whether its present batch has no message.
        """
        if self.draining and idle:
            self._drained = True
        if empty:
            self._rests_in = self._pause
