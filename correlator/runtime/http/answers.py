"""Requests to the HTTP server as values, and its answers."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from correlator.serving import RequestHeaders, Response, told, values_of


class RequestRefused(Exception):
    """A request that cannot be served.

    Args:
        answer: what the client gets instead.
    """

    def __init__(self, answer: Response) -> None:
        super().__init__(answer)
        self.answer = answer


class Asked(NamedTuple):
    """A request without its body.

    Attributes:
        method: the method.
        path: the path.
        query: the text after `?`.
        headers: the headers, with names in lower case.
        trusted: whether the client may see everything.
    """

    method: str
    path: str
    query: str
    headers: RequestHeaders
    trusted: bool

    def all(self, wanted: bytes) -> list[bytes]:
        """The values of a header."""
        return values_of(self.headers, wanted)

    def parameters(self, *known: str) -> dict[str, str]:
        """The parameters of the query.

        Raises `RequestRefused` for an unknown parameter, and for a parameter that occurs twice.
        """
        try:
            pairs = parse_qsl(self.query, keep_blank_values=True, errors="strict", max_num_fields=10)
        except ValueError:
            raise RequestRefused(told(400, "the parameters cannot be read")) from None
        found = dict(pairs)
        for name in found:
            if name not in known:
                allowed = f"There are {', '.join(known)}" if known else "This route has none"
                raise RequestRefused(told(400, f"there is no parameter {name[:50]!r}. {allowed}"))
        if len(found) < len(pairs):
            raise RequestRefused(told(400, "a parameter is given twice"))
        return found


def as_json(status: int, value: Any) -> Response:
    """Answer with a value as JSON."""
    return Response(status, msgspec.json.encode(value), "application/json")


def number(parameters: Mapping[str, str], name: str, least: int, most: int, default: int | None = None) -> int:
    """A parameter that is a whole number.

    Raises `RequestRefused` for any other value, and for a missing parameter without a default.
    """
    given = parameters.get(name)
    if given is None and default is not None:
        return default
    digits = given or ""
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(digits) <= most):
        raise RequestRefused(told(400, f"{name} must be a whole number from {least} to {most}"))
    return int(digits)
