"""The results of a context's work that wait for the next checkpoint: reliable sends, and dead letters."""

from correlator.events import DeadLetter, Message


class Staging:
    """Reliable sends by sender, and dead letters, since the last cut.

    Owner: the context's thread, and the checkpointer while it holds the context's lock. Any thread may call `count`.
    """

    __slots__ = ("_dead_letters", "_sends")

    def __init__(self) -> None:
        self._sends: dict[str, list[Message]] = {}
        self._dead_letters: list[DeadLetter] = []

    def sends_to(self, sender: str) -> list[Message]:
        """The staged sends to this sender, for the context to append to; the list is valid until the next cut."""
        sends = self._sends.get(sender)
        if sends is None:
            sends = self._sends[sender] = []
        return sends

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Stage a dead letter."""
        self._dead_letters.append(letter)

    def count(self, sender: str) -> int:
        """The number of staged sends to this sender: a part of what its `max_outstanding` bounds."""
        return len(self._sends.get(sender, ()))

    def take_sends(self) -> dict[str, list[Message]]:
        """Remove and return the staged sends, by sender."""
        sends, self._sends = self._sends, {}
        return sends

    def take_dead_letters(self) -> list[DeadLetter]:
        """Remove and return the staged dead letters."""
        letters, self._dead_letters = self._dead_letters, []
        return letters
