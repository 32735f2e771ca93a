"""The data source `correlator`: checks the options and makes readers and writers."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from correlator.errors import UsageError
from correlator.storage import scanning
from correlator.storage.database import reading
from pyspark_correlator import options
from pyspark_correlator.options import WHERE
from pyspark_correlator.reader import FilteringReader, LetterStream, TableReader
from pyspark_correlator.rows import SHAPES, check_written, refuse_other_columns
from pyspark_correlator.sink import QueueSink


class CorrelatorSource(DataSource):
    """Tables of a store as rows, and rows as messages of an embedded broker (docs/spark-programs.md).

    Every method raises `CorrelatorError`; Spark puts the text into an error of its own, behind the frames of Python.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "correlator"

    def schema(self) -> str:
        """The columns of the table. Opens the store, so that a wrong one is refused by `load()`."""
        chosen = options.reading(self.options)
        with reading(chosen.store) as connection:
            scanning.moment(connection, chosen.where)
        return SHAPES[chosen.table].ddl

    def reader(self, schema: StructType) -> TableReader:
        """A reader of the whole table as it is when it is read. Raises `UsageError` for wrong options or columns."""
        chosen = options.batch(self.options)
        refuse_other_columns(chosen.table, schema)
        return FilteringReader(chosen) if chosen.pushes else TableReader(chosen)

    def streamReader(self, schema: StructType) -> LetterStream:  # noqa: N802
        """Reads dead letters as a stream."""
        chosen = options.stream(self.options)
        refuse_other_columns(chosen.table, schema)
        return LetterStream(chosen)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueSink:  # noqa: N802
        """Writes each batch of a streaming query once."""
        if overwrite:
            what = "the output mode 'complete' replaces all rows in each batch, and messages cannot be replaced"
            raise UsageError("E2206", WHERE, what, "Output modes: append, update")
        chosen = options.writing(self.options)
        check_written(schema, chosen.to)
        return QueueSink(chosen)

    def writer(self, schema: StructType, overwrite: bool) -> QueueSink:  # noqa: ARG002
        """Refuse a write that is no stream."""
        raise UsageError(
            "E2206",
            WHERE,
            "a batch of df.write has no identity, so a repeat of it would be stored twice",
            "Streaming queries have one",
            "Use readStream and writeStream with trigger(availableNow=True)",
        )
