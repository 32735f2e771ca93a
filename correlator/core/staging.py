"""The results of a context's work that wait for the next checkpoint: reliable sends, and dead letters.

If somebody brings a dead letter back, its send waits here, too: the checkpoint that stores the send deletes the letter.
"""

from collections import defaultdict

from correlator.events import DeadLetter, Message


class Staging:
    """Reliable sends by sender, and dead letters, since the last cut.

    Owner: the context's thread, and the checkpointer while it holds the context's lock. Any thread may call `count`.

    Args:
        stored: whether checkpoints take what is staged; without them, dead letters are only logged.

    Attributes:
        stored: as above.
        sends: the staged sends by sender. The context appends to these lists; each is valid until the next cut.
        dead_letters: the staged dead letters; the list is valid until the next cut.
    """

    __slots__ = ("_returned", "dead_letters", "sends", "stored")

    def __init__(self, *, stored: bool = True) -> None:
        self.stored = stored
        self.sends: defaultdict[str, list[Message]] = defaultdict(list)
        self.dead_letters: list[DeadLetter] = []
        self._returned: list[int] = []

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Keep a dead letter until the next cut. A context without checkpoints discards it after it has been logged."""
        self.dead_letters.append(letter)

    def count(self, sender: str) -> int:
        """The number of staged sends to this sender; `max_outstanding` also counts them."""
        return len(self.sends.get(sender, ()))

    def take_sends(self) -> dict[str, list[Message]]:
        """Remove and return the staged sends, by sender."""
        sends, self.sends = self.sends, defaultdict(list)
        return sends

    def bring_back(self, sender: str, message: Message, number: int) -> None:
        """Stage the message of a dead letter, which has this number. The caller holds the context's lock."""
        self.sends[sender].append(message)
        self._returned.append(number)

    def take_returned(self) -> list[int]:
        """Remove and return the numbers of the dead letters whose messages are staged again."""
        returned, self._returned = self._returned, []
        return returned

    def take_dead_letters(self) -> list[DeadLetter]:
        """Remove and return the staged dead letters."""
        letters, self.dead_letters = self.dead_letters, []
        return letters
