"""A clock that a test moves by hand."""


class ManualClock:
    """A clock that stands still until a test moves it; an engine takes it in place of the machine's clock.

    Args:
        now: where it begins.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        """Seconds since the clock was made, plus where it began."""
        return self.now

    def wall(self) -> float:
        """The same number, taken as seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on; a clock never goes back."""
        assert seconds >= 0
        self.now += seconds
