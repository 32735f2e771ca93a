"""Output files that other programs write to, move and remove, and the remains of a killed process in them."""

import json
import os
from pathlib import Path

import pytest

from connectors.file import FileConnection, journal
from connectors.file.sink import FileSink
from correlator import Reliability
from correlator.errors import ConfigError, ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings

THEIRS = b'{"theirs":1}\n{"theirs":2}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def sink_of(path: Path, reliability: Reliability = Reliability.EXACTLY_ONCE, **options: object) -> FileSink:
    files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(path.parent)}))
    destination = f"queue:{path.name}"
    sink = files.sink(
        SenderSettings(id="s", connection="c", destination=destination, reliability=reliability, options=options)
    )
    sink.connect()
    return sink


def send(sink: FileSink, first: int, *numbers: int, source: str = "life") -> None:
    batch = [Outgoing(n, source, "queue:out.jsonl", Message(b"%d" % n)) for n in (first, *numbers)]
    assert not any(sink.send(batch))


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


@pytest.mark.parametrize("reliability", [Reliability.EXACTLY_ONCE, Reliability.AT_LEAST_ONCE])
@pytest.mark.parametrize("is_down", [True, False])
@pytest.mark.parametrize("content", [THEIRS, b"{", b"2\n" + THEIRS])
def test_lines_of_another_program_stop_a_reliable_sender(
    path: Path, reliability: Reliability, is_down: bool, content: bytes
) -> None:
    """Whenever the lines were written, none is lost. With the file moved away, sending goes on."""
    sink = sink_of(path, reliability)
    send(sink, 1)
    if is_down:
        sink.close()
    append(path, content)
    found = path.read_bytes()
    for _ in range(3):
        with pytest.raises(ConnectionLost, match=r"E7029 .*another program") as refused:
            sink.connect()
            send(sink, 2)
            send(sink, 3)
    assert "Move the file away" in str(refused.value)
    assert path.read_bytes() == found
    path.rename(path.with_name("theirs.jsonl"))
    sink.connect()
    send(sink, 3)
    sink.close()
    assert path.read_bytes() == b"3\n"


def test_a_best_effort_sender_keeps_what_it_finds(path: Path) -> None:
    """The sends of its last life may be among these lines, and no later life repeats them."""
    sink = sink_of(path, Reliability.BEST_EFFORT)
    send(sink, 1)
    sink.close()
    append(path, THEIRS + b"torn")
    sink = sink_of(path, Reliability.BEST_EFFORT)
    send(sink, 1, source="another life")
    send(sink, 2, source="another life")
    assert path.read_bytes() == b"1\n" + THEIRS + b"torn\n1\n2\n"


@pytest.mark.parametrize("tail", [b"2\n", b"2\n3\n4", b"2\n3\n4\n5\n", b"\0\0", b"2\n\0\0004\n", b"\0\0003\n4\n5\n"])
@pytest.mark.parametrize("batches", [[(2, 3, 4, 5)], [(2,), (3,), (4, 5)], [(2, 3), (4, 5)]])
def test_what_was_not_confirmed_is_there_once(path: Path, tail: bytes, batches: list[tuple[int, ...]]) -> None:
    """This holds after a kill, after a power cut that left zero bytes, and for any batches at the repeat."""
    sink = sink_of(path)
    send(sink, 1)
    sink.close()
    append(path, tail)
    for again in (False, True):
        for first, *rest in batches:
            sink = sink_of(path)
            send(sink, first, *rest)
            sink.close()
        assert path.read_bytes() == b"1\n2\n3\n4\n5\n", again


@pytest.mark.parametrize("tail", [b"2\n", b"2\n3\n4", b"2\n3\n4\n5\n", b"\0\0", b"2\n\0\0004\n"])
@pytest.mark.parametrize("batches", [[(2, 3, 4, 5)], [(2,), (3,), (4, 5)], [(2, 3), (4, 5)]])
@pytest.mark.parametrize("creates", [False, True])
def test_what_was_not_confirmed_is_there_once_after_a_rotation(
    path: Path, tail: bytes, batches: list[tuple[int, ...]], creates: bool
) -> None:
    """The file was rotated after a kill: the sender completes its batch there, and begins the new file."""
    sink = sink_of(path)
    send(sink, 1)
    sink.close()
    append(path, tail)
    rotated = path.with_name("out.jsonl.1")
    path.rename(rotated)
    if creates:
        path.touch()
    for again in (False, True):
        for first, *rest in batches:
            sink = sink_of(path)
            send(sink, first, *rest)
            sink.close()
        assert rotated.read_bytes() + (path.read_bytes() if path.exists() else b"") == b"1\n2\n3\n4\n5\n", again
    sink = sink_of(path)
    send(sink, 6)
    assert path.read_bytes().endswith(b"6\n")


@pytest.mark.parametrize("is_rotated", [False, True])
def test_a_batch_is_completed_on_a_file_system_that_got_another_number(path: Path, is_rotated: bool) -> None:
    """A restart of the machine can change the device number, and so can a new mount of a network file system."""
    sink = sink_of(path)
    send(sink, 1)
    sink.close()
    append(path, b"2\n3\n")
    rotated = path.with_name("out.jsonl.1")
    if is_rotated:
        path.rename(rotated)
    sidecar = path.parent / ".positions" / f"{path.name}.written"
    written = json.loads(sidecar.read_bytes())
    written["file"][0] += 1
    sidecar.write_text(json.dumps(written))
    send(sink_of(path), 2, 3, 4)
    assert (rotated if is_rotated else path).read_bytes() == b"1\n2\n3\n4\n"
    assert path.exists() != is_rotated


def test_a_rotated_file_with_lines_of_another_program_stays_as_it_is(path: Path) -> None:
    sink = sink_of(path)
    send(sink, 1)
    sink.close()
    append(path, b"2\n" + THEIRS)
    rotated = path.with_name("out.jsonl.1")
    path.rename(rotated)
    sink = sink_of(path)
    send(sink, 2, 3)
    send(sink, 4)
    assert rotated.read_bytes() == b"1\n2\n" + THEIRS
    assert path.read_bytes() == b"2\n3\n4\n"


def test_a_file_that_is_rotated_again_before_it_is_opened_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may belong to another file by then."""
    sink = sink_of(path)
    send(sink, 1)
    sink.close()
    append(path, b"2\n")
    path.rename(path.with_name("out.jsonl.2"))
    other = path.with_name("out.jsonl.1")
    other.write_bytes(b"1\n\0\0")
    with monkeypatch.context() as patched, pytest.raises(ConnectionLost, match=r"E7003 .*renamed again"):
        patched.setattr(journal, "find", lambda *_: other)
        sink_of(path)
    assert other.read_bytes() == b"1\n\0\0"
    sink = sink_of(path)
    send(sink, 2, 3)
    assert path.with_name("out.jsonl.2").read_bytes() == b"1\n2\n3\n"


@pytest.mark.parametrize("last", [3, 4, 5])
def test_a_kill_within_the_first_batch_of_a_new_file(path: Path, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """What was confirmed of the old file says nothing about the new one, whichever is longer."""
    sink = sink_of(path)
    send(sink, 1, 2)
    path.rename(path.with_name("done.jsonl"))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "fdatasync", interrupted)
        send(sink, *range(3, last + 1))
    sink = sink_of(path)
    send(sink, 3, 4, 5)
    assert path.read_bytes() == b"3\n4\n5\n"
    assert path.with_name("done.jsonl").read_bytes() == b"1\n2\n"


def test_a_kill_within_the_first_batch_after_an_empty_file_was_rotated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second file is rotated, too, before the engine starts: the sender completes its batch there."""
    sink = sink_of(path)
    path.rename(path.with_name("out.jsonl.1"))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "fdatasync", interrupted)
        send(sink, 1, 2)
    path.with_name("out.jsonl.1").rename(path.with_name("out.jsonl.2"))
    path.rename(path.with_name("out.jsonl.1"))
    sink = sink_of(path)
    send(sink, 1, 2, 3)
    assert path.with_name("out.jsonl.1").read_bytes() == b"1\n2\n3\n"
    assert not path.exists()
    assert path.with_name("out.jsonl.2").read_bytes() == b""


def interrupted(_descriptor: int) -> None:
    raise KeyboardInterrupt


def test_a_file_that_is_moved_away_while_it_is_written_is_begun_anew(path: Path) -> None:
    sink = sink_of(path)
    send(sink, 1)
    path.rename(path.with_name("done.jsonl"))
    send(sink, 1, 2)
    send(sink, 3)
    assert path.read_bytes() == b"2\n3\n"
    assert path.with_name("done.jsonl").read_bytes() == b"1\n"


def test_what_is_written_to_a_removed_file_is_not_confirmed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_of(path)
    send(sink, 1)
    sync = os.fdatasync

    def remove_and_sync(descriptor: int) -> None:
        path.unlink()
        sync(descriptor)

    with monkeypatch.context() as patched, pytest.raises(ConnectionLost, match=r"E7029 .*was removed"):
        patched.setattr(os, "fdatasync", remove_and_sync)
        send(sink, 2)
    sink.connect()
    send(sink, 2)
    assert path.read_bytes() == b"2\n"


@pytest.mark.parametrize(("option", "mode"), [({}, 0o600), ({"mode": "0640"}, 0o640), ({"mode": "666"}, 0o666)])
def test_modes_of_files(path: Path, option: dict[str, str], mode: int) -> None:
    """The umask makes no difference. A file that exists keeps its own mode."""
    before = os.umask(0o077)
    try:
        sink_of(path, **option).close()
        assert path.stat().st_mode & 0o777 == mode
        path.chmod(0o604)
        sink_of(path, **option).close()
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o640, 640, "640x", "0440", "1777", "", "rw-r-----", None])
def test_modes_that_are_refused(path: Path, mode: object) -> None:
    with pytest.raises(ConfigError, match=r"E1022 senders.s.mode: .* is not a mode of a file"):
        sink_of(path, mode=mode)
