"""Executes a plan before there is a batch, while the steps are compiled: the first batch finds running workers.

A local Spark starts its Python workers, and loads most of its classes, when it executes its first plan. This takes
longer than the first batch itself, and needs another core than the compilation of the steps.
"""

import logging
import threading
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from correlator.pipeline import row_files

_log = logging.getLogger(__name__)


def warm(session: SparkSession, directory: Path) -> threading.Thread:
    """Start a thread that executes the part of the plan of a batch that reads its rows, with one row on each core.

    A failure has no effect: if it has a lasting cause, the first batch reports it.

    Args:
        session: a local Spark.
        directory: an existing directory for a file that only this function writes.
    """
    thread = threading.Thread(target=_execute, args=(session, directory / "warming.arrow"), name="warming", daemon=True)
    thread.start()
    return thread


def _execute(session: SparkSession, file: Path) -> None:
    try:
        cores = session.sparkContext.defaultParallelism
        rows = pa.table({"number": pa.array(range(cores), pa.int64())})
        row_files.replace(file, rows, cores)
        row_files.read(session, file, cores, "number BIGINT").toArrow()
    except Exception as error:  # noqa: BLE001  the session may end meanwhile, in many ways
        _log.debug("Spark did not execute a plan in advance: %s", error)
