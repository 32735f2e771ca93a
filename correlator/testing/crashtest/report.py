"""Shows a failure on one screen, and a campaign as JSON."""

from typing import Any

import msgspec

from correlator.testing.crashtest.campaign import Result
from correlator.testing.crashtest.disorder import disorder
from correlator.testing.crashtest.runs import TEST, Outcome
from correlator.testing.crashtest.timeline import last

LINES = 14
WIDTH = 120
LONGEST = 480
"""The most characters of the violation that the screen shows."""
FAULTS = 6


def failure(result: Result, reproduce: str) -> str:
    """Return the description of a failure, which fits on one screen.

    Args:
        result: the result of a campaign that has found a failure.
        reproduce: the command that repeats it.
    """
    found, shrunk = result.found, result.shrunk
    assert found is not None
    assert shrunk is not None
    timeline, count = last(shrunk.history, LINES)
    lines = [
        _cut(" ".join(str(shrunk.violated).split()), LONGEST),
        f"  reproduce: {reproduce}",
        _cut(f"  {_faults(found, shrunk)}", LONGEST),
        *_order(shrunk),
        *_letter(shrunk),
        f"  timeline (last {len(timeline)} of {count}):",
        *(_cut(f"    {line}", WIDTH) for line in timeline),
        f"  seed {shrunk.plan.seed}, {result.figures.line()}",
    ]
    if kept := dict.fromkeys(str(one.kept) for one in (shrunk, found) if one.kept is not None):
        lines.append(f"  kept: {', before shrinking: '.join(kept)}")
    return "\n".join(lines)


def _order(shrunk: Outcome) -> list[str]:
    """Return a line about redelivered messages if a failed assertion may expect an order that no broker promises."""
    told = disorder(shrunk.history) if shrunk.violated is not None and shrunk.violated.id == TEST else ""
    return [_cut(f"  {told}", LONGEST)] if told else []


def _letter(shrunk: Outcome) -> list[str]:
    """Return why the first message became a dead letter; with `on_error: dead_letter`, no log shows an
    error in a handler.
    """
    reasons = (one.data.reason for one in shrunk.history.records if one.kind in ("received", "checkpoint"))
    first = next((" ".join(reason.split()) for reason in reasons if reason), "")
    return [_cut(f"  first dead letter: {first}", LONGEST)] if first else []


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."


def _faults(found: Outcome, shrunk: Outcome) -> str:
    if not shrunk.faults:
        return "it fails without any fault"
    told = shrunk.told or [f"{fault.kind} {fault.n}" for fault in shrunk.faults]
    shown = "  ".join(f"#{number} {text}" for number, text in enumerate(told[:FAULTS], 1))
    more = f"  and {len(told) - FAULTS} more" if len(told) > FAULTS else ""
    before = f"shrunk from {len(found.faults)} faults to {len(told)}" if len(found.faults) > len(told) else "faults"
    return f"{before}: {shown}{more}"


def figures(result: Result) -> dict[str, Any]:
    """Return the campaign as plain values; `passed` counts how often the first run passed each fault point."""
    shown: dict[str, Any] = msgspec.to_builtins(result.figures)
    shown["line"] = result.figures.line()
    shown["passed"] = dict(result.reference.points)
    shown["violations"] = 0 if result.found is None else 1
    if result.shrunk is not None:
        shown["violated"] = str(result.shrunk.violated)
        shown["faults_needed"] = [list(fault) for fault in result.shrunk.faults]
    return shown
