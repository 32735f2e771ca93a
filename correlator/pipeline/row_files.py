"""Files through which the driver of a local Spark gives rows to a plan: the plan is made once, the file is replaced."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from correlator.pipeline.worker import FileRows


def replace(path: Path, rows: pa.Table, parts: int) -> None:
    """Replace a file by one whose batches `parts` workers can share.

    A worker of an execution that has failed may still read the old file, which it keeps.
    """
    new = path.with_suffix(".new")
    with pa.OSFile(str(new), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=max(1, -(-rows.num_rows // parts)))
    new.replace(path)


def read(session: SparkSession, path: Path, parts: int, schema: StructType | str) -> DataFrame:
    """A plan that reads the rows which the file has when the plan is executed, on `parts` cores."""
    markers = session.range(0, parts, 1, parts)
    return markers.mapInArrow(FileRows(str(path), parts), schema)
