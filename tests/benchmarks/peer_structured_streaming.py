"""The flights job in plain Structured Streaming, to be timed against ours (`bench_flights`).

    python -m tests.benchmarks.peer_structured_streaming --input config/data/flights.csv [--rows 1000] [--job stateless]

File source, file sinks, checkpoints on disk; a trigger takes one file of `--rows` records, into which the input is cut
beforehand. The job `keyed` is two queries, since one query has one sink: what is late or malformed, and the alerts. The
job `stateless` is the first of them, and keeps no state at all: it does not drop repeated records either. The job
`windows` has the native aggregation of Spark instead of the alerts: statistics of each hour and carrier.

What differs from our job, because it cannot be said otherwise: repeated records are dropped by state that is kept for
ever, rows of a trigger have no order of arrival (they are sorted by scheduled time), and the two sinks advance apart
from each other. With `--api transform` the alerts come from `transformWithStateInPandas`, else from
`applyInPandasWithState`. The state is in RocksDB with `transform`, which needs it, and for many records.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, window
from pyspark.sql.functions import max as max_
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings

SCHEMA = (
    "carrier STRING, flight INT, date DATE, origin STRING, dest STRING, scheduled TIMESTAMP, dep_delay INT, "
    "distance INT, _rejected STRING"
)
ALERT = "carrier STRING, scheduled TIMESTAMP, departures LONG, mean_delay DOUBLE, worst_delay LONG"
# Times as text and numbers: PySpark 4.3 fails on arrays in this state (KeyError: 'elementType').
STATE = "departures LONG, total_delay LONG, worst_delay LONG, very_late STRING, latest STRING, alerted BOOLEAN"
WITHIN = timedelta(hours=6)
MANY = 1_000_000
"""State of more records than this would not fit into the memory of the JVM."""
JOBS, APIS = ("keyed", "stateless", "windows"), ("apply", "transform")
WINDOW, LATENESS = "1 hour", "48 hours"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def updated(
    carrier: str, batches: Iterable[pd.DataFrame], before: tuple[Any, ...] | None
) -> tuple[pd.DataFrame, tuple[Any, ...]]:
    """What `CarrierDelays` does: the alerts, and the state afterwards."""
    departures, total, worst, stored, newest, alerted = before or (0, 0, 0, "", "", False)
    very_late = [pd.Timestamp(when) for when in stored.split()]
    latest = pd.Timestamp(newest) if newest else None
    found = []
    for row in pd.concat(batches).sort_values(["scheduled", "flight"], kind="stable").itertuples():
        departures, total, worst = departures + 1, total + row.dep_delay, max(worst, row.dep_delay)
        latest = row.scheduled if latest is None else max(latest, row.scheduled)
        if row.dep_delay > 60:
            very_late = sorted([*very_late, row.scheduled])
        very_late = [when for when in very_late[-10:] if when > latest - WITHIN]
        if len(very_late) >= 10 and not alerted:
            found.append((carrier, row.scheduled, departures, round(total / departures, 1), worst))
        alerted = len(very_late) >= 10
    stored = " ".join(when.isoformat() for when in very_late)
    alerts = pd.DataFrame(found, columns=["carrier", "scheduled", "departures", "mean_delay", "worst_delay"])
    return alerts, (departures, total, worst, stored, latest.isoformat(), alerted)


def alerts_of(key: tuple[str], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState`."""
    alerts, after = updated(key[0], batches, state.get if state.exists else None)
    state.update(after)
    yield alerts


class Alerts(StatefulProcessor):
    """For `transformWithStateInPandas`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("delays", STATE)

    def handleInputRows(  # noqa: N802  the name of Spark
        self,
        key: tuple[str],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: N803  as above
    ) -> Iterator[pd.DataFrame]:
        alerts, after = updated(key[0], rows, self._state.get() if self._state.exists() else None)
        self._state.update(after)
        yield alerts

    def close(self) -> None:
        """Nothing is open."""


def records(session: SparkSession, pieces: Path) -> DataFrame:
    reader = session.readStream.schema(SCHEMA).option("columnNameOfCorruptRecord", "_rejected")
    return reader.option("maxFilesPerTrigger", 1).csv(str(pieces))


def distinct(session: SparkSession, pieces: Path) -> DataFrame:
    return records(session, pieces).dropDuplicates(["carrier", "flight", "date", "origin"])


def delayed(rows: DataFrame) -> DataFrame:
    return rows.where("_rejected IS NOT NULL OR dep_delay > 15").selectExpr("*", "_rejected IS NOT NULL AS malformed")


def alerts(rows: DataFrame, api: str) -> DataFrame:
    late = rows.where("_rejected IS NULL AND dep_delay > 15").select(
        "carrier", "flight", "scheduled", col("dep_delay").cast("long").alias("dep_delay")
    )
    by_carrier = late.groupBy("carrier")
    if api == "transform":
        return by_carrier.transformWithStateInPandas(Alerts(), ALERT, "append", "none")
    return by_carrier.applyInPandasWithState(alerts_of, ALERT, STATE, "append", GroupStateTimeout.NoTimeout)


def windows(rows: DataFrame) -> DataFrame:
    late = rows.where("_rejected IS NULL AND dep_delay > 15").withWatermark("scheduled", LATENESS)
    by_hour = late.groupBy(window("scheduled", WINDOW), "carrier")
    values = by_hour.agg(
        count("*").alias("departures"), avg("dep_delay").alias("mean"), max_("dep_delay").alias("worst")
    )
    times = {f"window_{name}": col(f"window.{name}") for name in ("start", "end")}
    return values.withColumns(times).drop("window")


def run(session: SparkSession, pieces: Path, out: Path, job: str, api: str) -> list[StreamingQuery]:
    """Run the queries of the job to the end of their input, at the same time."""
    outputs = {"delayed": delayed((records if job == "stateless" else distinct)(session, pieces))}
    if job == "keyed":
        outputs["alerts"] = alerts(distinct(session, pieces), api)
    if job == "windows":
        outputs["windows"] = windows(distinct(session, pieces))
    queries = []
    for name, rows in outputs.items():
        writer = rows.writeStream.partitionBy("malformed") if name == "delayed" else rows.writeStream
        checkpoint = writer.format("json").option("checkpointLocation", str(out / f"{name}.checkpoint"))
        queries.append(checkpoint.trigger(availableNow=True).start(str(out / name)))
    for query in queries:
        query.awaitTermination()
    return queries


def cycles_s(query: StreamingQuery) -> float:
    """The duration of all triggers of a query that had records."""
    spent = [one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows]
    return sum(spent) / 1000


def cut(source: Path, rows: int, pieces: Path) -> int:
    """One file for each trigger; returns the number of records."""
    pieces.mkdir()
    with source.open(encoding="utf-8") as lines:
        next(lines)
        at = 0
        while some := list(islice(lines, rows)):
            piece = pieces / f"{at:09}.csv"
            piece.write_text("".join(some), encoding="utf-8")
            os.utime(piece, (at, at))  # Spark takes files in the order of these times
            at += len(some)
    return at


def lines_in(directory: Path) -> int:
    """How many rows a sink has written."""
    return sum(file.read_bytes().count(b"\n") for file in directory.rglob("part-*.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", type=Path, help="records, to be cut into pieces first")
    source.add_argument("--pieces", type=Path, help="a directory of pieces")
    parser.add_argument("--rows", type=int, default=1000, help="records of a piece")
    parser.add_argument("--job", choices=JOBS, default="keyed")
    parser.add_argument("--api", choices=APIS, default="apply")
    parser.add_argument("--many", action="store_true", help=f"keep the state in RocksDB, as for {MANY:,} records")
    parser.add_argument("--keep", type=Path, help="directory for the output instead of a temporary one")
    arguments = parser.parse_args()
    config = {
        "spark.sql.optimizer.excludedRules": "",
        "spark.sql.streaming.numRecentProgressUpdates": "1000000",
        "spark.driver.extraJavaOptions": "-XX:+UseG1GC",  # Java's own choice; correlator leaves out its flags
    }
    if arguments.many or arguments.api == "transform":
        config["spark.sql.streaming.stateStore.providerClass"] = _ROCKSDB
    with tempfile.TemporaryDirectory() as name:
        pieces, out = arguments.pieces, arguments.keep or Path(name) / "out"
        if pieces is None:
            pieces = Path(name) / "pieces"
            cut(arguments.input, arguments.rows, pieces)
        shared = SharedSession(SparkSettings(config=config))
        session = shared.acquire()
        began = time.perf_counter()
        queries = run(session, pieces, out, arguments.job, arguments.api)
        found = {"seconds": time.perf_counter() - began, "cycles_s": max(map(cycles_s, queries))}
        shared.release()
        if arguments.keep is None:
            found |= {"alerts": lines_in(out / "alerts"), "delayed": lines_in(out / "delayed" / "malformed=false")}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
