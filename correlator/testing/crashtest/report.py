"""What a person sees of a failure, on one screen; and what a program sees of a campaign."""

import os
from pathlib import Path
from typing import Any

import msgspec

from correlator.testing.crashtest.campaign import Result
from correlator.testing.crashtest.runs import Outcome
from correlator.testing.crashtest.timeline import last

LINES = 14
WIDTH = 160
FAULTS = 6


def failure(result: Result, reproduce: str) -> str:
    """One screen.

    Args:
        result: of a campaign that has found something.
        reproduce: the command that repeats it.
    """
    found, shrunk = result.found, result.shrunk
    assert found is not None
    assert shrunk is not None
    timeline, count = last(shrunk.history, LINES)
    lines = [
        " ".join(str(shrunk.violated).split()),
        f"  reproduce: {reproduce}   (seed {shrunk.plan.seed}, level {result.figures.level})",
        _faults(found, shrunk),
        f"  timeline (last {len(timeline)} of {count}):",
        *(f"    {line}" for line in timeline),
        f"  {result.figures.line()}",
    ]
    if shrunk.kept is not None:
        lines.append(f"  kept: {shrunk.kept}")
    return "\n".join(
        line if len(line) <= WIDTH or number < 3 else line[: WIDTH - 3] + "..." for number, line in enumerate(lines)
    )


def _faults(found: Outcome, shrunk: Outcome) -> str:
    if not shrunk.faults:
        return "  it fails without any fault"
    told = shrunk.told or [f"{fault.kind} {fault.n}" for fault in shrunk.faults]
    shown = "  ".join(f"#{number} {text}" for number, text in enumerate(told[:FAULTS], 1))
    more = f"  and {len(told) - FAULTS} more" if len(told) > FAULTS else ""
    return f"  shrunk from {len(found.faults)} faults to {len(shrunk.faults)}: {shown}{more}"


def figures(result: Result) -> dict[str, Any]:
    """The campaign as plain values."""
    shown: dict[str, Any] = msgspec.to_builtins(result.figures)
    shown["violations"] = 0 if result.found is None else 1
    if result.shrunk is not None:
        shown["violated"] = str(result.shrunk.violated)
        shown["faults_needed"] = [list(fault) for fault in result.shrunk.faults]
    return shown


def write(path: Path, content: Any) -> None:
    """Write a report as JSON, for its owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
