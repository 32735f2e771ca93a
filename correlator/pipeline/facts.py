"""The fingerprint of a keyed step: the facts of its settings and rows on which the meaning of its state depends. Pure.

A fingerprint covers the names and types of columns, but not how earlier steps compute them; and the attributes of a
monitor, but not its code.
"""

from collections.abc import Mapping
from typing import Any

from correlator.core.fingerprints import described
from correlator.core.keyed import KeyedMonitor
from correlator.pipeline.columns import python_type
from correlator.pipeline.spec import AggregateStep, CorrelateStep, KeyedStep, MonitorStep
from correlator.pipeline.windows import parse_call


def facts_of(
    step: KeyedStep,
    key_type: str,
    rows: Mapping[str, str],
    columns: Mapping[str, str],
    monitor: type[KeyedMonitor[Any, Any]],
) -> dict[str, str]:
    """The facts, by name.

    Args:
        step: the settings of the step.
        key_type: Spark's type of the key.
        rows: Spark's types of the values that go to the worker.
        columns: Spark's types of the columns that the step sees.
        monitor: the monitor that runs in the workers.
    """
    common = {"kind": step.word, "key": step.key.strip(), "key type": key_type, "event time": _text(step.event_time)}
    if step.expires is not None:
        common["expires"] = _seconds(step.expires)
    match step:
        case MonitorStep():
            return common | _of_monitor(step, rows, monitor)
        case AggregateStep():
            return common | _of_windows(step, rows)
        case CorrelateStep():
            return common | _of_pairs(step, columns)


def _of_monitor(step: MonitorStep, rows: Mapping[str, str], monitor: type[KeyedMonitor[Any, Any]]) -> dict[str, str]:
    attributes = {f"attribute {name}": described(hint) for name, hint in monitor.attributes().items()}
    facts = {"class": step.class_.rpartition(":")[2], **attributes}
    return facts | {f"row {name}": kind for name, kind in rows.items()}


def _of_windows(step: AggregateStep, rows: Mapping[str, str]) -> dict[str, str]:
    if step.window is not None:
        facts = {"window": _seconds(step.window), "every": _seconds(step.every or step.window)}
    else:
        facts = {"session": _seconds(step.session or 0.0)}
    facts["lateness"] = _seconds(step.lateness)
    for at, (name, value) in enumerate(step.values.items()):
        call = parse_call(value, step.word)
        facts |= {f"value {at + 1} name": name, f"value {at + 1} function": call.function}
        facts[f"value {at + 1} argument"] = call.argument
        kept = int if call.function == "count" else python_type(rows[f"v{at}"], name)
        facts[f"value {at + 1} type"] = kept.__name__
    return facts


def _of_pairs(step: CorrelateStep, columns: Mapping[str, str]) -> dict[str, str]:
    facts = {"first": step.first.strip(), "second": step.second.strip()}
    facts |= {"within": _seconds(step.within), "unmatched": str(step.unmatched).lower()}
    return facts | {f"column {name}": kind for name, kind in columns.items()}


def _text(expression: str | None) -> str:
    return (expression or "").strip()


def _seconds(length: float) -> str:
    return f"{length!r} s"
