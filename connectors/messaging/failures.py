"""The errors that all objects of sessions raise in the same words."""

from correlator.errors import UsageError


def closed(where: str) -> UsageError:
    """Make the error for a call of a closed object; the object may be closed with its session or connection."""
    return UsageError("E7501", where, "it is closed", "", "Make a new one")
