"""The directory of a run. The directory of a failed run is kept."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from correlator.testing import files
from correlator.testing.invariants.history import History

HISTORY = "history.jsonl"


@contextlib.contextmanager
def directory_of_a_run() -> Iterator[Path]:
    """Make a directory, and remove it at the end of the block unless `keep` has put a history there."""
    directory = Path(tempfile.mkdtemp(prefix="correlator-kill9-"))
    try:
        yield directory
    finally:
        if not (directory / HISTORY).exists():
            shutil.rmtree(directory)


def keep(directory: Path, history: History) -> None:
    """Write the history of a failed run, one JSON record per line, into the directory; this keeps the directory."""
    encode = msgspec.json.Encoder(enc_hook=repr).encode
    files.write(directory / HISTORY, (encode(record) + b"\n" for record in history.records))
