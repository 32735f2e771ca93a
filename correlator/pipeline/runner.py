"""Makes an engine from a pipeline file; its pipelines become processors that share one Spark session."""

from collections.abc import Iterable
from typing import Any

from correlator.configuration import IN_CODE, Origin
from correlator.pipeline.processors import processors_of
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.engine import Engine


def build_engine(
    file: PipelineFile, directories: Iterable[str] = (), origin: Origin = IN_CODE, **overrides: Any
) -> Engine:
    """An engine with the pipelines of a file. Nothing is opened, and Spark does not start, before `Engine.start`.

    The engine does not log the warnings of the file; the caller, which has read the file, has them.

    Args:
        file: the settings.
        directories: further directories in which Python finds the modules that the file names.
        origin: where the settings come from, for the messages of errors and for those who ask for sources.
        overrides: arguments of `Engine`, such as connections of a test.

    Raises:
        ConfigError: E1519, there are pipelines and PySpark is not installed; others as `Engine`.
    """
    return Engine(
        file, processors=processors_of(file, directories, origin.places), warnings=(), origin=origin, **overrides
    )
