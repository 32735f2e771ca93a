"""One object of a receiver: reads its records, and keeps track of acknowledgements."""

import hashlib
from collections.abc import Sequence

from connectors.objects.formats import Reader, ReadLimits, reader
from connectors.objects.position import Begun
from connectors.objects.stores import Content, Found, Store, changed, gone
from connectors.progress import ReadProgress
from connectors.records import RecordBoundary, Records

_DIGEST_CHARACTERS = 8
_LONGEST_IN_ID = 300


class OpenedObject:
    """An object that is being read. The receiver's thread owns it. Methods raise `ConnectionLost`.

    Args:
        where: the receiver, for messages.
        store: the store that holds the object.
        found: the object.
        limits: how much is read at once.
        begun: how far it was acknowledged.

    Attributes:
        digest: digest of the object's tag, for ids: an object that replaces a removed one has other ids.
    """

    def __init__(self, where: str, store: Store, found: Found, limits: ReadLimits, begun: Begun | None = None) -> None:
        self._where = where
        self._store = store
        self.found = found
        self._limits = limits
        self._content: Content | None = None
        self._reader: Reader | None = None
        self._progress = None if begun is None else begun.progress
        self._ended = begun is not None and begun.ended
        self.digest = hashlib.sha256(found.tag.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        name = found.name.encode()
        self._in_ids = found.name
        if len(name) > _LONGEST_IN_ID:
            beginning = name[: _LONGEST_IN_ID // 2].decode(errors="ignore")
            self._in_ids = f"{beginning}~{hashlib.sha256(name).hexdigest()[:32]}"

    @property
    def held(self) -> int:
        """Number of returned records that are not acknowledged."""
        return 0 if self._progress is None else self._progress.held

    @property
    def is_done(self) -> bool:
        """Whether all of its records are acknowledged, and were read to the end of the object."""
        progress = self._progress
        return self._ended and (progress is None or progress.next() == (progress.position, None))

    def take(self, limit: int) -> tuple[Records, Sequence[int]] | None:
        """Return the next records, and their tokens; `None` at the end."""
        if self._progress is not None and self._ended and self._progress.next()[1] is None:
            return None
        source = self._open()
        progress = self._progress = self._progress or ReadProgress(source.begin)
        begin, until = progress.next()
        records = source.take(begin, limit, None if until is None else until.offset)
        if records.bodies:
            return records, progress.take(records.ends)
        if until is not None:
            raise changed(self._where, self.found.name)  # a record that was read before is missing
        self._ended = True
        self.close()
        return None

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Acknowledge the records of these tokens; ignore tokens of other objects."""
        if self._progress is not None:
            self._progress.acknowledge(tokens)

    def reject(self, tokens: Sequence[int]) -> None:
        """Let the records of these tokens be read again."""
        if self._progress is not None:
            self._progress.reject(tokens)

    def begun(self) -> Begun:
        """Return how far the object is acknowledged."""
        progress = self._progress or ReadProgress(RecordBoundary(0, 1))
        found = self.found
        done = [(*span.start, *span.end) for span in progress.done]
        return Begun(found.name, found.size, found.tag, *progress.position, done, self.is_done)

    def unique_id(self, line: int) -> str:
        """Return the unique id of a record."""
        return f"{self._in_ids}:{line}:{self.digest}"

    def close(self) -> None:
        """Close the content; the progress stays."""
        self._reader = None
        if self._content is not None:
            self._content.close()
            self._content = None

    def _open(self) -> Reader:
        if self._reader is None:
            self._content = self._store.open(self.found)
            try:
                self._reader = reader(self._where, self.found.name, self._content, self._limits)
            except BaseException:
                self.close()
                raise
        return self._reader


def resumed(where: str, store: Store, begun: Begun, found: Found | None, limits: ReadLimits) -> OpenedObject | None:
    """Continue with an object; return `None` if nothing remains to be done with it. Raises `ConnectionLost` E7661,
    E7662.

    Args:
        where: the receiver, for messages.
        store: the store that holds the object.
        begun: how far it was acknowledged.
        found: the object that the store has under this name now.
        limits: how much is read at once.
    """
    if found is not None and found.tag == begun.tag:
        return OpenedObject(where, store, found, limits, begun)
    if begun.ended:
        return None  # it was removed, or another object has its name since
    if not (begun.offset or begun.done):
        return None if found is None else OpenedObject(where, store, found, limits)
    if found is None:
        raise gone(where, begun.name)
    if found.size:
        raise changed(where, begun.name)
    ended = Begun(found.name, 0, found.tag, begun.offset, begun.line, [], ended=True)
    return OpenedObject(where, store, found, limits, ended)  # the user gives up the rest of the object
