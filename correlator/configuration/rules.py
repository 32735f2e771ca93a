"""The rules that concern several settings of an engine together."""

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from correlator.configuration.connectors import connector, installed
from correlator.configuration.document import MappingNode, ScalarNode
from correlator.configuration.problems import Findings, item, member
from correlator.configuration.scalars import core_value
from correlator.configuration.shares import check_shares, example
from correlator.configuration.store_url import check_store, same_database
from correlator.configuration.units import seconds
from correlator.connector import Advising, Connection, OwnsDatabase, TellsPublicSecrets
from correlator.errors import ConfigError, CorrelatorError
from correlator.reliability import RECEIVING, SENDING, Reliability
from correlator.settings import (
    BridgeSettings,
    ConnectionSettings,
    EngineSettings,
    HttpSettings,
    ReceiverSettings,
    SenderSettings,
)

VERSION = 1
_MOST_SHOWN = 20
_SENDER_MODES = "Use BEST_EFFORT, AT_LEAST_ONCE or EXACTLY_ONCE"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DESTINATION = re.compile(r"(?:queue|topic):(?P<name>.+)", re.DOTALL)

Endpoint = ReceiverSettings | SenderSettings


def check_version(tree: MappingNode, findings: Findings) -> None:
    """Refuse a file for a newer version of correlator at once: its other settings may have another meaning."""
    found = next((value for key, value in tree.entries if key.text == "version"), None)
    version = core_value(found.text) if isinstance(found, ScalarNode) and found.plain else VERSION
    if isinstance(version, int) and version != VERSION:
        assert found is not None
        what = f"config version {findings.show(version)}, this product knows {VERSION}"
        todo = "Use the version of the product that the file was written for"
        findings.error("E1040", "version", what, "", todo, at=found.position)
        findings.raise_errors()


def check_plain_secrets(paths: Collection[str], findings: Findings, *, others_read: bool) -> None:
    """Report passwords in the file: a warning, or an error if other users can read the file."""
    for path in paths:
        if not re.match(r"(connections|receivers|senders|store|spark|http)\b", path):
            continue  # in other places 'token' is no secret, but a column or an attribute of a monitor
        if others_read:
            what = "password in a config file that every user can read"
            findings.error("E9001", path, what, "", "Use ${NAME} or ${file:/path}, or chmod 600 the file")
        else:
            findings.warn("W9001", path, "password in the config file", "", "Use ${NAME} or ${file:/path}")


def public_secrets(tree: MappingNode, secrets: Collection[str], types: Mapping[str, str]) -> set[str]:
    """Return those of the secrets that everybody knows, as the connectors of their connections say.

    Args:
        tree: the file.
        secrets: the paths of all secrets in it.
        types: the type of each connection, by name.
    """
    connections = next((node for key, node in tree.entries if key.text == "connections"), None)
    found: set[str] = set()
    for name, node in connections.entries if isinstance(connections, MappingNode) else ():
        entries = node.entries if isinstance(node, MappingNode) else ()
        options = {key.text: value.text for key, value in entries if isinstance(value, ScalarNode)}
        path = member("connections", name.text)
        if {member(path, one) for one in options}.isdisjoint(secrets):
            continue
        with contextlib.suppress(ConfigError):  # `check_engine` reports it
            factory = connector(types.get(name.text, ""), path)
            if isinstance(factory, TellsPublicSecrets):
                found.update(member(path, one) for one in factory.public_secrets(options))
    return found


def check_imports(paths: Mapping[str, str], accept: Callable[[str, object], None], findings: Findings) -> None:
    """Import every object that the file names, and let `accept` check it."""
    for path, name in paths.items():
        try:
            found = findings.imported(name)
            if isinstance(found, ConfigError):
                raise found
            accept(name, found)
        except CorrelatorError as exc:
            findings.error(exc.code, path, findings.secrets.redact(exc.what), exc.allowed, exc.todo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provided:
    """What a program gives to an engine beside its settings.

    Attributes:
        connectors: connector types that are allowed beside the installed ones.
        connections: connections by name.
        store: whether the program gives a store.
    """

    connectors: Collection[str] = ()
    connections: Mapping[str, Connection] = field(default_factory=dict)
    store: bool = False


NOTHING_PROVIDED = Provided()


def check_engine(settings: EngineSettings, provided: Provided, findings: Findings) -> None:
    """Apply every rule over the settings of an engine."""
    if settings.store is not None:
        check_store(settings.store, findings)
    if settings.store is not None and not provided.store:
        _check_modules(settings, findings)
    check_shares(settings, findings)
    settings = example(settings)
    made = {name: one for name, one in settings.connections.items() if name not in provided.connections}
    _check_connections(made, provided.connectors, findings)
    if settings.store is not None and not provided.store:
        _check_databases(settings.store, made, findings)
    _check_destinations(settings.destinations, findings)
    _check_ids(settings, findings)
    _check_bridges(settings, findings)
    _check_dead_letters(settings, provided, findings)
    advising = advisors(settings, provided)
    for path, endpoint in _endpoints(settings):
        check_endpoint(path, endpoint, settings, provided, advising, findings)
    check_windows(_endpoints(settings), settings, advising, findings)
    if settings.http is not None:
        _check_http(settings.http, findings)
    if settings.opentelemetry is not None:
        _check_collector(settings.opentelemetry.endpoint, findings)


def _check_modules(settings: EngineSettings, findings: Findings) -> None:
    """Refuse classes of a notebook or an interactive session: no other program could read their state back.

    The classes of a program in a file exist again when the same file runs again.
    """
    if hasattr(sys.modules["__main__"], "__file__"):
        return
    paths = [(member(item("monitors", at), "type"), one.type) for at, one in enumerate(settings.monitors)]
    paths += [(member(item("receivers", at), "event"), one.event or "") for at, one in enumerate(settings.receivers)]
    for path, name in paths:
        if name.startswith("__main__:"):
            what = f"{findings.show(name)} is of a notebook or interactive session: no other program could import it"
            allowed = "With a store, classes of monitors and events stand in modules"
            todo = "Move the class into a module; in a notebook, write one with %%writefile, or use a store in memory"
            findings.error("E5610", path, what, allowed, todo)


def _check_http(http: HttpSettings, findings: Findings) -> None:
    if http.token is None and http.host not in _LOOPBACK:
        what = f"{findings.show(http.host)} can be reached by other machines, and there is no 'token'"
        todo = "Set 'token', for example to ${file:/path}, or leave 'host' out"
        findings.error("E1601", "http.host", what, f"Without a token: {', '.join(_LOOPBACK)}", todo)
    elif http.token is not None and not (http.token.isascii() and http.token.isprintable() and " " not in http.token):
        what = "holds a blank, or a character that an HTTP header cannot hold"
        findings.error("E1602", "http.token", what, "Printable ASCII characters without blanks")


def _check_collector(endpoint: str, findings: Findings) -> None:
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and parts.port != 0 and bool(parts.hostname and parts.path)
    except ValueError:
        usable = False
    path = "opentelemetry.endpoint"
    if not usable or not endpoint.isprintable() or " " in endpoint:
        allowed = "http://HOST:PORT/v1/traces, or https://…"
        findings.error("E1611", path, f"{findings.show(endpoint)} is not the address of a collector", allowed)
    elif "@" in parts.netloc:
        what = "holds a user or password, which the log would show"
        todo = "Set the environment variable OTEL_EXPORTER_OTLP_HEADERS"
        findings.error("E1611", path, what, "An address without credentials", todo)


def _check_connections(
    connections: Mapping[str, ConnectionSettings], connectors: Collection[str], findings: Findings
) -> None:
    for name, connection in connections.items():
        path = member("connections", name)
        _check_type(path, connection.type, connectors, findings)
        if connection.default_sender_reliability not in SENDING:
            place, mode = member(path, "default_sender_reliability"), connection.default_sender_reliability
            findings.error("E1204", place, f"{mode} is for receivers only", _SENDER_MODES)


def _check_databases(store: str, connections: Mapping[str, ConnectionSettings], findings: Findings) -> None:
    """Refuse a store and a broker in one database: whichever comes second could never open it."""
    for name, connection in connections.items():
        with contextlib.suppress(ConfigError):  # `_check_type` and the connector report it
            factory = connector(connection.type, name)
            if isinstance(factory, OwnsDatabase) and same_database(factory.own_database(connection.options), store):
                what = "the broker of this connection would have its messages in the database of the store"
                allowed = "A store and a broker have a file, or a schema of PostgreSQL, of their own"
                todo = "Give the connection another 'store'"
                findings.error("E1303", member("connections", name), what, allowed, todo)


def _check_type(path: str, type_: str, given: Collection[str], findings: Findings) -> None:
    known = sorted({*installed(), *given})
    if type_ not in known:
        what = f"{findings.show(type_)} is not a connector"
        findings.error("E1212", member(path, "type"), what, f"Known: {', '.join(known)}", findings.hint(type_, known))
    elif type_ not in given:
        try:
            connector(type_, path)
        except ConfigError as error:
            findings.error(error.code, path, error.what, error.allowed, error.todo)


def _check_destinations(destinations: Mapping[str, str], findings: Findings) -> None:
    for name, destination in destinations.items():
        _check_destination(member("destinations", name), destination, {}, findings)


def _check_destination(path: str, destination: str, logical: Mapping[str, str], findings: Findings) -> None:
    if destination in logical:
        return
    found = _DESTINATION.fullmatch(destination)
    if found and found["name"].strip() and destination.isprintable():
        return
    allowed = "Write queue:NAME or topic:NAME"
    if logical:
        allowed += f", or one of {_few(logical)}"
    what = f"{findings.show(destination)} is not a destination"
    findings.error("E1215", path, what, allowed, findings.hint(destination, logical))


def _check_ids(settings: EngineSettings, findings: Findings) -> None:
    used: dict[str, str] = {}
    for path, endpoint in _endpoints(settings):
        place = member(path, "id")
        if endpoint.id in used:
            what = f"{findings.show(endpoint.id)} is already used at {used[endpoint.id]}"
            findings.error("E1210", place, what, "Receivers and senders share one set of ids")
        used.setdefault(endpoint.id, f"line {findings.position(place).line}" if findings.file else place)


def _check_bridges(settings: EngineSettings, findings: Findings) -> None:
    taken = {monitor.context: "a context of monitors" for monitor in settings.monitors}
    receivers = [receiver.id for receiver in settings.receivers]
    homeless = {sender.id: sender.destination is None for sender in settings.senders}
    for index, bridge in enumerate(settings.bridges):
        path = item("bridges", index)
        if bridge.name in taken:
            what = f"{findings.show(bridge.name)} is already the name of {taken[bridge.name]}"
            findings.error("E1520", member(path, "name"), what, "", "Choose another name")
        taken.setdefault(bridge.name, "another bridge")
        check_references("E1521", member(path, "from"), "receiver", bridge.from_, receivers, findings)
        check_references("E1522", member(path, "to"), "sender", bridge.to, list(homeless), findings)
        for sender in bridge.to:
            if homeless.get(sender, False) and "destination" not in bridge.mapping:
                what = f"sender {findings.show(sender)} has no destination"
                todo = "Give the sender a 'destination', or map one"
                findings.error("E1524", member(path, "to"), what, "", todo)
        _hint_loop(path, bridge, settings, findings)


def _check_dead_letters(settings: EngineSettings, provided: Provided, findings: Findings) -> None:
    name, path = settings.dead_letter_sender, "dead_letter_sender"
    if name is None:
        return
    check_known("E1541", path, "sender", name, [one.id for one in settings.senders], findings)
    sender = next((one for one in settings.senders if one.id == name), None)
    if sender is None:
        return
    if settings.store is None and not provided.store:
        what = "an engine without a store only logs messages that it gives up"
        findings.error("E1541", path, what, "", "Set 'store', or leave it out")
    if sender.reliability in SENDING and not SENDING[sender.reliability].stored:
        what = f"sender {findings.show(name)} is {sender.reliability} and keeps nothing in the store"
        findings.error("E1541", path, what, "A sender that is AT_LEAST_ONCE or EXACTLY_ONCE")
    if sender.destination is None:
        what = f"sender {findings.show(name)} has no destination"
        findings.error("E1541", path, what, "", "Give the sender a 'destination'")
    if settings.input_log is not None:
        what = "the engine records an input log, whose replay would not know of these sends"
        findings.error("E1541", path, what, "", "Leave it out: the store then keeps dead letters")
    for receiver in settings.receivers:
        if _place(receiver, settings) == _place(sender, settings) and not receiver.no_local:
            what = f"receiver '{receiver.id}' takes what sender '{name}' sends: a message that always fails goes round"
            findings.warn("W1542", path, what, "", "Give the sender another destination")


def _place(endpoint: Endpoint, settings: EngineSettings) -> tuple[str, str | None]:
    """Where an endpoint takes from or sends to."""
    named = endpoint.destination or ""
    return endpoint.connection, settings.destinations.get(named, named)


def check_references(
    code: str, path: str, kind: str, names: Sequence[str], known: Sequence[str], findings: Findings
) -> None:
    """Report names of receivers or senders that do not exist or are repeated, and an empty list of names."""
    if not names:
        findings.error(code, path, f"names no {kind}", known_names(known))
    for at, name in enumerate(names):
        check_known(code, item(path, at), kind, name, known, findings)
        if name in known and name in names[:at]:
            findings.error(code, item(path, at), f"names {findings.show(name)} again", "", "Name it once")


def check_known(code: str, path: str, kind: str, name: str, known: Sequence[str], findings: Findings) -> None:
    """Report the name of a receiver or sender that does not exist."""
    if name not in known:
        what = f"{findings.show(name)} is not a {kind}"
        findings.error(code, path, what, known_names(known), findings.hint(name, known))


def known_names(names: Sequence[str]) -> str:
    """Return the names that a setting may have, for a message."""
    return f"Defined: {', '.join(names) or 'none'}"


def _hint_loop(path: str, bridge: BridgeSettings, settings: EngineSettings, findings: Findings) -> None:
    """Warn of a bridge that receives its own messages."""
    received = [one for one in settings.receivers if one.id in bridge.from_ and not one.no_local]
    taken = {_place(one, settings): one.id for one in received}
    for sender in (one for one in settings.senders if one.id in bridge.to):
        place = _place(sender, settings)
        if place in taken and bridge.selector is None and "destination" not in bridge.mapping:
            what = f"sender '{sender.id}' sends to the destination of receiver '{taken[place]}', without end"
            findings.warn("W1539", member(path, "to"), what, "", "Give one of them another destination")


def with_default_reliabilities(settings: EngineSettings, findings: Findings) -> EngineSettings:
    """Give receivers and senders that name no reliability the default of their connection (rule A1.20)."""

    def names_none(path: str) -> bool:
        return member(path, "reliability") not in findings.positions

    receivers, senders = list(settings.receivers), list(settings.senders)
    for index, receiver in enumerate(receivers):
        connection = settings.connections.get(receiver.connection)
        if connection is not None and names_none(item("receivers", index)):
            receivers[index] = replace(receiver, reliability=connection.default_receiver_reliability)
    for index, sender in enumerate(senders):
        connection = settings.connections.get(sender.connection)
        if connection is not None and names_none(item("senders", index)):
            senders[index] = replace(sender, reliability=connection.default_sender_reliability)
    return replace(settings, receivers=tuple(receivers), senders=tuple(senders))


def _endpoints(settings: EngineSettings) -> Iterator[tuple[str, Endpoint]]:
    for index, receiver in enumerate(settings.receivers):
        yield item("receivers", index), receiver
    for index, sender in enumerate(settings.senders):
        yield item("senders", index), sender


def check_endpoint(
    path: str,
    endpoint: Endpoint,
    settings: EngineSettings,
    provided: Provided,
    advising: Mapping[str, Advising],
    findings: Findings,
) -> None:
    """Apply the rules for one receiver or sender of an engine; `advising` is the result of `advisors`."""
    connections = dict.fromkeys([*settings.connections, *provided.connections])
    if endpoint.connection not in connections:
        what = f"{findings.show(endpoint.connection)} is not defined"
        hint = findings.hint(endpoint.connection, connections)
        findings.error("E1211", member(path, "connection"), what, f"Defined: {_few(connections) or 'none'}", hint)
    if endpoint.destination is not None:
        _check_destination(member(path, "destination"), endpoint.destination, settings.destinations, findings)
    _check_options(path, endpoint, findings)
    if isinstance(endpoint, SenderSettings):
        _check_stamps(path, endpoint, findings)
    _check_reliability(path, endpoint, findings, persistent=settings.store is not None or provided.store)
    advisor = advising.get(endpoint.connection)
    for one in advisor.advice(endpoint) if advisor is not None else ():
        where = member(member(path, "options"), one.option) if one.option else path
        findings.warn(one.code, where, one.what, one.allowed, one.todo)


def _check_options(path: str, endpoint: Endpoint, findings: Findings) -> None:
    """Report options that JSON cannot hold: the registry stores them as JSON, and each start compares them."""
    try:
        msgspec.json.encode(endpoint.options)
    except (TypeError, ValueError) as error:
        findings.error(
            "E1022", member(path, "options"), f"cannot be stored: {error}", "Texts, numbers, booleans, lists"
        )


def _check_stamps(path: str, sender: SenderSettings, findings: Findings) -> None:
    """Report names of properties that would lose the unique id or the source id of each message."""
    names = {
        "unique_message_id_property": sender.unique_message_id_property,
        "message_source_id_property": sender.message_source_id_property,
    }
    for setting, name in names.items():
        if not name:
            findings.error("E1022", member(path, setting), "is empty, must be the name of a property")
    if sender.unique_message_id_property == sender.message_source_id_property:
        what = f"{findings.show(sender.unique_message_id_property)} carries the source id, too, and would lose the id"
        place = member(path, "unique_message_id_property")
        findings.error("E1022", place, what, "Two different names")


def _check_reliability(path: str, endpoint: Endpoint, findings: Findings, *, persistent: bool) -> None:
    place, mode = member(path, "reliability"), endpoint.reliability
    receives = isinstance(endpoint, ReceiverSettings)
    if not receives and mode not in SENDING:
        findings.error("E1204", place, f"{mode} is for receivers only", _SENDER_MODES)
        return
    promise = RECEIVING[mode] if receives else SENDING[mode]
    if promise.needs_persistence and not persistent:
        other = "BEST_EFFORT or APP_CONTROLLED" if receives else "BEST_EFFORT"
        what = f"{mode} needs a persistent engine ({findings.show(endpoint.id)})"
        findings.error("E1205", place, what, "", f"Set 'store', or use {other}")


def advisors(settings: EngineSettings, provided: Provided) -> Mapping[str, Advising]:
    """Return, by name of the connection, the connectors that give advice. `_check_type` reports missing connectors."""
    found: dict[str, object] = {**provided.connections}
    for name, connection in settings.connections.items():
        if name not in found:
            with contextlib.suppress(ConfigError):
                found[name] = connector(connection.type, name)
    return {name: one for name, one in found.items() if isinstance(one, Advising)}


def check_windows(
    endpoints: Iterable[tuple[str, Endpoint]],
    settings: EngineSettings,
    advising: Mapping[str, Advising],
    findings: Findings,
) -> None:
    """Apply the rules for the windows of duplicate detection that these receivers of an engine use."""
    windows = settings.duplicate_detection
    exactly_once = [
        (path, endpoint)
        for path, endpoint in endpoints
        if isinstance(endpoint, ReceiverSettings) and endpoint.reliability is Reliability.EXACTLY_ONCE
    ]
    if exactly_once and windows.per_source_window_size == 0 and windows.expiry_time == 0:
        what = "both duplicate windows are 0: nothing can be detected"
        findings.error("E1402", "duplicate_detection", what, "", "Set one of them, or use AT_LEAST_ONCE")
        return
    for path, receiver in exactly_once:
        _check_window_size(path, receiver, windows.per_source_window_size, findings)
        advisor = advising.get(receiver.connection)
        if advisor is not None:
            options = {**_connection_options(settings, receiver), **receiver.options}
            times = {name: options[name] for name in advisor.redelivery_options if name in options}
            _check_expiry_time(path, times, windows.expiry_time, findings)


def _check_window_size(path: str, receiver: ReceiverSettings, window: int, findings: Findings) -> None:
    if 0 < window < receiver.max_batch_size:
        what = f"{window} is smaller than max_batch_size ({receiver.max_batch_size}) of {path}"
        then = "A redelivered batch may not be recognised"
        findings.warn("W1401", "duplicate_detection.per_source_window_size", what, then)


def _connection_options(settings: EngineSettings, receiver: ReceiverSettings) -> Mapping[str, Any]:
    connection = settings.connections.get(receiver.connection)
    return connection.options if connection is not None else {}


def _check_expiry_time(path: str, times: Mapping[str, Any], expiry_time: float, findings: Findings) -> None:
    for name, time in times.items():
        redelivery = seconds(str(time))
        if redelivery is not None and 0 < expiry_time < 2 * redelivery:
            what = f"{expiry_time:g}s is less than twice the {name} ({redelivery:g}s) of {path}"
            rule = "Rule of thumb: 2 to 3 times the broker's redelivery timeout"
            findings.warn("W1403", "duplicate_detection.expiry_time", what, rule)


def _few(names: Collection[str]) -> str:
    shown = [*names][:_MOST_SHOWN]
    return ", ".join([*shown, "…"] if len(names) > len(shown) else shown)
