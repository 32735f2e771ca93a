"""Who operates the engines of a simulated run: which configuration each life has, and which parts come and go."""

from collections.abc import Sequence
from typing import NamedTuple

from correlator.ports import Processor
from correlator.runtime.actor import Actor
from correlator.runtime.engine import Engine
from correlator.settings import EngineSettings
from correlator.testing.invariants.history import Configured


class StartOfLife(NamedTuple):
    """What a life is started with.

    Attributes:
        settings: of the engine.
        processors: its pipelines.
        configured: for the history, if the engine may refuse this configuration.
    """

    settings: EngineSettings
    processors: Sequence[Processor] = ()
    configured: Configured | None = None


class Operator:
    """Starts every life with the settings of the scenario, and changes nothing while an engine runs.

    All methods are called by the thread that steps the engines.
    """

    def start(self, settings: EngineSettings, life: int, *, faults: bool) -> StartOfLife:
        """Choose what a life is started with.

        Args:
            settings: of the scenario.
            life: counted from 1.
            faults: whether faults still strike. If they do not, the engine must accept what it is started with.
        """
        del life, faults
        return StartOfLife(settings)

    def accepted(self) -> None:
        """The engine accepted the last start."""

    def refused(self) -> bool:
        """The engine refused the last start; returns whether it had accepted the same configuration before.

        If it had not, the next start has the configuration of before.
        """
        return True

    def intervenes(self) -> bool:
        """Whether a part is added or removed before the next step of a running engine."""
        return False

    def intervene(self, engine: Engine) -> Actor | None:
        """Add or remove a part; returns the actor of an added one. Raises what a commit of the engine raises."""
        del engine
        return None

    def settle(self, engine: Engine) -> Actor | None:
        """Add what the engine needs to come to rest; returns the actor of a part that was added."""
        del engine
        return None
