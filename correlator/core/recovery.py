"""The receive log as a start reads it: which messages the queue of a context holds, and which follow it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from correlator.core.commit import QueueRun, ReceiveSegment
from correlator.core.delivery import missing
from correlator.core.queue import Run
from correlator.events import Message


class ReceiveLog:
    """The receive log that a start has read. It finds messages by receiver and number.

    Args:
        segments: the segments, in the order of their numbers for each receiver.
    """

    def __init__(self, segments: Sequence[ReceiveSegment]) -> None:
        self._segments: dict[str, list[ReceiveSegment]] = {}
        for segment in segments:
            self._segments.setdefault(segment.receiver, []).append(segment)

    def last_number(self, receiver: str) -> int:
        """Return the highest number of a receiver; 0 if the log has no message of it."""
        segments = self._segments.get(receiver)
        return segments[-1].first + len(segments[-1].messages) - 1 if segments else 0

    def between(self, receiver: str, first: int, count: int) -> list[Message]:
        """Return messages `first` to `first + count - 1` of a receiver."""
        found: list[Message] = []
        for segment in self._segments.get(receiver, ()):
            begin = max(first, segment.first) - segment.first
            end = min(first + count, segment.first + len(segment.messages)) - segment.first
            found.extend(segment.messages[begin:end] if begin < end else ())
        return found

    def beyond(self, context: str, receiver: str, entered: int) -> Iterator[tuple[int, Sequence[Message]]]:
        """Yield the messages that had not entered the queue of a context, in order, as (first number, messages).

        Raises `RecoveryRefused` E4204 if the receive log lacks one of them.
        """
        for segment in self._segments.get(receiver, ()):
            skip = max(0, entered + 1 - segment.first)
            if skip < len(segment.messages):
                if segment.first + skip != entered + 1:
                    last = self.last_number(receiver)
                    raise missing(context, receiver, last - entered, len(self.between(receiver, entered + 1, last)))
                entered = segment.first + len(segment.messages) - 1
                yield segment.first + skip, segment.messages[skip:]


def restored_runs(
    context: str,
    queue: Sequence[QueueRun],
    log: ReceiveLog,
    events_of: Mapping[str, Any],
    decode: Any,
) -> list[Run]:
    """Return the runs of the queue of a context, as the checkpoint has recorded them.

    Args:
        context: name of the context.
        queue: the record of the queue in the checkpoint.
        log: the receive log.
        events_of: for each receiver, a function that takes the number of the first message and the messages, and
            returns their events.
        decode: decodes an event that was recorded by value.

    Raises `RecoveryRefused` E4204 if the receive log lacks one of the messages.
    """
    runs: list[Run] = []
    for recorded in queue:
        if recorded.receiver:
            receiver, first = recorded.receiver, recorded.first
            messages = log.between(receiver, first, recorded.count)
            if len(messages) != recorded.count:
                raise missing(context, receiver, recorded.count, len(messages))
            runs.append(Run(receiver, first, messages, events_of[receiver](first, messages), stored=True))
        else:
            trace = recorded.trace
            runs.extend(Run("", 0, (), (decode(one),), stored=True, trace=trace) for one in recorded.events)
    return runs
