"""A clock that a test moves by hand."""


class ManualClock:
    """A clock that stands still until a test moves it. An engine takes it in place of the machine's clock.

    Args:
        now: the first reading, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        """Return the present reading, in seconds."""
        return self.now

    def wall(self) -> float:
        """Return the present reading, taken as seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`, which must not be negative."""
        assert seconds >= 0
        self.now += seconds
