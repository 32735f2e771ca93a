"""What the real store contains, read from outside in the form in which the simulation reads its disks."""
# ruff: noqa: SLF001 - as `correlator.testing.simulation.inspection`, on purpose

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from correlator.core.commit import StateEntry, StateSegment
from correlator.core.dedup import DuplicateDetector, EntryPlace
from correlator.storage import inspect
from correlator.testing.invariants.history import Rest
from correlator.testing.simulation import inspection
from correlator.testing.simulation.scenario import Scenario
from correlator.testing.store import Disk


def rest(url: str, scenario: Scenario, known: Mapping[str, tuple[str, ...]], found: Rest) -> Rest:
    """Return the end of a run, completed with the contents of the store.

    Args:
        url: address of the store; no engine runs on it.
        scenario: the scenario of the run.
        known: for each duplicate detection domain, the ids that the last engine knew.
        found: what is known already.
    """
    detectors = inspect.detectors(url, scenario.settings.duplicate_detection)
    stored = {one.domain: one.ids for one in inspect.domains(url)}
    return replace(
        found,
        outbox_rows=len(inspect.outbox(url)),
        receive_rows=len(inspect.receive_log(url)),
        ids={
            domain: (len(one), inspection._bound(one, scenario.settings.duplicate_detection), stored.get(domain, 0))
            for domain, one in detectors.items()
        },
        state=state(url),
        memory={domain: (ids, _windows(detectors.get(domain))) for domain, ids in known.items()},
    )


def state(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return attributes and tables of the persistent monitors, by class name."""
    entries = [
        StateEntry(owner, key, value) for owner, kept in inspect.state(url).items() for key, value in kept.items()
    ]
    disk = Disk()
    disk.state[1] = msgspec.msgpack.encode(StateSegment(1, entries))
    return inspection.state_of_disk(disk)


def _windows(detector: DuplicateDetector | None) -> tuple[str, ...]:
    if detector is None:
        return ()
    windows = (EntryPlace.WINDOW, EntryPlace.TIME_QUEUE)
    return tuple(sorted(one.id for one in detector._entries.values() if one.place in windows))
