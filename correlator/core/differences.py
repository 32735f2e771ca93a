"""Differences between a configuration and a store: a start is refused because of them, and `plan` shows them.

A start and `plan` use the same functions, so a start does what `plan` shows.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from correlator.core.commit import ContextCut
from correlator.errors import CorrelatorError, RecoveryRefused, sentence

E = TypeVar("E", bound=CorrelatorError)


class Verdict(StrEnum):
    """What a start does with a part."""

    UNCHANGED = "unchanged"
    NEW = "new"
    CHANGED = "changed"
    MOVED = "moved"
    REFUSED = "refused"


class FieldChange(NamedTuple):
    """One setting before and after."""

    field: str
    before: str
    after: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the store or the configuration, and what a start does with it.

    Attributes:
        kind: receiver, sender, monitor, context, table, pipeline, domain or instance.
        name: name of the part.
        verdict: what a start does with the part.
        rule: the rule by which a start accepts or refuses the change, as a sentence; "" if the verdict says enough.
        changes: settings that differ.
        note: what a start does with the part, if the verdict does not say enough.
        refusals: why a start is refused, each with what to do.
    """

    kind: str
    name: str
    verdict: Verdict
    rule: str = ""
    changes: Sequence[FieldChange] = ()
    note: str = ""
    refusals: Sequence[CorrelatorError] = ()


class StoredMonitorFacts(NamedTuple):
    """A monitor in the store: its state name, instance number, class and context, each by name."""

    name: str
    number: str
    type: str
    context: str


def refuse(differences: Iterable[Difference]) -> None:
    """Raise the refusals of all differences as one error, with class, code and place of the first one."""
    refusals = [refusal for difference in differences for refusal in difference.refusals]
    if refusals:
        raise joined(refusals)


def joined(errors: Sequence[E]) -> E:
    """Join several errors into one, with the class, code and place of the first error, and a line for each."""
    first, *others = errors
    if not others:
        return first
    lines = [*([sentence(first.todo)] if first.todo else []), *(str(other) for other in others)]
    return type(first)(first.code, first.where, first.what, first.allowed, "\n".join(lines))


def compare_contexts(cuts: Iterable[ContextCut], contexts: Collection[str]) -> list[Difference]:
    """Compare the contexts of the last checkpoint with those of the configuration (E4315).

    This function refuses to remove a context if events from inside the engine wait in it; `correlator.core.delivery`
    refuses it because of received messages.
    """
    found = [_compare_context(cut, contexts) for cut in cuts]
    known = {difference.name for difference in found}
    fresh = [Difference(kind="context", name=name, verdict=Verdict.NEW) for name in contexts if name not in known]
    return [*found, *fresh]


def _compare_context(cut: ContextCut, contexts: Collection[str]) -> Difference:
    inside = sum(1 for run in cut.queue if not run.receiver)
    if cut.context in contexts:
        return Difference(kind="context", name=cut.context, verdict=Verdict.UNCHANGED)
    if inside:
        refusal = _not_configured(
            "E4315", f"context '{cut.context}'", f"{inside} events from inside the engine waiting"
        )
        return Difference(kind="context", name=cut.context, verdict=Verdict.REFUSED, refusals=[refusal])
    note = "not configured any more; it is left out"
    return Difference(kind="context", name=cut.context, verdict=Verdict.CHANGED, note=note)


def compare_monitors(
    stored: Iterable[StoredMonitorFacts], configured: Mapping[str, str], contexts: Collection[str]
) -> list[Difference]:
    """Compare the persistent monitors of the store with those of the configuration (E4202, E4313, E4315).

    Args:
        stored: the monitors of the store, including spawned ones.
        configured: the context of each configured persistent monitor, by state name.
        contexts: the names of the contexts of monitors.
    """
    facts = list(stored)
    found = [_compare_monitor(one, configured, contexts) for one in facts]
    known = {one.name for one in facts if one.number == "0"}
    fresh = [Difference(kind="monitor", name=name, verdict=Verdict.NEW) for name in configured if name not in known]
    return [*found, *fresh]


def _compare_monitor(one: StoredMonitorFacts, configured: Mapping[str, str], contexts: Collection[str]) -> Difference:
    if one.number != "0":
        name, fits = f"{one.name} {one.number}", one.context in contexts
        where = f"context '{one.context}'"
        refusals = [] if fits else [_not_configured("E4315", where, f"a monitor {one.type}")]
        return Difference(kind="monitor", name=name, verdict=_fitting(fits=fits), refusals=refusals)
    if one.name not in configured:
        refusal = _not_configured("E4202", f"monitor '{one.name}'", f"state of {one.type}")
        return Difference(kind="monitor", name=one.name, verdict=Verdict.REFUSED, refusals=[refusal])
    after = configured[one.name]
    if one.context == after:
        return Difference(kind="monitor", name=one.name, verdict=Verdict.UNCHANGED)
    refusal = RecoveryRefused(
        "E4313",
        f"monitor '{one.name}'",
        f"lived in context '{one.context}', is configured for '{after}'",
        "What a context has handled is recorded by its name",
        "Put it back",
    )
    changes = [FieldChange("context", one.context, after)]
    return Difference(kind="monitor", name=one.name, verdict=Verdict.REFUSED, changes=changes, refusals=[refusal])


def compare_tables(kept: Mapping[str, int], claimed: Collection[str]) -> list[Difference]:
    """Compare the tables of the store with those of the monitors; a start never assumes that a table was renamed
    (E4203).

    Args:
        kept: number of keys in the store, by owner.
        claimed: owners of the tables of all monitors.
    """
    return [
        Difference(
            kind="table",
            name=owner,
            verdict=Verdict.REFUSED,
            refusals=[
                RecoveryRefused(
                    "E4203",
                    owner,
                    f"{keys} keys are in the store, but no monitor has this table",
                    "State is never guessed",
                    "Put the attribute back under its old name",
                )
            ],
        )
        for owner, keys in kept.items()
        if keys and owner not in claimed
    ]


def _fitting(*, fits: bool) -> Verdict:
    return Verdict.UNCHANGED if fits else Verdict.REFUSED


def _not_configured(code: str, where: str, what: str) -> RecoveryRefused:
    return RecoveryRefused(code, where, f"is in the store ({what}) but not in the configuration", "", "Put it back")
