"""The operator of the engines of a simulated run: chooses the configuration of each life, and adds and
removes parts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from correlator.ports import Processor
from correlator.runtime.actor import Actor
from correlator.runtime.engine import Engine
from correlator.settings import EngineSettings
from correlator.testing.invariants.history import LifeConfiguration


class StartOfLife(NamedTuple):
    """The parameters of the start of a life.

    Attributes:
        settings: settings of the engine.
        processors: its pipelines.
        configured: record for the history, if the engine may refuse this configuration.
    """

    settings: EngineSettings
    processors: Sequence[Processor] = ()
    configured: LifeConfiguration | None = None


class Operator:
    """Starts every life with the settings of the scenario, and changes nothing while an engine runs.

    All methods are called by the thread that steps the engines.
    """

    def start(self, settings: EngineSettings, life: int, *, faults: bool) -> StartOfLife:
        """Choose the parameters of the start of a life.

        Args:
            settings: settings of the scenario.
            life: number of the life, counted from 1.
            faults: whether faults still strike. If not, the engine must accept these parameters.
        """
        del life, faults
        return StartOfLife(settings)

    def accepted(self) -> None:
        """Note that the engine accepted the last start."""

    def refused(self) -> bool:
        """Note that the engine refused the last start; return whether it had accepted the same configuration before.

        If it had not, the next start has the previous configuration.
        """
        return True

    def intervenes(self) -> bool:
        """Return whether a part is added or removed before the next step of a running engine."""
        return False

    def intervene(self, engine: Engine) -> Actor | None:
        """Add or remove a part; return the actor of an added part. Raises what a commit of the engine raises."""
        del engine
        return None

    def settle(self, engine: Engine) -> Actor | None:
        """Add what the engine needs to come to rest; return the actor of an added part."""
        del engine
        return None
