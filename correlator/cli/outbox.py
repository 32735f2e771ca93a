"""`correlator outbox`: makes the table into which a user's program writes messages in its own transactions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Protocol, runtime_checkable

import typer

from correlator.cli.arguments import ConfigurationFile
from correlator.cli.failures import telling
from correlator.cli.loading import connection_of, importable, load_engine
from correlator.cli.output import write_line
from correlator.configuration.words import did_you_mean
from correlator.errors import UsageError, quoted
from correlator.pipeline.spec import PipelineFile
from correlator.settings import ReceiverSettings


@runtime_checkable
class MakesOutboxes(Protocol):
    """A connection that can make the outbox table of a receiver."""

    def outbox_statements(self, receiver: ReceiverSettings) -> Sequence[str]:
        """The statements of SQL that make the table. Raises `ConfigError` as `Connection.source`."""
        ...

    def create_outbox(self, receiver: ReceiverSettings) -> None:
        """Make the table, unless it exists. Raises `ConfigError` as `Connection.source`, `ConnectionLost`."""
        ...


def add_to(app: typer.Typer) -> None:
    """Register `correlator outbox` and its subcommand with `app`, the Typer application of all commands."""
    group = typer.Typer(help="Make the table from which a receiver takes messages.", rich_markup_mode=None)
    group.callback()(_group)
    group.command("create")(create)
    app.add_typer(group, name="outbox")


def _group() -> None:
    """Make the table from which a receiver takes messages."""


def create(
    file: ConfigurationFile,
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="Id of a receiver of FILE.", show_default=False)],
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements, and connect to no database.", show_default=False)
    ] = False,
) -> None:
    """Make the outbox table of a receiver, and in PostgreSQL the trigger that wakes the receiver.

    An existing table keeps its rows. With --sql the command prints the statements, for users who change a database by
    scripts of their own.
    """
    with importable(file):
        loaded = load_engine(file)
    with telling(loaded.secrets.redact):
        settings = _receiver(receiver, loaded.settings)
        connection = connection_of(settings.connection, loaded.settings)
        if not isinstance(connection, MakesOutboxes):
            kind = loaded.settings.connections[settings.connection].type
            what = f"a connection of type '{kind}' has no outbox tables"
            raise UsageError("E2018", f"receivers.{receiver}", what, "Connections of type 'sql' have them")
        if sql:
            for statement in connection.outbox_statements(settings):
                for line in f"{statement};".split("\n"):
                    write_line(line)
        else:
            connection.create_outbox(settings)
            write_line(f"{settings.destination} is an outbox table")


def _receiver(name: str, settings: PipelineFile) -> ReceiverSettings:
    """The settings of a receiver, with a physical destination. Raises `UsageError` E2017 if there is none."""
    by_id = {one.id: one for one in settings.receivers}
    if name not in by_id:
        hint = did_you_mean(name, by_id) or f"Defined: {', '.join(by_id) or 'none'}"
        raise UsageError("E2017", quoted(name), "no such receiver in the file", hint)
    found = by_id[name]
    return replace(found, destination=settings.destinations.get(found.destination, found.destination))
