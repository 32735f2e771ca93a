"""Makes an engine from a pipeline file; its pipelines become processors that share one Spark session."""

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
from correlator.runtime.engine import Engine

_NOWHERE = Places()
_SPARK_PARTS = ("correlator.pipeline.spark", "correlator.pipeline.processor")


def build_engine(
    file: PipelineFile, directories: Iterable[str] = (), places: Places = _NOWHERE, **overrides: Any
) -> Engine:
    """An engine with the pipelines of a file. Nothing is opened, and Spark does not start, before `Engine.start`.

    The engine does not log the warnings of the file; the caller, which has read the file, has them.

    Args:
        file: the settings.
        directories: further directories in which Python finds the modules that the file names.
        places: the places of the settings, for the messages of errors.
        overrides: arguments of `Engine`, such as connections of a test.

    Raises:
        ConfigError: E1519, there are pipelines and PySpark is not installed; others as `Engine`.
    """
    return Engine(file, processors=processors_of(file, directories, places), warnings=(), **overrides)


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
    spark, processor = _spark_parts()
    where = tuple(directories)
    session = spark.SharedSession(file.spark, ends_soon=ends_soon, package=lambda: package_of(file.pipelines, where))
    return [
        processor.SparkProcessor(pipeline, session, where, StepPlaces(places, at), repeats=repeats)
        for at, pipeline in enumerate(file.pipelines)
    ]


def _spark_parts() -> Iterable[Any]:
    """Import the modules that need PySpark; an engine without pipelines does not need it."""
    try:
        return [importlib.import_module(name) for name in _SPARK_PARTS]
    except ModuleNotFoundError as error:
        raise ConfigError(
            "E1519",
            "pipelines",
            f"the package '{error.name}' is missing",
            "Pipelines run on Spark",
            "Install: pip install 'correlator[spark]'",
        ) from error
