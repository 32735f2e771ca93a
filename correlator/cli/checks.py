"""Checks of a configuration file: names that refer to other parts, imported classes, and options of connectors.

The checks open nothing and do not start Spark, so they find only a part of the mistakes in expressions.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from correlator.configuration import Findings
from correlator.configuration.connectors import connector
from correlator.configuration.rules import check_known, check_references
from correlator.connector import Connection, group_of
from correlator.core.admission import leaves_out_reasons, refuse_beside, refuse_call, refuse_for_pipelines, selection
from correlator.core.fields import FieldMapping, check_forwarding, check_sources, check_targets
from correlator.core.keyed import KeyedMonitor
from correlator.core.mapping import Template
from correlator.core.monitor import Monitor
from correlator.errors import ConfigError, UsageError
from correlator.handlers import refuse_deferred
from correlator.pipeline.places import setting_path
from correlator.pipeline.spec import MonitorStep, PipelineFile, PythonStep, RouteStep, Step
from correlator.pipeline.static_checks import check_steps
from correlator.reliability import RECEIVING, Reliability
from correlator.runtime.calling import check_function
from correlator.runtime.monitors import unfit
from correlator.settings import ReceiverSettings, SenderSettings

DEAD_LETTERS = "dead_letters"
"""The name under which inline tests expect dead letters."""


def check_pipelines(settings: PipelineFile, findings: Findings) -> None:
    """Report names of receivers and senders that do not exist, and imported objects of the wrong type."""
    _check_names(settings, findings)
    _check_sources_and_routes(settings, findings)
    _check_tests(settings, findings)
    _check_classes(settings, findings)
    _check_templates(settings, findings)
    _check_mappings(settings, findings)


def check_connectors(settings: PipelineFile, findings: Findings) -> None:
    """Report options and destinations of receivers and senders that the connectors refuse. Opens no connection."""
    with _connections(settings, findings) as connections:
        _check_endpoints(settings, connections, findings)


def check_and_hint(settings: PipelineFile, findings: Findings) -> None:
    """Do the same, and report settings that work, but perhaps not as the author of the file expects."""
    with _connections(settings, findings) as connections:
        _check_endpoints(settings, connections, findings)
        repeats = {name: not connection.features.deduplicates_sends for name, connection in connections.items()}
        _hint_reasons(settings, connections, findings)
    for path, endpoint in _endpoints(settings):
        if isinstance(endpoint, ReceiverSettings) and endpoint.selector is not None:
            _hint_selection(path, endpoint, settings, findings)
        if endpoint.reliability is not Reliability.EXACTLY_ONCE:
            continue
        if isinstance(endpoint, ReceiverSettings):
            _hint_windows(path, settings, findings)
        elif repeats.get(endpoint.connection, False):
            _hint_repeats(path, endpoint, settings, findings)


def check_pipeline_steps(settings: PipelineFile, findings: Findings) -> None:
    """Report the mistakes in steps that can be found without Spark, and whether Spark must check more."""
    unchecked = 0
    for index, pipeline in enumerate(settings.pipelines):
        checked = check_steps(pipeline, settings.spark.config)
        unchecked += len(checked.unchecked)
        for number, error in checked.mistakes:
            path = setting_path(index, number, pipeline.steps[number], error.where, findings.positions)
            findings.error(error.code, path, error.what, error.allowed, error.todo)
    if unchecked:
        what = f"the expressions of {unchecked} step{'s' if unchecked > 1 else ''} were not checked completely"
        command = f"correlator plan {findings.file}" if settings.store is not None else "The start of the engine"
        findings.warn("I1526", "pipelines", what, "", f"{command} checks them with Spark")


def _check_endpoints(settings: PipelineFile, connections: Mapping[str, Connection], findings: Findings) -> None:
    for path, endpoint in _endpoints(settings):
        connection = connections.get(endpoint.connection)
        if connection is not None:
            _check_endpoint(path, endpoint, connection, settings, findings)


def _hint_reasons(settings: PipelineFile, connections: Mapping[str, Connection], findings: Findings) -> None:
    sender = next((one for one in settings.senders if one.id == settings.dead_letter_sender), None)
    connection = connections.get(sender.connection) if sender is not None else None
    if sender is None or connection is None:
        return
    with contextlib.suppress(ConfigError):  # `_check_endpoint` reports it
        warning = leaves_out_reasons(sender, connection)
        if warning is not None:
            findings.warn(warning.code, warning.where, warning.what, warning.allowed, warning.todo)


def _hint_windows(path: str, settings: PipelineFile, findings: Findings) -> None:
    windows = settings.duplicate_detection
    what = (
        f"recognises a repeat within the last {windows.per_source_window_size} ids of a source and "
        f"{windows.expiry_time:g} s of ids beyond them"
    )
    findings.warn(
        "I1411", f"{path}.reliability", what, "AT_LEAST_ONCE needs no windows, but its consumers must tolerate repeats"
    )


def _hint_selection(path: str, receiver: ReceiverSettings, settings: PipelineFile, findings: Findings) -> None:
    destination = settings.destinations.get(receiver.destination, receiver.destination)
    if destination.startswith("topic:"):
        what = "the engine applies it: it receives, counts and acknowledges messages that do not match"
        findings.warn("I1221", f"{path}.selector", what)


def _hint_repeats(path: str, sender: SenderSettings, settings: PipelineFile, findings: Findings) -> None:
    broker = settings.connections[sender.connection].type
    what = f"after a crash repeats go out with the same id, and {broker} does not drop them"
    by_property = f"the property '{sender.unique_message_id_property}'"
    allowed = f"The consumer must deduplicate by the id: {by_property}, or the header Idempotency-Key of a request"
    findings.warn("W1410", f"{path}.reliability", what, allowed, "Or use AT_LEAST_ONCE")


def _check_names(settings: PipelineFile, findings: Findings) -> None:
    taken = {monitor.context: "a context of monitors" for monitor in settings.monitors}
    taken.update((bridge.name, "a bridge") for bridge in settings.bridges)
    for index, pipeline in enumerate(settings.pipelines):
        if pipeline.name in taken:
            what = f"{findings.show(pipeline.name)} is already the name of {taken[pipeline.name]}"
            findings.error("E1520", f"pipelines[{index}].name", what, "", "Choose another name")
        taken.setdefault(pipeline.name, "another pipeline")


def _check_sources_and_routes(settings: PipelineFile, findings: Findings) -> None:
    receivers = [receiver.id for receiver in settings.receivers]
    senders = [sender.id for sender in settings.senders]
    homeless = {sender.id for sender in settings.senders if sender.destination is None}
    for index, pipeline in enumerate(settings.pipelines):
        check_references("E1521", f"pipelines[{index}].from", "receiver", pipeline.from_, receivers, findings)
    for path, step in _steps(settings):
        if isinstance(step, RouteStep):
            check_known("E1522", f"{path}.route.to", "sender", step.to, senders, findings)
            if step.to in homeless and step.destination is None:
                what = f"sender {findings.show(step.to)} has no destination"
                findings.error("E1524", f"{path}.route", what, "", "Give the route or the sender a 'destination'")


def _check_tests(settings: PipelineFile, findings: Findings) -> None:
    receivers = [receiver.id for receiver in settings.receivers]
    targets = [*(sender.id for sender in settings.senders), DEAD_LETTERS]
    for index, test in enumerate(settings.tests):
        for at, given in enumerate(test.given):
            if not isinstance(given, str) and given.receiver is not None:
                path = f"tests[{index}].given[{at}].receiver"
                check_known("E1523", path, "receiver", given.receiver, receivers, findings)
        for at, then in enumerate(test.then):
            check_known("E1523", f"tests[{index}].then[{at}].to", "sender", then.to, targets, findings)


def _check_classes(settings: PipelineFile, findings: Findings) -> None:
    for path, name, code, what, accepts in _named_classes(settings):
        found = findings.imported(name)
        if not isinstance(found, ConfigError) and not accepts(found):
            findings.error(code, path, f"{findings.show(name)} is not {what}")
    _check_monitors(settings, findings)
    for index, sender in enumerate(settings.senders):
        if sender.call is not None and not isinstance(function := findings.imported(sender.call.function), ConfigError):
            _report(findings, check_function, function, sender.call, f"senders[{index}].call")
    for path, step in _steps(settings):
        if isinstance(step, PythonStep) and not isinstance(function := findings.imported(step.function), ConfigError):
            _report(findings, refuse_deferred, function, f"{path}.python.function")


def _named_classes(settings: PipelineFile) -> Iterator[tuple[str, str, str, str, Callable[[Any], bool]]]:
    """Yield what a file names as `module:name`: place, name, the code if it is of another kind, and its kind."""
    for index, monitor in enumerate(settings.monitors):
        yield f"monitors[{index}].type", monitor.type, "E1502", "a Monitor class", _is_a(Monitor)
    for index, receiver in enumerate(settings.receivers):
        if receiver.event is not None:
            yield f"receivers[{index}].event", receiver.event, "E1505", "an event class", _is_event
    for path, step in _steps(settings):
        if isinstance(step, MonitorStep):
            yield f"{path}.monitor.class", step.class_, "E1503", "a KeyedMonitor class", _is_a(KeyedMonitor)
        elif isinstance(step, PythonStep):
            yield f"{path}.python.function", step.function, "E1504", "a function", callable


def _check_monitors(settings: PipelineFile, findings: Findings) -> None:
    found = [(monitor, findings.imported(monitor.type)) for monitor in settings.monitors]
    classes = [(monitor, cls) for monitor, cls in found if _is_a(Monitor)(cls)]
    for monitor, error in unfit(classes, stored=settings.store is not None):
        at = next(index for index, one in enumerate(settings.monitors) if one is monitor)
        findings.error(error.code, f"monitors[{at}].type", error.what, error.allowed, error.todo)


def _is_a(base: type) -> Callable[[Any], bool]:
    return lambda found: isinstance(found, type) and issubclass(found, base)


def _is_event(found: Any) -> bool:
    return isinstance(found, type) and hasattr(found, "__struct_fields__")


def _check_templates(settings: PipelineFile, findings: Findings) -> None:
    for index, receiver in enumerate(settings.receivers):
        found = findings.imported(receiver.event) if receiver.event is not None else None
        event_type = found if _is_event(found) else None
        constant = not RECEIVING[receiver.reliability].deduplicated
        path = f"receivers[{index}]"
        _report(
            findings, Template, receiver.unique_message_id, f"{path}.unique_message_id", event_type, constant=constant
        )
        _report(findings, Template, receiver.message_source_id, f"{path}.message_source_id", event_type)


def _check_mappings(settings: PipelineFile, findings: Findings) -> None:
    taken = settings.taken
    for index, receiver in enumerate(settings.receivers):
        path = f"receivers[{index}]"
        if receiver.mapping:
            _report(findings, _check_receive_mapping, receiver, findings, f"{path}.mapping")
        if receiver.id in taken:
            _report(findings, refuse_for_pipelines, receiver, path)
    for index, sender in enumerate(settings.senders):
        _report(findings, check_targets, sender.mapping, f"senders[{index}].mapping")
    for index, bridge in enumerate(settings.bridges):
        _report(findings, check_forwarding, bridge.mapping, f"bridges[{index}].mapping")


def _check_receive_mapping(receiver: ReceiverSettings, findings: Findings, path: str) -> None:
    check_sources(receiver.mapping, path)
    if receiver.event is None:
        raise ConfigError("E1064", path, "needs an event to make", "", "Set 'event'")
    if _is_event(event_type := findings.imported(receiver.event)):
        FieldMapping(receiver.mapping, event_type, receiver.destination, path)


def _report(findings: Findings, check: Callable[..., object], *arguments: Any, **options: Any) -> None:
    try:
        check(*arguments, **options)
    except (ConfigError, UsageError) as error:
        findings.error(error.code, error.where, error.what, error.allowed, error.todo)


@contextlib.contextmanager
def _connections(settings: PipelineFile, findings: Findings) -> Iterator[dict[str, Connection]]:
    """Make the connections without opening them, and close them at the end. The reader reports unknown types."""
    made = {}
    with contextlib.ExitStack() as stack:
        for name, connection in settings.connections.items():
            path = f"connections.{name}"
            try:
                factory = connector(connection.type, path)
            except ConfigError:
                continue
            try:
                made[name] = factory(name, connection)
            except ConfigError as error:
                findings.error(error.code, error.where, error.what, error.allowed, error.todo)
            else:
                stack.callback(made[name].close)
        yield made


def _group(connection: Connection, receiver: ReceiverSettings) -> str:
    """The subscription of a receiver; "" for a receiver with wrong settings, which gets an error of its own."""
    try:
        return group_of(connection, receiver)
    except ConfigError:
        return ""


def _check_endpoint(
    path: str,
    endpoint: ReceiverSettings | SenderSettings,
    connection: Connection,
    settings: PipelineFile,
    findings: Findings,
) -> None:
    resolved = endpoint
    if endpoint.destination is not None and endpoint.destination in settings.destinations:
        resolved = dataclasses.replace(endpoint, destination=settings.destinations[endpoint.destination])
    try:
        if isinstance(resolved, ReceiverSettings):
            features = connection.features
            selection(resolved, path, selects=features.selects, shares=features.shares)
            others = itertools.takewhile(lambda one: one.id != endpoint.id, settings.receivers)
            connection.source(resolved)
            group = functools.partial(_group, connection)
            refuse_beside(resolved, others, path, settings.destinations, shares=features.shares, group=group)
        else:
            refuse_call(resolved, path, connection.features)
            connection.sink(resolved)
    except ConfigError as error:
        kind = path.partition("[")[0]
        place = error.where.replace(f"{kind}.{endpoint.id}", path, 1)
        option = place.replace(path, f"{path}.options", 1)
        if place not in findings.positions and option in findings.positions:
            place = option
        if not findings.reported(error.code, place):
            findings.error(error.code, place, error.what, error.allowed, error.todo)


def _endpoints(settings: PipelineFile) -> Iterator[tuple[str, ReceiverSettings | SenderSettings]]:
    yield from ((f"receivers[{index}]", receiver) for index, receiver in enumerate(settings.receivers))
    yield from ((f"senders[{index}]", sender) for index, sender in enumerate(settings.senders))


def _steps(settings: PipelineFile) -> Iterator[tuple[str, Step]]:
    for index, pipeline in enumerate(settings.pipelines):
        yield from ((f"pipelines[{index}].steps[{at}]", step) for at, step in enumerate(pipeline.steps))
