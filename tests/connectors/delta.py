"""Reads Delta tables in tests."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable


def delta_rows(path: str | Path) -> pa.Table:
    """All rows of a table.

    `DeltaTable.to_pyarrow_table` gives Arrow a file system in Python, whose release in a thread of Arrow can abort the
    process at its end.
    """
    table = DeltaTable(path)
    empty = pa.schema(table.schema().to_arrow()).empty_table()
    return pa.concat_tables([empty, *map(_read, table.file_uris())], promote_options="permissive")


def _read(file: str) -> pa.Table:
    return pq.ParquetFile(file).read()
