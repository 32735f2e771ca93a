"""`correlator browse`: copies of messages in a queue; nothing is removed or marked."""

from collections.abc import Sequence
from typing import Annotated, Protocol, runtime_checkable

import typer

from correlator.cli.arguments import ConfigurationFile, ConnectionName
from correlator.cli.failures import telling
from correlator.cli.loading import connection_of, importable, load
from correlator.cli.output import Row, shortened, shown, write_table
from correlator.configuration.words import did_you_mean
from correlator.connector import Browsable
from correlator.errors import UsageError, quoted
from correlator.events import Message
from correlator.pipeline.spec import PipelineFile

COLUMNS = ("message_id", "timestamp", "deliveries", "key", "properties", "body")
MOST_NAMED = 20


@runtime_checkable
class ListsQueues(Protocol):
    """A connection whose broker can tell which queues there are."""

    def queues(self) -> Sequence[str]:
        """All of them, as destinations."""
        ...


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(browse)


def browse(
    file: ConfigurationFile,
    connection: ConnectionName,
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="queue:NAME, or a logical name.", show_default=False)
    ],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most messages shown.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="One object for each message, bodies in full.")] = False,
) -> None:
    """Show the oldest messages of a queue without removing them; control characters are shown escaped."""
    with importable(file):
        loaded = load(file)
    with telling(loaded.secrets.redact):
        broker = _browsable(connection, loaded.settings)
        place = loaded.settings.destinations.get(destination, destination)
        messages = broker.browse(place, limit)
        if not messages and isinstance(broker, ListsQueues):
            _refuse_unknown(place, broker.queues())
        write_table(f"Messages in {place}", COLUMNS, [_row(one, whole=json) for one in messages], as_json=json)


def _browsable(name: str, settings: PipelineFile) -> Browsable:
    made = connection_of(name, settings)
    if not isinstance(made, Browsable):
        kind = settings.connections[name].type
        raise UsageError("E2014", f"connections.{name}", f"type '{kind}' cannot show messages")
    return made


def _refuse_unknown(place: str, queues: Sequence[str]) -> None:
    """A mistyped queue would look like an empty one."""
    if place not in queues:
        hint = did_you_mean(place, queues) or f"There are: {', '.join(queues[:MOST_NAMED]) or 'none'}"
        raise UsageError("E2027", quoted(place), "the broker has no such queue", hint)


def _row(message: Message, *, whole: bool) -> Row:
    headers = message.headers
    body, properties = shown(message.body), _properties(message)
    return (
        headers.message_id if headers else None,
        headers.timestamp if headers else None,
        headers.delivery_count if headers else None,
        message.key,
        properties if whole else shortened(properties),
        body if whole else shortened(body),
    )


def _properties(message: Message) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in sorted(message.properties.items()))
