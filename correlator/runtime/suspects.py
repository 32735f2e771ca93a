"""Notes in the store which messages a start is about to handle, so that the next start knows which message ended the
process.

`correlator.core.poison` decides; this module commits each note before the messages are handled.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from correlator.core.commit import Suspect, SuspectCommit
from correlator.core.messages import encode_event
from correlator.core.poison import Portion, Watchlist, is_condemned
from correlator.core.queue import InputQueue
from correlator.errors import StoreError
from correlator.runtime.logs import get_logger

Commit = Callable[[SuspectCommit], None]


class Suspects:
    """The notes of one start about some contexts. Owner: the thread that works through the queues of these contexts.

    Args:
        contexts: names of the contexts.
        found: the notes that the last start has left in the store.
        commit: commits notes, and returns when they are durable.
        absolve: called for each condemned message once its context holds its dead letter.
        halving: whether the noted messages are divided into halves to find the poison message; otherwise one message is
            handled at a time.
    """

    def __init__(
        self,
        contexts: Sequence[str],
        found: Sequence[Suspect],
        commit: Commit,
        absolve: Callable[[Suspect], None],
        *,
        halving: bool = False,
    ) -> None:
        self._contexts = contexts
        self._commit = commit
        self._absolve = absolve
        self._noted = [suspect for suspect in found if suspect.context in contexts]
        self._condemned = [suspect for suspect in self._noted if is_condemned(suspect)]
        self._left_out: list[Suspect] = []
        self._watchlists = {name: Watchlist(name, found, encode_event, halving=halving) for name in contexts}
        self._log = get_logger(part="recovery")

    def portion(self, context: str, queue: InputQueue, most: int) -> Portion:
        """Return the next portion of events to handle in a context, at most `most` events."""
        return self._watchlists[context].portion(queue, most)

    def note(self, suspects: Sequence[Suspect] = ()) -> None:
        """Commit the note that only these messages are handled next; condemned messages stay noted."""
        self._write([*self._condemned, *suspects])

    def conclude(self) -> None:
        """Commit the note that all messages which waited at the start are handled; only the messages that were left out
        stay noted.
        """
        self._write(self._left_out)

    def leave_out(self, suspect: Suspect, do: Callable[[Suspect], str]) -> None:
        """Make a dead letter of a condemned message.

        Args:
            suspect: the note about the message.
            do: makes the dead letter in the context, and returns the text of the log line.
        """
        self._log.error(do(suspect))
        self._left_out.append(suspect)
        self._absolve(suspect)

    @contextlib.contextmanager
    def forgiving(self) -> Iterator[None]:
        """Remove the notes if an exception leaves the block: the exception stops the engine, but does not kill the
        process.
        """
        try:
            yield
        except (Exception, KeyboardInterrupt):
            with contextlib.suppress(StoreError):
                self.note()
            raise

    def _write(self, suspects: Sequence[Suspect]) -> None:
        if list(suspects) != self._noted:
            self._commit(SuspectCommit(contexts=self._contexts, suspects=suspects))
            self._noted = list(suspects)
