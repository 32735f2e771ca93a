"""Reads tables of format `parquet`. Any reader of Delta reads those of format `delta`."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.lake.places import DataFile
from connectors.lake.plain import all_entries, columns_in
from correlator.errors import ConnectionLost


def read(path: str | os.PathLike[str]) -> pa.Table:
    """Read a table of format `parquet`: the rows of all batches that its log names, by source and number.

    A sender may write at the same time; then the result contains all batches that existed when the call began, and
    perhaps later ones.

    Args:
        path: the directory of the table, which is below the directory of the connection.

    Raises:
        ConnectionLost: E7010, there is no such table; E7044, the log or a data file is damaged or missing.
        OSError: a file cannot be read.
    """
    table, where = Path(path), str(path)
    columns = columns_in(where, table)
    if columns is None:
        raise ConnectionLost("E7010", where, "there is no table of format parquet")
    files = [file for entry in all_entries(where, table) for file in entry.files]
    return pa.concat_tables([columns.empty_table(), *(_rows(where, table, file) for file in files)])


def _rows(where: str, table: Path, file: DataFile) -> pa.Table:
    path = table / file.path
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        what = f"the log names {path}, which is missing"
        raise ConnectionLost("E7044", where, what, "", "Restore the file") from error
    if size != file.size:
        what = f"{path} has {size} bytes, and the log says {file.size}"
        raise ConnectionLost("E7044", where, what, "", "Restore the file")
    return pq.ParquetFile(path).read()
