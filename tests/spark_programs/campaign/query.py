"""The query that is killed: it copies numbered rows from files into a queue, a file in each batch.

As a program (`python -m tests.spark_programs.campaign.query DIRECTORY`) it is a driver that is killed as a whole.
"""

import json
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings
from pyspark_correlator.options import Writing
from pyspark_correlator.sink import QueueSink
from pyspark_correlator.source import CorrelatorSource

FORMAT, PRODUCER, QUEUE = "killed", "copies", "queue:numbers"
BEFORE, AFTER = "before", "after"
ROWS = 5
"""How many rows a batch has."""


class KilledSink(QueueSink):
    """Dies in the batches that the directory names.

    Args:
        options: as of the sink.
        place: directory of the round. A file `kill-BATCH` says at which point, and whether the driver dies.
        is_control: whether each attempt at a batch has a producer of its own.
    """

    def __init__(self, options: Writing, place: str, *, is_control: bool) -> None:
        super().__init__(options)
        self._place = Path(place)
        self._is_control = is_control

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit, and die before or after."""
        drawn = self._place / f"kill-{batchId}"
        kill = json.loads(drawn.read_text()) if drawn.exists() else None
        if kill and kill["point"] == BEFORE:
            self._die(drawn, kill)
        if self._is_control:
            self._options = replace(self._options, name=f"{PRODUCER}-{uuid.uuid4()}")
        super().commit(messages, batchId)
        if kill:
            self._die(drawn, kill)

    def _die(self, drawn: Path, kill: Any) -> None:
        drawn.rename(self._place / f"killed-{drawn.name.partition('-')[2]}")
        if kill["driver"]:
            os.killpg(int((self._place / "driver").read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def source_of(place: Path, *, is_control: bool) -> type[DataSource]:
    """The format that writes in a round. The class is made here, so that workers get it with these values."""
    directory = str(place)

    class KilledSource(CorrelatorSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def streamWriter(self, schema: StructType, overwrite: bool) -> QueueSink:  # noqa: N802
            sink = CorrelatorSource.streamWriter(self, schema, overwrite)
            return KilledSink(sink._options, directory, is_control=is_control)

    return KilledSource


def run(spark: SparkSession, place: Path, broker: dict[str, str], checkpoint: Path) -> None:
    """Run the query to its end, or until it fails."""
    rows = spark.readStream.schema("n INT").option("maxFilesPerTrigger", 1).json(str(place / "in"))
    written = rows.repartition(2).selectExpr("CAST(n AS STRING) AS body", "CAST(n % 3 AS STRING) AS key")
    options = {**broker, "name": PRODUCER, "to": QUEUE, "checkpointLocation": str(checkpoint)}
    written.writeStream.format(FORMAT).options(**options).trigger(availableNow=True).start().awaitTermination()


def main(place: Path) -> None:
    """Be a driver whose process group may be killed."""
    (place / "driver").write_text(str(os.getpgid(0)))
    shared = SharedSession(SparkSettings(master="local[2]"), ends_soon=True)
    spark = shared.acquire()
    spark.dataSource.register(source_of(place, is_control=False))
    run(spark, place, json.loads((place / "broker").read_text()), place / "checkpoint")
    shared.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
