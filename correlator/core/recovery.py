"""What a start may do with what the store holds: the rules of the registry, and the order of the receive log.

Rules (FEATURES A1.7-A1.13): static parts may be added, never removed or changed, but for the destination of a static
receiver whose duplicate detection domain is explicit. Dynamic parts come back as they were. Connections may change.
Every difference is named before anything is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from correlator.core.commit import Endpoint, QueueRun, ReceiveSegment, RegistryCommit
from correlator.core.queue import Run
from correlator.errors import CorrelatorError, RecoveryRefused
from correlator.events import Message
from correlator.settings import ReceiverSettings, SenderSettings


def default_domain(settings: ReceiverSettings) -> str:
    """The duplicate detection domain of a receiver (FEATURES A8.7-A8.9)."""
    if settings.dup_detection_domain_id:
        return settings.dup_detection_domain_id
    last = settings.id if settings.destination.startswith("topic:") else settings.destination.removeprefix("queue:")
    return f"{settings.connection}:{last}"


def endpoint_of(settings: ReceiverSettings | SenderSettings, *, dynamic: bool, source: str = "") -> Endpoint:
    """The registry's entry for a receiver or sender; `source` for a reliable sender."""
    receiver = isinstance(settings, ReceiverSettings)
    return Endpoint(
        id=settings.id,
        kind="receiver" if receiver else "sender",
        origin="dynamic" if dynamic else "static",
        reliability=str(settings.reliability),
        connection=settings.connection,
        destination=settings.destination or "",
        domain=default_domain(settings) if isinstance(settings, ReceiverSettings) else "",
        source=source,
        settings=msgspec.json.encode(settings),
    )


def reconcile(
    stored: Iterable[Endpoint],
    configured: Sequence[ReceiverSettings | SenderSettings],
    defaults: Iterable[SenderSettings] = (),
) -> RegistryCommit:
    """Compare the static parts, and default senders that were made before, with the registry; returns what to write.

    Raises `RecoveryRefused` E4301-E4304 that names every difference and the way out; nothing has been written.
    """
    by_id = {endpoint.id: endpoint for endpoint in stored}
    refusals: list[CorrelatorError] = []
    put: list[Endpoint] = []
    for settings in configured:
        known = by_id.get(settings.id)
        wanted = endpoint_of(settings, dynamic=False, source=known.source if known else "")
        if known is None:
            put.append(wanted)
        elif known.origin == "dynamic":
            refusals.append(_refusal("E4304", known, "is configured now but was added by code before", "Rename it"))
        else:
            refusals.extend(_changes(known, wanted, settings))
            if known != wanted:
                put.append(wanted)
    for settings in defaults:
        known = by_id.get(settings.id)
        if known is not None and known.origin == "dynamic":
            refusals.extend(_changes(known, endpoint_of(settings, dynamic=True, source=known.source), settings))
    names = {settings.id for settings in configured}
    refusals.extend(
        _refusal(
            "E4301",
            endpoint,
            "exists in the store but not in the configuration",
            f"Static {endpoint.kind}s cannot be removed; remove is only possible for dynamic ones. Put it back",
        )
        for endpoint in by_id.values()
        if endpoint.origin == "static" and endpoint.id not in names
    )
    if refusals:
        raise _joined(refusals)
    return RegistryCommit(put=put)


def _changes(
    known: Endpoint, wanted: Endpoint, settings: ReceiverSettings | SenderSettings
) -> Iterable[CorrelatorError]:
    explicit = isinstance(settings, ReceiverSettings) and bool(settings.dup_detection_domain_id)
    for field in ("kind", "reliability", "connection", "destination", "domain"):
        before, now = getattr(known, field), getattr(wanted, field)
        if before == now:
            continue
        if field == "destination" and explicit and known.domain == wanted.domain:
            continue
        way_out = "Not allowed for an existing one. Put it back"
        if field in ("destination", "domain") and isinstance(settings, ReceiverSettings) and not explicit:
            way_out = f"With an explicit domain it may move. Set dup_detection_domain_id: '{known.domain}'"
        yield _refusal("E4302", known, f"{field} changed from {before} to {now}", way_out)


def _refusal(code: str, endpoint: Endpoint, what: str, todo: str) -> RecoveryRefused:
    return RecoveryRefused(code, f"{endpoint.kind} '{endpoint.id}'", what, "", todo)


def _joined(refusals: Sequence[CorrelatorError]) -> RecoveryRefused:
    first, *others = refusals
    todo = first.todo.rstrip(".") + "".join(f".\n{other}" for other in others)
    return RecoveryRefused(first.code, first.where, first.what, first.allowed, todo)


class ReceiveLog:
    """The receive log as read at a start: finds messages by receiver and number.

    Args:
        segments: in the order of their numbers for each receiver.
    """

    def __init__(self, segments: Sequence[ReceiveSegment]) -> None:
        self._segments: dict[str, list[ReceiveSegment]] = {}
        for segment in segments:
            self._segments.setdefault(segment.receiver, []).append(segment)

    def last_number(self, receiver: str) -> int:
        """The highest number, 0 for an empty log."""
        segments = self._segments.get(receiver)
        return segments[-1].first + len(segments[-1].messages) - 1 if segments else 0

    def between(self, receiver: str, first: int, count: int) -> list[Message]:
        """Messages `first` to `first + count - 1`."""
        found: list[Message] = []
        for segment in self._segments.get(receiver, ()):
            begin = max(first, segment.first) - segment.first
            end = min(first + count, segment.first + len(segment.messages)) - segment.first
            found.extend(segment.messages[begin:end] if begin < end else ())
        return found

    def beyond(self, receiver: str, entered: int) -> Iterable[tuple[int, list[Message]]]:
        """What had not entered a context's queue: (first number, messages) in order."""
        for segment in self._segments.get(receiver, ()):
            skip = max(0, entered + 1 - segment.first)
            if skip < len(segment.messages):
                yield segment.first + skip, segment.messages[skip:]


def restored_runs(
    queue: Sequence[QueueRun],
    log: ReceiveLog,
    events_of: Mapping[str, Any],
    decode: Any,
) -> list[Run]:
    """The runs of a context's queue as the checkpoint recorded them.

    Args:
        queue: what the checkpoint recorded.
        log: the receive log.
        events_of: for each receiver a function from messages to events, parallel.
        decode: makes the event of one recorded by value.
    """
    runs: list[Run] = []
    for recorded in queue:
        if recorded.receiver:
            messages = log.between(recorded.receiver, recorded.first, recorded.count)
            runs.append(
                Run(recorded.receiver, recorded.first, messages, events_of[recorded.receiver](messages), stored=True)
            )
        else:
            runs.extend(Run("", 0, (), (decode(one),), stored=True) for one in recorded.events)
    return runs
