"""`/events`: the timeline of the engine as server-sent events."""

import asyncio
import contextlib
import time
from typing import Any

import msgspec

from correlator.runtime.http.answers import Asked
from correlator.runtime.http.merging import patch
from correlator.runtime.http.shown import Shown
from correlator.runtime.timeline import News
from correlator.serving import Receive, Send

MOST_STREAMS = 16
MOST_ENTRIES = 100
"""The largest number of entries that are sent together."""
LOOK_S = 0.2
"""Seconds between two readings of the timeline: no thread of the engine ever waits for a client."""
QUIET_S = 15.0
"""Seconds after which a stream without events gets a comment, so that both ends notice a lost connection."""
STATUS_S = 1.0
"""Seconds between two readings of the status, for all streams together."""
SLOW_S = 10.0
"""Seconds that a client may take to read what it was sent."""
KIND = "text/event-stream"
_RETRY = b"retry: 2000\n\n"


class Streams:
    """Sends the timeline to clients, and the status to the clients that ask for it. The timeline is the queue of all
    clients: a client that lags too far behind misses entries. A slow client misses intermediate states of the status.

    The event loop of the server calls its methods.

    Args:
        shown: the engine.
    """

    def __init__(self, shown: Shown) -> None:
        self._timeline = shown.timeline
        self._status = shown.status
        self._looked = -STATUS_S
        self._now: dict[str, Any] = {}
        self._open = 0

    @property
    def full(self) -> bool:
        """Whether no further stream is possible."""
        return self._open >= MOST_STREAMS

    async def send(self, asked: Asked, receive: Receive, send: Send) -> None:
        """Send the entries after the `Last-Event-ID` of the client, or all entries that are left, and all later
        entries, until the client or the engine has ended. With the parameter `status`, send the status and its changes,
        too.

        The head of the response is sent already.

        Args:
            asked: the request.
            receive: returns when the client is gone.
            send: sends a message of the interface ASGI.
        """
        last = asked.all(b"last-event-id")
        after = last[0].decode("latin-1") if last else None
        self._open += 1
        ended = asyncio.ensure_future(gone(receive))
        try:
            await self._follow(after, ended, send, status="status" in asked.parameters("status"))
        except TimeoutError:
            pass  # the client does not read; it gets the missing entries when it comes back
        finally:
            self._open -= 1
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ended

    async def _follow(self, after: str | None, ended: "asyncio.Future[None]", send: Send, *, status: bool) -> None:
        await _send(send, _RETRY)
        quiet = 0.0
        seen: dict[str, Any] = {}
        while not ended.done():
            news = self._timeline.read(after, MOST_ENTRIES)
            after = news.after
            text = _text(news)
            if status and (now := self._look()) is not seen:
                text += _changes(seen, now)
                seen = now
            if text:
                quiet = 0.0
                await _send(send, text)
            elif quiet >= QUIET_S:
                quiet = 0.0
                await _send(send, b":\n\n")
            if not news.open:
                await _send(send, b"", more=False)
                return
            if len(news.entries) < MOST_ENTRIES:
                await asyncio.wait([ended], timeout=LOOK_S)
                quiet += LOOK_S

    def _look(self) -> dict[str, Any]:
        """The status, not older than `STATUS_S`."""
        now = time.monotonic()
        if now - self._looked >= STATUS_S:
            self._looked, self._now = now, self._status().to_dict()
        return self._now


def _text(news: News) -> bytes:
    """The news as events. If the reader has missed entries, the first event says so."""
    missed = b"event: missed\ndata: {}\n\n" if news.missed else b""
    return missed + b"".join(
        b"event: %s\nid: %s\ndata: %s\n\n"
        % (entry.name.encode(), entry.id.encode(), msgspec.json.encode(entry.to_dict()))
        for entry in news.entries
    )


def _changes(before: dict[str, Any], now: dict[str, Any]) -> bytes:
    """The status as an event: the whole status, or a patch of the previous one."""
    name, value = (b"changed", patch(before, now)) if before else (b"full", now)
    return b"event: %s\ndata: %s\n\n" % (name, msgspec.json.encode(value))


async def gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(SLOW_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})
