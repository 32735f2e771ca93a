"""How a command fails: with a message on standard error and the exit status of the error's class, without a traceback.

The traceback goes to the log: at level DEBUG for a mistake of the user; always for a bug of correlator, together with
an incident id, which the message also contains.
"""

import secrets
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from correlator.errors import CorrelatorError, UsageError, printable
from correlator.runtime.logs import get_logger

BUG_STATUS = 70
INTERRUPTED_STATUS = 130

# The codes of mistakes that the parser finds, by the name of its exception.
_PARSER_CODES = {
    "NoSuchOption": "E2002",
    "BadOptionUsage": "E2003",
    "BadParameter": "E2004",
    "MissingParameter": "E2005",
}
_OTHER_MISTAKE = "E2007"


def say(message: object) -> None:
    """Write a message to standard error, with control characters escaped."""
    lines = [printable(line) for line in str(message).split("\n")]
    print(*lines, sep="\n", file=sys.stderr, flush=True)


@contextmanager
def telling(redact: Callable[[str], str] = lambda text: text) -> Iterator[None]:
    """Turn an exception of the block into a message and `typer.Exit`; an interrupt has no message.

    Args:
        redact: removes the secrets of the configuration from a text.
    """
    try:
        yield
    except typer.Exit:
        raise
    except (KeyboardInterrupt, typer.Abort) as end:
        raise typer.Exit(INTERRUPTED_STATUS) from end
    except CorrelatorError as error:
        raise typer.Exit(_tell(error, redact)) from error
    except typer.TyperException as error:
        raise typer.Exit(_tell(_of_parser(error), redact)) from error
    except Exception as error:
        raise typer.Exit(_tell_bug(error, redact)) from error


def _tell(error: CorrelatorError, redact: Callable[[str], str]) -> int:
    say(redact(str(error)))
    get_logger().debug("ended by an error", code=error.code, traceback=redact(_trace(error)))
    return error.exit_status


def _tell_bug(error: Exception, redact: Callable[[str], str]) -> int:
    incident = secrets.token_hex(4)
    get_logger().critical("internal error", incident=incident, traceback=redact(_trace(error)))
    what = f"internal error {type(error).__name__} (incident {incident}); the traceback is in the log"
    say(UsageError("E2070", "correlator", what, "This is a bug of correlator", "Report it with the traceback"))
    return BUG_STATUS


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _of_parser(error: typer.TyperException) -> UsageError:
    """Turn an error of the parser into a `UsageError`."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "")
    code = _PARSER_CODES.get(type(error).__name__, _OTHER_MISTAKE)
    if text.startswith("No such command"):
        code = "E2001"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "correlator"
    return UsageError(code, command, text[:1].lower() + text[1:], "", f"See: {command} --help")
