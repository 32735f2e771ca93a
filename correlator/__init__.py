"""correlator: an event-driven, reliable bridge engine.

One commit holds application state, outbound queues, receive progress and duplicate ids; sends leave only after it.

Names are loaded when they are first used, so that a worker process that needs a monitor class loads no database.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from correlator.core.keyed import KeyedMonitor
    from correlator.core.monitor import Monitor, every, on
    from correlator.core.reliability import Reliability
    from correlator.core.state import StateTable
    from correlator.events import Message, ReceivingSuspended, SenderFlushed, event, match
    from correlator.runtime.engine import Engine

_HOMES = {
    "Engine": "correlator.runtime.engine",
    "KeyedMonitor": "correlator.core.keyed",
    "Message": "correlator.events",
    "Monitor": "correlator.core.monitor",
    "ReceivingSuspended": "correlator.events",
    "Reliability": "correlator.core.reliability",
    "SenderFlushed": "correlator.events",
    "StateTable": "correlator.core.state",
    "event": "correlator.events",
    "every": "correlator.core.monitor",
    "match": "correlator.events",
    "on": "correlator.core.monitor",
}

__all__ = [
    "Engine",
    "KeyedMonitor",
    "Message",
    "Monitor",
    "ReceivingSuspended",
    "Reliability",
    "SenderFlushed",
    "StateTable",
    "event",
    "every",
    "match",
    "on",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'correlator' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
