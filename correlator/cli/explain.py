"""`correlator explain`: explains an error code, or what the paths of a configuration file guarantee, and why."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from correlator.cli.arguments import Overrides
from correlator.cli.checks import check_connectors
from correlator.cli.codes import CODES, FAMILIES, SEVERITIES
from correlator.cli.effects import check_effects
from correlator.cli.failures import say, telling
from correlator.cli.loading import connection_of, importable, load_engine
from correlator.cli.output import write_json, write_line, write_table
from correlator.configuration.problems import OVERRIDDEN, Position
from correlator.connector import Connection, notes_of
from correlator.core.admission import leaves_out_reasons
from correlator.core.guarantee import (
    Guarantee,
    PathEnd,
    PathMiddle,
    described,
    described_letters,
    guarantee,
    guarantee_of_letters,
    needs,
    needs_of_letters,
)
from correlator.core.monitor import Monitor
from correlator.core.registry import default_domain, default_senders
from correlator.errors import UsageError, quoted
from correlator.pipeline.spec import PipelineFile, RouteStep
from correlator.reliability import RECEIVING, SENDING
from correlator.runtime.effective import EffectiveSetting
from correlator.runtime.names import resolve
from correlator.runtime.remarks import unhandled_type
from correlator.settings import OnUnhandled, ReceiverSettings, SenderSettings, called_by

_CODE = re.compile(r"[A-Za-z]\d{4}")


class MessagePath(NamedTuple):
    """The path of messages through an engine: a receiver, a context, pipeline or bridge, and a sender or none."""

    receiver: PathEnd
    middle: PathMiddle
    sender: PathEnd | None


class UnhandledType(NamedTuple):
    """A receiver whose messages no monitor handles: their type, and the receiver's setting `unhandled`."""

    receiver: PathEnd
    event: str
    policy: OnUnhandled


_POLICIES: Mapping[OnUnhandled, str] = {
    "warn": "it is acknowledged like any other message and lost; the engine counts it and logs a warning (W5410)",
    "dead_letter": "it is acknowledged like any other message, and becomes a dead letter",
    "ignore": "it is acknowledged like any other message and lost",
}


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator explain` with `app`, the Typer application of all commands."""
    app.command()(explain)


def explain(
    subject: Annotated[
        str, typer.Argument(metavar="CODE_OR_FILE", help="Error code such as E1020, or configuration file.")
    ],
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="For a file: print one JSON object.")] = False,
) -> None:
    """Explain an error code, or what a configuration file guarantees after a crash, and why.

    For a file, the command shows each path from a receiver to a sender with its guarantee, its weakest link and what
    the guarantee needs. Then it shows the default senders, the path of the dead letters if a sender sends them, the
    receivers whose messages no monitor handles, and the settings that follow from other settings. It opens no
    connection and no store.
    """
    if _CODE.fullmatch(subject) or not subject:
        _explain_code(subject)
    else:
        _explain_file(Path(subject), overrides or (), as_json=json)


def _explain_code(code: str) -> None:
    known = code.upper()
    if known not in CODES:
        raise UsageError("E2010", quoted(code), "no such code", "Codes look like E1020, W1401")
    write_line(f"{known} ({FAMILIES[known[1]]} {SEVERITIES[known[0]]}): {CODES[known]}")


def _explain_file(file: Path, overrides: Sequence[str], *, as_json: bool) -> None:
    with importable(file):
        loaded = load_engine(file, [check_connectors, check_effects], overrides)
        for warning in loaded.warnings:
            say(warning)
        with telling(loaded.secrets.redact):
            unhandled = list(unhandled_of(loaded.settings))
            paths = list(paths_of(loaded.settings, unhandled))
            letters = letters_of(loaded.settings)
            settings = list(settings_of(loaded.settings, loaded.places.positions))
    if as_json:
        effective = [setting._asdict() for setting in settings]
        nobody = [_unhandled_as_json(one) for one in unhandled]
        sent = described_letters(letters) if letters is not None else None
        ways = [described(*path) for path in paths]
        write_json({"paths": ways, "dead_letters": sent, "unhandled": nobody, "settings": effective})
        return
    unnamed = {sender.id for sender in default_senders(loaded.settings)}
    by_default: dict[PathEnd, list[Guarantee]] = {}
    for path in paths:
        if path.sender is not None and path.sender.id in unnamed:
            by_default.setdefault(path.sender, []).append(guarantee(*path))
        else:
            _write_path(path, guarantee(*path))
    for sender, promises in by_default.items():
        _write_default_sender(sender, min(promises, key=lambda promise: promise.grade))
    if letters is not None:
        _write_promise(f"dead letters -> {_named(letters)}", guarantee_of_letters(letters), needs_of_letters(letters))
    for one in unhandled:
        _write_unhandled(one)
    write_table("Settings", EffectiveSetting._fields, settings)


def unhandled_of(settings: PipelineFile) -> Iterator[UnhandledType]:
    """Return the receivers that no pipeline or bridge names and whose messages no monitor listens for."""
    classes: list[type[Monitor]] = [resolve(monitor.type) for monitor in settings.monitors]
    connections, taken = _connections(settings), settings.taken
    for receiver in settings.receivers:
        if receiver.id not in taken and (event_type := unhandled_type(receiver, classes)) is not None:
            yield UnhandledType(_end(receiver, connections), event_type.__name__, receiver.unhandled)


def paths_of(settings: PipelineFile, unhandled: Iterable[UnhandledType]) -> Iterator[MessagePath]:
    """Return every path through the engine, except for the receivers whose messages nobody handles.

    Messages of a receiver that a pipeline names go to the senders of its routes. Messages of a receiver that a bridge
    names go to the senders of the bridge. Messages of any other receiver go to the contexts of monitors, which may send
    to every sender.
    """
    nowhere = {one.receiver.id for one in unhandled}
    connections = _connections(settings)
    senders = {sender.id: _end(sender, connections) for sender in _senders(settings)}
    routes: dict[str, list[tuple[PathMiddle, Sequence[PathEnd]]]] = {}
    for pipeline in settings.pipelines:
        to = dict.fromkeys(step.to for step in pipeline.steps if isinstance(step, RouteStep))
        for name in pipeline.from_:
            routes.setdefault(name, []).append((PathMiddle(f"pipeline {pipeline.name}"), [senders[one] for one in to]))
    for bridge in settings.bridges:
        for name in bridge.from_:
            middle = PathMiddle(f"bridge {bridge.name}")
            routes.setdefault(name, []).append((middle, [senders[one] for one in bridge.to]))
    for receiver in settings.receivers:
        if receiver.id in nowhere:
            continue
        by_monitors = [(middle, list(senders.values())) for middle in _contexts_of(receiver, settings)]
        for middle, reached in routes.get(receiver.id, by_monitors):
            ends: Sequence[PathEnd | None] = reached or [None]
            for sender in ends:
                yield MessagePath(_end(receiver, connections), middle, sender)


def letters_of(settings: PipelineFile) -> PathEnd | None:
    """Return the sender that sends the dead letters; `None` if they stay in the store."""
    for sender in settings.senders:
        if sender.id == settings.dead_letter_sender:
            connections = _connections(settings)
            warning = leaves_out_reasons(sender, connections[sender.connection])
            notes = [] if warning is None else ["It leaves out the properties that tell why messages failed (W1543)"]
            return _end(sender, connections)._replace(notes=notes)
    return None


def _senders(settings: PipelineFile) -> list[SenderSettings]:
    return [*settings.senders, *(default_senders(settings) if settings.monitors else ())]


def _connections(settings: PipelineFile) -> Mapping[str, Connection]:
    """The connections by their names, already closed."""
    connections = {name: connection_of(name, settings) for name in settings.connections}
    for connection in connections.values():
        connection.close()
    return connections


def _end(part: ReceiverSettings | SenderSettings, connections: Mapping[str, Connection]) -> PathEnd:
    connection = connections[part.connection]
    notes = notes_of(connection, part) if isinstance(part, ReceiverSettings) else ()
    return PathEnd(part.id, part.reliability, part.connection, connection.features, called_by(part), notes)


def _contexts_of(receiver: ReceiverSettings, settings: PipelineFile) -> list[PathMiddle]:
    """Return the contexts to which a receiver delivers: all contexts, or for APP_CONTROLLED the one that `Parts`
    chooses.
    """
    contexts = _contexts(settings)
    if not RECEIVING[receiver.reliability].acknowledged_by_application:
        return contexts
    asked = {f"context {one.context}" for one in settings.monitors if resolve(one.type).acknowledges()}
    return ([one for one in contexts if one.name in asked] or contexts)[:1]


def _contexts(settings: PipelineFile) -> list[PathMiddle]:
    """Return the contexts, each with the monitors whose state checkpoints do not hold."""
    transient: dict[str, list[str]] = {}
    for one in settings.monitors:
        cls: type[Monitor] = resolve(one.type)
        transient.setdefault(one.context, []).extend([] if cls.persistent else [cls.__name__])
    return [PathMiddle(f"context {name}", names) for name, names in transient.items()]


def settings_of(settings: PipelineFile, positions: Mapping[str, Position]) -> Iterator[EffectiveSetting]:
    """Return settings that follow from others, or on which a guarantee depends.

    Args:
        settings: the settings of the file.
        positions: the place of each setting that the file or the command line gives.
    """
    windows = settings.duplicate_detection
    if any(RECEIVING[one.reliability].deduplicated for one in settings.receivers):
        part = "duplicate_detection"
        size, time = ("per_source_window_size", "expiry_time")
        yield EffectiveSetting(part, size, f"{windows.per_source_window_size}", _source(f"{part}.{size}", positions))
        yield EffectiveSetting(part, time, f"{windows.expiry_time:g} s", _source(f"{part}.{time}", positions))
    for index, receiver in enumerate(settings.receivers):
        if RECEIVING[receiver.reliability].deduplicated:
            yield from _ids_of(receiver, settings.destinations, f"receivers[{index}]", positions)
    for index, sender in enumerate(settings.senders):
        if SENDING[sender.reliability].stored and SENDING[sender.reliability].stamps_id:
            name = "unique_message_id_property"
            source = _source(f"senders[{index}].{name}", positions)
            yield EffectiveSetting(f"sender {sender.id}", name, sender.unique_message_id_property, source)
    for sender in default_senders(settings):
        value = f"{sender.reliability} to connection {sender.connection}, if a monitor sends to it"
        if not settings.monitors:
            value = "not used: only monitors send to a default sender, and there are none"
        yield EffectiveSetting(
            f"sender {sender.id}", "default sender", value, "the connection has no sender of its own"
        )


def _ids_of(
    receiver: ReceiverSettings, destinations: Mapping[str, str], path: str, positions: Mapping[str, Position]
) -> Iterator[EffectiveSetting]:
    part = f"receiver {receiver.id}"
    name = "dup_detection_domain_id"
    explicit = bool(receiver.dup_detection_domain_id)
    source = _source(f"{path}.{name}", positions) if explicit else "from connection and destination"
    yield EffectiveSetting(part, name, default_domain(receiver, destinations), source)
    for name in ("unique_message_id", "message_source_id"):
        yield EffectiveSetting(part, name, getattr(receiver, name), _source(f"{path}.{name}", positions))


def _source(path: str, positions: Mapping[str, Position]) -> str:
    if path not in positions:
        return "default"
    return "command line" if positions[path] == OVERRIDDEN else "file"


def _write_path(path: MessagePath, promise: Guarantee) -> None:
    steps = [_named(path.receiver), path.middle.name, *([_named(path.sender)] if path.sender else ["no sender"])]
    _write_promise(" -> ".join(steps), promise, needs(path.receiver, path.sender))


def _write_promise(title: str, promise: Guarantee, needed: Sequence[str]) -> None:
    write_line(title)
    write_line(f"  {promise.sentence}")
    write_line(f"  Weakest link: {promise.weakest.part}: {promise.weakest.why}.")
    if needed:
        write_line(f"  Needs: {'; '.join(needed)}.")
    for note in promise.notes:
        write_line(f"  {note}.")
    write_line("")


def _write_default_sender(sender: PathEnd, promise: Guarantee) -> None:
    """Write what holds if a monitor sends to a sender that the file does not have; most monitors never do."""
    write_line(_named(sender))
    write_line(f"  Not used unless a monitor sends to '{sender.id}': the file has no sender for '{sender.connection}'.")
    write_line(f"  If a monitor does: {promise.sentence}")
    write_line(f"  Weakest link: {promise.weakest.part}: {promise.weakest.why}.")
    write_line("")


def _write_unhandled(one: UnhandledType) -> None:
    write_line(f"{_named(one.receiver)} -> nobody")
    write_line(f"  {_nobody(one)}.")
    write_line(f"  unhandled: {one.policy}: {_POLICIES[one.policy]}.")
    write_line("")


def _nobody(one: UnhandledType) -> str:
    return f"No monitor listens for {one.event}: nobody handles a message"


def _unhandled_as_json(one: UnhandledType) -> dict[str, object]:
    return {
        "receiver": one.receiver.id,
        "event": one.event,
        "why": _nobody(one),
        "unhandled": one.policy,
        "then": _POLICIES[one.policy],
    }


def _named(end: PathEnd) -> str:
    return f"{end.id} ({end.reliability}, {end.connection})"
