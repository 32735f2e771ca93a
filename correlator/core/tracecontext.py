"""The trace context of a message, by W3C Trace Context: its properties `traceparent` and `tracestate`.

A message that a handler or a pipeline sends carries the context of the received message that has caused it, unless it
has a context of its own. The store holds the context with the message, so both survive a crash.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from correlator.events import Message

PARENT = "traceparent"
STATE = "tracestate"
LONGEST_STATE = 512
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_SAMPLED = frozenset("13579bdf")
"""The last digits of a `traceparent` whose flag *sampled* is set."""


class TraceContext(NamedTuple):
    """A trace, and a span of it.

    Attributes:
        parent: the value of `traceparent`.
        state: the value of `tracestate`; "" for none.
    """

    parent: str
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether somebody collects the spans of the trace."""
        return self.parent[-1] in _SAMPLED


class Tracer(Protocol):
    """Makes a span for each message of a trace that a context handles. Owner: the thread of the context."""

    def begin(self, context: TraceContext, receiver: str, number: int) -> TraceContext:
        """Begin a span, and return its context. The messages that its handlers send carry this context.

        Args:
            context: the context of the message.
            receiver: id of the receiver of the message; "" for an event from inside the engine.
            number: number of the message within the receiver.
        """
        ...

    def end(self, failure: str) -> None:
        """End the span that was begun last; `failure` is the text of an error, "" if there was none."""
        ...


def carry_context(messages: Sequence[Message]) -> bool:
    """Whether any of the messages may have a trace context."""
    for message in messages:  # noqa: SIM110  # `any` takes twice as long, and every batch comes by here
        if PARENT in message.properties:
            return True
    return False


def context_of(message: Message) -> TraceContext | None:
    """The trace context of a message; `None` if it has none or a malformed one."""
    parent = message.properties.get(PARENT)
    if type(parent) is not str or not _PARENT.fullmatch(parent):
        return None
    state = message.properties.get(STATE)
    return TraceContext(parent, state if isinstance(state, str) and len(state) <= LONGEST_STATE else "")


def sampled_context_of(message: Message) -> TraceContext | None:
    """The trace context of a message if somebody collects the spans of its trace. For most messages this takes one
    look-up.
    """
    parent = message.properties.get(PARENT)
    return context_of(message) if type(parent) is str and parent[-1:] in _SAMPLED else None


def carrying(message: Message, cause: TraceContext | None, span: TraceContext | None = None) -> Message:
    """Return a message that is sent with the context of its cause, unless it has a context of its own.

    Args:
        message: the message.
        cause: the context of the received message that has caused it.
        span: the context of a span below `cause`, which the message carries in its place.
    """
    if cause is None:
        return message
    own, context = message.properties.get(PARENT), span or cause
    if own is not None and (own != cause.parent or own == context.parent):
        return message
    properties = {**message.properties, PARENT: context.parent}
    if context.state:
        properties[STATE] = context.state
    return Message(message.body, properties, message.key, message.destination, message.headers)
