"""Where the time of a pipeline cycle goes: `python -m tests.benchmarks.bench_spark_cycle [ROWS …]`.

The flights pipeline on repetitions of the sample; state is carried from cycle to cycle as an engine would. `arrow`:
messages to an Arrow table; `plan`: Spark analyses the SQL of this batch; `spark`: the job, Python workers included;
`effects`: Arrow back to messages and state. Medians in milliseconds, after warming up.
"""

import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql.classic.dataframe import DataFrame

from correlator.configuration import read_file
from correlator.core.batch_context import Delivered
from correlator.events import Message
from correlator.pipeline import processor as processing
from correlator.pipeline.processor import SparkProcessor
from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import PipelineFile, SparkSettings
from tests.pipeline.conftest import TinyState

CONFIG = Path(__file__).resolve().parents[2] / "config"
ROWS = (1_000, 100_000)
PARTS = ("arrow", "plan", "spark", "effects")


class Watch:
    """Adds up the time that is spent in functions."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def over(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - begin

        return timed


def batch(rows: int) -> list[Delivered]:
    lines = (CONFIG / "data" / "flights.csv").read_bytes().splitlines()[1:]
    return [Delivered("departures", at, Message(line)) for at, line in enumerate(islice(cycle(lines), rows))]


def measure(processor: SparkProcessor, rows: int, watch: Watch) -> list[dict[str, float]]:
    state, delivered, found = TinyState(), batch(rows), []
    for _ in range(25 if rows <= 10_000 else 8):
        watch.spent.clear()
        begin = time.perf_counter()
        effects = processor.process(delivered, state, 0.0)
        whole = time.perf_counter() - begin
        for entry in effects.state:
            state.entries[entry.owner, entry.key] = entry.value or b""
        spent = dict(watch.spent)
        spent["plan"] = spent.pop("run") - spent["spark"]
        found.append({**spent, "whole": whole})
    return found[len(found) // 3 :]


def main() -> None:
    settings = read_file(CONFIG / "flights.yaml", PipelineFile, connectors=("file", "embedded")).settings
    processor = SparkProcessor(settings.pipelines[0], SharedSession(SparkSettings()), [str(CONFIG)])
    begin = time.perf_counter()
    processor.open()
    print(f"open: {time.perf_counter() - begin:.1f} s")
    watch = Watch()
    processing.input_table = watch.over("arrow", processing.input_table)
    DataFrame.toArrow = watch.over("spark", DataFrame.toArrow)
    processor._opened.run = watch.over("run", processor._opened.run)
    processor._effects = watch.over("effects", processor._effects)
    for rows in [int(argument) for argument in sys.argv[1:]] or ROWS:
        found = measure(processor, rows, watch)
        whole = median(entry["whole"] for entry in found)
        split = "  ".join(f"{part} {1000 * median(entry[part] for entry in found):.0f}" for part in PARTS)
        least = min(entry["whole"] for entry in found)
        print(f"{rows} rows: {1000 * whole:.0f} ms (least {1000 * least:.0f})  {split}  {rows / whole:,.0f} rows/s")
    processor.close()


if __name__ == "__main__":
    main()
