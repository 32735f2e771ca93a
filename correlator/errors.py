"""The error tree: one base, few classes, each by what the caller does next.

Every message a user can cause reads `CODE where: what is wrong. What is allowed. What to do.`; codes are stable.
The exit status of the command line is an attribute of the class, so that a script can tell the cases apart.
"""

from collections.abc import Sequence
from typing import ClassVar

_LONGEST_QUOTED_VALUE = 60


def quoted(value: object) -> str:
    """A value as it appears in a message: in quotes, control characters escaped, at most 60 characters."""
    text = value if isinstance(value, str) else repr(value)
    escaped = printable(text)
    if len(escaped) > _LONGEST_QUOTED_VALUE:
        escaped = escaped[: _LONGEST_QUOTED_VALUE - 1] + "…"
    return f"'{escaped}'"


def printable(text: str) -> str:
    """Text with its control characters escaped, so that a name can neither break a line nor steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def sentence(text: str) -> str:
    """With its full stop, unless it ends in a question, or in the mark below a text."""
    return text if text.endswith(("?", "^")) else f"{text.rstrip('.')}."


def storable(text: str) -> str:
    """The text with halves of surrogate pairs escaped: application code may raise them, and no store takes them."""
    return text.encode(errors="backslashreplace").decode()


class CorrelatorError(Exception):
    """Base of all errors of this product.

    Args:
        code: the stable code, such as `E1020`.
        where: `file:line:column path.in.config`, or the name of the object.
        what: what is wrong, without a full stop.
        allowed: what would have been right; may be empty.
        todo: what to do now; may be empty.
    """

    exit_status: ClassVar[int] = 70

    def __init__(self, code: str, where: str, what: str, allowed: str = "", todo: str = "") -> None:
        self.code = code
        self.where = where
        self.what = what
        self.allowed = allowed
        self.todo = todo
        super().__init__(code, where, what, allowed, todo)

    def __str__(self) -> str:
        sentences = [f"{self.code} {self.where}: {self.what}", self.allowed, self.todo]
        return " ".join(sentence(text) for text in sentences if text)


class ConfigError(CorrelatorError):
    """A configuration that cannot be used (E1xxx). `problems` holds every one found, in the order of the file."""

    exit_status = 2

    def __init__(self, code: str, where: str, what: str, allowed: str = "", todo: str = "") -> None:
        super().__init__(code, where, what, allowed, todo)
        self.problems: Sequence[CorrelatorError] = (self,)


class UsageError(CorrelatorError):
    """A call that the state of the engine or the arguments do not allow (E2xxx, E4110, E8xxx): fix the program."""

    exit_status = 2


class StoreError(CorrelatorError):
    """The store cannot be used (E3xxx). The engine stops; the next start finds the truth."""

    exit_status = 3


class StoreBusy(StoreError):
    """A transaction was cleanly rolled back (locked, disk full, deadlock): nothing was written, try again later."""


class CommitUnknown(StoreError):
    """The answer to a commit was lost: ask `Store.resolve` before anything else happens."""


class Fenced(StoreError):
    """Another engine owns the store now: stop at once, acknowledge nothing, send nothing."""

    exit_status = 5


class RecoveryRefused(CorrelatorError):
    """The store and the configuration do not fit together (E4xxx): nothing was changed."""

    exit_status = 6


class StateError(CorrelatorError):
    """State of a monitor that cannot be stored or read back (E41xx, E42xx)."""

    exit_status = 6


class MappingError(CorrelatorError):
    """One message could not become an event, or one event a message (E5xxx): it becomes a dead letter."""


class HandlerFailed(CorrelatorError):
    """A handler of a monitor raised (E5500) and `on_error` is `stop`: the engine stops before its next checkpoint."""

    exit_status = 1


class ConnectionLost(CorrelatorError):
    """The broker cannot be reached (E7xxx): the engine waits, connects again and goes on, for ever."""

    exit_status = 4


class SendRejected(CorrelatorError):
    """The broker refused one message (E8xxx): a few more tries, then a dead letter. Returned by a sink, not raised."""
