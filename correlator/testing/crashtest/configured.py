"""The configuration file of a crash test: where the test can publish, and how the history names messages and parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from correlator.configuration import read_file
from correlator.configuration.connectors import connector
from correlator.configuration.shares import example
from correlator.connector import Features, Order, order_of
from correlator.core.fields import as_json
from correlator.core.mapping import ReceiveMapping
from correlator.core.monitor import Monitor
from correlator.core.registry import default_domain, default_senders
from correlator.errors import MappingError, UsageError, quoted
from correlator.events import SOURCE_ID, UNIQUE_ID, Headers, Message, Outgoing
from correlator.pipeline.spec import MonitorStep, PipelineFile
from correlator.reliability import RECEIVING, Reliability
from correlator.runtime.names import resolve
from correlator.runtime.parts import mapping_of
from correlator.selector import Selector
from correlator.settings import ReceiverSettings
from correlator.testing.crashtest.modules import OwnModules
from correlator.testing.invariants.history import OPTIONAL, Published, ReceiverFacts, Setup
from correlator.testing.worlds import Messages, Publishable

SOURCE = "test"
"""The message source id of the messages that a test publishes."""
NOTICES_LOSS_WITHIN_S = 0.5
"""Seconds until a modelled broker notices a lost connection. Real brokers need longer; a run need not wait so long."""


def uncalled(settings: PipelineFile) -> PipelineFile:
    """Let senders call no function; instead, let each send the message itself to a queue that no receiver reads.

    A crash test would call the functions, and the services that they use, hundreds of times. So such a sender sends the
    messages that would be the arguments of its calls, and the test publishes the results that it needs.
    """
    senders = [
        one if one.call is None else replace(one, call=None, destination=f"queue:calls-of-{one.id}")
        for one in settings.senders
    ]
    return replace(settings, senders=tuple(senders))


class Configured:
    """The configuration file of a crash test, read and checked.

    The modules beside the file must be importable while the object is in use.

    Args:
        file: the configuration file.
        database: the address of a database where level `broker` makes stores.

    Raises `InvalidConfiguration` with all mistakes in the file, `ConfigError` if a class cannot be imported.
    """

    def __init__(self, file: Path, database: str | None = None) -> None:
        self.file = file
        self.database = database
        loaded = read_file(file, PipelineFile)
        self.settings, self.places = uncalled(example(loaded.settings)), loaded.places
        for monitor in self.settings.monitors:
            resolve(monitor.type, f"monitor {monitor.type}")
        for receiver in self.settings.receivers:
            if receiver.event:
                resolve(receiver.event, f"receivers.{receiver.id}.event")
        self.modules = OwnModules(file.parent, list(self.classes()))
        connections = {
            name: connector(one.type, f"connections.{name}")(name, one)
            for name, one in self.settings.connections.items()
        }
        self.brokers: Mapping[str, Features] = {name: _modelled(one.features) for name, one in connections.items()}
        self._orders = {one.id: order_of(connections[one.connection], one) for one in self._physical()}
        for connection in connections.values():
            connection.close()
        self.senders = (*self.settings.senders, *default_senders(self.settings, self.brokers))
        self._mappings: dict[str, ReceiveMapping] = {}
        self._selectors = {one.id: Selector.optional(one.selector, one.id) for one in self.settings.receivers}
        self._readers: dict[tuple[str, str], list[ReceiverSettings]] = {}
        for one in self.settings.receivers:
            self._readers.setdefault((one.connection, self._destination(one)), []).append(one)

    def classes(self) -> Iterator[str]:
        """Import paths of the monitors and event classes that the file names."""
        yield from (one.type for one in self.settings.monitors)
        steps = (step for pipeline in self.settings.pipelines for step in pipeline.steps)
        yield from (step.class_ for step in steps if isinstance(step, MonitorStep))
        yield from (one.event for one in self.settings.receivers if one.event)

    @property
    def persistent(self) -> bool:
        """Whether the file configures a store."""
        return self.settings.store is not None

    def label(self, connection: str, destination: str) -> str:
        """Return the name of a destination in history and test: with its connection if the file has
        several connections.
        """
        return destination if len(self.brokers) == 1 else f"{connection}:{destination}"

    def setup(self) -> Setup:
        """Return the facts about receivers and senders that the invariants need."""
        windows = self.settings.duplicate_detection
        return Setup(
            receivers={
                one.id: ReceiverFacts(
                    reliability=one.reliability,
                    destination=self.label(one.connection, self._destination(one)),
                    domain=default_domain(one, self.settings.destinations)
                    if RECEIVING[one.reliability].deduplicated
                    else "",
                    max_batch_size=one.max_batch_size,
                    flow_control=one.flow_control,
                    order=self._orders[one.id],
                    alone=self._destination(one).startswith("topic:") or not self.brokers[one.connection].shares,
                )
                for one in self.settings.receivers
            },
            senders={one.id: one.reliability for one in self.senders},
            window=windows.per_source_window_size,
            expiry=windows.expiry_time,
            renamed=frozenset(one.id for one in self.senders if one.unique_message_id_property != UNIQUE_ID),
            tries={
                one.id: 1 if self.brokers[one.connection].deduplicates_sends else one.max_tries for one in self.senders
            },
            deduplicating=all(one.deduplicates_sends for one in self.brokers.values()),
            told=False,
        )

    def place(self, name: str) -> tuple[str, str]:
        """Return connection and destination for the name that a test uses; raises `UsageError` E2420 if
        no receiver reads it.
        """
        logical = self.settings.destinations.get(name, name)
        found = [place for place in self._readers if name == self.label(*place) or logical == place[1]]
        if len(found) != 1:
            allowed = ", ".join(self.label(*place) for place in self._readers)
            what = f"{'no receiver reads it' if not found else 'several connections have it'}"
            raise UsageError("E2420", f"destination {quoted(name)}", what, f"Receivers read: {allowed}")
        return found[0]

    def sent(self, name: str, accepted: Sequence[Outgoing]) -> Messages:
        """Return the messages of a sender as a consumer sees them that drops repeats by unique id.

        Args:
            name: id of the sender.
            accepted: all messages that brokers have accepted from it.

        Raises:
            UsageError: E2420, the file has no such sender.
        """
        known = {one.id: one.reliability for one in self.senders}
        if name not in known:
            raise UsageError("E2420", f"sender {quoted(name)}", "is not in the file", f"Senders: {', '.join(known)}")
        if known[name] is Reliability.EXACTLY_ONCE:
            accepted = list({(one.source, one.sequence): one for one in reversed(accepted)}.values())[::-1]
        return Messages(one.message for one in accepted)

    def state(self, monitor: type[Monitor] | str, held: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return attributes and tables of the instances of a monitor.

        Args:
            monitor: the class, or its name in the store.
            held: the content of the store, as `inspection.state_of_disk` returns it.

        Raises:
            UsageError: E2420, the monitor is not persistent, or no persistent monitor has this name.
        """
        if not isinstance(monitor, str) and not monitor.persistent:
            what = "is not persistent: it has no state that lasts"
            raise UsageError("E2420", f"monitor {quoted(monitor.__name__)}", what, "", "Add persistent=True")
        name = monitor if isinstance(monitor, str) else monitor.state_name
        known = {*held, *_state_names(Monitor)}
        if name not in known and not self.settings.pipelines:
            what = "no monitor with lasting state has this name"
            raise UsageError("E2420", f"monitor {quoted(name)}", what, f"Such monitors: {', '.join(sorted(known))}")
        found = held.get(name, [])
        return [{name: value for name, value in one.items() if name.isidentifier()} for one in found]

    def messages(self, place: tuple[str, str], given: Iterable[Publishable], first: int) -> Iterator[Message]:
        """Yield the messages as the broker gets them: each with a unique pid, and with an id for duplicate detection.

        Args:
            place: connection and destination.
            given: the messages or bodies of the test.
            first: the number of the first message at this place.

        Raises:
            UsageError: E2421, a body cannot become a message, or `given` is one message instead of a list.
        """
        if isinstance(given, str | bytes | Mapping | msgspec.Struct):
            raise UsageError("E2421", "publish", "one message is not a list of messages", "", "Write [message]")
        stamped = self._readers[place][0].unique_message_id == f"${{property.{UNIQUE_ID}}}"
        for number, one in enumerate(given, first):
            message = one if isinstance(one, Message) else Message(_body(one))
            properties = message.properties
            if stamped and UNIQUE_ID not in properties:
                properties = {**properties, UNIQUE_ID: f"{number}:{SOURCE}", SOURCE_ID: SOURCE}
            headers = msgspec.structs.replace(message.headers or Headers(), message_id=f"{self.label(*place)}@{number}")
            yield msgspec.structs.replace(message, properties=properties, headers=headers)

    def known(self, connection: str, destination: str, message: Message, *, own: bool = False) -> Published:
        """Return the history's record of a message that reaches a destination; `own`: the same engine
        has sent the message.
        """
        readers = self._readers[connection, destination]
        receiver = readers[0]
        if receiver.id not in self._mappings:
            self._mappings[receiver.id] = mapping_of(receiver, destination, deduplicated=True)
        mapped = self._mappings[receiver.id].map([message], 0.0)
        assert message.headers is not None
        pid = str(message.headers.message_id)
        expires = message.headers.expiration is not None
        flaw = OPTIONAL if expires or (own and any(one.no_local for one in readers)) else ""
        unselected = tuple(one.id for one in readers if not self._selects(one.id, message))
        if mapped.dead_letters:
            if any(one.on_mapping_error == "drop" for one in readers):
                return Published(pid, "", "", pid, OPTIONAL, unselected)
            return Published(pid, mapped.ids[0], mapped.sources[0], pid, flaw or "mapping", unselected)
        return Published(pid, mapped.ids[0] or "", mapped.sources[0] or "", pid, flaw, unselected)

    def _selects(self, receiver: str, message: Message) -> bool:
        selector = self._selectors[receiver]
        return selector is None or selector.matches(message)

    def _physical(self) -> Iterator[ReceiverSettings]:
        """Yield the receivers, with physical destinations in place of logical ones."""
        for one in self.settings.receivers:
            yield replace(one, destination=self._destination(one))

    def _destination(self, receiver: ReceiverSettings) -> str:
        return self.settings.destinations.get(receiver.destination, receiver.destination)


def _state_names(cls: type[Monitor]) -> Iterator[str]:
    """Yield the names in the store of all imported monitors, since handlers may spawn any of them."""
    for one in cls.__subclasses__():
        if one.persistent:
            yield one.state_name
        yield from _state_names(one)


def _body(given: Any) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    try:
        return as_json(given, "publish")
    except MappingError as error:
        raise UsageError("E2421", "publish", error.what, "Message, bytes, text, or what JSON can hold") from error


def _modelled(features: Features) -> Features:
    """Return those features of a connector that a broker in memory can imitate."""
    return Features(
        order=features.order,
        flags_redelivery=features.flags_redelivery,
        acknowledges_surely=features.acknowledges_surely,
        selects=features.selects,
        deduplicates_sends=features.deduplicates_sends,
        shares=features.shares,
        notices_loss_within_s=NOTICES_LOSS_WITHIN_S if features.order is Order.ANY else 0.0,
    )
