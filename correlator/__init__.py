"""correlator: an event-driven, reliable bridge engine.

One database transaction stores the state of the application, its outbound messages, which messages it has received, and
the ids for duplicate detection. The engine acknowledges and sends only after this transaction has committed.

The names of this package are its public interface. Each is imported when it is first used, so that a worker process
that needs only a monitor class does not import a database driver.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from correlator.core.expressions import at, match, wait
    from correlator.core.keyed import KeyedMonitor
    from correlator.core.monitor import Monitor, every, on
    from correlator.core.state import StateTable
    from correlator.errors import CallAgain
    from correlator.events import (
        ConnectionStatus,
        FlowControlMarker,
        Message,
        PartStatus,
        ReceiverStatus,
        ReceivingSuspended,
        SenderFlushed,
        SenderStatus,
        event,
    )
    from correlator.reliability import Reliability
    from correlator.runtime.engine import Engine
    from correlator.runtime.member import Member
    from correlator.runtime.replay import replay
    from correlator.runtime.rerun import rerun

_HOMES = {
    "CallAgain": "correlator.errors",
    "ConnectionStatus": "correlator.events",
    "Engine": "correlator.runtime.engine",
    "FlowControlMarker": "correlator.events",
    "KeyedMonitor": "correlator.core.keyed",
    "Member": "correlator.runtime.member",
    "Message": "correlator.events",
    "Monitor": "correlator.core.monitor",
    "PartStatus": "correlator.events",
    "ReceiverStatus": "correlator.events",
    "ReceivingSuspended": "correlator.events",
    "Reliability": "correlator.reliability",
    "SenderFlushed": "correlator.events",
    "SenderStatus": "correlator.events",
    "StateTable": "correlator.core.state",
    "at": "correlator.core.expressions",
    "event": "correlator.events",
    "every": "correlator.core.monitor",
    "match": "correlator.core.expressions",
    "on": "correlator.core.monitor",
    "replay": "correlator.runtime.replay",
    "rerun": "correlator.runtime.rerun",
    "wait": "correlator.core.expressions",
}

__all__ = [
    "CallAgain",
    "ConnectionStatus",
    "Engine",
    "FlowControlMarker",
    "KeyedMonitor",
    "Member",
    "Message",
    "Monitor",
    "PartStatus",
    "ReceiverStatus",
    "ReceivingSuspended",
    "Reliability",
    "SenderFlushed",
    "SenderStatus",
    "StateTable",
    "at",
    "event",
    "every",
    "match",
    "on",
    "replay",
    "rerun",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'correlator' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
