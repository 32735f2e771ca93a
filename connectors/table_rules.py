"""Checks that all sinks which write messages as rows of a table share."""

from decimal import Decimal

from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing


def misfit(where: str, out: Outgoing, destination: str | None) -> SendRejected | None:
    """Return why a message is refused whatever its body is; `None` if it is not.

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
        first: the next message to write.
        last: number of the last stored message.
        missing_up_to: number up to which messages may be missing.
        kind: one word for what stores the messages.
        holder: name of what stores the messages.
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
        f"A {kind} contains each confirmed message",
        f"Restore the {kind}; or set missing_up_to: {end} to continue without these messages",
    )


def significant(value: Decimal) -> tuple[int, int]:
    """Return the number of digits of a finite number without zeros at its end, and the exponent of the last of them."""
    _, digits, exponent = value.as_tuple()
    end = len(digits)
    while end and not digits[end - 1]:
        end -= 1
    return end, int(exponent) + len(digits) - end


def holds(precision: int | None, scale: int, value: Decimal) -> bool:
    """Return whether a column holds a number exactly.

    Args:
        precision: number of digits of the column; `None` for any number of them.
        scale: number of these digits after the point.
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
