"""Changes of values of JSON, as RFC 7396 (JSON Merge Patch) describes them."""

from typing import Any


def patch(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The patch that turns `before` into `now`: changed members, and `None` for a member that is missing or `None` in
    `now`.
    """
    changed: dict[str, Any] = {name: None for name in before if name not in now}
    for name, value in now.items():
        earlier = before.get(name)
        if isinstance(value, dict) and isinstance(earlier, dict):
            if inner := patch(earlier, value):
                changed[name] = inner
        elif name not in before or value != earlier:
            changed[name] = value
    return changed
