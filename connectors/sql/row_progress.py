"""How far a receiver has read and acknowledged a table that it polls. This module does no I/O."""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import pairwise

from connectors.sql.polled_dialects import Place
from correlator.connector import Held


class RowProgress:
    """The progress of one receiver since it connected. The receiver's thread owns it.

    Args:
        place: all rows up to this place are acknowledged.
        done: places of further rows that are acknowledged.

    Attributes:
        place: the present value of the argument.
        end: the place of the last row that was read.
    """

    def __init__(self, place: Place, done: Collection[Place]) -> None:
        self.place = place
        self.end = place
        self._earlier = set(done)
        """Places of rows that were acknowledged before, and that were not read again yet."""
        self._rows: OrderedDict[Place, bool] = OrderedDict()
        """The rows after `place` that were read, in order, and whether they are acknowledged."""
        self._returned: set[Place] = set()
        self._held: Held[Place] = Held()

    def __len__(self) -> int:
        """Number of rows to remember."""
        return len(self._rows)

    @property
    def held(self) -> int:
        """Number of rows that the receiver holds: taken, and neither acknowledged nor given back."""
        return len(self._held)

    @property
    def done(self) -> Sequence[Place]:
        """The places of the acknowledged rows after `place`."""
        return [place for place, is_done in self._rows.items() if is_done] + sorted(self._earlier, key=str)

    def read(self, places: Sequence[Place]) -> list[bool]:
        """Note the next rows; return for each of them whether it is new to the receiver."""
        for place in places:
            self._rows[place] = place in self._earlier
            self._earlier.discard(place)
            self.end = place
        fresh = [not self._rows[place] for place in places]
        self._advance()
        return fresh

    def hold(self, places: Sequence[Place]) -> Sequence[int]:
        """Hold these rows, which were read or given back; return their tokens."""
        self._returned.difference_update(places)
        return self._held.hold(places)

    @property
    def first(self) -> Place | None:
        """Return the place of the first row that was read and is not acknowledged; `None` if there is none."""
        return next(iter(self._rows), None)

    def acknowledge(self, tokens: Sequence[int]) -> Sequence[Place]:
        """Acknowledge rows; ignore unknown tokens. Return the places of the rows."""
        places = self._held.release(tokens)
        for place in places:
            self._rows[place] = True
        self._advance()
        return places

    def reject(self, tokens: Sequence[int]) -> None:
        """Give rows back; the source reads them again before new ones."""
        self._returned.update(self._held.release(tokens))

    @property
    def before_returned(self) -> Place | None:
        """Return the place before the first row that was given back; `None` if there is none."""
        if not self._returned:
            return None
        return next(before for before, place in pairwise([self.place, *self._rows]) if place in self._returned)

    def is_returned(self, place: Place) -> bool:
        """Return whether this row was given back."""
        return place in self._returned

    @property
    def returned(self) -> Sequence[Place]:
        """Return the places of the rows that were given back, in order."""
        return [place for place in self._rows if place in self._returned] if self._returned else ()

    def forget_returned(self) -> None:
        """Count the rows that were given back as acknowledged: they no longer exist in the table."""
        for place in self._returned:
            self._rows[place] = True
        self._returned.clear()
        self._advance()

    def _advance(self) -> None:
        while self._rows:
            first = next(iter(self._rows))
            if not self._rows[first]:
                return
            del self._rows[first]
            self.place = first
