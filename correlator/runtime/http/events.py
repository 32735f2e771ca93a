"""`/events`: the timeline of the engine as server-sent events."""

import asyncio
import contextlib

import msgspec

from correlator.runtime.timeline import News, Timeline
from correlator.serving import Receive, Send

MOST_STREAMS = 16
MOST_ENTRIES = 100
"""Entries that are sent at once."""
LOOK_S = 0.2
"""Seconds between two looks at the timeline: no thread of the engine ever waits for a client."""
QUIET_S = 15.0
"""Seconds after which a stream without events gets a comment, so that both ends notice a lost connection."""
SLOW_S = 10.0
"""Seconds that a client may take to read what it was sent."""
KIND = "text/event-stream"
_RETRY = b"retry: 2000\n\n"


class Streams:
    """Sends the timeline to clients. The timeline is the queue of all clients: who is too far behind is cut off.

    The event loop of the server calls its methods.

    Args:
        timeline: the timeline.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._open = 0

    @property
    def full(self) -> bool:
        """Whether no further stream is possible."""
        return self._open >= MOST_STREAMS

    async def send(self, after: str | None, receive: Receive, send: Send) -> None:
        """Send the entries after a place, and all that follow, until the client or the engine has ended.

        The head of the response is sent already.

        Args:
            after: the `Last-Event-ID` of the client; `None` for all entries that are left.
            receive: returns when the client is gone.
            send: sends a message of the interface ASGI.
        """
        self._open += 1
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await self._follow(after, gone, send)
        except TimeoutError:
            pass  # the client does not read: what it lacks, it learns when it comes back
        finally:
            self._open -= 1
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _follow(self, after: str | None, gone: "asyncio.Future[None]", send: Send) -> None:
        await _send(send, _RETRY)
        quiet = 0.0
        while not gone.done():
            news = self._timeline.read(after, MOST_ENTRIES)
            after = news.after
            if text := _text(news):
                quiet = 0.0
                await _send(send, text)
            elif quiet >= QUIET_S:
                quiet = 0.0
                await _send(send, b":\n\n")
            if not news.open:
                await _send(send, b"", more=False)
                return
            if len(news.entries) < MOST_ENTRIES:
                await asyncio.wait([gone], timeout=LOOK_S)
                quiet += LOOK_S


def _text(news: News) -> bytes:
    """The news as events. Whoever has missed some learns it first."""
    missed = b"event: missed\ndata: {}\n\n" if news.missed else b""
    return missed + b"".join(
        b"event: %s\nid: %s\ndata: %s\n\n"
        % (entry.name.encode(), entry.id.encode(), msgspec.json.encode(entry.to_dict()))
        for entry in news.entries
    )


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(SLOW_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})
