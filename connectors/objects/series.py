"""The objects of one sender: `FOLDER/SOURCE/NUMBER.ENDING`. NUMBER is that of the first message in the object.

An object contains messages with consecutive numbers, except refused ones. So the number of the first message, the
number of rows and the refused numbers give the number of the last message. If two engines write with one source, both
try to make the object that begins after the last stored message. A store makes an object only once, so it never
contains a message twice, whatever the sizes of the batches are.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from connectors.created_once import name_of_source
from connectors.objects.formats import Writer, count_rows
from connectors.objects.stores import LONGEST_NUMBER, ONCE, Store
from correlator.errors import ConnectionLost, quoted

REFUSED = "_refused"
_LISTED = re.compile(r"(?P<first>[0-9]{20})-(?P<last>[0-9]{20})-[0-9a-f]{16}\.json")
_decoder = msgspec.json.Decoder(list[int])


class Series:
    """The objects of one source. Raises `ConnectionLost`.

    Args:
        where: the sender, for messages.
        store: the store that holds the objects.
        folder: folder of the destination.
        ending: ending of the names.
        source: the source id of the sender.
        comes_back: whether a later life may write with this source.

    Attributes:
        last: the number of the last message that is stored or refused; 0 without one.
    """

    def __init__(self, where: str, store: Store, folder: str, ending: str, source: str, *, comes_back: bool) -> None:
        self._where = where
        self._store = store
        name = name_of_source(source) if comes_back else f"{ONCE}{name_of_source(source)}"
        self._folder = f"{folder}/{name}"
        self._lists = f"{folder}/{REFUSED}/{name}"
        self._ending = ending
        self._source = source
        newest = store.newest(self._folder, ending)
        first, rows = (1, 0) if newest is None else (self._number(newest), self._rows(newest))
        self._refused = self.refused_from(first)
        self.last = _last(first, rows, self._refused)

    def is_refused(self, number: int) -> bool:
        """Return whether an earlier life has refused this message, which may follow the newest object."""
        return number in self._refused

    def refused_from(self, first: int) -> Collection[int]:
        """Return the refused numbers from `first` on."""
        refused: set[int] = set()
        for name in self._store.names(self._lists):
            listed = _LISTED.fullmatch(name.rpartition("/")[2])
            if listed is not None and int(listed["last"]) >= first:
                refused.update(number for number in self._listed(name) if number >= first)
        return refused

    def add(self, numbers: Sequence[int], rows: Sequence[Any], writer: Writer) -> None:
        """Store messages; they are on disk when this returns.

        Args:
            numbers: the numbers of all messages, in order.
            rows: the row of each message; `None` for a refused one.
            writer: makes the content.
        """
        refused = [number for number, row in zip(numbers, rows, strict=True) if row is None]
        if refused:
            content = msgspec.json.encode(refused)
            digest = hashlib.sha256(content).hexdigest()[:16]
            span = f"{refused[0]:0{LONGEST_NUMBER}}-{refused[-1]:0{LONGEST_NUMBER}}"
            self._store.create(f"{self._lists}/{span}-{digest}.json", content)
        for first, part in _runs(numbers, rows):
            self._create(f"{self._folder}/{first:0{LONGEST_NUMBER}}{self._ending}", writer.content(part))
        self.last = numbers[-1]

    def _create(self, name: str, content: bytes) -> None:
        if not self._store.create(name, content) and self._content(name) != content:
            what = f"another engine has made {quoted(name)}, with the source {quoted(self._source)} of this sender"
            todo = "If this does not pass, stop the other engine: it runs with a copy of this store"
            raise ConnectionLost("E7666", self._where, what, "One engine at a time writes with a source", todo)

    def _content(self, name: str) -> bytes | None:
        found = self._store.head(name)
        if found is None:
            return None
        content = self._store.open(found)
        try:
            return content.read(found.size, 0)
        finally:
            content.close()

    def _number(self, name: str) -> int:
        return int(name.rpartition("/")[2].removesuffix(self._ending))

    def _rows(self, name: str) -> int:
        found = self._store.head(name)
        if found is None:
            raise ConnectionLost("E7667", self._where, f"{quoted(name)} was removed while it was looked at")
        content = self._store.open(found)
        try:
            return count_rows(self._where, name, content)
        finally:
            content.close()

    def _listed(self, name: str) -> Collection[int]:
        content = self._content(name)
        try:
            return _decoder.decode(content or b"")
        except msgspec.MsgspecError as error:
            what = f"{quoted(name)} is damaged: {error}"
            raise ConnectionLost("E7667", self._where, what, "", "Restore it") from error


def _last(first: int, rows: int, refused: Collection[int]) -> int:
    """Return the number of the last message of an object, including refused ones that follow its rows."""
    number = first
    while rows or number in refused:
        rows -= number not in refused
        number += 1
    return number - 1


def _runs(numbers: Sequence[int], rows: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the rows in parts that skip only refused numbers, each with the number of its first row."""
    begin, part = 0, list[Any]()
    previous = None
    for number, row in zip(numbers, rows, strict=True):
        if part and previous is not None and number != previous + 1:
            yield begin, part
            part = []
        previous = number
        if row is not None:
            begin = begin if part else number
            part.append(row)
    if part:
        yield begin, part
