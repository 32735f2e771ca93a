"""Numbers of 32 bits, of which Python has none. Pure."""

import math
import struct

_FORM = struct.Struct(">f")
_ENOUGH_DIGITS = 9


def shortest(single: float) -> float:
    """A number of 32 bits as Java shows it, which becomes the same 32 bits again: 0.1, not 0.10000000149011612."""
    if not math.isfinite(single):
        return single
    shown = (float(f"{single:.{digits}g}") for digits in range(1, _ENOUGH_DIGITS))
    return next((one for one in shown if _same(one, single)), float(f"{single:.{_ENOUGH_DIGITS}g}"))


def _same(shown: float, single: float) -> bool:
    try:
        return _FORM.pack(shown) == _FORM.pack(single)
    except OverflowError:
        return False
