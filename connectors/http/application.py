"""The application of the server: makes messages from requests, and answers when they are stored.

It refuses a request before reading the body if it can. Nothing of a request is stored that it refuses by itself, before
the receiver gets it.
"""

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from connectors.http.endpoint import Endpoint, Outcome, Request
from connectors.http.signatures import SIGNED, is_signed, is_timely
from correlator.events import SOURCE_ID, UNIQUE_ID, Headers, Message, PropertyValue
from correlator.serving import (
    Receive,
    RequestHeaders,
    Response,
    Scope,
    Send,
    bears,
    is_for_this_machine,
    respond,
    told,
    values_of,
)

RETRY_AFTER_S = 5
LONGEST_KEY = 255
_KEY = re.compile(rb"[ -~]{1,%d}" % LONGEST_KEY)
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
"""Content types of bodies with a message in each line."""
_AGAIN = {"retry-after": str(RETRY_AFTER_S)}
_NEVER_READ = msgspec.json.Decoder(msgspec.Raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a receiver requires of requests.

    Attributes:
        name: name of the path, and source id of the messages.
        tokens: one of them must be sent as `Authorization: Bearer TOKEN`; empty for none.
        keys: one of them must have signed the request; empty for no signature.
        headers: names, in lower case, of headers that become properties.
        needs_key: whether a request needs an id, in `Idempotency-Key` or by its signature.
        most_lines: largest number of messages of a request.
        most_bytes: largest body of a request with lines.
        most_message_bytes: largest body of a message.
    """

    name: str
    tokens: Collection[str] = field(repr=False)
    keys: Collection[bytes] = field(repr=False)
    headers: Collection[str]
    needs_key: bool
    most_lines: int
    most_bytes: int
    most_message_bytes: int


class Refused(Exception):
    """A request is refused; the client gets the answer."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Gone(Exception):
    """The client has disconnected before it has sent its whole body."""


class Application:
    """Answers the requests of all receivers of a connection. The event loop of the server calls it.

    Args:
        places: the rules of each path that a receiver has connected, and its endpoint, or `None` if there is none
            (yet). Other threads replace entries.
        clock: returns the time of day in seconds since the epoch.
    """

    def __init__(
        self, places: Mapping[str, tuple[Rules, Endpoint] | None], clock: Callable[[], float] = time.time
    ) -> None:
        self._places = places
        self._clock = clock
        self._under_way: dict[tuple[Endpoint, str], Request] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; this is the interface of ASGI."""
        try:
            answer = await self._answer(scope, receive)
        except Refused as refused:
            answer = refused.answer
        except Gone:
            return
        await respond(send, answer, scope["method"])

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        if scope["path"] not in self._places:
            raise Refused(told(404, "no receiver has this path"))
        if scope["method"] != "POST":
            raise Refused(told(405, "send messages by POST", {"allow": "POST"}))
        place = self._places[scope["path"]]
        if place is None:
            raise Refused(_later("the receiver does not work at present"))
        rules, endpoint = place
        headers: RequestHeaders = scope["headers"]
        _check_client(rules, headers)
        key = self._key(rules, headers)
        has_lines = _has_lines(headers)
        most = rules.most_bytes if has_lines else rules.most_message_bytes
        if any(len(length) > len(str(most)) or int(length) > most for length in values_of(headers, b"content-length")):
            raise Refused(_too_large(most))
        if not endpoint.is_open:
            raise Refused(_later("the receiver does not work at present"))
        if endpoint.is_full:
            raise Refused(_later("too many requests wait"))
        body = await _read(endpoint, receive, most)
        self._check_signature(rules, headers, body)
        return await self._store(rules, endpoint, key, body, _properties(rules, headers), has_lines=has_lines)

    def _key(self, rules: Rules, headers: RequestHeaders) -> str | None:
        """Return the id of a request. Raises `Refused` if it has a wrong form, or is missing though it is required."""
        if rules.keys:
            id_, timestamp, signature = (values_of(headers, name) for name in SIGNED)
            if not len(id_) == len(timestamp) == len(signature) == 1 or not _KEY.fullmatch(id_[0]):
                raise Refused(_unauthorized(f"send {b', '.join(SIGNED).decode()}, once each"))
            if not is_timely(timestamp[0], self._clock()):
                raise Refused(_unauthorized("webhook-timestamp is not the present time in seconds"))
            return id_[0].decode()
        given = values_of(headers, b"idempotency-key")
        if not given and not rules.needs_key:
            return None
        if len(given) != 1 or not _KEY.fullmatch(given[0]):
            what = f"send one header Idempotency-Key of 1 to {LONGEST_KEY} printable ASCII characters"
            raise Refused(told(400, what))
        return given[0].decode()

    def _check_signature(self, rules: Rules, headers: RequestHeaders, body: bytes) -> None:
        if rules.keys:
            id_, timestamp, signature = (values_of(headers, name)[0] for name in SIGNED)
            if not is_signed(rules.keys, id_, timestamp, body, signature):
                raise Refused(_unauthorized("webhook-signature does not fit the request"))

    async def _store(
        self,
        rules: Rules,
        endpoint: Endpoint,
        key: str | None,
        body: bytes,
        properties: Mapping[str, PropertyValue],
        *,
        has_lines: bool,
    ) -> Response:
        """Let the receiver store the messages, and wait for it; a repeat waits for the first request with its key."""
        digest = hashlib.sha256(body).digest()
        id_ = key or uuid.uuid4().hex
        request = self._under_way.get((endpoint, id_))
        if request is None:
            bodies = _lines(rules, body) if has_lines else [body]
            messages = self._messages(rules, id_ if key else "", id_, bodies, properties, has_lines=has_lines)
            request = Request(id_, digest, messages, asyncio.get_running_loop().create_future())
            if not endpoint.put(request):
                raise Refused(_later("too many requests wait"))
            self._under_way[endpoint, id_] = request
            request.answer.add_done_callback(lambda _: self._under_way.pop((endpoint, id_)))
        elif request.digest != digest:
            raise Refused(_conflict(id_))
        if not await _is_settled(endpoint, request):
            endpoint.withdraw(request)
            raise Refused(_later("the message is not stored yet"))
        if request.answer.result() is Outcome.STORED:
            return Response(202, msgspec.json.encode({"id": id_}), "application/json")
        raise Refused(_conflict(id_) if request.answer.result() is Outcome.CONFLICT else _later("it was not stored"))

    def _messages(
        self,
        rules: Rules,
        unique_id: str,
        message_id: str,
        bodies: Sequence[bytes],
        properties: Mapping[str, PropertyValue],
        *,
        has_lines: bool,
    ) -> list[Message]:
        now_ms = int(self._clock() * 1000)
        messages = []
        for line, body in enumerate(bodies, 1):
            suffix = f"/{line}" if has_lines else ""
            ids = {UNIQUE_ID: unique_id + suffix, SOURCE_ID: rules.name} if unique_id else {}
            headers = Headers(message_id=message_id + suffix, timestamp=now_ms)
            messages.append(Message(body, {**properties, **ids}, None, None, headers))
        return messages


async def _is_settled(endpoint: Endpoint, request: Request) -> bool:
    """Wait for the outcome of a request for as long as its endpoint says; return whether there is one."""
    arrived_s = now_s = time.monotonic()
    while not request.answer.done() and now_s < (until_s := endpoint.gives_up_at(arrived_s)):
        await asyncio.wait([request.answer], timeout=until_s - now_s)
        now_s = time.monotonic()
    return request.answer.done()


def _check_client(rules: Rules, headers: RequestHeaders) -> None:
    """Raise `Refused` if the client may not send, or sends in a form that is not supported."""
    if rules.tokens and not bears(headers, rules.tokens):
        raise Refused(_unauthorized("send Authorization: Bearer TOKEN"))
    if not rules.tokens and not rules.keys:  # refuse pages of the web in browsers of this machine
        if not is_for_this_machine(headers):
            raise Refused(told(421, "without a token or a secret, Host must be 127.0.0.1, ::1 or localhost"))
        if values_of(headers, b"origin"):
            raise Refused(told(403, "pages of the web may send only with a token or a signature"))
    if any(one.lower() != b"identity" for one in values_of(headers, b"content-encoding")):
        raise Refused(told(415, "send the body without Content-Encoding", {"accept-encoding": "identity"}))


async def _read(endpoint: Endpoint, receive: Receive, most: int) -> bytes:
    """Read the body. Raises `Refused` as soon as it is too large, `Gone` if the client disconnects."""
    pieces: list[bytes] = []
    size = 0
    try:
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise Gone
            piece = event.get("body", b"")
            if size + len(piece) > most:
                raise Refused(_too_large(most))
            if not endpoint.reserve(len(piece)):
                raise Refused(_later("too many bytes wait"))
            size += len(piece)
            pieces.append(piece)
            if not event.get("more_body", False):
                return b"".join(pieces)
    finally:
        endpoint.free(size)


def _has_lines(headers: RequestHeaders) -> bool:
    kinds = [
        value.partition(b";")[0].strip().lower().decode("latin-1") for value in values_of(headers, b"content-type")
    ]
    return any(kind in _LINES for kind in kinds)


def _lines(rules: Rules, body: bytes) -> list[bytes]:
    """Return the bodies of the messages of a request with lines. Raises `Refused` if a line is not
    JSON, or too large.
    """
    lines = body.removesuffix(b"\n").split(b"\n")
    if len(lines) > rules.most_lines:
        raise Refused(told(413, f"send at most {rules.most_lines} lines"))
    for number, line in enumerate(lines, 1):
        if len(line) > rules.most_message_bytes:
            raise Refused(told(413, f"line {number} has more than {rules.most_message_bytes} bytes; nothing is stored"))
        try:
            _NEVER_READ.decode(line)
            line.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(told(400, f"line {number} is not JSON: {error}; nothing is stored")) from error
    return lines


def _properties(rules: Rules, headers: RequestHeaders) -> dict[str, PropertyValue]:
    """Return the headers that become properties. Several headers of one name are joined, as HTTP defines it."""
    found = {name: values_of(headers, name.encode()) for name in rules.headers}
    return {name: b", ".join(values).decode("latin-1") for name, values in found.items() if values}


def _later(what: str) -> Response:
    return told(503, what, _AGAIN)


def _conflict(id_: str) -> Response:
    return told(422, f"another body was sent with the key {id_} before")


def _too_large(most: int) -> Response:
    return told(413, f"the body has more than {most} bytes")


def _unauthorized(what: str) -> Response:
    return told(401, what, {"www-authenticate": "Bearer"})
