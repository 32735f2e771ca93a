"""The flights job in plain Structured Streaming, to be timed against ours.

    python -m tests.benchmarks.peer_structured_streaming [--input config/data/flights.csv] [--rows 1000]

File source, file sinks, checkpoints on disk; a trigger takes one file of `--rows` records, into which the input is cut
beforehand. Two queries, since one query has one sink: what is late or malformed, and the alerts. What differs from
our job, because it cannot be said otherwise: repeated records are dropped by state that is kept for ever, rows of
a trigger have no order of arrival (they are sorted by scheduled time), and the two sinks advance apart from each other.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
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


def alerts_of(key: tuple[str], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """What `CarrierDelays` does."""
    departures, total, worst, stored, newest, alerted = state.get if state.exists else (0, 0, 0, "", "", False)
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
            found.append((key[0], row.scheduled, departures, round(total / departures, 1), worst))
        alerted = len(very_late) >= 10
    stored = " ".join(when.isoformat() for when in very_late)
    state.update((departures, total, worst, stored, latest.isoformat(), alerted))
    yield pd.DataFrame(found, columns=["carrier", "scheduled", "departures", "mean_delay", "worst_delay"])


def records(session: SparkSession, pieces: Path) -> DataFrame:
    reader = session.readStream.schema(SCHEMA).option("columnNameOfCorruptRecord", "_rejected")
    return (
        reader.option("maxFilesPerTrigger", 1).csv(str(pieces)).dropDuplicates(["carrier", "flight", "date", "origin"])
    )


def run(session: SparkSession, pieces: Path, out: Path) -> None:
    late = records(session, pieces).where("_rejected IS NOT NULL OR dep_delay > 15")
    delayed = late.selectExpr("*", "_rejected IS NOT NULL AS malformed").writeStream.partitionBy("malformed")
    whole = (
        records(session, pieces)
        .where("_rejected IS NULL AND dep_delay > 15")
        .select("carrier", "flight", "scheduled", col("dep_delay").cast("long").alias("dep_delay"))
    )
    alerts = whole.groupBy("carrier").applyInPandasWithState(
        alerts_of, ALERT, STATE, "append", GroupStateTimeout.NoTimeout
    )
    queries = [
        writer.format("json")
        .option("checkpointLocation", str(out / f"{name}.checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / name))
        for name, writer in (("delayed", delayed), ("alerts", alerts.writeStream))
    ]
    for query in queries:
        query.awaitTermination()


def cut(source: Path, rows: int, pieces: Path) -> int:
    """One file for each trigger; returns the number of records."""
    lines = source.read_text(encoding="utf-8").splitlines()[1:]
    pieces.mkdir()
    for at in range(0, len(lines), rows):
        piece = pieces / f"{at:09}.csv"
        piece.write_text("\n".join(lines[at : at + rows]) + "\n", encoding="utf-8")
        os.utime(piece, (at, at))  # Spark takes files in the order of these times
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, default=Path("config/data/flights.csv"))
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="directory for the output instead of a temporary one")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    out = arguments.keep or scratch / "out"
    count = cut(arguments.input, arguments.rows, scratch / "pieces")
    shared = SharedSession(SparkSettings(config={"spark.sql.optimizer.excludedRules": ""}))
    session = shared.acquire()
    begin = time.perf_counter()
    run(session, scratch / "pieces", out)
    spent = time.perf_counter() - begin
    alerts = session.read.schema(ALERT).json(str(out / "alerts")).count()
    late = session.read.json(str(out / "delayed")).groupBy("malformed").count().collect()
    shared.release()
    shutil.rmtree(scratch)
    print(f"{count} records in {spent:.1f} s: {count / spent:,.0f}/s; {alerts} alerts, {late}", file=sys.stdout)


if __name__ == "__main__":
    main()
