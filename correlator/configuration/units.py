"""Durations and sizes as a configuration writes them: a number and its unit, never a bare number."""

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"B": 1}
_BYTES |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}
_BYTES |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)}

_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,6})?)(?P<unit>ms|s|m|h)", re.ASCII)
_SIZE = re.compile(r"(?P<number>[1-9][0-9]{0,11})(?P<unit>[KMGT]i?B|B)", re.ASCII)

DURATION_PATTERN = f"^{_DURATION.pattern.replace('?P<number>', '').replace('?P<unit>', '')}$"
SIZE_PATTERN = f"^{_SIZE.pattern.replace('?P<number>', '').replace('?P<unit>', '')}$"


def seconds(text: str) -> float | None:
    """Return the seconds of `200ms`, `5s`, `2m` or `1.5h`; `None` if the text is not a duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found["number"]) * _SECONDS[found["unit"]]


def size(text: str) -> int | None:
    """Return the bytes of `512B`, `64KiB`, `10MiB` or `1MB`; `None` if the text is not a size."""
    found = _SIZE.fullmatch(text)
    return None if found is None else int(found["number"]) * _BYTES[found["unit"]]
