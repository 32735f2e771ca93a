"""The directory of a run; a failed run keeps it."""

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
    """A new directory, removed at the end of the block unless something in it was to be kept."""
    directory = Path(tempfile.mkdtemp(prefix="correlator-kill9-"))
    try:
        yield directory
    finally:
        if not (directory / HISTORY).exists():
            shutil.rmtree(directory)


def keep(directory: Path, history: History) -> None:
    """Put the history of a failed run beside its store, one record a line, as JSON; so the directory stays."""
    encode = msgspec.json.Encoder(enc_hook=repr).encode
    files.write(directory / HISTORY, (encode(record) + b"\n" for record in history.records))
