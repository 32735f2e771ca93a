"""JSON lines: a JSON text on each line."""

import msgspec


def one_line(body: bytes) -> bytes:
    """Return the JSON text on one line, otherwise unchanged. Raises `ValueError` if it is not JSON."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        if not body.isascii():
            body.decode()
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    # Within JSON a raw line end can only stand between tokens, where a space means the same.
    return body.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in body or b"\r" in body else body
