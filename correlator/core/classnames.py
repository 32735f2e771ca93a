"""Checks that a later start can find the classes whose names the store holds."""

from collections.abc import Callable
from typing import Any

from correlator.core.expressions import Pattern
from correlator.core.instances import type_name
from correlator.core.monitor import ListenerSpec, Monitor
from correlator.errors import CorrelatorError, UsageError, quoted


class ClassNames:
    """Checks classes before their names get into the store. Owner: the context's thread.

    Args:
        resolve: returns the class behind a `type_name`.
    """

    def __init__(self, resolve: Callable[[str], type[Any]]) -> None:
        self._resolve = resolve
        self._found: set[type[Any]] = set()

    def check(self, monitor: Monitor, cls: type[Any]) -> None:
        """Raise `UsageError` E4118 if the name of a class does not lead to the class.

        Args:
            monitor: the monitor whose request names the class.
            cls: the class.
        """
        if cls in self._found:
            return
        name = type_name(cls)
        try:
            found = type_name(self._resolve(name))
        except CorrelatorError:
            found = ""
        if found != name:
            raise UsageError(
                "E4118",
                f"monitor {monitor.state_name}",
                f"{quoted(name)} cannot be imported by this name, so that no later start could read it back",
                "Classes of events and of spawned monitors stand at the top of a module, under their own name",
                "Move the class there",
            )
        self._found.add(cls)

    def check_listener(self, monitor: Monitor, spec: ListenerSpec) -> None:
        """Raise `UsageError` E4118 for an event class of a listener of this monitor."""
        for part in spec.plan.parts if spec.plan is not None else (spec.expression,):
            if isinstance(part, Pattern):
                self.check(monitor, part.event_type)

    def check_monitor(self, monitor: Monitor, made: Monitor) -> None:
        """Check that a later start can restore a persistent monitor that begins now; `monitor` asks for it.

        Raises:
            StateError: E4102, E4103, E4116 for its attributes (`Monitor.settle`).
            UsageError: E4118 for an event class of its expressions.
        """
        made.settle()
        for spec in made.listeners:
            if spec.plan is not None:
                self.check_listener(monitor, spec)
