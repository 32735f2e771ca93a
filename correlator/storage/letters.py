"""Dead letters as values that JSON has, for commands and for the status page."""

import base64

from correlator.errors import printable
from correlator.events import Headers
from correlator.storage.inspect import DeadLetterRow


def described(row: DeadLetterRow, longest: int | None = None) -> dict[str, object]:
    """All fields of a dead letter that have a value; a body that is no text is in `body_base64`.

    Args:
        row: the dead letter.
        longest: largest number of bytes of the body; `None` for the whole body.
    """
    letter = row.letter
    message = letter.message
    headers = message.headers
    known = {
        "number": row.number,
        "kind": letter.kind,
        "origin": letter.origin,
        "receiver": letter.receiver or None,
        "message_number": letter.number or None,
        "unique_id": letter.unique_id,
        "engine_time": letter.time,
        "reason": letter.reason,
        "key": message.key,
        "destination": message.destination,
        "properties": {name: _as_text(value) for name, value in message.properties.items()} or None,
        "headers": _given(headers) if headers else None,
    }
    return {**{name: value for name, value in known.items() if value is not None}, **_body(message.body, longest)}


def _given(headers: Headers) -> dict[str, object]:
    """Return the headers that are set."""
    named = {name: getattr(headers, name) for name in headers.__struct_fields__}
    return {name: value for name, value in named.items() if value is not None}


def _body(body: bytes, longest: int | None) -> dict[str, object]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body[:longest]).decode()}
    return {"body": text if longest is None else body[:longest].decode(errors="ignore")}


def _as_text(value: object) -> object:
    return printable(value.decode("utf-8", "backslashreplace")) if isinstance(value, bytes) else value
