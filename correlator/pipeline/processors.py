"""Makes the processors of the pipelines of a file, which share one Spark session. Imports PySpark when it is needed."""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from correlator.configuration import Places
from correlator.errors import ConfigError
from correlator.pipeline.packaging import package_of
from correlator.pipeline.places import StepPlaces
from correlator.pipeline.spec import PipelineFile
from correlator.ports import Processor
from correlator.runtime import phases

_NOWHERE = Places()
_SPARK, _PROCESSOR = "correlator.pipeline.spark", "correlator.pipeline.processor"


def start_ahead(file: PipelineFile, *, ends_soon: bool = False) -> None:
    """Begin to start the JVM for the pipelines of a file, if it has pipelines, and return at once.

    For commands that open the processors in any case: a JVM that nobody takes lives until the process ends. `ends_soon`
    as for `processors_of`. Raises `ConfigError` E1519.
    """
    if file.pipelines:
        phases.begin("loading PySpark")
        _part(_SPARK).launch_ahead(file.spark, ends_soon=ends_soon)


def processors_of(
    file: PipelineFile,
    directories: Iterable[str] = (),
    places: Places = _NOWHERE,
    *,
    ends_soon: bool = False,
    repeats: bool = False,
) -> Sequence[Processor]:
    """The processors of the pipelines of a file; raises `ConfigError` E1519 if PySpark is needed and not installed.

    `places` has the places of the settings, for the messages of errors. `ends_soon` is for commands that run for
    seconds: Spark then starts with less work, and computes more slowly. `repeats` is for crash tests, which process the
    same messages again and again: Spark then sees each of them once.
    """
    if not file.pipelines:
        return ()
    phases.begin("loading PySpark")
    spark, processor = _part(_SPARK), _part(_PROCESSOR)
    where = tuple(directories)
    session = spark.SharedSession(file.spark, ends_soon=ends_soon, package=lambda: package_of(file.pipelines, where))
    return [
        processor.SparkProcessor(pipeline, session, where, StepPlaces(places, at), repeats=repeats)
        for at, pipeline in enumerate(file.pipelines)
    ]


def _part(name: str) -> Any:
    """Import a module that needs PySpark; an engine without pipelines does not need it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "E1519",
            "pipelines",
            f"the package '{error.name}' is missing",
            "Pipelines run on Spark",
            "Install: pip install 'correlator[spark]'",
        ) from error
