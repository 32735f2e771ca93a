"""The top level of the configuration file of an engine without pipelines."""

from dataclasses import dataclass

from correlator.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile(EngineSettings):
    """A configuration file of an engine without pipelines.

    Attributes:
        version: version of the format of configuration files.
    """

    version: int = 1
