"""A small file beside the store with the number of the last checkpoint, to notice an older copy of the store (trap
T33).

A backup was restored, a failover led to a replica that lacks the last transactions, or the WAL was removed: in each
case the store opens without an error although it is old. An engine that used it would send other messages with numbers
that earlier messages already have.
"""

import hashlib
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from correlator import durable
from correlator.errors import RecoveryRefused
from correlator.storage import files
from correlator.storage.database import location, parse

INTERVAL_S = 1.0
_LONGEST_READABLE = 60


class WitnessContent(msgspec.Struct, frozen=True):
    """The content of the file; the file holds it as JSON."""

    name: str
    checkpoint: int


_decoder = msgspec.json.Decoder(WitnessContent)


def witness_of(directory: str | Path | None, name: str, url: str) -> Path | None:
    """Return the path of the witness of a store.

    The witness of a SQLite store lies beside its file. The witness of a PostgreSQL store lies in `directory`; without a
    directory a PostgreSQL store has no witness, and the result is `None`. In a directory, the name of the file depends
    on the engine, the database and the schema, but not on the server: another server may replace the present one.
    """
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        return files.beside(Path(location(url)), ".witness")
    if directory is None:
        return None
    place = "\0".join((name, parsed.database or "", str(parsed.query.get("options", ""))))
    digest = hashlib.sha256(place.encode(errors="backslashreplace")).hexdigest()[:16]
    readable = quote(name, safe="", errors="backslashreplace")[:_LONGEST_READABLE]
    return Path(directory) / f"{readable}-{digest}.witness"


class Witness:
    """Writes the number of the last checkpoint, at most once a second and at close, so that a commit does not need two
    syncs.

    Therefore the witness does not notice a store that is older by less than a second of work.

    Args:
        path: the file; `None` for no witness.
        name: name of the engine.
    """

    def __init__(self, path: Path | None, name: str) -> None:
        self._path = path
        self._name = name
        self._checkpoint = 0
        self._written = 0
        self._due_at = 0.0

    def refuse_older(self, where: str, checkpoint: int) -> None:
        """Compare the store with the witness.

        Args:
            where: the name of the store in messages.
            checkpoint: number of the last checkpoint in the store.

        Raises:
            RecoveryRefused: E4311, the store is older; E4312, the file cannot be read. Nothing was changed.
        """
        seen = self._read()
        if seen is None or seen.name != self._name or seen.checkpoint <= checkpoint:
            return
        raise RecoveryRefused(
            "E4311",
            where,
            f"the store went back from checkpoint {seen.checkpoint} to {checkpoint}; "
            f"output of {seen.checkpoint - checkpoint} checkpoints has already left",
            "",
            f"Put the newer store back, or go on with this one: correlator db adopt FILE (the witness is {self._path})",
        )

    def note(self, checkpoint: int) -> None:
        """Note the number of a checkpoint. Called after its commit."""
        self._checkpoint = checkpoint
        if time.monotonic() >= self._due_at:
            self.flush()

    def flush(self) -> None:
        """Write the number if it has changed. Never raises: without the number the witness only notices less."""
        if self._path is None or self._checkpoint <= self._written:
            return
        self._due_at = time.monotonic() + INTERVAL_S
        try:
            durable.replace(self._path, msgspec.json.encode(WitnessContent(self._name, self._checkpoint)))
        except OSError:
            return
        self._written = self._checkpoint

    def _read(self) -> WitnessContent | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            return _decoder.decode(self._path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise RecoveryRefused(
                "E4312",
                str(self._path),
                f"the witness of the store cannot be read ({error})",
                "",
                "Remove it if you are sure that the store is the newest one; otherwise: correlator db adopt FILE",
            ) from error
