"""The rules of the registry: which receivers and senders a start accepts, and which ones code may add and remove.

Rules A1.7 to A1.14: the configuration may add static parts, but never remove or change one, except for the place from
which a receiver takes messages, if its duplicate detection domain is explicit, and for the physical destination of a
logical one. A start makes dynamic parts again as they were. Connections may change. A start names every difference
before it writes anything.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from correlator.core.commit import Endpoint, RegistryCommit
from correlator.core.delivery import Layout, Received, compare_deliveries, deliveries, with_deliveries
from correlator.core.differences import Difference, FieldChange, Verdict, refuse
from correlator.errors import RecoveryRefused, UsageError
from correlator.reliability import RECEIVING, SENDING, Reliability
from correlator.secrets import without_secrets
from correlator.settings import ConnectionSettings, EngineSettings, ReceiverSettings, SenderSettings

RECEIVER: msgspec.json.Decoder[ReceiverSettings] = msgspec.json.Decoder(ReceiverSettings)
SENDER: msgspec.json.Decoder[SenderSettings] = msgspec.json.Decoder(SenderSettings)
"""Encodes the settings in the registry. It is made here, by one thread, because two threads must not be the first to
use a type with msgspec."""
_NO_NAMES: Mapping[str, str] = {}
_NO_OPTIONS: Mapping[str, Collection[str]] = {}
_Part = TypeVar("_Part", bound=ReceiverSettings | SenderSettings)


def default_domain(settings: ReceiverSettings, destinations: Mapping[str, str] = _NO_NAMES) -> str:
    """The duplicate detection domain of a receiver; `destinations` has the physical destinations by logical name.

    The domain of a queue contains the word queue, `connection:queue:NAME`. So it differs from the domain of a receiver
    of a topic whose id is the name of the queue. If a logical name leads to a topic, the domain contains the topic,
    since the name may lead to another topic later: a default domain never covers two destinations of a broker
    (docs/guarantees.md, "Duplicate detection").
    """
    if settings.dup_detection_domain_id:
        return settings.dup_detection_domain_id
    destination = destinations.get(settings.destination, settings.destination)
    if not destination.startswith("topic:"):
        return f"{settings.connection}:{destination}"
    of_receiver = f"{settings.connection}:{settings.id}"
    return of_receiver if destination == settings.destination else f"{of_receiver}:{destination}"


def endpoint_of(
    settings: ReceiverSettings | SenderSettings,
    *,
    dynamic: bool,
    known: Endpoint | None = None,
    destinations: Mapping[str, str] = _NO_NAMES,
    subscription: str = "",
) -> Endpoint:
    """Make the entry of the registry for a receiver or sender.

    The entry of a static part contains no secrets, because each start has the settings of the part. The entry of a
    dynamic part contains all settings.

    Args:
        settings: settings of the part, as configured.
        dynamic: whether code has added the part.
        known: its present entry, if there is one; the new entry keeps its source, its contexts, and the beginning of
            `unhandled: dead_letter`.
        destinations: physical destinations by logical name.
        subscription: name of the subscription that a receiver reads; "" if its connection does not tell.
    """
    receiver = isinstance(settings, ReceiverSettings)
    domain = default_domain(settings, destinations) if isinstance(settings, ReceiverSettings) else ""
    stored = settings if dynamic else without_secret_options(settings)
    return Endpoint(
        id=settings.id,
        kind="receiver" if receiver else "sender",
        origin="dynamic" if dynamic else "static",
        reliability=str(settings.reliability),
        connection=settings.connection,
        destination=settings.destination or "",
        domain=domain,
        source=known.source if known is not None else "",
        delivers_to=known.delivers_to if known is not None else {},
        unhandled_after=known.unhandled_after if known is not None else 0,
        subscription=subscription or (known.subscription if known is not None else ""),
        settings=msgspec.json.encode(stored),
    )


def without_secret_options(part: _Part) -> _Part:
    """Return the settings of a part with `***` in place of the secrets of its options."""
    return replace(part, options=without_secrets(part.options)) if part.options else part


def entry_without_secrets(endpoint: Endpoint) -> Endpoint:
    """Return an entry without the secrets that it has if its part is dynamic; no start can make the part from it."""
    if endpoint.origin == "static":
        return endpoint
    settings: dict[str, Any] = msgspec.json.decode(endpoint.settings, type=dict[str, Any])
    stored = {**settings, "options": without_secrets(settings.get("options", {}))}
    return msgspec.structs.replace(endpoint, settings=msgspec.json.encode(stored))


def default_senders(settings: EngineSettings, connections: Iterable[str] = ()) -> list[SenderSettings]:
    """The default sender of every connection without configured senders (rule A1.20).

    Args:
        settings: settings of the engine.
        connections: names of connections that the settings do not define.
    """
    sent_to = {sender.connection for sender in settings.senders}
    unknown = ConnectionSettings(type="")
    return [
        SenderSettings(
            id=f"{name}-default-sender",
            connection=name,
            reliability=settings.connections.get(name, unknown).default_sender_reliability,
        )
        for name in dict.fromkeys([*settings.connections, *connections])
        if name not in sent_to
    ]


Settings = ReceiverSettings | SenderSettings


class Rule(StrEnum):
    """The rule of docs/rules.md by which a start accepts or refuses a change, in the words that `plan` shows."""

    STATIC = "a configured part cannot be removed"  # rule A1.7
    NEW_ID = "a new part needs an id that no other part has"  # rule A1.9
    STAYS = "reliability, connection, destination, domain, subscription and routing options stay"  # rule A1.11
    EXPLICIT = "a receiver whose dup_detection_domain_id is set may move"  # rule A1.11
    DEFAULT_DOMAIN = "a receiver without dup_detection_domain_id cannot move"  # rule A1.12
    LOGICAL = "a logical destination may lead elsewhere"  # rule A1.14
    DEFAULT_SENDER = "a default sender that was used keeps its reliability"  # rule A1.20


class PartDifference(Difference, frozen=True, kw_only=True):
    """A receiver or sender. `put` is its new entry in the registry, `None` when the registry need not change."""

    put: Endpoint | None = None


def reconcile(
    stored: Iterable[Endpoint],
    configured: Sequence[Settings],
    defaults: Iterable[SenderSettings] = (),
    destinations: Mapping[str, str] = _NO_NAMES,
    subscriptions: Mapping[str, str] = _NO_NAMES,
    *,
    routing: Mapping[str, Collection[str]] = _NO_OPTIONS,
    unmoved: Collection[str] = (),
    layout: Layout,
    received: Received,
) -> RegistryCommit:
    """Compare a configuration with the registry and with the received messages; returns the changes to write.

    Args:
        stored: the registry.
        configured: the static parts of the configuration.
        defaults: the default senders of its connections; each exists as soon as something was sent to it.
        destinations: physical destinations by logical name.
        subscriptions: names of the subscriptions that receivers read, by id, as far as their connections tell.
        routing: names of the options of senders that say where messages go, by name of the connection.
        unmoved: ids of parts whose options name the same place as those in the registry.
        layout: the contexts of the configuration.
        received: the numbers of the received messages that the store holds.

    Raises `RecoveryRefused` E4301 to E4304, E4315 and E4316, which names every difference and what to do.
    """
    known = {endpoint.id: endpoint for endpoint in stored}
    parts = compare_parts(known.values(), configured, defaults, destinations, subscriptions, routing, unmoved)
    endpoints = registry_after(known.values(), parts)
    found = compare_deliveries(endpoints, layout, received)
    refuse([*parts, *found])
    given = deliveries(found)
    after = [
        _with_letters(known.get(one.id), with_deliveries(one, given.get(one.id, {})), received) for one in endpoints
    ]
    return RegistryCommit(put=[endpoint for endpoint in after if known.get(endpoint.id) != endpoint])


def _with_letters(known: Endpoint | None, wanted: Endpoint, received: Received) -> Endpoint:
    """Return the entry with the number of the last message that was received before `unhandled: dead_letter` was set.

    For messages up to this number, nothing has recorded which contexts have handled them.
    """
    begins = _begins_to_keep(known, wanted)
    if _keeps_unhandled(wanted) and not begins:
        return wanted
    return msgspec.structs.replace(wanted, unhandled_after=received.last_number(wanted.id) if begins else 0)


def _begins_to_keep(known: Endpoint | None, wanted: Endpoint) -> bool:
    return known is not None and _keeps_unhandled(wanted) and not _keeps_unhandled(known)


def _keeps_unhandled(endpoint: Endpoint) -> bool:
    return endpoint.kind == "receiver" and _settings_of(endpoint).get("unhandled") == "dead_letter"


def registry_after(stored: Iterable[Endpoint], differences: Iterable[PartDifference]) -> list[Endpoint]:
    """Return the registry after a start that accepts these differences."""
    known = {endpoint.id: endpoint for endpoint in stored}
    known.update({one.put.id: one.put for one in differences if one.put is not None})
    return list(known.values())


def compare_parts(
    stored: Iterable[Endpoint],
    configured: Sequence[Settings],
    defaults: Iterable[SenderSettings] = (),
    destinations: Mapping[str, str] = _NO_NAMES,
    subscriptions: Mapping[str, str] = _NO_NAMES,
    routing: Mapping[str, Collection[str]] = _NO_OPTIONS,
    unmoved: Collection[str] = (),
) -> list[PartDifference]:
    """Return every receiver and sender of the configuration and of the registry, and what a start does with it.

    Args:
        stored: the registry.
        configured: the static parts of the configuration.
        defaults: the default senders of its connections; each exists as soon as something was sent to it.
        destinations: physical destinations by logical name.
        subscriptions: names of the subscriptions that receivers read, by id, as far as their connections tell.
        routing: names of the options of senders that say where messages go, by name of the connection.
        unmoved: ids of parts whose options name the same place as those in the registry.
    """
    by_id = {endpoint.id: endpoint for endpoint in stored}
    read = subscriptions.get
    found = [
        _compare(
            by_id.get(one.id),
            one,
            destinations,
            read(one.id, ""),
            routing.get(one.connection, ()),
            unmoved=one.id in unmoved,
        )
        for one in configured
    ]
    named = {settings.id for settings in configured}
    for settings in defaults:
        known = by_id.get(settings.id)
        if known is not None and known.origin == "dynamic":
            named.add(known.id)
            found.append(_compare_default(known, settings))
    unnamed = [endpoint for endpoint in by_id.values() if endpoint.id not in named]
    return [*found, *(_compare_unnamed(one, destinations, read(one.id, "")) for one in unnamed)]


def _compare(
    known: Endpoint | None,
    settings: Settings,
    destinations: Mapping[str, str],
    subscription: str,
    routing: Collection[str],
    *,
    unmoved: bool,
) -> PartDifference:
    wanted = endpoint_of(settings, dynamic=False, known=known, destinations=destinations, subscription=subscription)
    if known is None:
        return _part(wanted, Verdict.NEW, Rule.NEW_ID, put=wanted)
    if known.origin == "dynamic":
        refusal = _refusal("E4304", known, "is configured now but was added by code before", "Rename it")
        return _part(known, Verdict.REFUSED, Rule.NEW_ID, refusals=[refusal])
    if known == wanted:
        return _part(known, Verdict.UNCHANGED)
    if unmoved:
        same = msgspec.structs.replace(known, subscription=wanted.subscription)
        return _changed_part(same, wanted, settings, destinations, ())
    return _changed_part(known, wanted, settings, destinations, routing)


def _changed_part(
    known: Endpoint,
    wanted: Endpoint,
    settings: Settings,
    destinations: Mapping[str, str],
    routing: Collection[str],
) -> PartDifference:
    topic = destinations.get(wanted.destination, wanted.destination).startswith("topic:")
    led = _led_elsewhere(known, wanted)
    forbidden = list(_forbidden(known, wanted, settings, topic=topic, routing=routing))
    if led:
        forbidden = [one for one in forbidden if one.field not in ("domain", _SUBSCRIPTION)]
    refusals = [_changed(known, change, settings) for change in forbidden]
    changes = _changes(known, wanted)
    if refusals:
        return _part(known, Verdict.REFUSED, _rule_of(refusals, settings), changes=changes, refusals=refusals)
    if led:
        return _part(wanted, Verdict.MOVED, Rule.LOGICAL, changes=changes, note=_LED_ELSEWHERE, put=wanted)
    notes = [OTHER_IDS] if ids_change(known, wanted) else []
    if known.destination != wanted.destination:
        notes = notes or ["receives from the new destination; the duplicate ids of its domain are kept"]
        return _part(wanted, Verdict.MOVED, Rule.EXPLICIT, changes=changes, note=notes[0], put=wanted)
    if list(_resubscribed(known, wanted)):
        notes = notes or [_OTHER_SUBSCRIPTION]
        return _part(wanted, Verdict.MOVED, Rule.EXPLICIT, changes=changes, note=notes[0], put=wanted)
    if _begins_to_keep(known, wanted):
        notes.append(_KEEPS_FROM_NOW_ON)
    note = "; ".join(notes)
    verdict = Verdict.CHANGED if changes else Verdict.UNCHANGED
    return _part(wanted, verdict, changes=changes, note=note, put=wanted)


def _compare_default(known: Endpoint, settings: SenderSettings) -> PartDifference:
    wanted = endpoint_of(settings, dynamic=True, known=known)
    refusals = [_changed(known, change, settings) for change in _forbidden(known, wanted, settings)]
    verdict, rule = (Verdict.REFUSED, Rule.DEFAULT_SENDER) if refusals else (Verdict.UNCHANGED, "")
    return _part(known, verdict, rule, changes=_changes(known, wanted) if refusals else (), refusals=refusals)


_KEEPS_FROM_NOW_ON = "messages that are received from now on become dead letters if no monitor listens for them"
_OTHER_SUBSCRIPTION = "receives from the new subscription; the duplicate ids of its domain are kept"
_LED_ELSEWHERE = "its logical destination leads elsewhere now, where duplicates are detected anew"


OTHER_IDS = "stored ids are of another template: repeats of messages received before are not recognised"


def ids_change(known: Endpoint, wanted: Endpoint) -> FieldChange | None:
    """The change of the template of a receiver's unique ids, if duplicate detection uses them; else `None`."""
    if wanted.kind != "receiver" or not RECEIVING[Reliability(wanted.reliability)].deduplicated:
        return None
    name = "unique_message_id"
    before, after = _settings_of(known).get(name), _settings_of(wanted).get(name)
    return None if before in (None, after) else FieldChange(name, str(before), str(after))


def _led_elsewhere(known: Endpoint, wanted: Endpoint) -> bool:
    """Whether the logical destination of a receiver has another physical destination than before."""
    by_default = not any(_settings_of(one).get("dup_detection_domain_id") for one in (known, wanted))
    same = (known.connection, known.destination) == (wanted.connection, wanted.destination)
    return by_default and same and known.domain != wanted.domain


def _compare_unnamed(known: Endpoint, destinations: Mapping[str, str], subscription: str) -> PartDifference:
    if known.origin == "dynamic":
        return _compare_added(known, _again(known, destinations, subscription))
    todo = f"Static {known.kind}s cannot be removed; remove is only possible for dynamic ones. Put it back"
    refusal = _refusal("E4301", known, "exists in the store but not in the configuration", todo)
    return _part(known, Verdict.REFUSED, Rule.STATIC, refusals=[refusal])


def _compare_added(known: Endpoint, wanted: Endpoint) -> PartDifference:
    """Compare the entry of a dynamic part with the entry that it gets now."""
    changes = list(_recorded(known, wanted))
    if changes:
        return _part(wanted, Verdict.MOVED, Rule.LOGICAL, changes=changes, note=_LED_ELSEWHERE, put=wanted)
    if changes := list(_resubscribed(known, wanted)):
        settings = RECEIVER.decode(known.settings)
        if _explicit(settings):
            return _part(wanted, Verdict.MOVED, Rule.EXPLICIT, changes=changes, note=_OTHER_SUBSCRIPTION, put=wanted)
        refusal = _refusal("E4302", known, _what(changes[0]), _NOT_ALLOWED)
        return _part(known, Verdict.REFUSED, Rule.DEFAULT_DOMAIN, changes=changes, refusals=[refusal])
    put = wanted if wanted != known else None
    return _part(known, Verdict.UNCHANGED, note="was added by code; it comes back as it was", put=put)


def _again(known: Endpoint, destinations: Mapping[str, str], subscription: str) -> Endpoint:
    """Return the entry of a dynamic part with the present physical destination of its logical destination, and with the
    present subscription.
    """
    if known.kind == "sender":
        return known
    domain = default_domain(RECEIVER.decode(known.settings), destinations)
    return msgspec.structs.replace(known, domain=domain, subscription=subscription or known.subscription)


def _part(endpoint: Endpoint, verdict: Verdict, rule: str = "", **more: Any) -> PartDifference:
    return PartDifference(kind=endpoint.kind, name=endpoint.id, verdict=verdict, rule=rule, **more)


_RECORDED = ("kind", "reliability", "connection", "destination", "domain")
_SUBSCRIPTION = "subscription"
_NAME_OF_SUBSCRIPTION = "durable_topic_subscription_name"


def _forbidden(
    known: Endpoint, wanted: Endpoint, settings: Settings, *, topic: bool = False, routing: Collection[str] = ()
) -> Iterator[FieldChange]:
    """Yield the changes of an existing part that no start accepts.

    Args:
        known: the entry in the registry.
        wanted: the entry that the configuration asks for.
        settings: settings of the part.
        topic: whether the part receives from a topic.
        routing: names of the options of a sender that say where messages go.
    """
    movable = _explicit(settings) and known.domain == wanted.domain
    for change in _recorded(known, wanted):
        if change.field != "destination" or not movable:
            yield change
    if isinstance(settings, ReceiverSettings) and topic:
        yield from _subscribed(known, wanted)
    if not movable:
        yield from _resubscribed(known, wanted)
    if isinstance(settings, SenderSettings):
        names = [f"options.{name}" for name in routing]
        yield from (change for change in _changes(known, wanted) if change.field in names)


def _resubscribed(known: Endpoint, wanted: Endpoint) -> Iterator[FieldChange]:
    """Yield the change of the subscription of a receiver, unless another change that is shown has caused it: that of
    the destination or that of the name in the settings of the receiver.
    """
    before, after = known.subscription, wanted.subscription
    if not before or before == after or known.destination != wanted.destination:
        return
    names = [_settings_of(one).get(_NAME_OF_SUBSCRIPTION) for one in (known, wanted)]
    if names[0] == names[1]:
        yield FieldChange(_SUBSCRIPTION, before, after)


_OF_SUBSCRIPTION = ("selector", "no_local", _NAME_OF_SUBSCRIPTION)
"""Settings of the subscription of a topic. The subscription may hold messages that it got under the earlier settings
(rule S1.5)."""


def _subscribed(known: Endpoint, wanted: Endpoint) -> Iterator[FieldChange]:
    before, after = _settings_of(known), _settings_of(wanted)
    for field in _OF_SUBSCRIPTION:
        default = known.id if field == _NAME_OF_SUBSCRIPTION else None
        was, becomes = before.get(field) or default, after.get(field) or default
        if was != becomes:
            yield FieldChange(field, _shown(was), _shown(becomes))


def _recorded(known: Endpoint, wanted: Endpoint) -> Iterator[FieldChange]:
    for field in _RECORDED:
        before, after = getattr(known, field), getattr(wanted, field)
        if before != after:
            yield FieldChange(field, before, after)


def _changes(known: Endpoint, wanted: Endpoint) -> list[FieldChange]:
    """Return all differences: of the columns of the registry, and of the settings that both sides have."""
    recorded = list(_recorded(known, wanted))
    before, after = _settings_of(known), _settings_of(wanted)
    others = [
        FieldChange(name, _shown(before.get(name)), _shown(after.get(name)))
        for name in dict.fromkeys([*before, *after])
        if name not in _RECORDED
        and before.get(name) != after.get(name)
        and (name.startswith("options.") or (name in before and name in after))
    ]
    return [*recorded, *_resubscribed(known, wanted), *others]


def _settings_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the settings by name, with options of the connector as `options.NAME`."""
    settings = msgspec.json.decode(endpoint.settings, type=dict[str, Any])
    options = settings.pop("options", {})
    return {**settings, **{f"options.{name}": value for name, value in options.items()}}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _explicit(settings: Settings) -> bool:
    return isinstance(settings, ReceiverSettings) and bool(settings.dup_detection_domain_id)


def _changed(known: Endpoint, change: FieldChange, settings: Settings) -> RecoveryRefused:
    way_out = _NOT_ALLOWED
    if change.field in _OF_SUBSCRIPTION:
        way_out = "The subscription holds messages of the old one. Put it back, and add a receiver with another id"
    if _follows_destination(change.field, settings):
        way_out = f"With an explicit domain it may move. Set dup_detection_domain_id: '{known.domain}'"
    return _refusal("E4302", known, _what(change), way_out)


_NOT_ALLOWED = "Not allowed for an existing one. Put it back"


def _what(change: FieldChange) -> str:
    return f"{change.field} changed from {change.before} to {change.after}"


def _follows_destination(field: str, settings: Settings) -> bool:
    return (
        field in ("destination", "domain", _SUBSCRIPTION)
        and isinstance(settings, ReceiverSettings)
        and not _explicit(settings)
    )


def _rule_of(refusals: Sequence[RecoveryRefused], settings: Settings) -> Rule:
    by_default_domain = all(_follows_destination(refusal.what.partition(" ")[0], settings) for refusal in refusals)
    return Rule.DEFAULT_DOMAIN if by_default_domain else Rule.STAYS


def _refusal(code: str, endpoint: Endpoint, what: str, todo: str) -> RecoveryRefused:
    return RecoveryRefused(code, f"{endpoint.kind} '{endpoint.id}'", what, "", todo)


class Users(NamedTuple):
    """A pipeline and the parts that its configuration names.

    Attributes:
        pipeline: name of the pipeline.
        receivers: ids of the receivers from which it takes messages.
        senders: ids of the senders to which it sends.
    """

    pipeline: str
    receivers: Collection[str]
    senders: Collection[str]


def is_known(registry: Mapping[str, Endpoint], settings: Settings, *, leaving: bool) -> bool:
    """Whether a part that code adds exists already.

    Args:
        registry: the entries by id.
        settings: settings of the part to be added.
        leaving: whether a part of this id is being removed.

    Raises `UsageError`: E8304 for a part that is being removed, E8303 for an id that another part has.
    """
    if leaving:
        raise UsageError("E8304", f"'{settings.id}'", "is being removed", "", "Add it again once it is removed")
    known = registry.get(settings.id)
    if known is None:
        return False
    if _is_same(known, settings):
        return True
    raise UsageError(
        "E8303",
        f"{known.kind} '{settings.id}'",
        f"exists already ({known.origin}), with other settings",
        "The configuration of a part never changes after it was made",
        "Choose another id",
    )


def refuse_default(defaults: Mapping[str, SenderSettings], settings: SenderSettings) -> None:
    """Raise `UsageError` E8303 for a sender that has the id of a default sender and other settings."""
    if settings != defaults.get(settings.id, settings):
        raise UsageError("E8303", f"sender '{settings.id}'", "is the default sender", "", "Choose another id")


def refuse_removal(registry: Mapping[str, Endpoint], part_id: str, users: Iterable[Users]) -> None:
    """Refuse the removal of a part that code must not remove.

    Raises `UsageError`: E8302 for an unknown id, E8301 for a static part, E8306 for a part that a pipeline names.
    """
    endpoint = registry.get(part_id)
    if endpoint is None:
        raise UsageError("E8302", f"'{part_id}'", "no such receiver or sender", ", ".join(sorted(registry)))
    where = f"{endpoint.kind} '{part_id}'"
    if endpoint.origin == "static":
        raise UsageError("E8301", where, "is static; remove is only possible for dynamic ones")
    for pipeline, receivers, senders in users:
        if part_id in receivers or part_id in senders:
            what = f"pipeline '{pipeline}' {'takes from' if part_id in receivers else 'sends to'} it"
            allowed = f"Only a {endpoint.kind} that none names can be removed"
            todo = "Leave it out of the pipeline and start again, then remove it"
            raise UsageError("E8306", where, what, allowed, todo)


def lacks_source(endpoint: Endpoint) -> bool:
    """Whether the endpoint is a sender whose messageSourceId must be recorded and is not recorded."""
    return endpoint.kind == "sender" and not endpoint.source and SENDING[Reliability(endpoint.reliability)].stored


def _is_same(known: Endpoint, settings: Settings) -> bool:
    """Whether a dynamic part has these settings; settings that were not recorded count as their defaults."""
    if known.origin != "dynamic" or known.kind != ("receiver" if isinstance(settings, ReceiverSettings) else "sender"):
        return False
    decoder = RECEIVER if isinstance(settings, ReceiverSettings) else SENDER
    return bool(decoder.decode(known.settings) == settings)
