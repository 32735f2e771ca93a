"""What all sinks that write messages as rows of a table refuse."""

from decimal import Decimal

from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing


def misfit(where: str, out: Outgoing, destination: str | None) -> SendRejected | None:
    """Why a message is refused whatever its body is; `None` if nothing speaks against it.

    Args:
        where: the place of the sender.
        out: the message.
        destination: the table of the sender.
    """
    place = f"{where} message {out.sequence}"
    if out.destination != destination:
        what = f"{quoted(out.destination)} is not the table of the sender"
        return SendRejected("E8104", place, what, f"The sender writes to {destination} only")
    if out.message.headers is not None and out.message.headers.delivery_delay_ms:
        return SendRejected("E8110", place, "a table cannot delay a message, which 'delivery_delay_ms' asks for")
    return None


def check_gap(
    where: str, first: Outgoing, last: int, missing_up_to: int, *, kind: str, holder: str, cause: str
) -> None:
    """Raise `ConnectionLost` E7043 if messages are missing that were confirmed to the sender: numbers have no gaps.

    Args:
        where: the place of the sender.
        first: the message that comes.
        last: the number of the last message that is there.
        missing_up_to: up to this number messages may be missing.
        kind: what holds them, in one word.
        holder: which one that is.
        cause: what may have happened to it.
    """
    begin, end = last + 1, first.sequence - 1
    if end <= max(last, missing_up_to):
        return
    raise ConnectionLost(
        "E7043",
        where,
        f"{holder} lacks messages {begin} to {end} of source {quoted(first.source)}: {cause}, or the sender wrote to "
        f"another {kind}",
        f"A {kind} has each message that was confirmed",
        f"Restore the {kind}; or set missing_up_to: {end} to go on without these messages",
    )


def significant(value: Decimal) -> tuple[int, int]:
    """How many digits a finite number has without the zeros at its end, and the exponent of the last of them."""
    _, digits, exponent = value.as_tuple()
    end = len(digits)
    while end and not digits[end - 1]:
        end -= 1
    return end, int(exponent) + len(digits) - end


def holds(precision: int | None, scale: int, value: Decimal) -> bool:
    """Whether a column holds a number exactly.

    Args:
        precision: how many digits the column has; `None` for any number of them.
        scale: how many of these digits are behind the point.
        value: the number.
    """
    if not value.is_finite():
        return False
    if precision is None:
        return True
    digits, exponent = significant(value)
    if not digits:
        return value.adjusted() < precision  # a zero may have an exponent that no column has
    return -exponent <= scale and value.adjusted() < precision - scale
