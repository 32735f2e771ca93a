"""`correlator plan FILE`: shows the changes that the next start would find, and whether it would accept them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import typer

from correlator.cli.arguments import ConfigurationFile, Overrides, Share
from correlator.cli.checks import check_connectors
from correlator.cli.effects import check_effects
from correlator.cli.failures import say, telling
from correlator.cli.loading import directory_of, importable, load_engine
from correlator.cli.output import Row, write_json, write_table
from correlator.configuration import Places
from correlator.core.bridge import bridges_of
from correlator.core.commit import Endpoint
from correlator.core.dedup import DuplicateDetector
from correlator.core.delivery import Received, compare_deliveries, layout_of
from correlator.core.differences import (
    Difference,
    FieldChange,
    Verdict,
    compare_contexts,
    compare_monitors,
    compare_tables,
    refuse,
)
from correlator.core.instances import restore_monitor
from correlator.core.monitor import Monitor
from correlator.core.registry import PartDifference, compare_parts, default_senders, ids_change, registry_after
from correlator.core.steps import ConfiguredStep, compare_steps, stored_steps
from correlator.errors import CorrelatorError, RecoveryRefused, UsageError
from correlator.pipeline.processors import processors_of
from correlator.pipeline.spec import PipelineFile
from correlator.ports import Processor
from correlator.runtime import phases
from correlator.runtime.dynamic_parts import compare_made, compare_stored
from correlator.runtime.names import resolve
from correlator.runtime.restart import State, stored_monitor, stored_monitors, stored_tables
from correlator.runtime.subscriptions import routing, subscriptions, unmoved
from correlator.secrets import is_secret_name, url_passwords
from correlator.settings import MonitorSettings, ReceiverSettings, SenderSettings
from correlator.storage import inspect as store
from correlator.storage.database import location
from correlator.storage.store import refuse_other_name

COLUMNS = ("part", "verdict", "rule", "what")
HIDDEN = "***"
Redact = Callable[[str], str]


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator plan` with `app`, the Typer application of all commands."""
    app.command()(plan)


def plan(
    file: ConfigurationFile,
    overrides: Overrides = None,
    share: Share = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list with an object for each part.")] = False,
) -> None:
    """Compare a configuration file with its store, and show which changes the next start would accept.

    Exits with 0 if the start would accept all changes, and with 6 if it would refuse one; the command then prints the
    reason and what to do. Exits with 2 if the file itself is wrong. Column 'rule' names the rule that allows or forbids
    a change of a receiver or sender.

    If the file has shares, the command compares one of them, by default the first share.

    The command changes nothing, and an engine may be running. It starts Spark to compile the pipelines of the file.
    """
    with importable(file):
        loaded = load_engine(file, [check_connectors, check_effects], overrides or (), share)
        for warning in loaded.warnings:
            say(warning)
        with telling(loaded.secrets.redact):
            if loaded.settings.store is None:
                raise UsageError(
                    "E2011", str(file), "has no store: this engine keeps nothing", "", "Name one in 'store'"
                )
            found = differences(loaded.settings, loaded.settings.store, directory_of(file), loaded.places)
            redact = loaded.secrets.redact
            if json:
                write_json([_as_json(one, redact) for one in found])
            else:
                write_table("Compared with the store", COLUMNS, [_row(one, redact) for one in found])
            refuse(found)


class _Held:
    """The content of a store that a start compares; empty if the store does not exist."""

    def __init__(self, url: str, settings: PipelineFile) -> None:
        self.instance = None
        self.endpoints: Sequence[Endpoint] = ()
        self.received = Received()
        self.state: State = {}
        self.detectors: Mapping[str, DuplicateDetector] = {}
        self.ids: Mapping[str, int] = {}
        if store.exists(url):
            self.instance = store.instance(url)
            self.endpoints = store.registry(url)
            self.received = store.received(url)
            self.state = store.state(url)
            self.detectors = store.detectors(url, settings.duplicate_detection)
            self.ids = {domain.domain: domain.ids for domain in store.domains(url)}


def differences(settings: PipelineFile, url: str, directory: str, places: Places) -> list[Difference]:
    """Compare every part of the file with the store in the same way as a start; the engine itself comes first.

    Args:
        settings: the settings of the file.
        url: the URL of the store.
        directory: a further directory in which Python looks for modules.
        places: the places of the settings, for the messages of errors.
    """
    phases.begin("reading the store")
    held = _Held(url, settings)
    processors = [*processors_of(settings, [directory], places, ends_soon=True), *bridges_of(settings)]
    unusable = compare_stored(held.endpoints, settings)
    unusable += compare_made(_but(held.endpoints, unusable), settings, processors)
    usable = _but(held.endpoints, unusable)
    static: list[ReceiverSettings | SenderSettings] = [*settings.receivers, *settings.senders]
    layout = layout_of(settings.monitors, settings.readers)
    monitors = _monitors(settings.monitors, held.state, layout.monitors)
    read = subscriptions(settings, usable)
    defaults = default_senders(settings)
    same = unmoved(settings, usable)
    parts = compare_parts(usable, static, defaults, settings.destinations, read, routing(settings), same)
    return [
        _instance(settings, url, held),
        *parts,
        *unusable,
        *compare_contexts(held.received.contexts, layout.contexts),
        *compare_deliveries(registry_after(usable, parts), layout, held.received),
        *monitors,
        *compare_steps(stored_steps(held.state), _compiled(processors), settings.discard_state),
        *_domains(settings, held, parts),
    ]


def _instance(settings: PipelineFile, url: str, held: _Held) -> Difference:
    try:
        if held.instance is not None:
            refuse_other_name(location(url), held.instance.name, settings.name)
        store.refuse_older(url, settings.name, settings.witness_directory)
    except RecoveryRefused as refusal:
        return Difference(kind="instance", name=settings.name, verdict=Verdict.REFUSED, refusals=[refusal])
    if held.instance is None:
        return Difference(kind="instance", name=settings.name, verdict=Verdict.NEW, note="the start makes the store")
    return Difference(kind="instance", name=settings.name, verdict=Verdict.UNCHANGED)


def _monitors(configured: Sequence[MonitorSettings], state: State, contexts: Sequence[str]) -> list[Difference]:
    classes: list[tuple[MonitorSettings, type[Monitor]]] = [(one, resolve(one.type)) for one in configured]
    persistent = {cls.state_name: one.context for one, cls in classes if cls.persistent}
    found = compare_monitors(stored_monitors(state), persistent, contexts)
    if any(one.refusals for one in found):
        return found
    claimed: set[str] = set()
    by_name = {cls.state_name: cls for _, cls in classes}
    for facts in stored_monitors(state):
        cls = by_name[facts.name] if facts.number == "0" else resolve(facts.type)
        try:
            monitor = restore_monitor(cls, facts.number, stored_monitor(state, facts), state)
        except CorrelatorError as refusal:
            name = f"{facts.name} {facts.number}"
            return [*found, Difference(kind="state", name=name, verdict=Verdict.REFUSED, refusals=[refusal])]
        claimed.update(table.owner for table in monitor.tables())
    for one, cls in classes:
        claimed.update(table.owner for table in cls(**one.options).tables())
    return [*found, *compare_tables(stored_tables(state), claimed)]


def _but(endpoints: Iterable[Endpoint], refused: Iterable[Difference]) -> list[Endpoint]:
    names = {one.name for one in refused}
    return [one for one in endpoints if one.id not in names]


def _compiled(processors: Iterable[Processor]) -> list[ConfiguredStep]:
    """Compile the pipelines; returns their keyed steps. Only Spark knows the types of rows, and checks expressions."""
    with contextlib.ExitStack() as opened:
        steps: list[ConfiguredStep] = []
        for processor in processors:
            processor.open()
            opened.callback(processor.close)
            steps += processor.steps
        return steps


def _domains(settings: PipelineFile, held: _Held, parts: Iterable[PartDifference]) -> Iterator[Difference]:
    """Show for each duplicate detection domain how many stored ids the windows of the file remember."""
    windows = settings.duplicate_detection
    known = {endpoint.id: endpoint for endpoint in held.endpoints}
    other = {
        one.put.domain: one.name
        for one in parts
        if one.put and one.name in known and ids_change(known[one.name], one.put)
    }
    for domain, stored in held.ids.items():
        note = (
            f"{len(held.detectors[domain])} of {stored} stored ids are remembered by windows of "
            f"{windows.per_source_window_size} ids a source and {windows.expiry_time:g} s"
        )
        if domain in other:
            note += f"; receiver {other[domain]} has another template, and does not recognise its stored ids"
        yield Difference(kind="domain", name=domain, verdict=Verdict.UNCHANGED, note=note)


def _row(one: Difference, redact: Redact) -> Row:
    changes = [f"{c.field}: {_safe(c, c.before, redact)} -> {_safe(c, c.after, redact)}" for c in one.changes]
    notes = [*changes, *([one.note] if one.note else []), *([refusal.what for refusal in one.refusals if not changes])]
    return (f"{one.kind} {one.name}", one.verdict, one.rule, "; ".join(notes))


def _as_json(one: Difference, redact: Redact) -> dict[str, object]:
    return {
        "kind": one.kind,
        "name": one.name,
        "verdict": one.verdict,
        "rule": one.rule,
        "changes": [
            {"field": c.field, "before": _safe(c, c.before, redact), "after": _safe(c, c.after, redact)}
            for c in one.changes
        ],
        "note": one.note,
        "refusals": [
            {"code": refusal.code, "what": redact(refusal.what), "todo": redact(refusal.todo)}
            for refusal in one.refusals
        ],
    }


def _safe(change: FieldChange, value: str, redact: Redact) -> str:
    """Redact a value. The store may hold an older secret, which the file does not contain, so its name decides, too."""
    if is_secret_name(change.field) or url_passwords(value):
        return HIDDEN
    return redact(value)
