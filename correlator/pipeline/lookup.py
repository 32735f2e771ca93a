"""The content of a file or table with which a `lookup` joins rows; it is read again when it is too old."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from correlator.errors import ConfigError
from correlator.pipeline.spark import first_line
from correlator.pipeline.spec import LookupStep


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

        Raises `ConfigError` E1518 as the constructor.
        """
        if self._read_at is None:
            self._read_at = engine_time
        elif self._step.refresh is not None and engine_time - self._read_at >= self._step.refresh:
            self._content.unpersist()
            self._content = self._read()
            self._read_at = engine_time
            return True
        return False

    def _read(self) -> DataFrame:
        try:
            content = self._load().persist()
            self._check(content)
        except PySparkException as error:
            raise ConfigError("E1518", self._where, f"{self._name}: {first_line(error)}") from error
        content.createOrReplaceTempView(self.view)
        return content

    @property
    def _name(self) -> str:
        return self._step.file or f"table {self._step.table}"

    def _load(self) -> DataFrame:
        if self._step.table is not None:
            return self._session.table(self._step.table)
        reader = self._session.read.format(self._step.format)
        if self._step.format == "csv":
            reader = reader.option("header", "true").option("mode", "FAILFAST").option("enforceSchema", "false")
        if self._step.schema is not None:
            reader = reader.schema(self._step.schema)
        return reader.load(self._step.file)

    def _check(self, content: DataFrame) -> None:
        missing = next((name for name in self._step.on if name not in content.columns), None)
        if missing is not None:
            known = f"Columns: {', '.join(content.columns)}"
            raise ConfigError("E1518", self._where, f"{self._name} has no column '{missing}'", known)
        twice = content.groupBy(*self._step.on).count().where("count > 1").head(1)
        if twice:
            found = ", ".join(f"{name} = {twice[0][name]}" for name in self._step.on)
            raise ConfigError("E1518", self._where, f"{self._name} has several records for {found}")
