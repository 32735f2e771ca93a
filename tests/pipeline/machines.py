"""Monitors and functions that the tests of pipelines name by import path."""

from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from correlator.core.keyed import KeyedMonitor


class Reading(msgspec.Struct):
    sensor: str
    at: datetime
    value: int


class Total(msgspec.Struct):
    sensor: str
    total: int
    why: str = "row"


class Sums(KeyedMonitor[Reading, Total]):
    """Adds; fails at 13, writes nonsense into its state at 14, gives nonsense at 15, forgets the key at 0."""

    total: int = 0
    last: str = ""

    def on_event(self, row):
        self.total += row.value
        if row.value == 13:
            raise ValueError("thirteen")
        if row.value == 14:
            self.last = object()
        if row.value == 15:
            return [Total(sensor=row.sensor, total=2**70)]
        if row.value == 0:
            self.forget()
        return [Total(sensor=row.sensor, total=self.total)]


class Silence(KeyedMonitor[Reading, Total]):
    """Tells when ten minutes have passed after a reading, as the time of the sensor goes."""

    total: int = 0

    def on_event(self, row):
        self.total += row.value
        self.wake_at(row.at + timedelta(minutes=10), "silent")

    def on_time(self, name):
        yield Total(sensor=self.key, total=self.total, why=name)


class Changes(KeyedMonitor[dict[str, Any], dict[str, Any]]):
    """Lets a row pass if its value differs from that of the row before; writes the names of its columns at -1."""

    last: int | None = None

    def on_event(self, row):
        if row["value"] == -2:
            return [{"sensor": self.key}]
        if row["value"] == -3:
            return [{"sensr": self.key}]
        if row["value"] == -4:
            return [{"sensor": self.key, "value": "four"}]
        before, self.last = self.last, row["value"]
        if row["value"] == -1:
            return [{**row, "sensor": ",".join(row)}]
        return [row] if row["value"] != before else []


class Same(KeyedMonitor[dict[str, Any], dict[str, Any]]):
    """Gives each row back."""

    def on_event(self, row):
        yield row


class Shift(msgspec.Struct):
    c0: time
    c1: timedelta


class Worked(msgspec.Struct):
    begin: time
    whole: timedelta


class Shifts(KeyedMonitor[Shift, Worked]):
    """Tells when a shift begins, and how long all shifts have been."""

    whole: timedelta = timedelta()

    def on_event(self, row):
        self.whole += row.c1
        yield Worked(begin=row.c0, whole=self.whole)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


async def later(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Adds a column; fails when a value is 13."""
    if 13 in batch.column("value").to_pylist():
        raise ValueError("thirteen")
    return batch.append_column("doubled", pc.multiply(batch.column("value"), 2))


def tell(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Appends a line to the file that each row names."""
    for path in batch.column("sensor").to_pylist():
        with Path(path).open("a") as file:
            file.write("seen\n")
    return batch


def rewrite(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Puts the property `kind` before the body, and another one beside it; no body for an empty one."""
    rows = batch.to_pylist(maps_as_pydicts="strict")
    for row in rows:
        row["body"] = (row["properties"].get("kind", "none").encode() + b":" + row["body"]) if row["body"] else None
        row["properties"] = {**row["properties"], "seen": "yes"}
    return pa.RecordBatch.from_pylist(
        [{**row, "properties": list(row["properties"].items())} for row in rows], batch.schema
    )


class Raw(msgspec.Struct):
    body: bytes
    properties: dict[str, str]


class Kinds(KeyedMonitor[Raw, Total]):
    """Tells the property `kind` of undecoded messages."""

    seen: int = 0

    def on_event(self, row):
        self.seen += 1
        yield Total(sensor=row.properties["kind"], total=self.seen, why=row.body.decode())


def halve(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Gives fewer rows than it got, which is refused."""
    return batch.slice(0, 0)


NOT_A_MONITOR = 5
