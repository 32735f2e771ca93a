"""Suggests a valid word for an unknown one: the word with the nearest spelling, or the setting that corresponds to a
name of the JMS adapter.
"""

import re
from collections.abc import Collection, Iterable

_FARTHEST = 2
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# Names of the classic JMS adapter configuration whose setting has another name than theirs in snake_case.
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
    """Return `Did you mean 'x'?` for the nearest valid word at most two edits away; empty if none is near."""
    wanted, letters = word.lower(), {*word.lower()}
    near = [
        (edits(wanted, lower, _FARTHEST), other)
        for other, lower in ((other, other.lower()) for other in valid)
        # An edit adds and removes at most one letter, so this excludes most words, much faster than `edits`.
        if abs(len(lower) - len(wanted)) <= _FARTHEST and len(letters ^ {*lower}) <= 2 * _FARTHEST
    ]
    # If half of a word must change, it is another word: 'to' does not mean 'id'.
    close = sorted((count, other) for count, other in near if count <= min(_FARTHEST, len(other) // 2))
    return f"Did you mean '{close[0][1]}'?" if close else ""


def modern_spelling(word: str, valid: Collection[str]) -> str:
    """Return a hint if `word` is the camel-case name of a setting in the JMS adapter; else empty."""
    snake_case = _CAMEL_HUMP.sub("_", word).lower()
    name = _RENAMED.get(word, snake_case)
    if word == snake_case:
        return ""
    if name in valid:
        return f"It is called '{name}' here"
    return f"It is called '{_ELSEWHERE[name]}' here" if name in _ELSEWHERE else ""


def edits(first: str, second: str, most: int) -> int:
    """Count the letters to add, remove or replace to turn one word into the other, or return more than `most`.

    The search ends after `most` edits, so that comparing a word with a thousand others takes no time.
    """
    common = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if common is None:
        return abs(len(first) - len(second))
    first, second = first[common:], second[common:]
    if most == 0:
        return 1
    shorter = [(first[1:], second[1:]), (first[1:], second), (first, second[1:])]
    return 1 + min(edits(one, other, most - 1) for one, other in shorter)
