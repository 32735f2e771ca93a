"""Keyed steps of pipelines: whether their state in the store fits the configuration, and what a start does with it.

The store holds a fingerprint beside the state of each step (`fingerprints`). Before a start writes anything, it
compares this fingerprint with the configured one. The first checkpoint records the decision of the start, together with
the first effects of the step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from correlator.core.commit import StateEntry
from correlator.core.differences import Difference, FieldChange, Verdict
from correlator.core.fingerprints import UNKNOWN, Facts, Fit, changes_between, digest, fit_of
from correlator.core.statelog import put
from correlator.errors import CorrelatorError, RecoveryRefused

RECORDS = "fingerprint"
"""The owner of the fingerprints in the state log; their key is PIPELINE/STEP."""
_PREFIX = "step:"
_CLOCK_PREFIX = "clock:"
_EVENT_TIME = "event time"
_KEEP = "keep"
_DISCARD = "discard"

State = Mapping[str, Mapping[bytes, bytes]]


class ConfiguredStep(NamedTuple):
    """A keyed step of the configuration.

    Attributes:
        name: PIPELINE/STEP.
        facts: the fingerprint of the step, as named facts.
        was: PIPELINE/STEP before the step was renamed; empty if it was not renamed.
        decision: `keep FINGERPRINT`, `discard FINGERPRINT`, or empty.
        read: reads the state of one key; raises `StateError` if this step cannot read it.
    """

    name: str
    facts: Facts
    was: str
    decision: str
    read: Callable[[str, bytes], object]


class StoredStep(NamedTuple):
    """A step in the store: its fingerprint, and its values by key.

    The fingerprint is `None` if a version without fingerprints has stored the step.
    """

    facts: Facts | None
    values: Mapping[bytes, bytes]


class StepDifference(Difference, frozen=True, kw_only=True):
    """A keyed step, and what a start does with its state. The step is in the configuration, in the store, or in both.

    Attributes:
        source: PIPELINE/STEP whose state the step takes over; empty if none.
        discarded: PIPELINE/STEP whose state is deleted; empty if none.
        put: the fingerprint to record; `None` if the step is no longer configured.
        idle: whether a setting about the state has no effect; `note` names the setting.
    """

    source: str = ""
    discarded: str = ""
    put: Facts | None = None
    idle: bool = False


def owner_of(name: str) -> str:
    """The owner of the state of a step in the state log."""
    return f"{_PREFIX}{name}"


def clock_of_step(name: str) -> str:
    """The owner of the event time of a step in the state log; its only key is empty."""
    return f"{_CLOCK_PREFIX}{name}"


def stored_steps(state: State) -> dict[str, StoredStep]:
    """The keyed steps whose fingerprints or state a store holds, by PIPELINE/STEP."""
    records = {key.decode(): msgspec.json.decode(data, type=dict[str, str]) for key, data in _of(state, RECORDS)}
    kept = [owner.removeprefix(_PREFIX) for owner, values in state.items() if owner.startswith(_PREFIX) and values]
    return {
        name: StoredStep(records.get(name), state.get(owner_of(name), {})) for name in dict.fromkeys([*records, *kept])
    }


def compare_steps(
    stored: Mapping[str, StoredStep], configured: Sequence[ConfiguredStep], discarded: Iterable[str] = ()
) -> list[StepDifference]:
    """Compare the keyed steps of the store with the configured ones. Refusals (E4330, E4331, E4203) are in the result.

    Args:
        stored: the steps of the store, by PIPELINE/STEP.
        configured: the steps of all pipelines.
        discarded: `PIPELINE/STEP FINGERPRINT` of steps that are no longer configured and whose state is to be deleted.
    """
    renamed = _renamed(stored, configured)
    alike = _alike(stored, configured)
    found: list[StepDifference] = []
    for step in configured:
        source = renamed.get(step.name, step.name)
        if source not in stored or (step.name not in renamed and source in renamed.values()):
            found.append(_new(step))
        elif circle := _circle(step, stored, configured):
            found.append(_refused(step, source, stored[source], (), _exchanged(step.name, circle)))
        elif step.name in alike and stored[source].values:
            found.append(_refused(step, source, stored[source], (), _ambiguous(step.name)))
        else:
            found.append(_compare(step, source, stored[source]))
    taken = {one.source or one.discarded for one in found} | {step.name for step in configured}
    decided = list(discarded)
    left = [_left(name, one, decided, configured) for name, one in stored.items() if name not in taken]
    return [*found, *left, *(_idle_discard(one) for one in decided if one not in _marks(left, stored))]


def changes_of(differences: Iterable[StepDifference], state: State) -> list[StateEntry]:
    """The changes of state that the first checkpoint writes for these differences; at most one entry for each key."""
    entries: dict[tuple[str, bytes], bytes | None] = {}
    decided = list(differences)
    for one in decided:
        left = one.discarded or one.source
        goes_on = one.source == one.name
        if left and not goes_on:
            owners = (owner_of(left), clock_of_step(left))
            entries |= {(owner, key): None for owner in owners for key, _ in _of(state, owner)}
            entries |= {(RECORDS, left.encode()): None}
        elif goes_on and _has_other_time(one):
            entries |= {(clock_of_step(left), key): None for key, _ in _of(state, clock_of_step(left))}
    for one in decided:
        if one.source and one.source != one.name:
            entries |= {(owner_of(one.name), key): value for key, value in _of(state, owner_of(one.source))}
            if not _has_other_time(one):
                clock = _of(state, clock_of_step(one.source))
                entries |= {(clock_of_step(one.name), key): value for key, value in clock}
        if one.put is not None:
            entries[RECORDS, one.name.encode()] = msgspec.json.encode(dict(one.put))
    kept = {place: state.get(place[0], {}).get(place[1]) for place in entries}
    return [StateEntry(owner, key, value) for (owner, key), value in entries.items() if kept[owner, key] != value]


def _has_other_time(one: StepDifference) -> bool:
    """Whether the expression of the step's event time has changed, so that the stored event time has no meaning."""
    return any(change.field == _EVENT_TIME for change in one.changes)


def changed_state(
    state: Mapping[str, dict[bytes, bytes]], changes: Sequence[StateEntry]
) -> dict[str, dict[bytes, bytes]]:
    """Return the state after the changes. For owners without changes it shares the values with the given state."""
    owners = {entry.owner for entry in changes}
    after = {owner: dict(values) if owner in owners else values for owner, values in state.items()}
    for entry in changes:
        put(after, entry)
    return after


def _renamed(stored: Mapping[str, StoredStep], configured: Sequence[ConfiguredStep]) -> dict[str, str]:
    """Return the steps that take over the state of a step with another name, each with this other name.

    Such a step has no state under its own name, or another step takes over the state under its name, in a chain of
    renamed steps.
    """
    renamed: dict[str, str] = {}
    waiting = [step for step in configured if step.was in stored]
    while more := {one.name: one.was for one in waiting if one.name not in stored or one.name in renamed.values()}:
        renamed |= more
        waiting = [step for step in waiting if step.name not in renamed]
    return renamed


def _circle(
    step: ConfiguredStep, stored: Mapping[str, StoredStep], configured: Sequence[ConfiguredStep]
) -> Sequence[str]:
    """Return the steps that would exchange their states in a circle with this one; empty if there is no circle."""
    before = {one.name: one.was for one in configured if one.name in stored and one.was in stored}
    circle = [step.name]
    while (name := before.get(circle[-1], "")) and name not in circle:
        circle.append(name)
    return circle if name == step.name and len(circle) > 1 else ()


def _of(state: State, owner: str) -> Iterable[tuple[bytes, bytes]]:
    return state.get(owner, {}).items()


def _compare(step: ConfiguredStep, source: str, stored: StoredStep) -> StepDifference:
    if stored.facts is None:
        return _compare_unknown(step, source, stored)
    changes = changes_between(stored.facts, step.facts)
    if not changes or not stored.values:
        return _kept(step, source, stored, changes, "" if stored.values else "the store holds no keys of it")
    if step.decision == f"{_DISCARD} {digest(stored.facts)}":
        return _discarding(step, source, stored, changes)
    fit, kept = fit_of(changes), step.decision == f"{_KEEP} {digest(stored.facts)}"
    if fit is Fit.SAME_MEANING:
        return _kept(step, source, stored, changes, "")
    if fit is Fit.NONE or not kept:
        return _refused(step, source, stored, changes, _unfit(step, source, stored, changes, fit))
    return _unread(step, source, stored) or _kept(step, source, stored, changes, "as 'state: keep' says")


def _compare_unknown(step: ConfiguredStep, source: str, stored: StoredStep) -> StepDifference:
    if step.decision == f"{_DISCARD} {UNKNOWN}":
        return _discarding(step, source, stored, ())
    note = "a version without fingerprints has stored it, so nothing is compared; the fingerprint is recorded now"
    return _unread(step, source, stored) or _kept(step, source, stored, (), note)


def _keys(stored: StoredStep) -> str:
    return "1 key" if len(stored.values) == 1 else f"{len(stored.values)} keys"


def _unread(step: ConfiguredStep, source: str, stored: StoredStep) -> StepDifference | None:
    """Return the refusal of state that the step cannot read; `None` if it can read all of it."""
    for key, value in stored.values.items():
        try:
            step.read(key.decode(), value)
        except CorrelatorError as error:
            what = f"cannot read the state of key '{key.decode()}': {error.what}"
            todo = f"Put the step back. To delete the state of all {_keys(stored)}, give the step "
            todo += f"state: {_DISCARD} {digest(stored.facts)}"
            refusal = RecoveryRefused("E4330", f"step '{step.name}'", what, "", todo)
            return _refused(step, source, stored, (), refusal)
    return None


def _new(step: ConfiguredStep) -> StepDifference:
    idle = [f"'state: {step.decision}'"] if step.decision else []
    idle += [f"'was', since the store holds nothing of '{step.was}',"] if step.was else []
    note = f"{' and '.join(idle)} does nothing" if idle else ""
    return _step(step, Verdict.NEW, note=note, idle=bool(idle))


def _kept(
    step: ConfiguredStep, source: str, stored: StoredStep, changes: Sequence[FieldChange], why: str
) -> StepDifference:
    verdict = Verdict.CHANGED if changes or stored.facts is None else Verdict.UNCHANGED
    note = f"goes on with the state of {_keys(stored)}" if stored.values or not why else ""
    if source != step.name:
        verdict, note = Verdict.MOVED, f"{note} of '{source}'"
    idle = []
    if step.decision and not changes and stored.facts is not None:
        idle.append(f"'state: {step.decision}' belongs to an earlier change and does nothing")
    if step.was and source == step.name:
        idle.append("'was' does nothing, since the step has state of its own")
    text = "; ".join(one for one in (note, why, *idle) if one)
    return _step(step, verdict, changes=changes, note=text, source=source, idle=bool(idle))


def _discarding(
    step: ConfiguredStep, source: str, stored: StoredStep, changes: Sequence[FieldChange]
) -> StepDifference:
    note = f"the state of {_keys(stored)} of '{source}' is discarded"
    return _step(step, Verdict.CHANGED, changes=changes, note=note, discarded=source)


def _refused(
    step: ConfiguredStep, source: str, stored: StoredStep, changes: Sequence[FieldChange], refusal: RecoveryRefused
) -> StepDifference:
    note = f"the store holds {_keys(stored)} of {digest(stored.facts)}, configured is {digest(step.facts)}"
    return _step(step, Verdict.REFUSED, changes=changes, note=note, refusals=[refusal], source=source)


def _step(
    step: ConfiguredStep,
    verdict: Verdict,
    *,
    changes: Sequence[FieldChange] = (),
    note: str = "",
    refusals: Sequence[RecoveryRefused] = (),
    source: str = "",
    discarded: str = "",
    idle: bool = False,
) -> StepDifference:
    return StepDifference(
        kind="step",
        name=step.name,
        verdict=verdict,
        changes=changes,
        note=note,
        refusals=refusals,
        source=source,
        discarded=discarded,
        put=step.facts,
        idle=idle,
    )


def _left(
    name: str, stored: StoredStep, discarded: Sequence[str], configured: Sequence[ConfiguredStep]
) -> StepDifference:
    """Return the difference of a stored step to which no configured step corresponds."""
    found, keys = f"{name} {digest(stored.facts)}", _keys(stored)
    if not stored.values or found in discarded:
        note = f"not configured any more; {f'the state of {keys} is discarded' if stored.values else 'holds no keys'}"
        return StepDifference(kind="step", name=name, verdict=Verdict.CHANGED, note=note, discarded=name)
    what = f"is not configured, and the store holds the state of {keys} of it"
    pipeline, slash, short = name.rpartition("/")
    todo = f". If it was renamed, give the step its name and was: '{short}'"
    if not any(step.name.startswith(pipeline + slash) for step in configured):  # 'was' names a step of its own pipeline
        todo = ": a pipeline keeps its name as long as the store holds state of it"
    for heir in (step.name for step in configured if step.was == name):
        what, todo = f"{what}; '{heir}', which names it in 'was', has state of its own", ""
    todo = f"Put it back{todo}. To delete the state: discard_state: ['{found}']"
    refusal = RecoveryRefused("E4331", f"step '{name}'", what, "", todo)
    return StepDifference(kind="step", name=name, verdict=Verdict.REFUSED, refusals=[refusal])


def _marks(left: Sequence[StepDifference], stored: Mapping[str, StoredStep]) -> list[str]:
    return [f"{one.name} {digest(stored[one.name].facts)}" for one in left]


def _idle_discard(entry: str) -> StepDifference:
    note = "names no state that is left in the store, and does nothing"
    return StepDifference(kind="discard_state", name=entry, verdict=Verdict.UNCHANGED, note=note, idle=True)


def _unfit(
    step: ConfiguredStep, source: str, stored: StoredStep, changes: Sequence[FieldChange], fit: Fit
) -> RecoveryRefused:
    mark, keys = digest(stored.facts), _keys(stored)
    different = ", ".join(f"{one.field}: {one.before or 'nothing'} -> {one.after or 'nothing'}" for one in changes)
    what = f"the state of {keys} of '{source}' has fingerprint {mark}, the step has {digest(step.facts)}"
    allowed = "The step cannot use the state"
    todo = f"Put the step back. To delete the state, give the step state: {_DISCARD} {mark}"
    if fit is Fit.READABLE:
        allowed = "The step can read the state, but only you know whether it still means the same"
        todo = f"{todo}. To go on with it, state: {_KEEP} {mark}"
    return RecoveryRefused("E4330", f"step '{step.name}'", f"{what}: {different}", allowed, todo)


def _exchanged(name: str, circle: Sequence[str]) -> RecoveryRefused:
    return RecoveryRefused(
        "E4330",
        f"step '{name}'",
        f"the steps of 'was' form a circle: {', '.join(circle)}",
        "State that was exchanged once would be exchanged again by each start",
        "To exchange it, give the steps new names, each with 'was'. To go on without that, leave 'was' out",
    )


def _ambiguous(name: str) -> RecoveryRefused:
    return RecoveryRefused(
        "E4330",
        f"step '{name}'",
        "equal steps were added or removed, so the state may belong to another step",
        "State is never guessed",
        "Put them back, or give each of them a 'name', and those that were there 'was' with the place before",
    )


def _alike(stored: Mapping[str, StoredStep], configured: Sequence[ConfiguredStep]) -> list[str]:
    """Return the steps without a name that are equal to others, if the number of such equal steps has changed."""
    before = [(_kind(name), digest(one.facts)) for name, one in stored.items() if "#" in name and one.facts is not None]
    after = [(step, (_kind(step.name), digest(step.facts))) for step in configured if "#" in step.name]
    marks = [mark for _, mark in after]
    return [
        step.name
        for step, mark in after
        if 0 < before.count(mark) != marks.count(mark) and max(before.count(mark), marks.count(mark)) > 1
    ]


def _kind(name: str) -> str:
    return name.rpartition("#")[0]
