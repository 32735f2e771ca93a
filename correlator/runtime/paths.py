"""The paths of messages through a running engine that lead through one part, and what they promise."""

from collections.abc import Iterator, Mapping, Sequence

from correlator.core.guarantee import PathEnd, PathMiddle, described
from correlator.runtime.contexts import ProcessorThread
from correlator.runtime.names import resolve
from correlator.runtime.parts import Parts
from correlator.runtime.receiver import Receiver
from correlator.runtime.sender import Sender
from correlator.settings import MonitorSettings, ReceiverSettings, called_by


def paths_through(part_id: str, parts: Parts, monitors: Sequence[MonitorSettings]) -> list[dict[str, object]]:
    """The paths through a receiver or sender, with their promises. Any thread may call it.

    Args:
        part_id: id of the receiver or sender; an unknown id has no paths.
        parts: the parts of the engine.
        monitors: the monitors of the settings.
    """
    receivers, senders = parts.receivers, parts.senders
    return [
        described(_end(receiver, parts), middle, None if to is None else _end(senders[to], parts))
        for receiver in receivers.values()
        for middle, reached in _middles(receiver, parts, monitors)
        for to in _ends(reached, senders)
        if part_id in (receiver.settings.id, to)
    ]


def _ends(reached: Sequence[str], senders: Mapping[str, Sender]) -> Sequence[str | None]:
    """The ends of the paths to these senders; without senders, one path that ends without a sender."""
    return [one for one in reached if one in senders] or [None]


def _middles(
    receiver: Receiver, parts: Parts, monitors: Sequence[MonitorSettings]
) -> Iterator[tuple[PathMiddle, Sequence[str]]]:
    """The contexts and pipelines of a receiver, each with the senders to which it may send."""
    for name in receiver.targets.names:
        thread = parts.contexts[name]
        if isinstance(thread, ProcessorThread):
            yield PathMiddle(f"pipeline {name}"), thread.processor.senders
        else:
            classes = [resolve(one.type) for one in monitors if one.context == name]
            transient = [cls.__name__ for cls in classes if not cls.persistent]
            yield PathMiddle(f"context {name}", transient), list(parts.senders)


def _end(part: Receiver | Sender, parts: Parts) -> PathEnd:
    settings = part.settings
    features = parts.features(settings.connection)
    notes = parts.notes(settings) if isinstance(settings, ReceiverSettings) else ()
    return PathEnd(settings.id, settings.reliability, settings.connection, features, called_by(settings), notes)
