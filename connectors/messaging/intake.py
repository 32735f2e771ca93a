"""The source of a consumer, with the messages that were fetched ahead."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from connectors.messaging.deliveries import AcknowledgeMode, Unacknowledged
from connectors.messaging.traces import TracedDeliveries
from correlator.connector import Prefetching, Source
from correlator.errors import ConfigError, ConnectionLost, UsageError
from correlator.events import Message, expired

SOURCE_ID = "session"
"""The receiver id of all sources of sessions: files keep a position for each receiver id."""
FLOW_LIMIT = 1000
"""Largest number of messages that a consumer holds by default; see `ConnectionFactory.flow_limit`."""
IDLE_S = 1.0
"""Seconds without a call after which a consumer gives back the messages that it has fetched ahead."""

_log = logging.getLogger("connectors.messaging")


class Flow(NamedTuple):
    """How many messages a consumer holds.

    Attributes:
        limit: largest number of messages that the consumer has fetched and not settled.
        prefetch: whether it fetches more messages than the program has asked for.
        lingers: whether the source of a closed consumer stays until its messages are settled. Otherwise they are
            redelivered at once, because another reader of the same place could not begin before.
    """

    limit: int
    prefetch: bool
    lingers: bool = True


class Intake:
    """A source that fetches ahead, and reconnects at the next use after a lost connection.

    The caller of each method holds the lock of the session. Every call may raise `ConnectionLost`. The session then
    forgets the deliveries of this source, since the broker redelivers them.

    If the source is `Prefetching`, the consumer fetches as many messages ahead as its own limit and that of the
    destination allow, and fetches the next ones when fewer than the percentage that the destination sets are at hand.
    Other sources read ahead themselves, as far as the limit allows; from such a source the consumer takes messages one
    by one.
    """

    def __init__(
        self,
        where: str,
        source: Source,
        unacknowledged: Unacknowledged,
        mode: AcknowledgeMode,
        flow: Flow,
        traced: TracedDeliveries,
    ) -> None:
        self.source = source
        self.traced = traced
        self.ended = False
        self._where = where
        self._unacknowledged = unacknowledged
        self._acknowledges_on_fetch = mode is AcknowledgeMode.NO_ACKNOWLEDGE
        self._flow = flow
        self._ahead = 1
        """The largest number of messages that the next fetch asks for."""
        self._most_ahead = 1
        """The largest number of messages at hand after a fetch."""
        self._threshold_percent = 0
        """The consumer fetches when it has fewer than this percentage of `_most_ahead` at hand."""
        self._buffer: deque[tuple[Message, Any]] = deque()
        self._handed = 0
        """Number of messages that the program has got and that are not settled."""
        self._handed_since_fetch = 0
        self._is_dry = False
        """Whether the last fetch got fewer messages than it asked for."""
        self._clock_s: float | None = None
        """Clock of the broker minus monotonic clock, in seconds; `None` if the broker does not report its time."""
        self._last_use = 0.0
        self._is_connected = False
        self._is_retired = False
        """Whether to close the source once the program has settled all messages that it has got."""

    def connect(self) -> None:
        """Connect, so that the source receives messages that are sent to its topic from now on.

        Raises `ConfigError` E7541 for `prefetch=False` if the source reads ahead by itself.
        """
        if not self._flow.prefetch and not isinstance(self.source, Prefetching):
            what = "its connector reads ahead by itself"
            raise ConfigError("E7541", f"{self._where}.prefetch", what, "A smaller flow_limit limits how far")
        with self._connected():
            pass

    @property
    def limit(self) -> int:
        """Largest number of messages that were fetched and not settled."""
        return self._flow.limit

    @property
    def fetched(self) -> int:
        """Number of messages that were fetched ahead."""
        return len(self._buffer)

    def take(self, wait_s: float) -> tuple[Message, Any] | None:
        """Return the next message with its token; `None` if none comes within `wait_s` seconds.

        Raises `UsageError` E7502 if too many messages are unacknowledged, since no further one would come.
        """
        if self._is_low:
            self._fetch(0.0 if self._buffer else wait_s)
        if not self._buffer:
            return None
        self._last_use = time.monotonic()
        self._handed += 1
        self._handed_since_fetch += 1
        return self._buffer.popleft()

    def has_expired(self, message: Message) -> bool:
        """Return whether a message has expired since it was taken, by the clock of the broker if that is known."""
        now_s = time.time() if self._clock_s is None else self._clock_s + time.monotonic()
        return expired(message, now_s * 1000)

    def end_expired(self, token: Any) -> None:
        """Settle a message that has expired.

        A `Prefetching` source gives it back: its broker decides what to do with expired messages.
        """
        if isinstance(self.source, Prefetching) and not self._acknowledges_on_fetch:
            with self._connected():
                self.source.release([token])
            self.settled(1)
        else:
            self.acknowledge([token])

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Acknowledge the messages of these tokens."""
        if not self._acknowledges_on_fetch:
            with self._connected() as source:
                self._acknowledge(source, tokens)
        self.settled(len(tokens))

    def _acknowledge(self, source: Source, tokens: Sequence[Any]) -> None:
        self.traced.acknowledged(tokens)
        source.acknowledge(tokens)
        self.traced.settled(tokens)

    def reject(self, tokens: Sequence[Any]) -> None:
        """Give back the messages of these tokens."""
        if not self._acknowledges_on_fetch:
            with self._connected() as source:
                source.reject(tokens)
            self.traced.returned(tokens)
        self.settled(len(tokens))

    def settled(self, count: int) -> None:
        """Note that messages were settled in another way, such as by a transaction."""
        self._handed = max(0, self._handed - count)  # the loss of a connection may have settled them already
        if self._is_retired and self._handed <= 0:
            self.close()

    def give_back_idle(self, now: float) -> None:
        """Give back the messages fetched ahead, unless the program has taken a message within the last second.

        The next fetch asks only for as many messages as the program took this time, so that a slow program does not
        fetch the same messages again and again.
        """
        if self._buffer and not self._acknowledges_on_fetch and now - self._last_use >= IDLE_S:
            self._ahead = max(1, self._handed_since_fetch)
            self.give_back_fetched()

    def give_back_fetched(self) -> None:
        """Give back the messages fetched ahead, so that they do not overtake other messages that are given back."""
        tokens = [token for _, token in self._buffer]
        if not tokens or self._acknowledges_on_fetch:
            return
        self._buffer.clear()
        with self._connected() as source:
            if isinstance(source, Prefetching):
                source.release(tokens)
            else:
                source.reject(tokens)
        self.traced.returned(tokens)

    def retire(self) -> None:
        """Take no more messages; close the source when the program has settled those that it got."""
        if self._handed > 0 and self._flow.lingers:
            self._is_retired = True
            with suppress(ConnectionLost):
                self.give_back_fetched()
                if self._is_connected and isinstance(self.source, Prefetching):
                    with self._connected() as source:
                        assert isinstance(source, Prefetching)
                        source.cancel()
        else:
            self.close()

    def close(self) -> None:
        """Close the source, which gives its unacknowledged messages back. Never raises."""
        if self._buffer and self._acknowledges_on_fetch:
            _log.warning("%s: %d messages are lost that were fetched in mode NO_ACKNOWLEDGE", self._where, self.fetched)
        elif self._is_connected:
            with suppress(ConnectionLost):
                self.give_back_fetched()
        self.let_go()

    def let_go(self) -> None:
        """Close the source without giving messages back: the broker redelivers them."""
        self.source.close()
        self.traced.returned()
        self._is_connected = False
        self._handed = 0
        self._buffer.clear()
        self._unacknowledged.forget(self)

    @property
    def _is_low(self) -> bool:
        if not self._buffer:
            return True
        is_few = 100 * len(self._buffer) < self._threshold_percent * self._most_ahead
        return is_few and not self._is_dry and self._room > 0

    @property
    def _room(self) -> int:
        return self._flow.limit - self._handed - len(self._buffer)

    def _fetch(self, wait_s: float) -> None:
        if self._room <= 0:
            what = f"{self._handed} of its messages are not acknowledged, which is the most that is allowed"
            raise UsageError("E7502", self._where, what, "", "Acknowledge, recover, or use another consumer")
        with self._connected() as source:
            wanted = min(self._room, self._ahead, self._most_ahead - len(self._buffer))
            began_s = time.monotonic()
            chunk = source.receive(wanted, wait_s)
            self.traced.dispatched(chunk.messages, chunk.tokens)
            if self._acknowledges_on_fetch and chunk.messages:
                self._acknowledge(source, chunk.tokens)
        if chunk.clock_ms is not None:
            # With `began_s` the estimate is fast rather than slow: a message that only seems expired is redelivered.
            self._clock_s = chunk.clock_ms / 1000 - began_s
        self._buffer.extend(zip(chunk.messages, chunk.tokens, strict=True))
        self.ended = chunk.ended
        self._is_dry = len(chunk.messages) < wanted
        self._ahead = min(self._most_ahead, 2 * self._ahead)
        self._handed_since_fetch = 0
        self._last_use = time.monotonic()

    def _agree(self) -> None:
        """Fetch ahead as far as both the consumer and its destination allow."""
        if self._flow.prefetch and isinstance(self.source, Prefetching):
            limit, self._threshold_percent = self.source.flow
            self._ahead = self._most_ahead = self._flow.limit if limit is None else min(self._flow.limit, limit)

    @contextmanager
    def _connected(self) -> Iterator[Source]:
        try:
            if not self._is_connected:
                self.source.connect()
                self._is_connected = True
                self._agree()
            yield self.source
        except ConnectionLost:
            self.let_go()  # otherwise nobody would get the messages that the broker holds for this consumer
            if self._is_retired:
                self.source.close()  # the first call left open whether `connect` follows
            raise
