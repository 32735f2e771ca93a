"""The content of a file or table with which a `lookup` joins rows; it is read again when it is too old."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from correlator.errors import ConfigError, quoted
from correlator.pipeline.spark import causes, is_local
from correlator.pipeline.spec import LookupStep

_OF_TEXT = ("csv", "json")
"""Formats whose files are text; Spark refuses their malformed records only in its mode FAILFAST."""
_HEADER = re.compile(
    r"CSV header does not conform to the schema\.\s+Header: (?P<found>.*)\n\s+Schema: (?P<expected>.*)"
)
_SIZES = re.compile(r"Header length: (?P<found>\d+), schema size: (?P<expected>\d+)")
_RAGGED = re.compile(r"\[MALFORMED_CSV_RECORD\] Malformed CSV record: (?P<record>.*)")
_OTHER_TYPE = re.compile(r"Malformed records are detected in record parsing: (?P<record>.*)\.\n")
_ENDS = re.compile(rb"\r\n|\n|\r")
"""Ends of lines that Spark recognises."""
_NAMED = "The first line of a CSV file names the columns"
_SAME_COLUMNS = "Both must name the same columns in the same order", "Correct the file or the schema"
_RELATIVE = "A relative path counts from the directory in which the engine was started"


class Lookup:
    """A temporary view of the content. Used by the pipeline's thread.

    Raises:
        ConfigError: E1518, the content cannot be read, lacks a column, or has two records for one row.
    """

    def __init__(self, session: SparkSession, step: LookupStep, view: str, where: str) -> None:
        self.view = view
        self._session = session
        self._step = step
        self._where = where
        self._read_at: float | None = None
        self._content = self._read()
        self.columns: list[str] = self._content.columns

    def refresh(self, engine_time: float) -> bool:
        """Read the content again if it is older than the step allows; returns whether it was read.

        Raises `ConfigError` E1518 like the constructor.
        """
        if self._read_at is None:
            self._read_at = engine_time
        elif self._step.refresh is not None and engine_time - self._read_at >= self._step.refresh:
            self._content.unpersist()
            self._content = self._read()
            self._read_at = engine_time
            return True
        return False

    def close(self) -> None:
        """Remove the view, and the content from the memory of Spark."""
        self._session.catalog.dropTempView(self.view)
        self._content.unpersist()

    def _read(self) -> DataFrame:
        try:
            content = self._load().persist()
            try:
                self._check(content)
            except BaseException:
                content.unpersist()
                raise
        except (PySparkException, Py4JJavaError) as error:
            details = [] if isinstance(error, Py4JJavaError) else [str(error)]
            what, *rest = unusable([*details, *causes(error)], self._step)
            raise ConfigError("E1518", self._where, f"{self._name}: {what}", *rest) from error
        content.createOrReplaceTempView(self.view)
        return content

    @property
    def _name(self) -> str:
        return self._step.file or f"table {self._step.table}"

    def _load(self) -> DataFrame:
        if self._step.table is not None:
            return self._session.table(self._step.table)
        reader = self._session.read.format(self._step.format)
        if self._step.format in _OF_TEXT:
            reader = reader.option("mode", "FAILFAST")
        if self._step.format == "csv":
            reader = reader.option("header", "true").option("enforceSchema", "false")
        if self._step.schema is not None:
            reader = reader.schema(self._step.schema)
        if not self._is_shipped:
            return reader.load(self._step.file)
        return reader.csv(self._text()) if self._step.format == "csv" else reader.json(self._text())

    @property
    def _is_shipped(self) -> bool:
        """Whether the workers may not find the file, because it is text on this host and they run on other hosts."""
        file, master = self._step.file or "", self._session.sparkContext.master
        return self._step.format in _OF_TEXT and not is_local(master) and Path(file).is_file()

    def _text(self) -> DataFrame:
        """The lines of a file, in the column `value`."""
        file = self._step.file or ""
        if not self._is_shipped:
            return self._session.read.text(file)
        lines = _ENDS.split(Path(file).read_bytes())
        try:
            texts = [line.decode() for line in lines if line]
        except UnicodeDecodeError as error:
            raise self._not_utf8(error.object.decode(errors="replace")) from error
        return self._session.createDataFrame(pa.table({"value": pa.array(texts, pa.string())}))

    def _check(self, content: DataFrame) -> None:
        if self._step.file is not None and self._step.format in _OF_TEXT:
            self._check_text(self._text())
        missing = next((name for name in self._step.on if name not in content.columns), None)
        if missing is not None:
            known = f"Columns: {', '.join(content.columns)}"
            raise ConfigError("E1518", self._where, f"{self._name} has no column '{missing}'", known)
        twice = content.groupBy(*self._step.on).count().where("count > 1").head(1)
        if twice:
            found = ", ".join(f"{name} = {twice[0][name]}" for name in self._step.on)
            raise ConfigError("E1518", self._where, f"{self._name} has several records for {found}")

    def _check_text(self, lines: DataFrame) -> None:
        if self._step.format == "csv" and lines.where("trim(value) <> ''").isEmpty():
            raise ConfigError("E1518", self._where, f"{self._name} is empty", _NAMED)
        other = lines.where("NOT is_valid_utf8(value)").head(1)
        if other:
            raise self._not_utf8(other[0].value)

    def _not_utf8(self, line: str) -> ConfigError:
        what = f"{self._name}: the line {quoted(line)} is not UTF-8"
        return ConfigError("E1518", self._where, what, "", "Convert the file to UTF-8")


def unusable(messages: Sequence[str], step: LookupStep) -> tuple[str, str, str]:
    """What is wrong with a file, what is allowed, and what to do.

    Args:
        messages: the messages of Spark's error and of its causes.
        step: the step that reads the file.
    """
    text = "\n".join(messages)
    if header := _HEADER.search(text):
        found, expected = quoted(header["found"]), quoted(header["expected"])
        if step.schema is None:
            return f"the header is {found}", "Each column needs a name of its own", "Correct the file"
        return f"the header is {found}, the schema has {expected}", *_SAME_COLUMNS
    if sizes := _SIZES.search(text):
        return f"the header has {sizes['found']} columns, the schema has {sizes['expected']}", *_SAME_COLUMNS
    if record := _RAGGED.search(text):
        what = f"the record {quoted(record['record'])} has another number of values than the file has columns"
        return what, "", "Correct the record"
    if record := _OTHER_TYPE.search(text):
        reason = messages[-1].partition("\n")[0]
        what = f"a value of the record {quoted(record['record'])} has another type than its column: {reason}"
        return what, f"Its schema: {step.schema}" if step.schema else "", "Correct the record or the schema"
    allowed, todo = (_RELATIVE, "Correct 'file'") if "PATH_NOT_FOUND" in text else ("", "")
    return messages[-1].partition("\n")[0], allowed, todo
