"""A history as lines of text: the actions of brokers, store and engines.

Messages that the test has published are left out: the test shows them, and deliveries name them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from correlator.testing.invariants.history import History, Record

MOST_NAMED = 4
MOST_OF_A_BODY = 40
DEATH = "DIES"


def last(history: History, count: int) -> tuple[list[str], int]:
    """Return the last `count` lines, and the number of all lines.

    If the last death is before these lines, half of the returned lines are about that death.
    """
    lines = [f"{at:5}  {line}" for at, record in enumerate(history.records) if (line := _line(record))]
    deaths = [place for place, line in enumerate(lines[:-count]) if DEATH in line]
    if not deaths or any(DEATH in line for line in lines[-count:]):
        return lines[-count:], len(lines)
    half = count // 2
    first = max(0, deaths[-1] - half // 2)
    return [*lines[first : first + half], "...", *lines[-(count - half - 1) :]], len(lines)


def _line(record: Record) -> str:
    told = _TOLD.get(record.kind)
    text = told(record) if told is not None else ""
    return f"{f'life {record.life}' if record.life else 'outside'}: {text}" if text else ""


def _names(names: Sequence[Any]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(str(name) for name in names[:MOST_NAMED]) + more


def _moved(record: Record) -> str:
    return f"{record.who} {record.kind} {_names(record.data)}" if record.data else ""


def _sent(record: Record) -> str:
    verb = "is confirmed" if record.kind == "accepted" else "is refused"
    shown = [f"{one.sequence} {_body(one.body)}" for one in record.data]
    return f"{record.who} {verb}: {_names(shown)}" if shown else ""


def _body(body: bytes) -> str:
    text = body.decode(errors="backslashreplace")
    return text if len(text) <= MOST_OF_A_BODY else text[: MOST_OF_A_BODY - 3] + "..."


def _received(record: Record) -> str:
    pids, dead = record.data.pids, record.data.dead
    stored = f"stored {record.data.first} to {record.data.first + len(pids) - 1}: {_names(pids)}" if pids else ""
    letters = f"dead letters: {_names(dead)}" if dead else ""
    return f"{record.who} {', '.join(part for part in (stored, letters) if part) or 'stored ids of duplicates alone'}"


def _checkpoint(record: Record) -> str:
    sends = [f"{name} {first} to {first + len(bodies) - 1}" for name, (first, bodies) in record.data.outbound.items()]
    released = f" releases {', '.join(sends)}" if sends else ""
    letters = f", {len(record.data.dead)} dead letters" if record.data.dead else ""
    return f"checkpoint {record.data.number} is committed{released}{letters}"


def _began(record: Record) -> str:
    return f"recovered checkpoint {record.data[1]}"


def _died(record: Record) -> str:
    return f"{DEATH} at {record.who}"


def _rest(record: Record) -> str:
    return "everything is quiet" if record.data.reached else "does not come to rest"


_TOLD: dict[str, Callable[[Record], str]] = {
    "delivered": _moved,
    "acknowledged": _moved,
    "returned": _moved,
    "accepted": _sent,
    "refused": _sent,
    "received": _received,
    "checkpoint": _checkpoint,
    "began": _began,
    "died": _died,
    "fault": lambda record: f"FAULT {record.who}",
    "resumed": lambda record: f"the application acknowledges {record.who}",
    "condemned": lambda record: f"{record.who} sets aside number {record.data.number} of {record.data.receiver}",
    "rest": _rest,
}
