"""What users and disks do to a SQLite store: an exact code, no change, no other exception."""

import errno
import fcntl
import hashlib
import os
import random
import resource
import shutil
import sqlite3
import stat
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from connectors.embedded import EmbeddedConnection
from correlator.core import faults
from correlator.core.commit import RegistryCommit, SuspectCommit
from correlator.errors import (
    ConfigError,
    ConnectionLost,
    CorrelatorError,
    Fenced,
    RecoveryRefused,
    StoreBusy,
    StoreError,
)
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.storage import checking, failures, files, inspect, migrate, sqlite
from correlator.storage import database as databases
from correlator.storage.store import SqlStore
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def filled(make_store: MakeStore, path: Path) -> Path:
    """A closed store with a row in every table."""
    store = make_store(f"sqlite:///{path}")
    opened(store)
    fill(store)
    store.close()
    return path


def fill(store: SqlStore) -> None:
    store.commit(1, [values.received(n, 1, number=n, confirmed=1) for n in range(1, 40)])
    parts = {
        "senders": [values.sender()],
        "state": [values.state(1, a=b"1" * 5000)],
        "outbound": [values.outbound(1, 50)],
    }
    noted = SuspectCommit(contexts=["main"], suspects=[values.suspect(4, 5)])
    store.commit(2, [values.checkpoint(812, contexts=[values.context()], **parts), noted])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def refused(make_store: MakeStore, path: Path, kind: type[CorrelatorError], text: str) -> CorrelatorError:
    """Opening fails with this text, and the file is what it was."""
    before = digest(path)
    with pytest.raises(kind, match=text) as refusal:
        opened(make_store(f"sqlite:///{path}"))
    assert digest(path) == before
    assert path.name in str(refusal.value) or kind is RecoveryRefused
    return refusal.value


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(("content", "shown"), [(b"PK\x03\x04" * 400, "'PK"), (b"hello world", "'hello world'")])
def test_138_a_file_that_is_not_sqlite(make_store: MakeStore, path: Path, content: bytes, shown: str) -> None:
    path.write_bytes(content)
    assert (
        refused(make_store, path, StoreError, f"E3001 .*is not a SQLite database .starts with {shown}").exit_status == 3
    )


def test_139_a_file_of_no_bytes_becomes_a_store(make_store: MakeStore, path: Path) -> None:
    path.touch()
    assert opened(make_store(f"sqlite:///{path}")).epoch == 1


@pytest.mark.parametrize("keep", [100, 4096, 6000, 20_000])
def test_140_a_truncated_file(make_store: MakeStore, filled: Path, keep: int) -> None:
    with filled.open("r+b") as file:
        file.truncate(keep)
    refused(make_store, filled, StoreError, "E300[12]")


def test_141_flipped_bits_are_found_or_harmless(make_store: MakeStore, filled: Path, tmp_path: Path) -> None:
    content = filled.read_bytes()
    chance = random.Random(4711)
    found = set()
    for attempt in range(60):
        flipped = bytearray(content)
        position = chance.randrange(len(flipped))
        flipped[position] ^= 1 << chance.randrange(8)
        path = tmp_path / f"flipped{attempt}.db"
        path.write_bytes(flipped)
        store = make_store(f"sqlite:///{path}")
        try:
            recovered = values.contents(opened(store))
        except CorrelatorError as error:
            found.add(error.code)
            assert bytes(flipped) == path.read_bytes()
        else:
            assert recovered["commit"] in range(3)
        store.close()
    assert "E3002" in found
    assert found <= {"E3001", "E3002", "E3003", "E3004", "E3005", "E3006", "E4201", "E4310", "E4311"}


def test_141_a_value_of_another_type_is_an_altered_row(make_store: MakeStore, filled: Path) -> None:
    """A flipped bit may make a NULL or a number of the bytes of a row."""
    edit(filled, "UPDATE outbox SET content = 7")
    structure, tables = checking.check(f"sqlite:///{filled}")
    assert structure == []
    (damages,) = (one.damages for one in tables if one.table == "outbox")
    assert damages == ["outbox of 'alerts' from 1: content does not match its digest"]
    refused_start(make_store, filled, "E4201")


def test_141_rows_without_a_digest_have_values_of_their_types(make_store: MakeStore, filled: Path) -> None:
    edit(filled, "UPDATE engine SET product = X'00'")
    with pytest.raises(RecoveryRefused, match="E4201 engine: "):
        inspect.instance(f"sqlite:///{filled}")


@pytest.mark.parametrize(
    "number", ["confirmed_batch = 40", "consumed = consumed + 1", "consumed = 'x'", "receiver = 'b'"]
)
def test_141_a_changed_number_of_the_progress_is_an_altered_row(
    make_store: MakeStore, filled: Path, number: str
) -> None:
    """From a larger number a start would take messages for handled that are not."""
    edit(filled, f"UPDATE receive_progress SET {number}")
    _, tables = checking.check(f"sqlite:///{filled}")
    (progress,) = (one for one in tables if one.table == "receive_progress")
    assert len(progress.damages) == 1
    refused_start(make_store, filled, "E4201 progress of receiver '.*': content does not match its digest")


@pytest.mark.parametrize("edited", ["accepted_ids SET receiver = 'other'", "endpoint SET domain = 'other'"])
def test_141_a_changed_column_by_which_rows_are_deleted(make_store: MakeStore, path: Path, edited: str) -> None:
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.commit(1, [RegistryCommit(put=[values.endpoint("orders")]), values.received(1, 1, number=1)])
    store.close()
    edit(path, f"UPDATE {edited}")
    with pytest.raises(RecoveryRefused, match=r"E4201 (ids of|registry of)"):
        values.contents(opened(make_store(f"sqlite:///{path}")))


def test_141_a_number_of_a_dead_letter_is_never_given_twice(make_store: MakeStore, path: Path) -> None:
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.commit(1, [values.checkpoint(1, dead_letters=[values.letter()])])
    store.close()
    edit(path, "UPDATE engine SET dead_letters = 0")
    refused_start(make_store, path, "E4201 engine: content does not match its digest")


def test_141_a_look_misses_no_row_whose_key_is_damaged(filled: Path) -> None:
    url = f"sqlite:///{filled}"
    (domain,) = {one.domain for one in inspect.domains(url)}
    edit(filled, "UPDATE accepted_ids SET domain = 'other' WHERE number = 2")
    for look in (inspect.domains, lambda url: inspect.accepted_ids(url, domain)):
        with pytest.raises(RecoveryRefused, match="E4201 ids of 'other' number 2"):
            look(url)
    edit(filled, "UPDATE outbox SET sender = 'other'", "UPDATE receive_log SET last = last + 1")
    for look in (inspect.outbox, inspect.receive_log):
        with pytest.raises(RecoveryRefused, match="E4201 (outbox of 'other'|receive log of)"):
            look(url)


def test_141_a_damaged_name_of_a_table_that_is_no_text(make_store: MakeStore, filled: Path) -> None:
    """SQLite repeats it in its message, which the driver cannot decode."""
    edit(
        filled,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE', name = CAST(X'E5' AS TEXT) WHERE name = 'suspect'",
    )
    for look in (checking.check, inspect.instance, inspect.registry):
        with pytest.raises(StoreError, match=r"E3002 .*the name of a table or index is no text"):
            look(f"sqlite:///{filled}")
    refused(make_store, filled, StoreError, "E3002 .*the name of a table or index is no text")


def refused_start(make_store: MakeStore, path: Path, text: str) -> None:
    with pytest.raises(CorrelatorError, match=text):
        opened(make_store(f"sqlite:///{path}"))


def test_142_a_lost_log_is_noticed_by_the_witness(make_store: MakeStore, path: Path, tmp_path: Path) -> None:
    """The file without its -wal opens well and is old (trap T33)."""
    store = make_store(f"sqlite:///{path}")
    opened(store)
    fill(store)
    other = tmp_path / "copy" / "store.db"
    other.parent.mkdir(0o700)
    subprocess.run(["cp", path, other], check=True)  # not by this process: closing the file would drop SQLite's locks
    shutil.copy(files.beside(path, ".witness"), files.beside(other, ".witness"))
    with pytest.raises(
        RecoveryRefused, match=r"E4311 .*from checkpoint 812 to 0; output of 812 checkpoints"
    ) as refusal:
        opened(make_store(f"sqlite:///{other}"))
    assert refusal.value.exit_status == 6


def test_153_an_old_backup_is_noticed_by_the_witness(make_store: MakeStore, filled: Path, tmp_path: Path) -> None:
    backup = shutil.copy(filled, tmp_path / "backup")
    store = make_store(f"sqlite:///{filled}")
    opened(store)
    store.commit(3, [values.checkpoint(813)])
    store.close()
    shutil.copy(backup, filled)
    refused(make_store, filled, RecoveryRefused, "E4311 .*went back from checkpoint 813 to 812")
    files.beside(filled, ".witness").unlink()
    assert opened(make_store(f"sqlite:///{filled}")).checkpoint == 812


def test_a_witness_that_cannot_be_read(make_store: MakeStore, filled: Path) -> None:
    files.beside(filled, ".witness").write_text("{")
    refused(make_store, filled, RecoveryRefused, "E4312")


def test_a_witness_that_cannot_be_written_only_notices_less(make_store: MakeStore, path: Path) -> None:
    store = make_store(f"sqlite:///{path}")
    opened(store)
    files.beside(path, ".witness.part").mkdir()
    store.commit(1, [values.checkpoint(1)])
    store.close()
    assert not files.beside(path, ".witness").exists()


def test_143_the_log_of_another_store(make_store: MakeStore, filled: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    store = make_store(f"sqlite:///{other}", "beta")
    opened(store)
    subprocess.run(["cp", f"{other}-wal", f"{filled}-wal"], check=True)
    with pytest.raises(CorrelatorError, match=r"E3002|E3005|E4310|E4311|E4201"):
        opened(make_store(f"sqlite:///{filled}"))


def test_145_another_application(make_store: MakeStore, path: Path) -> None:
    edit(path, "CREATE TABLE invoices (id INTEGER)")
    refused(make_store, path, StoreError, "E3003 .*belongs to another application")


def test_a_database_with_our_names_and_without_our_mark(make_store: MakeStore, path: Path) -> None:
    edit(path, "CREATE TABLE engine (id INTEGER)", f"PRAGMA application_id = {databases.APPLICATION_ID}")
    with pytest.raises(StoreError, match=r"E3003"):
        opened(make_store(f"sqlite:///{path}"))


def test_146_a_newer_schema(make_store: MakeStore, filled: Path) -> None:
    edit(filled, "UPDATE correlator_schema SET version_num = '0012'", "UPDATE engine SET product = 'correlator 1.7'")
    text = r"E3004 .*written by correlator 1\.7 \(schema 12\), this is schema 4\. .*Upgrade this program first"
    refused(make_store, filled, StoreError, text)
    with pytest.raises(StoreError, match=text):
        inspect.instance(f"sqlite:///{filled}")


@pytest.mark.parametrize("number", ["'out'", "'0000'", "'00010'", "7", "X'0004'"])
def test_a_damaged_number_of_the_schema(make_store: MakeStore, filled: Path, number: str) -> None:
    edit(filled, f"UPDATE correlator_schema SET version_num = {number}")
    text = "E4201 correlator_schema: .* is not the number of a schema"
    refused(make_store, filled, RecoveryRefused, text)
    with pytest.raises(RecoveryRefused, match=text):
        inspect.instance(f"sqlite:///{filled}")


def test_an_inspection_reads_an_older_schema(filled: Path) -> None:
    edit(filled, "UPDATE correlator_schema SET version_num = '0001'", "DROP TABLE suspect")
    assert len(inspect.checkpoints(f"sqlite:///{filled}")) == 1


@pytest.mark.parametrize("table", ["engine", "checkpoint", "receive_log", "accepted_ids", "outbox", "dead_letter"])
def test_148_a_table_that_was_dropped(make_store: MakeStore, filled: Path, table: str) -> None:
    edit(filled, f"DROP TABLE {table}")
    refused(make_store, filled, StoreError, f"E3005 .*the table '{table}' is missing")


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("UPDATE checkpoint SET content = zeroblob(10)", "checkpoint 812"),
        ("UPDATE checkpoint SET number = 700", "checkpoint 700"),
        ("UPDATE checkpoint SET crc = crc + 1", "checkpoint 812"),
        ("UPDATE receive_log SET content = zeroblob(10) WHERE first = 7", "receive log of 'orders' from 7"),
        ("UPDATE receive_log SET first = 77 WHERE first = 7", "receive log of 'orders' from 77"),
        ("UPDATE accepted_ids SET content = zeroblob(10) WHERE number = 39", "ids of 'd' number 39"),
        ("UPDATE state_log SET content = zeroblob(10)", "state 1"),
        ("UPDATE outbox SET sender = 'x'", "outbox of 'x' from 1"),
        ("UPDATE suspect SET deaths = 9", "note about 'main', 'orders' from 4"),
    ],
)
def test_148_a_row_that_was_edited(make_store: MakeStore, filled: Path, statement: str, where: str) -> None:
    edit(filled, statement)
    error = refused(make_store, filled, RecoveryRefused, f"E4201 {where}: content does not match its digest")
    assert error.exit_status == 6


def test_a_content_of_another_version(make_store: MakeStore, filled: Path) -> None:
    edit(filled, f"UPDATE outbox SET content = x'c0', crc = {zlib.crc32(bytes([0xC0]))}")
    refused(make_store, filled, RecoveryRefused, "E4202 outbox of 'alerts' from 1: content is not a OutboundSegment")


def test_150_a_full_disk_is_rolled_back_and_tried_again(make_store: MakeStore, path: Path) -> None:
    store = make_store(f"sqlite:///{path}")
    opened(store)
    raw = store._opened()._raw()  # type: ignore[attr-defined]
    raw.execute("PRAGMA max_page_count = 40")
    with pytest.raises(StoreBusy, match=r"E3101 .*the disk is full; nothing was written"):
        store.commit(1, [values.received(1, 5000)])
    raw.execute("PRAGMA max_page_count = 100000")
    store.commit(1, [values.received(1, 5000)])


def test_151_a_store_that_another_program_locks(
    make_store: MakeStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "BUSY_TIMEOUT_S", 0.05)
    store = make_store(f"sqlite:///{path}")
    opened(store)
    with locked(path), pytest.raises(StoreBusy, match=r"E3102 .*locked by another program for 0.05 s"):
        store.commit(1, [values.received(1, 1)])
    store.commit(1, [values.received(1, 1)])
    store.close()
    with locked(path):
        refused(make_store, path, StoreBusy, "E3102")


class locked:  # noqa: N801
    """Holds the write lock of a database, as a database browser would."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


def test_t68_a_file_gets_smaller_again(make_store: MakeStore, path: Path) -> None:
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.commit(1, [values.received(1, 50_000)])
    store.commit(2, [values.checkpoint(1, consumed={"orders": 50_000})])
    store.close()
    full = path.stat().st_size
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.close()
    assert path.stat().st_size < full / 10


def test_t2_152_a_failing_disk_stops_the_engine(make_store: MakeStore, path: Path) -> None:
    """A write beyond the limit of the process fails like a broken disk: not busy, not to be tried again (trap T2)."""
    store = make_store(f"sqlite:///{path}")
    opened(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(StoreError, match=r"E3104 .*the disk failed .*the next start shows") as failure:
            store.commit(1, [values.received(1, 5000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert type(failure.value) is StoreError
    assert failure.value.exit_status == 3
    store.close()
    assert opened(make_store(f"sqlite:///{path}")).commit in (0, 1)


@pytest.mark.parametrize("place", ["directory", "below a file"])
def test_32_a_place_that_cannot_hold_a_store(make_store: MakeStore, tmp_path: Path, place: str) -> None:
    path = tmp_path / "store.db"
    if place == "directory":
        path.mkdir()
    else:
        path.touch()
        path /= "store.db"
    with pytest.raises(StoreError, match=r"E3006|E9104"):
        opened(make_store(f"sqlite:///{path}"))


@pytest.fixture
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that belongs to an ordinary user."""
    directory = Path("/tmp") / f"correlator-nobody-{os.getpid()}"
    directory.mkdir(0o700)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("target", ["file", "directory"])
def test_144_a_store_that_may_only_be_read(make_store: MakeStore, ours: Path, target: str) -> None:
    path = ours / "store.db"
    store = make_store(f"sqlite:///{path}")
    opened(store)
    store.close()
    for name in (ours, *ours.iterdir()):
        os.chown(name, 65534, 65534)
    (path if target == "file" else ours).chmod(0o400 if target == "file" else 0o500)
    if target == "directory":
        files.beside(path, ".lock").unlink()
    assert "StoreError E3006" in opened_by_nobody(f"sqlite:///{path}")


def opened_by_nobody(url: str) -> str:
    """What an ordinary user gets who opens the store; root may write everything."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            opened(SqlStore(url, "alpha"))
        except BaseException as error:  # noqa: BLE001
            os.write(writer, f"{type(error).__name__} {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def test_t59_files_are_private(make_store: MakeStore, tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "store.db"
    old = os.umask(0)
    try:
        store = make_store(f"sqlite:///{path}")
        opened(store)
        store.commit(1, [values.checkpoint(1)])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert modes == dict.fromkeys(["store.db" + s for s in ("", "-wal", "-shm", ".lock", ".witness")], 0o600)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_a_file_that_others_may_read_is_closed_to_them(make_store: MakeStore, filled: Path) -> None:
    filled.chmod(0o644)
    opened(make_store(f"sqlite:///{filled}"))
    assert stat.S_IMODE(filled.stat().st_mode) == 0o600


def test_32_a_directory_that_everybody_may_write(make_store: MakeStore, tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(
        StoreError, match=r"E9101 .*open is writable by everybody \(mode 0777\)\. chmod 700\."
    ) as refusal:
        opened(make_store(f"sqlite:///{directory}/store.db"))
    assert refusal.value.exit_status == 3
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.db.lock", "directory"])
def test_32_symbolic_links(make_store: MakeStore, tmp_path: Path, name: str) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / name
    link.symlink_to(tmp_path / "real")
    place = link if name == "directory" else tmp_path
    with pytest.raises(StoreError, match=r"E9102 .*is a symbolic link"):
        opened(make_store(f"sqlite:///{place}/store.db"))
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_32_a_directory_of_somebody_else(make_store: MakeStore, tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    with pytest.raises(StoreError, match=r"E9104 .*belongs to user 65534"):
        opened(make_store(f"sqlite:///{directory}/store.db"))


MOUNTS = (
    "/dev/vda / ext4 rw 0 0\nserver:/x /srv nfs4 rw 0 0\n/dev/vdb /srv/local ext4 rw 0 0\ns:/y /a\\040b cifs rw 0 0\n"
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/x", "ext4"), ("/srv/x/y", "nfs4"), ("/srv/local/x", "ext4"), ("/a b/x", "cifs"), ("/srvx", "ext4")],
)
def test_file_systems(path: str, kind: str) -> None:
    assert files.file_system(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    "kind",
    [
        *["nfs4", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "fakeowner", "orangefs", "kafs"],
        *["fuse.rclone", "fuse.juicefs", "fuse.sshfs", "fuse.something-new", "fuse"],
    ],
)
def test_t12_32_a_network_file_system(
    make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mount(monkeypatch, tmp_path, kind)
    refused(make_store, tmp_path / "store.db", StoreError, rf"E9103 .*network file system \({kind}\)")


@pytest.mark.parametrize("kind", ["ext4", "overlay", "fuseblk", "fuse.gocryptfs", "fuse.fuse-overlayfs"])
def test_a_local_file_system(make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mount(monkeypatch, tmp_path, kind)
    opened(make_store(f"sqlite:///{tmp_path}/store.db"))


def test_an_embedded_broker_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(monkeypatch, tmp_path, "virtiofs")
    options = {"store": f"sqlite:///{tmp_path}/broker.db"}
    broker = EmbeddedConnection("c", ConnectionSettings(type="embedded", options=options))
    sink = broker.sink(SenderSettings(id="s", connection="c", destination="queue:q"))
    with pytest.raises(ConnectionLost, match=r"E9103 .*network file system \(virtiofs\)"):
        sink.connect()
    assert not (tmp_path / "broker.db").exists()


def mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    """As if everything lay on a file system of this type."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"somewhere / {kind} rw 0 0\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/d",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///a?mode=ro",
        "nonsense secret",
        "",
        "postgresql+asyncpg://h/d",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"E1301 .*Use sqlite:///path or postgresql://") as refusal:
        databases.connect(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("name", ["a b.db", "a%20b.db", "ü.db", "a?b#c.db", "new\nline.db"])
def test_odd_file_names(make_store: MakeStore, tmp_path: Path, name: str) -> None:
    url = URL.create("sqlite", database=str(tmp_path / name)).render_as_string()
    if "?" in name:
        url = f"sqlite:///{tmp_path}/{name.replace('?', '%3F').replace('#', '%23')}"
    opened(make_store(url))
    assert any(p.name.endswith(".lock") for p in tmp_path.iterdir())


def test_t8_a_store_in_a_child_process(make_store: MakeStore, sqlite_url: str) -> None:
    """A forked child is refused, and its end takes neither the lock nor the connection from the parent (trap T8)."""
    store = make_store(sqlite_url)
    opened(store)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            store.commit(1, [values.received(1, 1)])
        except StoreError as error:
            os.write(writer, str(error).encode())
        finally:
            store.close()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert f"E3107 {sqlite_url[10:]}: store opened by pid {os.getpid()}, used in pid {pid}." in pipe.read()
    os.waitpid(pid, 0)
    with pytest.raises(Fenced):
        opened(make_store(sqlite_url))
    store.commit(1, [values.received(1, 1)])


def test_a_child_does_not_keep_the_lock(make_store: MakeStore, sqlite_url: str) -> None:
    store = make_store(sqlite_url)
    opened(store)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent is through
        os._exit(0)
    store.close()
    opened(make_store(sqlite_url))
    os.close(reader)
    os.close(writer)
    os.waitpid(pid, 0)


def test_a_full_disk_under_the_lock_file_leaves_no_lock(
    make_store: MakeStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(StoreError, match="E3006 .*no space left"):
        patched.setattr(os, "pwrite", full)
        opened(make_store(sqlite_url))
    opened(make_store(sqlite_url))


def test_t10_the_lock_is_not_a_posix_lock(make_store: MakeStore, sqlite_url: str) -> None:
    store = make_store(sqlite_url)
    opened(store)
    with Path(f"{sqlite_url[10:]}.lock").open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert file.read().startswith(f"pid {os.getpid()} on host ")


def test_t4_settings_are_read_back(make_store: MakeStore, sqlite_url: str) -> None:
    store = make_store(sqlite_url)
    opened(store)
    raw = store._opened()._raw()  # type: ignore[attr-defined]
    names = ("journal_mode", "synchronous", "auto_vacuum", "application_id", "user_version")
    assert [raw.execute(f"PRAGMA {name}").fetchone()[0] for name in names] == [
        "wal",
        2,
        2,
        0x636F7272,
        int(migrate.HEAD),
    ]


def test_a_look_from_outside_while_an_engine_runs(make_store: MakeStore, url: str) -> None:
    with pytest.raises(StoreError, match=r"E3006|E3010"):
        inspect.registry(url)
    store = make_store(url)
    opened(store)
    fill(store)
    assert (inspect.instance(url).name, inspect.instance(url).commit) == ("alpha", 2)  # type: ignore[union-attr]
    assert inspect.registry(url) == []
    (checkpoint,) = inspect.checkpoints(url)
    assert (checkpoint.number, checkpoint.waiting, checkpoint.senders) == (812, {"main": 0}, [values.sender()])
    assert [(s.owner, s.first, s.last) for s in inspect.receive_log(url)] == [("orders", n, n) for n in range(1, 40)]
    assert [(s.owner, s.first, s.last) for s in inspect.outbox(url)] == [("alerts", 1, 50)]
    assert inspect.domains(url) == [inspect.StoredDomain(domain="d", segments=39, ids=39)]
    assert inspect.accepted_ids(url, "d")[2] == inspect.AcceptedId(id="m3", source="S01", time=3.0)
    assert inspect.state_keys(url) == [inspect.StateKey(owner="monitor:A#0", key=b"a", size=5000)]
    assert inspect.state_keys(url, "monitor:B#0") == []
    assert inspect.state_value(url, "monitor:A#0", b"a") == b"1" * 5000
    store.commit(3, [values.checkpoint(813, state=[values.state(2, a=None)])])
    assert inspect.state_keys(url) == []


def test_a_look_from_outside_sees_one_moment(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [values.checkpoint(1)])
    with databases.reading(url) as connection:
        assert connection.exec_driver_sql("SELECT number FROM checkpoint").scalar() == 1
        store.commit(2, [values.checkpoint(2)])
        assert connection.exec_driver_sql("SELECT number FROM checkpoint").scalar() == 1
        assert connection.exec_driver_sql("SELECT commit_number FROM engine").scalar() == 1


def test_t6_a_reader_cannot_write(make_store: MakeStore, url: str) -> None:
    opened(make_store(url))
    with pytest.raises(StoreError, match=r"E3006|E3308"), databases.reading(url) as connection:
        connection.exec_driver_sql("DELETE FROM engine")


def test_the_lock_is_taken_before_anything_is_looked_at(make_store: MakeStore, sqlite_url: str) -> None:
    passed: list[str] = []
    faults.install(passed.append)
    opened(make_store(sqlite_url))
    faults.install(None)
    steps = ["rec.migrate.step"] * int(migrate.HEAD)
    expected = ["rec.lock", "rec.migrate.begin", *steps, "rec.load.meta"]
    assert passed == [*expected, "rec.epoch.commit.before", "rec.epoch.commit.after"]


def test_t5_a_log_that_a_long_reader_let_grow_is_cut_again(
    make_store: MakeStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody reads, nothing may be copied over what he reads; afterwards the file is small again."""
    monkeypatch.setattr(sqlite, "LARGEST_IDLE_WAL", 1024 * 1024)
    store = make_store(sqlite_url)
    opened(store)
    raw = store._opened()._raw()  # type: ignore[attr-defined]
    raw.execute("PRAGMA wal_autocheckpoint = 32")
    log = Path(f"{sqlite_url[10:]}-wal")
    with databases.reading(sqlite_url) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM receive_log").scalar() == 0
        for number in range(1, 101):
            store.commit(number, [values.received(number * 100, 100)])
        grown = log.stat().st_size
    assert grown > 4 * 1024 * 1024
    for number in range(101, 121):
        store.commit(number, [values.received(number * 100, 100)])
    assert log.stat().st_size <= 1024 * 1024
