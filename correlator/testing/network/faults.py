"""Faults of a network as values: a place on the wire, and what happens there.

A place is a number of bytes, `after`, of one direction of one connection: so many bytes pass, then the fault acts. It
acts as soon as the last of them was passed on; with 0, when the first byte arrives, which then meets the fault.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from correlator.errors import UsageError

ANY = re.compile(rb".+", re.DOTALL)
"""Matches whatever a client sends: each piece, as it arrives, is one request."""
POSTGRES_COMMIT = re.compile(rb"Q\x00\x00\x00\x0bCOMMIT\x00")
"""Matches COMMIT as a client of PostgreSQL sends it: 12 bytes of the simple query protocol."""


class Direction(StrEnum):
    """Which way bytes go."""

    REQUEST = "request"
    """From the client to the upstream."""
    REPLY = "reply"
    """From the upstream to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtByte:
    """A place counted from the beginning of a connection.

    Attributes:
        direction: whose bytes are counted.
        after: so many pass.
        connection: the proxy's n-th one, from 1; `None` is every one, once each.

    Raises `UsageError` E2411 for numbers that cannot be.
    """

    direction: Direction
    after: int = 0
    connection: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        _at_least(0, after=self.after)
        _at_least(1, connection=1 if self.connection is None else self.connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRequest:
    """A place counted from a request that a matcher recognises, on whatever connection it comes.

    The bytes of the reply are those that come back once the request has arrived here: exact for protocols that answer
    one request before the next is sent.

    Attributes:
        matcher: finds requests among the bytes that clients send. One that comes in two pieces is found when it spans
            at most 64 bytes of the earlier ones; those have passed then.
        hit: the n-th such request since the fault was injected, over all connections.
        direction: whether bytes of the request or of its reply are counted.
        after: so many pass.

    Raises `UsageError` E2411 for numbers that cannot be.
    """

    matcher: re.Pattern[bytes] = ANY
    hit: int = 1
    direction: Direction = Direction.REPLY
    after: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        _at_least(0, after=self.after)
        _at_least(1, hit=self.hit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutConnection:
    """The connection ends; what has passed arrives.

    Attributes:
        upstream: whether the upstream notices. If not, it keeps a session whose client is gone, as after the loss of
            a host, until the upstream itself, `FaultProxy.cut`, `heal` or `close` ends it.
    """

    upstream: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Swallow:
    """Bytes of this direction are taken and lost from here on, the end of the stream too: neither peer is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Bytes of this direction wait, and none is lost.

    Attributes:
        seconds: for how long; `None` until the fault is withdrawn. Raises `UsageError` E2411 when negative.
    """

    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        _at_least(0, seconds=self.seconds or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Each piece of this direction waits from here on, one after the other, until the fault is withdrawn.

    Attributes:
        seconds: how long each. Raises `UsageError` E2411 when negative.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        _at_least(0, seconds=self.seconds)


FaultPlace = AtByte | AtRequest
Action = CutConnection | Swallow | Stall | Delay


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """What happens, and where."""

    place: FaultPlace
    action: Action


def lost_request(matcher: re.Pattern[bytes], *, hit: int = 1, after: int = 0) -> NetworkFault:
    """The connection is cut within the n-th matching request: `after` of its bytes arrive at the upstream."""
    return NetworkFault(AtRequest(matcher=matcher, hit=hit, direction=Direction.REQUEST, after=after), CutConnection())


def lost_reply(matcher: re.Pattern[bytes], *, hit: int = 1, after: int = 0) -> NetworkFault:
    """The connection is cut within the reply to the n-th matching request: `after` of its bytes arrive at the client.

    With 0 the upstream has begun to answer, so that it has done what was asked.
    """
    return NetworkFault(AtRequest(matcher=matcher, hit=hit, direction=Direction.REPLY, after=after), CutConnection())


def _at_least(least: int, **numbers: float) -> None:
    for name, number in numbers.items():
        if number < least:
            raise UsageError("E2411", f"fault, {name}", f"{number} cannot be", f"{least} or more")
