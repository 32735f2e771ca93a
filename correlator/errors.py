"""The errors of correlator: one base class and a few subclasses, each for one reaction of the caller.

Every message that a user can cause reads `CODE where: what is wrong. What is allowed. What to do.` Codes never change
their meaning; `correlator explain CODE` explains a code. Each class has the exit status with which a command ends, so
that a script can distinguish the cases.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from correlator.secrets import without_secrets

_LONGEST_QUOTED_VALUE = 60
E = TypeVar("E", bound="CorrelatorError")


def quoted(value: object) -> str:
    """Make a value fit for a message: in quotes, control characters escaped, at most 60 characters, no password."""
    shown = without_secrets(value)
    text = shown if isinstance(shown, str) else repr(shown)
    escaped = printable(text)
    if len(escaped) > _LONGEST_QUOTED_VALUE:
        escaped = escaped[: _LONGEST_QUOTED_VALUE - 1] + "…"
    return f"'{escaped}'"


def printable(text: str) -> str:
    """Escape the control characters of a text, so that a name can neither break a line nor control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def sentence(text: str) -> str:
    """Add the full stop, unless the text ends with `?`, or with `^`, which marks a place in the line above."""
    return text if text.endswith(("?", "^")) else f"{text.rstrip('.')}."


def storable(text: str) -> str:
    """Escape unpaired surrogates: an exception of the application may contain them, and no store accepts them."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class CorrelatorError(Exception):
    """Base class of all errors of correlator.

    Args:
        code: the code of the error, such as `E1020`.
        where: the place, `file:line:column path.in.config`, or the name of the object.
        what: what is wrong, without a full stop.
        allowed: what is allowed instead; may be empty.
        todo: what to do; may be empty.

    Attributes:
        exit_status: the exit status of a command that this error ends.
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
    """The configuration cannot be used (E1xxx): correct it.

    Attributes:
        problems: all problems that were found, in the order of the file.
    """

    exit_status = 2

    def __init__(self, code: str, where: str, what: str, allowed: str = "", todo: str = "") -> None:
        super().__init__(code, where, what, allowed, todo)
        self.problems: Sequence[CorrelatorError] = (self,)


class UsageError(CorrelatorError):
    """The arguments of a call or a command, or the state of the engine, do not allow it: correct the program.

    Its codes are E2xxx, E8xxx, and some of E41xx for mistakes in the classes of monitors and events.
    """

    exit_status = 2


class StoreError(CorrelatorError):
    """The store cannot be used (E3xxx). The engine stops; its next start reads from the store what was committed."""

    exit_status = 3


class StoreBusy(StoreError):
    """A transaction was rolled back (lock, full disk, deadlock). Nothing was written; the engine tries again."""


class CommitUnknown(StoreError):
    """The answer to a commit was lost. Call `Store.resolve`, which finds the outcome, before anything else."""


class Fenced(StoreError):
    """Another engine owns the store. The engine stops at once; it acknowledges and sends nothing more."""

    exit_status = 5


class RecoveryRefused(CorrelatorError):
    """The store and the configuration do not fit together (E4xxx). The start has changed nothing."""

    exit_status = 6


class StateError(CorrelatorError):
    """The state of a monitor cannot be stored, or cannot be read from the store (E41xx, E42xx)."""

    exit_status = 6


class MappingError(CorrelatorError):
    """A message cannot become an event, or an event cannot become a message (E5xxx).

    A received message becomes a dead letter. A send raises this in the handler that calls it.
    """


class HandlerFailed(CorrelatorError):
    """A handler of a monitor raised and `on_error` is `stop` (E5500). The engine stops without another checkpoint."""

    exit_status = 1


class NotDone(CorrelatorError):
    """A running engine has not done what a command asked, or not in time: repeat the command later."""

    exit_status = 1


class TryAgain(CorrelatorError):
    """A pipeline cannot compute a batch at present (W551x). Nothing has changed: the engine computes the batch again.

    Args:
        wait_s: seconds to wait before the next attempt.
    """

    exit_status = 1

    def __init__(self, code: str, where: str, what: str, todo: str, wait_s: float) -> None:
        self.wait_s = wait_s
        super().__init__(code, where, what, "", todo)


class ConnectionLost(CorrelatorError):
    """The broker cannot be reached (E7xxx). The engine waits and connects again, without a limit of attempts."""

    exit_status = 4


class SendRejected(CorrelatorError):
    """The broker refused a message (E8xxx). The sender tries again, up to `max_tries`; then it becomes a dead letter.

    `Sink.send` returns this error for a message; it does not raise it.
    """


def told_with(error: E, more: str) -> E:
    """Return the same error with one more sentence, such as what has become of the call that it ends."""
    todo = f"{error.todo.rstrip('.')}. {more}" if error.todo else more
    return type(error)(error.code, error.where, error.what, error.allowed, todo)


class CallAgain(Exception):
    """Raised by the function of a sender (docs/calls.md): call it again with this message, after a pause.

    The call does not count as one of the sender's attempts. Raise the exception, for example, if a service cannot be
    reached.
    """
