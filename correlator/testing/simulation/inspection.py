"""Reads the inner state of engines and disks for the history.

It reads private attributes of the product on purpose: the invariants compare the inside of an engine before a crash
with the inside after it, which no public method shows.
"""
# ruff: noqa: SLF001

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from correlator.core.dedup import DuplicateDetector, EntryPlace
from correlator.core.instances import Deadline, StoredMonitor, type_name
from correlator.core.monitor import Monitor
from correlator.core.state import StateTable
from correlator.core.statelog import StateLog
from correlator.runtime.contexts import MonitorThread
from correlator.runtime.engine import Engine
from correlator.runtime.names import resolve
from correlator.settings import DuplicateDetectionSettings, EngineSettings
from correlator.testing.invariants.history import Rest
from correlator.testing.store import Disk

_encode = msgspec.msgpack.Encoder().encode
_encode_in_order = msgspec.msgpack.Encoder(order="deterministic").encode
Fingerprint = tuple[tuple[Any, ...], ...]
_SCALARS = frozenset({int, str, bool, float, bytes, type(None)})


def fingerprint(engine: Engine, scenario: EngineSettings) -> Fingerprint:
    """Return the state of contexts that must survive a crash: monitors with state, listeners, timers and waiting
    events.

    Contexts and receivers that are not in every configuration of the run are left out.
    """
    contexts = {"main", *(monitor.context for monitor in scenario.monitors)}
    sometimes = {one.id for one in engine.settings.receivers} - {one.id for one in scenario.receivers}
    return tuple(
        (name, _monitors(thread), _waiting(thread, sometimes))
        for name, thread in engine.contexts.items()
        if isinstance(thread, MonitorThread) and name in contexts
    )


def _monitors(thread: MonitorThread) -> tuple[Any, ...]:
    instances = [instance for monitor, instance in thread.context.monitors.instances.items() if monitor.persistent]
    return tuple(
        (
            instance.owner,
            instance.number,
            _content(instance.monitor.attributes()),
            tuple(_table(table) for table in instance.monitor.tables()),
            tuple(
                (
                    number,
                    type_name(one.pattern.event_type),
                    one.pattern.fields,
                    one.pattern.values,
                    one.handler,
                    one.once,
                )
                for number, one in sorted(instance.listeners.items())
            ),
            tuple((number, one.due, one.period, one.handler) for number, one in sorted(instance.timers.items())),
            tuple((number, one.encoded()) for number, one in sorted(instance.expressions.items())),
            tuple(sorted((one.key, one.encoded()) for each in instance.expressions.values() for one in each.attempts)),
            tuple(instance.subscriptions),
        )
        for instance in sorted(instances, key=lambda one: (one.owner, one.number))
    )


def _content(attributes: dict[str, Any]) -> bytes:
    """Encode attributes, so that equal attributes give equal bytes in whatever order sets and dicts were filled."""
    try:
        return _encode_in_order(attributes)
    except TypeError:  # the keys of a dict are not text
        return _encode(_in_order(attributes))


def _in_order(value: Any) -> Any:
    if type(value) in _SCALARS:  # most values, and a class of structs takes long to ask
        return value
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return sorted(((_in_order(key), _in_order(one)) for key, one in value.items()), key=repr)
    if isinstance(value, set | frozenset):
        return sorted(map(_in_order, value), key=repr)
    return [_in_order(one) for one in value] if isinstance(value, list | tuple) else value


def _table(table: StateTable[Any, Any]) -> tuple[Any, ...]:
    """Return the content of a table without its mapping methods, which would count reading as a change."""
    content = {table._keys.encode(key): value for key, value in table._cold.items()}
    content |= {table._keys.encode(key): table._values.encode(value) for key, value in table._live.items()}
    return tuple(sorted(content.items()))


def _waiting(thread: MonitorThread, left_out: Collection[str]) -> tuple[Any, ...]:
    queue = thread.queue
    items: list[Any] = []
    for run in [*queue._runs, *queue._inbox]:
        if run.receiver and run.stored and run.receiver not in left_out:
            items.extend((run.receiver, run.first + at) for at in range(run.position, len(run)))
        elif not run.receiver and run.stored:
            items.append((type_name(type(run.events[0])), _encode(run.events[0])))
    return tuple(items)


def at_rest(engine: Engine, disk: Disk, left: Callable[[], Mapping[str, int]], *, awaits_timers: bool) -> bool:
    """Return whether nothing is left to do; `left` counts the messages that brokers hold."""
    if disk.outbound or disk.receive_log:
        return False
    if not all(thread.idle and not (awaits_timers and _primed(thread)) for thread in engine.contexts.values()):
        return False
    if not engine.letters_sent or not all(sender.idle for sender in engine.senders.values()):
        return False
    return (engine.checkpointer is None or not engine.checkpointer.busy) and not left()


def _primed(thread: Any) -> bool:
    """Return whether a timer is set that fires once."""
    if not isinstance(thread, MonitorThread):
        return False
    return any(isinstance(timer, Deadline) or timer.period is None for timer in thread.context.monitors.timers.living())


def awaits_time(engine: Engine) -> bool:
    """Return whether a monitor with lasting state has set a timer or deadline."""
    threads = [thread for thread in engine.contexts.values() if isinstance(thread, MonitorThread)]
    timers = [one for thread in threads for one in thread.context.monitors.timers.living()]
    return any(one.instance.monitor.persistent for one in timers)


def unlocked(engine: Engine) -> list[str]:
    """Return the names of the contexts that could work now."""
    return [name for name, thread in engine.contexts.items() if not thread.lock.locked()]


def remembered_ids(engine: Engine, disk: Disk) -> dict[str, tuple[int, int, int]]:
    """Return for each domain: ids that the detector remembers, the bound of E7, and ids that the disk holds."""
    if engine.writer is None:
        return {}
    stored: dict[str, int] = {}
    for segment in disk.recovered().ids:
        stored[segment.domain] = stored.get(segment.domain, 0) + sum(len(run.ids) for run in segment.runs)
    return {
        domain: (len(detector), _bound(detector, engine.settings.duplicate_detection), stored.get(domain, 0))
        for domain, detector in engine.writer.domains.detectors.items()
    }


def known_ids(engine: Engine | None) -> dict[str, tuple[str, ...]]:
    """Return for each domain the ids in its windows, sorted, without ids that are only pinned for a receiver."""
    if engine is None or engine.writer is None:
        return {}
    windows = (EntryPlace.WINDOW, EntryPlace.TIME_QUEUE)
    return {
        domain: tuple(sorted(one.id for one in detector._entries.values() if one.place in windows))
        for domain, detector in engine.writer.domains.detectors.items()
    }


def _bound(detector: DuplicateDetector, windows: DuplicateDetectionSettings) -> int:
    """Compute the number of ids that windows and pins allow from the entries alone."""
    entries = list(detector._entries.values())
    window, expiry = windows.per_source_window_size, windows.expiry_time
    sources: dict[str, int] = {}
    for entry in entries:
        sources[entry.source] = sources.get(entry.source, 0) + 1
    newest = max((entry.time for entry in entries if entry.place is EntryPlace.TIME_QUEUE), default=0.0)
    young = sum(
        1 for entry in entries if entry.place is EntryPlace.TIME_QUEUE and expiry and entry.time >= newest - expiry
    )
    pinned = sum(1 for entry in entries if entry.segment in detector._pinned)
    return sum(min(window, count) for count in sources.values()) + young + pinned


def state_of_disk(disk: Disk) -> dict[str, list[dict[str, Any]]]:
    """Return attributes and tables of the persistent monitors on the disk, by class name, oldest instance first."""
    values = StateLog().restore(disk.recovered().state)
    found: dict[str, list[dict[str, Any]]] = {}
    for owner, instances in values.items():
        if owner.startswith("monitor:"):
            for key, data in sorted(instances.items(), key=lambda one: _age(one[0])):
                found.setdefault(owner[8:], []).append(_monitor_of(owner[8:], key, data, values))
    return found


def _age(key: bytes) -> tuple[bytes, int]:
    """Return a key that sorts instances by age: those of a context count from 1 in the order of
    creation, as in `main.2`.
    """
    context, _, number = key.rpartition(b".")
    return context, int(number)


def _monitor_of(name: str, key: bytes, data: bytes, values: Mapping[str, Mapping[bytes, bytes]]) -> dict[str, Any]:
    stored = msgspec.msgpack.decode(data, type=StoredMonitor)
    cls: type[Monitor] = resolve(stored.type)
    attributes: dict[str, Any] = msgspec.msgpack.decode(stored.attributes)
    for attribute, (key_type, _) in cls._tables.items():
        table = values.get(f"table:{name}#{key.decode()}.{attribute}", {})
        attributes[attribute] = {
            msgspec.msgpack.decode(one, type=key_type): msgspec.msgpack.decode(value) for one, value in table.items()
        }
    # The name contains a space, since attributes may have any other name.
    attributes["repeating timers"] = [one.due for one in stored.timers if one.period is not None]
    attributes["once listeners"] = [(one.handler, list(one.values)) for one in stored.listeners if one.once]
    return attributes


def rest(**values: Any) -> Rest:
    """Return the last record of a history."""
    return Rest(**values)
