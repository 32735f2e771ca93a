"""Faults of a network as values: each has a place on the wire, and an action that takes place there.

A place is given by the number of bytes, `after`, that pass in one direction of one connection before the fault acts.
The fault acts as soon as the last of these bytes has been passed on. If the number is 0, the fault acts when the first
byte arrives, before this byte is passed on.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from correlator.errors import UsageError

ANY = re.compile(rb".+", re.DOTALL)
"""Matches all bytes that a client sends: each piece that arrives counts as one request."""
POSTGRES_COMMIT = re.compile(rb"Q\x00\x00\x00\x0bCOMMIT\x00")
"""Matches COMMIT as a client of PostgreSQL sends it: 12 bytes of the simple query protocol."""


class Direction(StrEnum):
    """The direction in which bytes go."""

    REQUEST = "request"
    """From the client to the upstream."""
    REPLY = "reply"
    """From the upstream to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtByte:
    """A place counted from the beginning of a connection.

    Attributes:
        direction: the direction whose bytes are counted.
        after: how many bytes pass before the fault acts.
        connection: the number of the proxy's connection, counted from 1. `None`: every connection, once on each.

    Raises `UsageError` E2411 if `after` is negative or `connection` is less than 1.
    """

    direction: Direction
    after: int = 0
    connection: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range."""
        _at_least(0, after=self.after)
        _at_least(1, connection=1 if self.connection is None else self.connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRequest:
    """A place counted from a request that a matcher recognises, on any connection.

    For the direction REPLY, the proxy counts the bytes that come back after the request has arrived at the proxy. This
    is exact for protocols that answer one request before the client sends the next.

    Attributes:
        matcher: finds requests in the bytes that clients send. If a request arrives in several pieces, the proxy finds
            it if at most 64 bytes of it are in the earlier pieces; these bytes have passed by then.
        hit: the number of the matching request, counted from 1 over all connections since the fault was injected.
        direction: whether the bytes of the request or of its reply are counted.
        after: how many bytes pass before the fault acts.

    Raises `UsageError` E2411 if `after` is negative or `hit` is less than 1.
    """

    matcher: re.Pattern[bytes] = ANY
    hit: int = 1
    direction: Direction = Direction.REPLY
    after: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range."""
        _at_least(0, after=self.after)
        _at_least(1, hit=self.hit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutConnection:
    """End the connection. Bytes that were passed on arrive.

    Attributes:
        upstream: whether the upstream's end is closed, too. If not, the upstream keeps a session whose client is gone,
            as after the loss of a host, until the upstream itself, `FaultProxy.cut`, `heal` or `close` ends it.
    """

    upstream: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Swallow:
    """Lose all further bytes of this direction, and its end of stream; neither peer notices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Hold the bytes of this direction; none is lost.

    Attributes:
        seconds: how long; `None` holds them until the fault is withdrawn. Raises `UsageError` E2411 if negative.
    """

    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range."""
        _at_least(0, seconds=self.seconds or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Delay each further piece of this direction, one after the other, until the fault is withdrawn.

    Attributes:
        seconds: the delay of each piece. Raises `UsageError` E2411 if negative.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range."""
        _at_least(0, seconds=self.seconds)


FaultPlace = AtByte | AtRequest
Action = CutConnection | Swallow | Stall | Delay


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """A place on the wire, and the action that takes place there."""

    place: FaultPlace
    action: Action


def lost_request(matcher: re.Pattern[bytes], *, hit: int = 1, after: int = 0) -> NetworkFault:
    """Cut the connection within the n-th matching request.

    Args:
        matcher: finds requests.
        hit: n, counted from 1.
        after: how many bytes of the request arrive at the upstream.
    """
    return NetworkFault(AtRequest(matcher=matcher, hit=hit, direction=Direction.REQUEST, after=after), CutConnection())


def lost_reply(matcher: re.Pattern[bytes], *, hit: int = 1, after: int = 0) -> NetworkFault:
    """Cut the connection within the reply to the n-th matching request.

    If `after` is 0, the upstream has begun to answer, so it has carried out the request.

    Args:
        matcher: finds requests.
        hit: n, counted from 1.
        after: how many bytes of the reply arrive at the client.
    """
    return NetworkFault(AtRequest(matcher=matcher, hit=hit, direction=Direction.REPLY, after=after), CutConnection())


def _at_least(least: int, **numbers: float) -> None:
    for name, number in numbers.items():
        if number < least:
            raise UsageError("E2411", f"fault, {name}", f"{number} cannot be", f"{least} or more")
