"""The process from which a local Spark forks its Python workers."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from correlator.pipeline import daemon


def origin(batches):
    """Tells from which process a worker was forked, and what it did not have to import."""
    imported = [module for module in (*daemon.NEEDED, daemon.IF_INSTALLED) if module in sys.modules]
    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"parent": os.getppid(), "imported": imported}])


def start(*, beginning: str = "", directory: Path) -> subprocess.Popen[bytes]:
    """Start the process as Spark does, up to the point at which it listens; `beginning` runs first."""
    (directory / "sitecustomize.py").write_text(beginning)
    command = [sys.executable, "-m", daemon.__name__, "pyspark.worker"]
    path = os.pathsep.join([str(directory), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert len(process.stdout.read(4)) == 4, "its port"
    return process


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def maps_arrow(pid: int) -> bool:
    return "libarrow" in Path(f"/proc/{pid}/maps").read_text()


def test_workers_are_forked_from_a_process_of_one_thread_that_has_imported_what_they_need(session):
    spark = session.acquire()
    try:
        rows = spark.range(1).mapInArrow(origin, "parent BIGINT, imported ARRAY<STRING>").collect()
    finally:
        session.release()
    assert [row["imported"] for row in rows] == [[*daemon.NEEDED, daemon.IF_INSTALLED]]
    (parent,) = {row["parent"] for row in rows}
    assert daemon.__name__ in command_of(parent)
    assert maps_arrow(parent)
    assert len(list(Path(f"/proc/{parent}/task").iterdir())) == 1


@pytest.mark.parametrize("threads", [0, 1])
def test_a_process_with_a_second_thread_does_not_fork_workers(tmp_path, threads):
    beginning = (
        "import threading\n" + "threading.Thread(target=threading.Event().wait, daemon=True).start()\n" * threads
    )
    process = start(beginning=beginning, directory=tmp_path)
    try:
        assert (daemon.__name__ in command_of(process.pid)) == (threads == 0)
        assert ("pyspark.daemon" in command_of(process.pid)) == (threads == 1)
        assert maps_arrow(process.pid) == (threads == 0)
    finally:
        process.communicate()  # the end of its standard input ends it
