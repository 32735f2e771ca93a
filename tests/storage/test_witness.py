"""The witness of a store (trap T33): what it notes, and when."""

from pathlib import Path

import pytest

from correlator.errors import RecoveryRefused
from correlator.storage import witness
from correlator.storage.witness import Witness


def test_t33_a_witness_notes_at_most_one_checkpoint_in_a_while_and_the_rest_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit does not pay for a second sync, a witness that is up to date is not written again."""
    path = tmp_path / "store.db.witness"
    monkeypatch.setattr(witness, "INTERVAL_S", 3600.0)
    kept = Witness(path, "alpha")
    kept.flush()
    assert not path.exists(), "there is no checkpoint yet"
    kept.note(1)
    assert seen(path) == 1
    kept.note(2)
    assert seen(path) == 1
    kept.flush()
    assert seen(path) == 2
    written = path.stat()
    kept.flush()
    assert path.stat() == written
    assert list(tmp_path.iterdir()) == [path]


def test_t33_where_no_witness_is_kept_nothing_is_written_or_refused(tmp_path: Path) -> None:
    none = Witness(None, "alpha")
    none.note(7)
    none.flush()
    none.refuse_older("store", 0)
    assert list(tmp_path.iterdir()) == []


def seen(path: Path) -> int:
    """The checkpoint that a start must have at least, or be refused."""
    number = 0
    while True:
        try:
            Witness(path, "alpha").refuse_older("store", number)
        except RecoveryRefused:
            number += 1
        else:
            return number
