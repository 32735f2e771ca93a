"""Files through which the driver of a local Spark gives rows to a plan: the plan is made once, the file is replaced."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from correlator.errors import TryAgain
from correlator.pipeline.worker import FileRows

_WAIT_S = 5.0
"""Seconds before a file that could not be written is written again."""


def replace(path: Path, rows: pa.Table, parts: int) -> None:
    """Replace a file by one whose batches `parts` workers can share.

    A worker of an execution that has failed may still read the old file, which it keeps.

    Raises `TryAgain` W5512 if the file cannot be written, for example because the disk is full.
    """
    new = path.with_suffix(".new")
    try:
        for directory in (path.parent.parent, path.parent):  # programs remove old directories of temporary files
            directory.mkdir(mode=0o700, exist_ok=True)
        with pa.OSFile(str(new), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=max(1, -(-rows.num_rows // parts)))
        new.replace(path)
    except OSError as error:
        todo = "Make room in the directory for temporary files; the batch is computed again"
        raise TryAgain("W5512", str(path), f"the rows for Spark cannot be written: {error}", todo, _WAIT_S) from error


def read(session: SparkSession, path: Path, parts: int, schema: StructType | str) -> DataFrame:
    """A plan that reads the rows which the file has when the plan is executed, on `parts` cores."""
    markers = session.range(0, parts, 1, parts)
    return markers.mapInArrow(FileRows(str(path), parts), schema)
