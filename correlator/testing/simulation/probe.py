"""Records those calls of the monitors of any application that invariants need."""

import contextlib
from collections.abc import Callable, Iterator

from correlator.core import poison
from correlator.core.monitor import Monitor
from correlator.testing.invariants.history import Kind


@contextlib.contextmanager
def observed(record: Callable[[Kind, str, object], None]) -> Iterator[None]:
    """Within the block, record every acknowledgement by a monitor as "resumed", before it is done."""
    acknowledge = Monitor.acknowledge_and_resume

    def acknowledge_and_resume(monitor: Monitor, receiver: str) -> None:
        record("resumed", receiver, None)
        acknowledge(monitor, receiver)

    setattr(Monitor, "acknowledge_and_resume", acknowledge_and_resume)  # noqa: B010  # replaces a method
    try:
        yield
    finally:
        setattr(Monitor, "acknowledge_and_resume", acknowledge)  # noqa: B010


@contextlib.contextmanager
def innocent_messages() -> Iterator[None]:
    """Within the block, quarantine no message after deaths of the process, since the harness causes all of them."""
    deaths = poison.DEATHS
    poison.DEATHS = 1_000_000_000
    try:
        yield
    finally:
        poison.DEATHS = deaths
