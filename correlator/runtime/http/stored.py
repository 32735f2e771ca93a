"""What the status page shows of the store: dead letters, and state by key. Each request opens a connection of its
own.
"""

from typing import Any

from correlator.core.deadletters import DeadLetterKind
from correlator.runtime.http.answers import Asked, RequestRefused, as_json, number
from correlator.serving import Response, told
from correlator.storage import inspect
from correlator.storage.inspect import DeadLetterRow, Selection
from correlator.storage.letters import described
from correlator.storage.states import facts_of, shown_key

MOST_LETTERS = 100
MOST_KEYS = 100
LONGEST_REASON = 1_000
LONGEST_BODY = 65_536
_LARGEST = 2**63 - 1


def letters(url: str, asked: Asked) -> Response:
    """The newest dead letters below a number, and how many there are of each kind and origin. Bodies are left out."""
    given = asked.parameters("kind", "origin", "below", "limit")
    kind = given.get("kind", "")
    if kind and kind not in list(DeadLetterKind):
        raise RequestRefused(told(400, f"there is no such kind. There are {', '.join(DeadLetterKind)}"))
    selection = Selection(kind=kind, origin=given.get("origin", ""))
    below = number(given, "below", 1, _LARGEST, _LARGEST)
    limit = number(given, "limit", 1, MOST_LETTERS, MOST_LETTERS)
    counts = inspect.counted_dead_letters(url)
    rows = inspect.newest_dead_letters(url, selection, below, limit)
    return as_json(
        200,
        {
            "counts": [{"kind": one.kind, "origin": one.origin, "count": one.count} for one in counts],
            "letters": [_line(row) for row in rows],
        },
    )


def letter(url: str, asked: Asked) -> Response:
    """One dead letter with its message. A long body is cut."""
    wanted = number(asked.parameters("number"), "number", 1, _LARGEST)
    rows = inspect.dead_letters(url, Selection(numbers=[wanted]))
    if not rows:
        return told(404, f"dead letter {wanted} is not there")
    body = rows[0].letter.message.body
    shown = described(rows[0], LONGEST_BODY)
    return as_json(200, {**shown, "body_bytes": len(body), "cut": len(body) > LONGEST_BODY})


def state(url: str, asked: Asked) -> Response:
    """The owners of state with the number of their keys; for one owner, its next keys with their values."""
    given = asked.parameters("owner", "after", "find")
    found = inspect.state(url)
    if "owner" not in given:
        owners = [
            {"owner": name, "keys": len(keys), "bytes": sum(map(len, keys.values()))}
            for name, keys in sorted(found.items())
        ]
        return as_json(200, {"owners": owners})
    owner, after, find = given["owner"], number(given, "after", 0, _LARGEST, 0), given.get("find", "").lower()
    if owner not in found:
        return told(404, "no state belongs to this owner")
    facts = facts_of(found)
    keys = [key for key in sorted(found[owner]) if find.encode() in key.lower()]
    page = [shown_key(owner, key, found[owner][key], facts) for key in keys[after : after + MOST_KEYS]]
    rows = [{"key": one.key, "bytes": one.size, "value": one.value, "problem": one.problem} for one in page]
    more = after + MOST_KEYS if after + MOST_KEYS < len(keys) else None
    return as_json(200, {"owner": owner, "keys": len(keys), "rows": rows, "after": more})


def _line(row: DeadLetterRow) -> dict[str, Any]:
    one = row.letter
    return {
        "number": row.number,
        "kind": one.kind,
        "origin": one.origin,
        "receiver": one.receiver or None,
        "unique_id": one.unique_id,
        "engine_time": one.time,
        "reason": one.reason[:LONGEST_REASON],
        "bytes": len(one.message.body),
    }
