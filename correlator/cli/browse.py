"""`correlator browse`: copies of messages in a queue; nothing is removed or marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import typer

from correlator.cli.failures import telling
from correlator.cli.loading import importable, load
from correlator.cli.output import Row, shortened, shown, write_table
from correlator.configuration.words import did_you_mean
from correlator.errors import UsageError, quoted
from correlator.events import Message
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.names import connector

COLUMNS = ("message_id", "timestamp", "deliveries", "key", "properties", "body")


@runtime_checkable
class Browsable(Protocol):
    """A connection whose broker can show a queue without giving its messages to anybody."""

    def browse(self, destination: str, limit: int) -> Sequence[Message]:
        """Copies of the oldest messages."""
        ...


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(browse)


def browse(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file.", show_default=False)],
    connection: Annotated[
        str, typer.Argument(metavar="CONNECTION", help="Name of a connection in the file.", show_default=False)
    ],
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
        write_table(f"Messages in {place}", COLUMNS, [_row(one, whole=json) for one in messages], as_json=json)


def _browsable(name: str, settings: PipelineFile) -> Browsable:
    if name not in settings.connections:
        hint = did_you_mean(name, settings.connections) or f"Defined: {', '.join(settings.connections) or 'none'}"
        raise UsageError("E2012", quoted(name), "no such connection in the file", hint)
    configured = settings.connections[name]
    made = connector(configured.type, f"connections.{name}")(name, configured)
    if not isinstance(made, Browsable):
        raise UsageError("E2014", f"connections.{name}", f"type '{configured.type}' cannot show messages")
    return made


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
