"""A configuration file as a crash test needs it: what can be published where, and what the history says of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from correlator.configuration import read_file
from correlator.core.fields import as_json
from correlator.core.mapping import ReceiveMapping
from correlator.core.recovery import default_domain, default_senders
from correlator.core.reliability import RECEIVING, Reliability
from correlator.errors import MappingError, UsageError, quoted
from correlator.events import Headers, Message, Outgoing
from correlator.pipeline.spec import PipelineFile
from correlator.ports import Features
from correlator.runtime.names import connector
from correlator.runtime.parts import mapping_of
from correlator.settings import ReceiverSettings
from correlator.testing.simulation.history import Published, ReceiverFacts, Setup
from correlator.testing.worlds import Messages, Publishable

SOURCE = "test"
"""Message source id of what a test publishes."""
_ID_PROPERTY = "${property.uniqueMessageId}"


class Configured:
    """The engine of a file. Modules beside the file must be importable while it lives.

    Args:
        file: the configuration file.

    Raises `InvalidConfiguration` with everything that is wrong in it, `ConfigError` for what cannot be imported.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.settings = read_file(file, PipelineFile).settings
        connections = {
            name: connector(one.type, f"connections.{name}")(name, one)
            for name, one in self.settings.connections.items()
        }
        self.brokers: Mapping[str, Features] = {name: _modelled(one.features) for name, one in connections.items()}
        for connection in connections.values():
            connection.close()
        self.senders = (*self.settings.senders, *default_senders(self.settings, self.brokers))
        self._mappings: dict[str, ReceiveMapping] = {}
        self._places = {(one.connection, self._destination(one)): one for one in reversed(self.settings.receivers)}

    @property
    def persistent(self) -> bool:
        """Whether there is a store."""
        return self.settings.store is not None

    def label(self, connection: str, destination: str) -> str:
        """What history and test call a destination: with its connection where there are several."""
        return destination if len(self.brokers) == 1 else f"{connection}:{destination}"

    def setup(self) -> Setup:
        """The facts that invariants ask for."""
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
                    topic=self._destination(one).startswith("topic:"),
                )
                for one in self.settings.receivers
            },
            senders={one.id: one.reliability for one in self.senders},
            window=windows.per_source_window_size,
            expiry=windows.expiry_time,
            deduplicating=all(one.deduplicates_sends for one in self.brokers.values()),
            told=False,
        )

    def place(self, name: str) -> tuple[str, str]:
        """Connection and destination by what a test calls it; raises `UsageError` E2420 when no receiver reads it."""
        logical = self.settings.destinations.get(name, name)
        found = [place for place in self._places if name == self.label(*place) or logical == place[1]]
        if len(found) != 1:
            allowed = ", ".join(self.label(*place) for place in self._places)
            what = f"{'no receiver reads it' if not found else 'several connections have it'}"
            raise UsageError("E2420", f"destination {quoted(name)}", what, f"Receivers read: {allowed}")
        return found[0]

    def sent(self, name: str, accepted: Sequence[Outgoing]) -> Messages:
        """What a consumer sees of a sender that drops repeats by unique id; raises `UsageError` E2420.

        Args:
            name: id of the sender.
            accepted: everything that brokers took from it.
        """
        known = {one.id: one.reliability for one in self.senders}
        if name not in known:
            raise UsageError("E2420", f"sender {quoted(name)}", "is not in the file", f"Senders: {', '.join(known)}")
        if known[name] is Reliability.EXACTLY_ONCE:
            accepted = list({(one.source, one.sequence): one for one in reversed(accepted)}.values())[::-1]
        return Messages(one.message for one in accepted)

    def messages(self, place: tuple[str, str], given: Iterable[Publishable], first: int) -> Iterator[Message]:
        """Messages as the broker has them: with a name of their own, and an id for duplicate detection.

        Args:
            place: where they go.
            given: by the test.
            first: number of the first of them at this place.

        Raises `UsageError` E2421 for what has no body.
        """
        stamped = self._places[place].unique_message_id == _ID_PROPERTY
        for number, one in enumerate(given, first):
            message = one if isinstance(one, Message) else Message(_body(one))
            properties = message.properties
            if stamped and "uniqueMessageId" not in properties:
                properties = {**properties, "uniqueMessageId": f"{number}:{SOURCE}", "messageSourceId": SOURCE}
            headers = msgspec.structs.replace(message.headers or Headers(), message_id=f"{self.label(*place)}@{number}")
            yield msgspec.structs.replace(message, properties=properties, headers=headers)

    def known(self, connection: str, destination: str, message: Message) -> Published:
        """What the history says of a message that comes to a place."""
        receiver = self._places[connection, destination]
        if receiver.id not in self._mappings:
            self._mappings[receiver.id] = mapping_of(receiver, destination, deduplicated=True)
        mapped = self._mappings[receiver.id].map([message], 0.0)
        assert message.headers is not None
        pid = str(message.headers.message_id)
        if mapped.dead_letters:
            return Published(pid, "", "", pid, "mapping")
        return Published(pid, mapped.ids[0] or "", mapped.sources[0] or "", pid)

    def _destination(self, receiver: ReceiverSettings) -> str:
        return self.settings.destinations.get(receiver.destination, receiver.destination)


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
    """What a broker in memory can imitate of it."""
    return Features(
        flags_redelivery=features.flags_redelivery,
        acknowledges_surely=features.acknowledges_surely,
        deduplicates_sends=features.deduplicates_sends,
    )
