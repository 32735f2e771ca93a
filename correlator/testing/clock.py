"""A clock that stands still until a test moves it."""


class ManualClock:
    """Monotonic seconds moved by hand; takes the place of the machine's clock in an engine.

    Args:
        now: where it begins.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        """Seconds since the clock was made, plus where it began."""
        return self.now

    def wall(self) -> float:
        """The same: this clock began with the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on; a clock never goes back."""
        assert seconds >= 0
        self.now += seconds
