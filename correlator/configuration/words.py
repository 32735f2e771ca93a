"""The nearest valid word for one that is not known, and today's spelling of the names that users bring along."""

import re
from collections.abc import Collection, Iterable

_FARTHEST = 2
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# Names of the classic JMS adapter configuration whose setting is not the same name in snake_case.
_RENAMED = {
    "connectionId": "connection",
    "connectionRetryIntervalMillis": "connection_retry_interval",
    "defaultReceiverReliability": "reliability",
    "defaultSenderReliability": "reliability",
    "destinationName": "destination",
    "dupDetectionExpiryTimeSecs": "expiry_time",
    "dupDetectionPerSourceExpiryWindowSize": "per_source_window_size",
    "maxBatchIntervalMillis": "max_batch_interval_ms",
    "messageDeliveryMode": "persistent",
    "messageSelector": "selector",
    "receiverFlowControl": "flow_control",
    "receiverId": "id",
    "receiverReliability": "reliability",
    "senderId": "id",
    "senderReliability": "reliability",
}
_ELSEWHERE = {
    "expiry_time": "duplicate_detection.expiry_time",
    "per_source_window_size": "duplicate_detection.per_source_window_size",
    "connection_retry_interval": "connection_retry_interval at the top level",
}


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """`Did you mean 'x'?` for the nearest valid word at most two edits away; empty when none is near."""
    near = [(edits(word.lower(), other.lower(), _FARTHEST), other) for other in valid]
    # A word of which half must change is another word: 'id' is not meant by 'to'.
    close = sorted((count, other) for count, other in near if count <= min(_FARTHEST, len(other) // 2))
    return f"Did you mean '{close[0][1]}'?" if close else ""


def modern_spelling(word: str, valid: Collection[str]) -> str:
    """A hint when `word` is the original, camel-case spelling of a setting; else empty."""
    snake_case = _CAMEL_HUMP.sub("_", word).lower()
    name = _RENAMED.get(word, snake_case)
    if word == snake_case:
        return ""
    if name in valid:
        return f"It is called '{name}' here"
    return f"It is called '{_ELSEWHERE[name]}' here" if name in _ELSEWHERE else ""


def edits(first: str, second: str, most: int) -> int:
    """How many letters to add, remove or replace to get from one word to the other; more than `most` if too many.

    Looks no further than `most` edits, so that a word is held against a thousand others in no time.
    """
    common = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if common is None:
        return abs(len(first) - len(second))
    first, second = first[common:], second[common:]
    if most == 0:
        return 1
    shorter = [(first[1:], second[1:]), (first[1:], second), (first, second[1:])]
    return 1 + min(edits(one, other, most - 1) for one, other in shorter)
