"""`correlator doctor`: finds settings of the brokers of a file that would stop the engine or lose messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from correlator.cli.arguments import ConfigurationFile, Overrides
from correlator.cli.checks import check_connectors
from correlator.cli.codes import SEVERITIES
from correlator.cli.failures import telling
from correlator.cli.loading import connection_of, importable, load
from correlator.cli.output import write_json, write_line
from correlator.configuration import of_share
from correlator.configuration.shares import example
from correlator.connector import Examinable
from correlator.errors import ConnectionLost, CorrelatorError
from correlator.pipeline.spec import PipelineFile


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator doctor` with `app`, the Typer application of all commands."""
    app.command()(doctor)


def doctor(
    file: ConfigurationFile,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list with an object for each finding.")] = False,
) -> None:
    """Find settings of the brokers of a configuration file that would stop the engine or lose messages.

    The command connects to each broker that can be examined, and checks the queues of the receivers and senders. It
    changes nothing. It exits with 4 if a receiver or sender could not work, and with 0 otherwise.
    """
    with importable(file):
        loaded = load(file, [check_connectors], overrides or ())
        with telling(loaded.secrets.redact):
            engine = example(loaded.settings)
            made = {name: connection_of(name, engine) for name in engine.connections}
            asked = {name: one for name, one in made.items() if isinstance(one, Examinable)}
            found = [one for settings in _engines(loaded.settings) for one in _findings(asked, settings)]
            findings = list({str(one): one for one in found}.values())
            if json:
                write_json([_as_json(one, loaded.secrets.redact(one.what)) for one in findings])
            else:
                for finding in findings:
                    write_line(loaded.secrets.redact(str(finding)))
                write_line(_examined(asked, loaded.settings))
    if any(finding.code.startswith("E") for finding in findings):
        raise typer.Exit(ConnectionLost.exit_status)


def _engines(settings: PipelineFile) -> Iterator[PipelineFile]:
    """Return the settings of each share; without shares, the settings of the engine."""
    if settings.shares is None:
        yield settings
    else:
        yield from (of_share(settings, number) for number in range(settings.shares.count))


def _findings(asked: Mapping[str, Examinable], settings: PipelineFile) -> Iterator[CorrelatorError]:
    for name, connection in asked.items():
        receivers, senders = (_placed(parts, name, settings) for parts in (settings.receivers, settings.senders))
        yield from connection.examine(receivers, senders)


def _placed(parts: Sequence[Any], connection: str, settings: PipelineFile) -> list[Any]:
    """Return the receivers or senders of a connection, with logical destinations replaced."""
    places = settings.destinations
    own = [part for part in parts if part.connection == connection]
    return [replace(part, destination=places.get(part.destination, part.destination)) for part in own]


def _examined(asked: Mapping[str, Examinable], settings: PipelineFile) -> str:
    """Say which connections were examined, and which connections cannot be examined."""
    others = [f"{name} ({one.type})" for name, one in settings.connections.items() if name not in asked]
    return f"examined: {', '.join(asked) or 'none'}; nothing to examine: {', '.join(others) or 'none'}"


def _as_json(finding: CorrelatorError, what: str) -> dict[str, object]:
    return {
        "severity": SEVERITIES[finding.code[0]],
        "code": finding.code,
        "path": finding.where,
        "what": what,
        "allowed": finding.allowed,
        "todo": finding.todo,
    }
