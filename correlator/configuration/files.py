"""The whole of a configuration file of an embedded engine."""

from dataclasses import dataclass

from correlator.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile(EngineSettings):
    """What stands at the top level of a configuration file.

    Attributes:
        version: version of the configuration's schema.
    """

    version: int = 1
