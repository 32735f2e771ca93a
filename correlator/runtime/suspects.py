"""Notes in the store what a start is handling, so that the next start knows what the process died of.

What is decided stands in `correlator.core.poison`; here it is committed before it is begun.
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
    """The notes of one start about some contexts. Owner: the thread that works through their queues.

    Args:
        contexts: their names.
        found: what the last start left noted.
        commit: has a note committed and returns when it is durable.
        absolve: told of each condemned message when its dead letter is in its context.
        halving: whether what is accused is halved instead of taken one by one.
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
        """What to handle next in a context, at most so many events."""
        return self._watchlists[context].portion(queue, most)

    def note(self, suspects: Sequence[Suspect] = ()) -> None:
        """These are handled next, and nothing else; what is condemned stays noted."""
        self._write([*self._condemned, *suspects])

    def conclude(self) -> None:
        """Everything that waited is handled."""
        self._write(self._left_out)

    def leave_out(self, suspect: Suspect, do: Callable[[Suspect], str]) -> None:
        """A condemned message becomes a dead letter; `do` makes it one and returns why."""
        self._log.error(do(suspect))
        self._left_out.append(suspect)
        self._absolve(suspect)

    @contextlib.contextmanager
    def forgiving(self) -> Iterator[None]:
        """An exception is no death: whoever handles it decides, and nothing stays noted."""
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
