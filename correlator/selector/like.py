"""LIKE: the code divides a pattern at each `%` and searches its segments one after the other, so that no text is
slow.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from correlator.errors import quoted


class _Segment(NamedTuple):
    """The part between two `%`: its number of characters, and the runs of characters other than `_`, each with its
    place.

    For several runs it also has, as bits, the places that each of their characters fits, and the places that any other
    character fits.
    """

    length: int
    runs: tuple[tuple[int, str], ...]
    fits: Mapping[str, int]
    fits_any: int

    def stands_at(self, at: int, text: str) -> bool:
        return all(text.startswith(run, at + offset) for offset, run in self.runs)

    def find(self, text: str, begin: int, end: int) -> int:
        """The first place between `begin` and `end`, or -1."""
        if begin + self.length > end:
            return -1
        if not self.runs:
            return begin
        if len(self.runs) == 1:
            offset, run = self.runs[0]
            found = text.find(run, begin + offset, end - self.length + offset + len(run))
            return found - offset if found >= 0 else -1
        return self._find_runs(text, begin, end)

    def _find_runs(self, text: str, begin: int, end: int) -> int:
        """Shift-and: bit n is set when the last n + 1 characters fit the first n + 1 characters of the segment."""
        whole, state = 1 << self.length - 1, 0
        for at in range(begin, end):
            state = (state << 1 | 1) & self.fits.get(text[at], self.fits_any)
            if state & whole:
                return at + 1 - self.length
        return -1


def is_like(text: str, segments: Sequence[_Segment]) -> bool:
    """Whether the text contains the segments in order: the outer ones at its ends, each other one at the first place
    after the previous one. Reads the text once.
    """
    head, tail = segments[0], segments[-1]
    if len(segments) == 1:
        return len(text) == head.length and head.stands_at(0, text)
    at, end = head.length, len(text) - tail.length
    if at > end or not head.stands_at(0, text) or not tail.stands_at(end, text):
        return False
    for segment in segments[1:-1]:
        found = segment.find(text, at, end)
        if found < 0:
            return False
        at = found + segment.length
    return True


def segments_of(pattern: str, escape: str) -> list[_Segment]:
    """Divide the pattern at each `%`. Raises `ValueError`, whose text says what is wrong with the escape character."""
    segments: list[list[str]] = [[]]
    escaped = False
    for c in pattern:
        if escaped:
            if c not in ("%", "_", escape):
                raise ValueError(f"stands before {quoted(c)}, not before '%', '_' or itself")
            segments[-1].append(c)
            escaped = False
        elif c == escape:
            escaped = True
        elif c == "%":
            segments.append([])
        else:
            segments[-1].append("" if c == "_" else c)
    if escaped:
        raise ValueError("stands at the end of the pattern")
    return [_segment(segment) for segment in segments]


def _segment(characters: Sequence[str]) -> _Segment:
    """Make the segment of these characters; "" stands for any character."""
    runs: list[tuple[int, str]] = []
    for is_run, places in groupby(range(len(characters)), key=lambda at: characters[at] != ""):
        if is_run:
            at, *more = places
            runs.append((at, "".join(characters[at : at + 1 + len(more)])))
    if len(runs) < 2:
        return _Segment(len(characters), tuple(runs), {}, 0)
    fits: dict[str, int] = {}
    fits_any = sum(1 << at for at, c in enumerate(characters) if not c)
    for offset, run in runs:
        for at, c in enumerate(run, offset):
            fits[c] = fits.get(c, fits_any) | 1 << at
    return _Segment(len(characters), tuple(runs), fits, fits_any)
