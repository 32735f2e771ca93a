"""`correlator dup explain`: shows why duplicate detection would drop an id, and for how long."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from correlator.cli.arguments import Share, Target
from correlator.cli.loading import store_and_settings
from correlator.cli.output import write_json, write_line
from correlator.configuration.words import did_you_mean
from correlator.core.dedup import DuplicateDetector, EntryPlace, Sighting
from correlator.core.registry import default_domain
from correlator.errors import UsageError, quoted
from correlator.pipeline.spec import PipelineFile
from correlator.reliability import RECEIVING
from correlator.settings import DuplicateDetectionSettings
from correlator.storage import inspect as store


def add_to(app: typer.Typer) -> None:
    """Register `correlator dup` and its subcommand with `app`, the Typer application of all commands."""
    group = typer.Typer(help="Show why duplicate detection would drop an id.", rich_markup_mode=None)
    group.callback()(_group)
    group.command("explain")(explain)
    app.add_typer(group, name="dup")


def _group() -> None:
    """Make `dup` a group: without this function, typer gives a single command the name of its group."""


def explain(
    target: Target,
    unique_id: Annotated[str, typer.Argument(metavar="ID", help="Unique id of a message.", show_default=False)],
    domain: Annotated[
        str,
        typer.Option(
            metavar="DOMAIN", help="Show only this duplicate detection domain; all by default.", show_default=False
        ),
    ] = "",
    share: Share = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list with an object for each domain.")] = False,
) -> None:
    """Show whether a message with this id would be dropped, when the id was received, and how long it is remembered.

    The command uses the windows of the configuration file; with the URL of a store, it uses the default windows. Times
    are engine time, which stands still while the engine is down. The command changes nothing; an engine may be running.
    """
    url, settings = store_and_settings(target, share)
    windows = settings.duplicate_detection if settings else DuplicateDetectionSettings()
    detectors = store.detectors(url, windows)
    found = {name: _sightings(name, detectors, unique_id) for name in _domains(domain, detectors, settings)}
    if json:
        write_json([_as_json(name, unique_id, seen, windows) for name, seen in found.items()])
    else:
        for name, seen in found.items():
            _write(name, unique_id, seen, windows)


def _domains(wanted: str, detectors: Mapping[str, DuplicateDetector], settings: PipelineFile | None) -> Sequence[str]:
    """Return the domains of the store, and the domains of the file that have received nothing yet."""
    receivers, destinations = (settings.receivers, settings.destinations) if settings else ((), {})
    configured = [default_domain(one, destinations) for one in receivers if RECEIVING[one.reliability].deduplicated]
    known = list(dict.fromkeys([*detectors, *configured]))
    if wanted and wanted not in known:
        hint = did_you_mean(wanted, known) or f"Known: {', '.join(known) or 'none'}"
        raise UsageError("E2024", quoted(wanted), "no such duplicate detection domain", hint)
    return [wanted] if wanted else known


def _sightings(domain: str, detectors: Mapping[str, DuplicateDetector], unique_id: str) -> list[Sighting]:
    detector = detectors.get(domain)
    return detector.sightings(unique_id) if detector is not None else []


def _write(domain: str, unique_id: str, seen: Sequence[Sighting], windows: DuplicateDetectionSettings) -> None:
    living = [one for one in seen if one.place is not EntryPlace.GONE]
    verdict = "would be dropped as a duplicate" if living else "would be accepted"
    write_line(f"{unique_id} in domain {domain}: {verdict}")
    for one in seen:
        source = f" from source {one.source}" if one.source else ""
        write_line(f"  seen at {one.time:.3f} s by receiver {one.receiver} in its batch {one.batch}{source}")
        write_line(f"    {_place(one)}; {_leaves(one, windows)}")


def _place(one: Sighting) -> str:
    return {
        EntryPlace.WINDOW: f"in the window of its source, place {one.position} of {one.of}",
        EntryPlace.TIME_QUEUE: "in the time queue",
        EntryPlace.HELD: "has left the windows and is held",
        EntryPlace.GONE: "forgotten",
    }[one.place]


def _leaves(one: Sighting, windows: DuplicateDetectionSettings) -> str:
    after = f"until that queue gets an id received after {one.time + windows.expiry_time:.3f} s of engine time"
    return {
        EntryPlace.WINDOW: f"{one.newer} newer ids of its source move it to the time queue, where it stays {after}",
        EntryPlace.TIME_QUEUE: f"stays {after}",
        EntryPlace.HELD: (
            f"stays until the broker certainly has the acknowledgement of batch {one.batch} of {one.receiver}"
        ),
        EntryPlace.GONE: "its row is deleted later",
    }[one.place]


def _as_json(
    domain: str, unique_id: str, seen: Sequence[Sighting], windows: DuplicateDetectionSettings
) -> dict[str, object]:
    return {
        "domain": domain,
        "id": unique_id,
        "duplicate": any(one.place is not EntryPlace.GONE for one in seen),
        "per_source_window_size": windows.per_source_window_size,
        "expiry_time": windows.expiry_time,
        "seen": [
            {
                "engine_time": one.time,
                "receiver": one.receiver,
                "batch": one.batch,
                "source": one.source,
                "place": one.place.name.lower(),
                "position": one.position or None,
                "of": one.of or None,
                "newer_ids_until_it_leaves": one.newer or None,
                "leaves": _leaves(one, windows),
            }
            for one in seen
        ],
    }
