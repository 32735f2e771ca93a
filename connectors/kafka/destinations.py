"""Maps destinations to topics, and checks the options of receivers and senders."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.registry import URL
from correlator.errors import ConfigError, quoted
from correlator.options import check_destination, check_options, flag_option, parse_destination, text_option
from correlator.settings import ReceiverSettings, SenderSettings

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NO_TOPICS = (".", "..")
ALLOWED = "Use topic:NAME with at most 249 letters, digits, '.', '_', '-'"
_PATTERN = "^"
"""Begins a pattern in the place of a topic; no name of a topic contains it."""
_INTERNAL = "__"
"""Begins the names of topics that Kafka itself uses."""
_MOST_KNOWN = 1000
_SCHEMA, _SUBJECT, _FILE = "use_schema", "subject", "schema_file"
_KINDS = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
_STARTS = 'earliest, latest, committed, a time such as 2026-01-31T12:00:00Z, or offsets such as {"0": 1700}'
_WHOLE = re.compile(r"[0-9]{1,18}")


class Start(NamedTuple):
    """Where a receiver begins if its group has no offsets for the topic.

    Attributes:
        kind: `earliest`, `latest`, `committed`, `time` or `offsets`.
        time_ms: milliseconds since the epoch, for the kind `time`.
        offsets: the offset of the first message by partition, for the kind `offsets`; the group reads other partitions
            from their first message.
    """

    kind: Literal["earliest", "latest", "committed", "time", "offsets"] = "earliest"
    time_ms: int = 0
    offsets: Mapping[int, int] = {}


class Subject(NamedTuple):
    """The subject of a registry that has the schema of a sender.

    Attributes:
        name: its name.
        kind: AVRO, JSON or PROTOBUF.
        definition: the schema that the sender registers; "" to take the latest one of the registry.
    """

    name: str
    kind: str = ""
    definition: str = ""


class Topics(NamedTuple):
    """The topics of a receiver.

    Attributes:
        text: the name of the one topic, or a pattern for names.
        pattern: the pattern; `None` for one topic.
    """

    text: str
    pattern: re.Pattern[str] | None = None

    def among(self, names: Iterable[str]) -> list[str]:
        """Return those of these names that match the whole pattern, in order; Kafka's own topics never match."""
        assert self.pattern is not None
        matches = self.pattern.fullmatch
        return sorted(name for name in names if not name.startswith(_INTERNAL) and matches(name))


@lru_cache(_MOST_KNOWN)  # a sender calls it for each message
def topic_of(destination: str) -> str | None:
    """Return the topic of `topic:NAME`; `None` for anything else, and for a name that no topic can have."""
    parsed = parse_destination(destination)
    if parsed is None or parsed.kind != "topic" or parsed.name in _NO_TOPICS or not _TOPIC.fullmatch(parsed.name):
        return None
    return parsed.name


def topics_of_receiver(receiver: ReceiverSettings) -> Topics:
    """Return the topics that a receiver reads. Raises `ConfigError`."""
    where = f"receivers.{receiver.id}"
    parsed = parse_destination(receiver.destination)
    if parsed is None or parsed.kind != "topic" or not parsed.name.startswith(_PATTERN):
        return Topics(_topic(where, receiver.destination))
    try:
        return Topics(parsed.name, re.compile(parsed.name))
    except re.error as error:
        what = f"{quoted(parsed.name)} is not a regular expression: {error}"
        raise ConfigError("E1216", f"{where}.destination", what, "As in topic:^orders-.*") from None


def topic_of_sender(sender: SenderSettings) -> str | None:
    """Return the topic of a sender; `None` if its messages name their topics. Raises `ConfigError`."""
    where = f"senders.{sender.id}"
    check_options(where, sender.options, (_SUBJECT, _FILE))
    return None if sender.destination is None else _topic(where, sender.destination)


def start_of(receiver: ReceiverSettings) -> Start:
    """Return where a receiver begins at first. Raises `ConfigError` for a wrong or unknown option."""
    where = f"receivers.{receiver.id}"
    check_options(where, receiver.options, ("start", _SCHEMA))
    value = receiver.options.get("start", "earliest")
    if value in ("earliest", "latest", "committed"):
        return Start(value)
    if isinstance(value, Mapping) and (offsets := _offsets(value)):
        if topics_of_receiver(receiver).pattern is not None:
            raise ConfigError("E1022", f"{where}.start", "offsets are of one topic, and the destination is a pattern")
        return Start("offsets", offsets=offsets)
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ConfigError("E1022", f"{where}.start", f"{quoted(value)} is not allowed", f"Use {_STARTS}")
    return Start("time", int(moment.timestamp() * 1000))


def _offsets(value: Mapping[object, object]) -> Mapping[int, int] | None:
    """The offsets by partition; `None` if they are none. A configuration file has texts as keys."""
    if not all(_WHOLE.fullmatch(str(number)) for pair in value.items() for number in pair):
        return None
    return {int(str(partition)): int(str(offset)) for partition, offset in value.items()}


def uses_schema(receiver: ReceiverSettings, broker: KafkaBroker) -> bool:
    """Return whether a receiver reads bodies with the schemas of the registry. Raises `ConfigError`."""
    where = f"receivers.{receiver.id}"
    uses = flag_option(where, receiver.options, _SCHEMA)
    if uses:
        _check_registry(f"{where}.{_SCHEMA}", broker)
    return uses


def subject_of(sender: SenderSettings, broker: KafkaBroker) -> Subject | None:
    """Return the subject whose schema a sender writes; `None` if it writes bodies as they are. Raises `ConfigError`."""
    where, options = f"senders.{sender.id}", sender.options
    if _SUBJECT not in options:
        if _FILE in options:
            raise ConfigError("E1022", f"{where}.{_FILE}", f"is of no use without '{_SUBJECT}'")
        return None
    name = text_option(where, options, _SUBJECT)
    _check_registry(f"{where}.{_SUBJECT}", broker)
    if _FILE not in options:
        return Subject(name)
    file = Path(text_option(where, options, _FILE))
    if file.suffix not in _KINDS:
        raise ConfigError("E1022", f"{where}.{_FILE}", f"{quoted(str(file))} is of no known kind", ", ".join(_KINDS))
    try:
        return Subject(name, _KINDS[file.suffix], file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("E1022", f"{where}.{_FILE}", f"{quoted(str(file))} cannot be read: {error}") from None


def _check_registry(where: str, broker: KafkaBroker) -> None:
    """Check that the connection has a registry, and that the packages for it are installed. Raises `ConfigError`.

    A missing package is an error at the start, since no record could be read or written without it.
    """
    if broker.registry is None:
        raise ConfigError("E1022", where, f"needs the option '{URL}' of the connection")
    if find_spec("fastavro") is None:
        raise ConfigError(
            "E1213", where, "needs the package 'fastavro'", "", "Install: pip install 'correlator[kafka]'"
        )


def _topic(where: str, destination: str) -> str:
    check_destination(where, destination)
    topic = topic_of(destination)
    if topic is None:
        raise ConfigError("E1216", f"{where}.destination", f"{quoted(destination)} is not a topic of Kafka", ALLOWED)
    return topic
