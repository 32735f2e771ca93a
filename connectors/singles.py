"""Floating-point numbers of 32 bits, which Python does not have. This module does no I/O."""

import math
import struct

_FORM = struct.Struct(">f")
_ENOUGH_DIGITS = 9


def shortest(single: float) -> float:
    """Return the shortest decimal number that becomes the same 32 bits again, as in Java: 0.1, not
    0.10000000149011612.
    """
    if not math.isfinite(single):
        return single
    shown = (float(f"{single:.{digits}g}") for digits in range(1, _ENOUGH_DIGITS))
    return next((one for one in shown if _same(one, single)), float(f"{single:.{_ENOUGH_DIGITS}g}"))


def _same(shown: float, single: float) -> bool:
    try:
        return _FORM.pack(shown) == _FORM.pack(single)
    except OverflowError:
        return False
