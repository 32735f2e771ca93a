"""`correlator browse`: shows copies of messages in a queue, and leaves the queue unchanged."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from correlator.cli.arguments import ConfigurationFile, ConnectionName
from correlator.cli.failures import telling
from correlator.cli.loading import connection_of, importable, load_engine
from correlator.cli.output import Row, shortened, shown, write_table
from correlator.configuration.words import did_you_mean
from correlator.connector import Browsable, ListsQueues
from correlator.errors import UsageError, quoted
from correlator.events import Message
from correlator.pipeline.spec import PipelineFile
from correlator.settings import ReceiverSettings, SenderSettings

COLUMNS = ("message_id", "timestamp", "deliveries", "key", "properties", "body")
MOST_NAMED = 20

MostShown = Annotated[int, typer.Option(metavar="NUMBER", min=1, max=100_000, help="Show at most this many messages.")]


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator browse` with `app`, the Typer application of all commands."""
    app.command()(browse)


def browse(
    file: ConfigurationFile,
    connection: ConnectionName,
    destination: Annotated[
        str,
        typer.Argument(metavar="DESTINATION", help="queue:NAME, or a logical destination of FILE.", show_default=False),
    ],
    limit: MostShown = 20,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list with an object for each message; bodies in full.")
    ] = False,
) -> None:
    """Show the oldest messages of a queue, and leave them in it. Control characters are escaped."""
    with importable(file):
        loaded = load_engine(file)
    with telling(loaded.secrets.redact):
        broker = _browsable(connection, loaded.settings)
        place = loaded.settings.destinations.get(destination, destination)
        show(broker, place, limit, _options(connection, place, loaded.settings), as_json=json)


def show(broker: Browsable, place: str, limit: int, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Write the oldest messages of a queue. Raises `UsageError` E2027 if there is no such queue, and as `browse`."""
    messages = broker.browse(place, limit, options)
    if not messages and isinstance(broker, ListsQueues):
        _refuse_unknown(place, broker.queues())
    write_table(f"Messages in {place}", COLUMNS, [_row(one, whole=as_json) for one in messages], as_json=as_json)


def _browsable(name: str, settings: PipelineFile) -> Browsable:
    made = connection_of(name, settings)
    if not isinstance(made, Browsable):
        kind = settings.connections[name].type
        raise UsageError("E2014", f"connections.{name}", f"type '{kind}' cannot show messages")
    return made


def _options(connection: str, place: str, settings: PipelineFile) -> Mapping[str, Any]:
    """The options of the first receiver of the queue, or without one, of the first sender; empty if the file has
    neither.
    """
    endpoints: Sequence[ReceiverSettings | SenderSettings] = (*settings.receivers, *settings.senders)
    for one in endpoints:
        named = one.destination or ""
        if (one.connection, settings.destinations.get(named, named)) == (connection, place):
            return one.options
    return {}


def _refuse_unknown(place: str, queues: Sequence[str]) -> None:
    """Refuse a queue that does not exist: a misspelt name would look like an empty queue."""
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
