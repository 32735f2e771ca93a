"""Tables as destinations: writes each message as a row, once, into a Delta table or a table of Parquet files."""

from connectors.lake.connection import LakeConnection
from connectors.lake.reading import read

__all__ = ["LakeConnection", "read"]
