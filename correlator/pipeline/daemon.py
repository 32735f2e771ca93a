"""The process from which a local Spark forks its Python workers: PySpark's own, after the imports that workers need.

PySpark forks a worker for each core, and one for each worker that a failed task has ended. Without this module each of
them imports Arrow and the code of the steps by itself. After each task a worker also collects garbage; `gc.freeze`
leaves out of this all objects that exist before the fork.

A process with several threads must not fork: a lock that another thread holds stays locked in the child. So if an
import has started a thread, PySpark's own process takes the place of this one, and imports nothing.
"""

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

NEEDED = ("pyspark.worker", "pyarrow", "correlator.pipeline.worker")
IF_INSTALLED = "pandas"
"""Arrow imports it when it first makes an array of Python objects."""
_THREADS = Path("/proc/self/task")
_THREAD_OF_ARROW = ("JE_ARROW_MALLOC_CONF", "background_thread:false")
"""The variable, and its value, with which the allocator of Arrow starts no thread at the import."""
_OF_PYSPARK = "pyspark.daemon"


def main() -> None:
    """Import what workers need, and then be PySpark's process; `sys.argv` has the arguments for it."""
    os.environ.setdefault(*_THREAD_OF_ARROW)
    for module in NEEDED:
        importlib.import_module(module)
    with contextlib.suppress(ImportError):
        importlib.import_module(IF_INSTALLED)
    if not _has_one_thread():
        os.execv(sys.executable, [sys.executable, "-m", _OF_PYSPARK, *sys.argv[1:]])  # noqa: S606  no shell is wanted
    gc.collect()
    gc.freeze()
    importlib.import_module(_OF_PYSPARK).manager()


def _has_one_thread() -> bool:
    return _THREADS.is_dir() and len(list(_THREADS.iterdir())) == 1


if __name__ == "__main__":
    main()
