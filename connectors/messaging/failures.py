"""What every part of a session says in the same words."""

from correlator.errors import UsageError


def closed(where: str) -> UsageError:
    """A call of something that is closed, itself or with its session or connection."""
    return UsageError("E7501", where, "it is closed", "", "Make a new one")
