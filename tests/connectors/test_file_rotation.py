"""Files that are followed while others rename, cut, rewrite and remove them: nothing is lost or read twice in silence."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.file import FileConnection
from connectors.file.source import FileSource
from correlator.errors import ConnectionLost
from correlator.settings import ConnectionSettings, ReceiverSettings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def source_of(path: Path, *, follow: bool = True) -> FileSource:
    files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(path.parent)}))
    receiver = ReceiverSettings(id="r", connection="c", destination=f"queue:{path.name}", options={"follow": follow})
    source = files.source(receiver)
    source.connect()
    return source


class Seen:
    """What a receiver got: bodies and ids."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ids: list[object] = []

    def read(self, source: FileSource) -> list[bytes]:
        """Everything that is there now, acknowledged."""
        bodies: list[bytes] = []
        for _ in range(4):  # a file that was renamed is looked at again before the next one is begun
            while (chunk := source.receive(100, 0.0)).messages:
                source.acknowledge([chunk.token])
                bodies += [message.body for message in chunk.messages]
                self.bodies += [message.body for message in chunk.messages]
                self.ids += [message.properties["uniqueMessageId"] for message in chunk.messages]
        return bodies


@pytest.fixture
def seen() -> Seen:
    return Seen()


def write(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(lines) + end)


def rotate(path: Path, to: str = "a.jsonl.1") -> None:
    path.rename(path.with_name(to))


# --- rotation by rename while it is followed ---


def test_a_renamed_file_is_read_to_its_end_and_then_the_new_one(path: Path, seen: Seen) -> None:
    write(path, "1")
    source = source_of(path)
    assert seen.read(source) == [b"1"]
    with path.open("a") as writer:  # as a program that has not yet been told
        rotate(path)
        writer.write("2\n")
        writer.flush()
        assert seen.read(source) == [b"2"]
        path.touch()
        assert seen.read(source) == []
        writer.write("3\n")
        writer.flush()
        assert seen.read(source) == [b"3"]
    write(path, "4", "5")
    assert seen.read(source) == [b"4", b"5"]
    source.close()
    write(path, "6")
    assert seen.read(source_of(path)) == [b"6"]
    assert len(set(seen.ids)) == 6


def test_the_last_line_of_a_renamed_file_may_lack_its_end(path: Path, seen: Seen) -> None:
    write(path, "1", "2", end="")
    source = source_of(path)
    assert seen.read(source) == [b"1"]
    rotate(path)
    write(path, "3")
    assert seen.read(source) == [b"2", b"3"]


def test_what_comes_late_to_a_renamed_file_is_read(path: Path, seen: Seen) -> None:
    """Two programs write, and one of them goes on to the new file later than the other; the engine restarts meanwhile."""
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    rotate(path)
    write(path, "2")
    assert seen.read(source) == [b"2"]
    write(path.with_name("a.jsonl.1"), "late")
    assert seen.read(source) == [b"late"]
    source.close()
    write(path.with_name("a.jsonl.1"), "later")
    write(path, "3")
    assert seen.read(source_of(path)) == [b"later", b"3"]
    assert len(set(seen.ids)) == 5


def test_each_csv_file_has_its_header(tmp_path: Path, seen: Seen) -> None:
    path = tmp_path / "a.csv"
    write(path, "h", "1")
    source = source_of(path)
    assert seen.read(source) == [b"1"]
    rotate(path, "a.csv.1")
    write(path, "h", end="")
    assert seen.read(source) == []
    write(path, "", "2")
    assert seen.read(source) == [b"2"]
    source.close()
    assert seen.read(source_of(path)) == []


def test_lines_of_files_that_begin_alike_have_other_ids(path: Path, seen: Seen) -> None:
    same = ["x" * 5000, "same"]
    source = None
    for _ in range(4):
        write(path, *same)
        source = source or source_of(path)
        assert seen.read(source) == [line.encode() for line in same]
        rotate(path, "older")
    assert len(set(seen.ids)) == 8


def test_a_batch_of_a_new_file_that_is_read_again_has_the_same_ids(path: Path, seen: Seen) -> None:
    """As after a crash between its commit and its acknowledgement."""
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    rotate(path)
    write(path, "1", "2")
    lives = []
    for _ in range(2):
        source.receive(100, 0.0)
        lives.append([message.properties["uniqueMessageId"] for message in source.receive(100, 0.0).messages])
        source.close()
        source = source_of(path)
        lives.append([message.properties["uniqueMessageId"] for message in source.receive(100, 0.0).messages])
    ids = [life for life in lives if life]
    assert ids
    assert all(life == ids[0] for life in ids)
    assert len(ids[0]) == 2


def test_the_old_file_is_left_when_all_of_it_is_acknowledged(path: Path) -> None:
    write(path, "1")
    source = source_of(path)
    first = source.receive(100, 0.0)
    rotate(path)
    write(path, "2")
    assert not source.receive(100, 0.0).messages
    source.reject([first.token])
    again = source.receive(100, 0.0)
    assert [message.body for message in again.messages] == [b"1"]
    source.acknowledge([again.token])
    assert [message.body for message in source.receive(100, 0.0).messages] == [b"2"]


def test_a_renamed_file_that_is_compressed_meanwhile_is_read_to_its_end(path: Path, seen: Seen) -> None:
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    rotate(path)
    path.touch()
    write(path.with_name("a.jsonl.1"), "2")
    seen.read(source)
    compress(path.with_name("a.jsonl.1"))
    write(path, "3")
    assert seen.read(source) == [b"3"]
    source.close()
    write(path, "4")
    assert seen.read(source_of(path)) == [b"4"]
    assert seen.bodies == [b"1", b"2", b"3", b"4"]


def test_files_that_are_renamed_faster_than_they_are_read(path: Path, seen: Seen) -> None:
    write(path, "1")
    source = source_of(path)
    held = source.receive(100, 0.0)
    for number in (2, 3, 4):
        for old in range(number - 2, 0, -1):
            rotate(path.with_name(f"a.jsonl.{old}"), f"a.jsonl.{old + 1}")
        rotate(path)
        write(path, str(number))
        assert not source.receive(100, 0.0).messages
    source.acknowledge([held.token])
    assert seen.read(source) == [b"2", b"3", b"4"]


def compress(path: Path) -> None:
    with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    path.unlink()


# --- rotation while nobody reads ---


def left(path: Path, seen: Seen) -> None:
    """A receiver has read one line, and its engine is down."""
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    source.close()
    write(path, "2")


def test_a_file_that_was_renamed_meanwhile(path: Path, seen: Seen) -> None:
    left(path, seen)
    rotate(path, "whatever")
    write(path, "3")
    assert seen.read(source_of(path)) == [b"2", b"3"]
    assert len(set(seen.ids)) == 3


def test_a_file_of_which_nothing_was_acknowledged_is_known_again(path: Path, seen: Seen) -> None:
    write(path, "1")
    source_of(path).close()
    rotate(path)
    write(path, "2")
    assert seen.read(source_of(path)) == [b"1", b"2"]


@pytest.mark.parametrize(
    "names",
    [
        ["a.jsonl.3", "a.jsonl.2", "a.jsonl.1"],
        ["a.jsonl.2", "a.jsonl.1", "a.jsonl.0"],
        ["a.jsonl-20240101", "a.jsonl-20240102", "a.jsonl-20240103"],
        ["a.jsonl.2024-01-01_10", "a.jsonl.2024-01-01_11", "a.jsonl.2024-01-02_00"],
        ["a-1718000000.jsonl", "a-1718000001.jsonl", "a-1718000002.jsonl"],
    ],
)
def test_several_renamed_files_are_read_in_their_order(path: Path, seen: Seen, names: list[str]) -> None:
    left(path, seen)
    write(path.with_name("a.jsonl.bak"), "a copy that somebody made")
    for number, name in enumerate(names, 3):
        rotate(path, name)
        write(path, *([str(number)] if number != 4 else []), end="\n" if number != 4 else "")
    assert seen.read(source_of(path)) == [b"2", b"3", b"5"]
    assert len(set(seen.ids)) == 4


@pytest.mark.parametrize(("other", "renamed"), [("a.jsonl.0", "a.jsonl.1"), ("a.jsonl-2", "a.jsonl-1"), ("a7", "a1")])
def test_an_old_file_whose_name_looks_like_the_next_one_is_not_read(
    path: Path, seen: Seen, other: str, renamed: str
) -> None:
    write(path.with_name(other), "of another time")
    os.utime(path.with_name(other), (1e9, 1e9))
    left(path, seen)
    rotate(path, renamed)
    write(path, "3")
    assert seen.read(source_of(path)) == [b"2", b"3"]


@pytest.mark.parametrize("change", [Path.unlink, compress])
@pytest.mark.parametrize("name", ["a.jsonl.2", "a.jsonl.1"])
def test_a_renamed_file_that_is_missing_is_told(path: Path, seen: Seen, name: str, change: Callable) -> None:
    """Of three renamed ones; when it is back, reading goes on."""
    left(path, seen)
    for number, to in enumerate(["a.jsonl.3", "a.jsonl.2", "a.jsonl.1"], 3):
        rotate(path, to)
        write(path, str(number))
    lost = path.with_name(name).read_bytes()
    change(path.with_name(name))
    source = source_of(path)
    with pytest.raises(ConnectionLost, match=rf"E7030 .*{name} is missing"):
        seen.read(source)
    path.with_name(name).write_bytes(lost)
    seen.read(source_of(path))
    assert seen.bodies == [b"1", b"2", b"3", b"4", b"5"]


def test_a_renamed_file_with_a_date_that_is_compressed_is_told(path: Path, seen: Seen) -> None:
    left(path, seen)
    for to in ("a.jsonl-20240101", "a.jsonl-20240102"):
        rotate(path, to)
        write(path, "3")
    compress(path.with_name("a.jsonl-20240102"))
    with pytest.raises(ConnectionLost, match=r"E7030 .*a.jsonl-20240102.gz is compressed"):
        seen.read(source_of(path))


@pytest.mark.parametrize("change", [Path.unlink, compress])
def test_a_renamed_file_that_is_gone_is_told(path: Path, seen: Seen, change: Callable) -> None:
    left(path, seen)
    rotate(path)
    change(path.with_name("a.jsonl.1"))
    write(path, "3")
    with pytest.raises(ConnectionLost, match=r"E7011 .*the content before line 2 is not what was read"):
        source_of(path)


def test_a_file_that_got_the_inode_of_the_old_one_is_told(path: Path, seen: Seen) -> None:
    left(path, seen)
    path.write_text("x\ny\nz\n")  # the inode stays
    with pytest.raises(ConnectionLost, match="E7011"):
        source_of(path)


def test_a_copy_in_the_place_of_the_file_goes_on(path: Path, seen: Seen) -> None:
    """As after a move to another disk, or an editor that writes the whole file anew with a line more."""
    left(path, seen)
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)
    write(path, "3")
    assert seen.read(source_of(path)) == [b"2", b"3"]


def test_a_position_without_the_file_s_identity_is_read(path: Path, seen: Seen) -> None:
    """As earlier versions wrote it."""
    left(path, seen)
    sidecar = path.parent / ".positions" / "a.jsonl.r.position"
    kept = json.loads(sidecar.read_bytes())
    sidecar.write_text(json.dumps({name: kept[name] for name in ("offset", "line", "done", "extracts")}))
    assert seen.read(source_of(path)) == [b"2"]


# --- what is not growth ---


def cut(path: Path) -> None:
    os.truncate(path, 0)


def cut_and_write_more(path: Path) -> None:
    os.truncate(path, 0)
    write(path, "other", "lines", "that are longer")


def write_over(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x\ny\n3\n4\n5\n")


def replace(path: Path) -> None:
    write(path.with_name("new"), "other", "lines", "that are longer")
    path.with_name("new").replace(path)


@pytest.mark.parametrize("change", [cut, cut_and_write_more, write_over, replace, Path.unlink])
def test_what_is_not_growth_is_told(path: Path, seen: Seen, change: Callable[[Path], object]) -> None:
    """And it is told again until somebody has done something."""
    write(path, "1", "2")
    source = source_of(path)
    assert seen.read(source) == [b"1", b"2"]
    change(path)
    with pytest.raises(ConnectionLost, match="E7011"):
        seen.read(source)
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=r"E7010" if change is Path.unlink else r"E7011 .*remove .*\.position"):
            source.connect()
    (path.parent / ".positions" / "a.jsonl.r.position").unlink()
    path.touch()
    source.connect()
    seen.read(source)
    assert len(set(seen.ids)) == len(seen.ids)


def test_a_file_that_is_removed_is_read_to_its_end_first(path: Path, seen: Seen) -> None:
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    write(path, "2")
    path.unlink()
    held = source.receive(100, 0.0)
    assert [message.body for message in held.messages] == [b"2"]
    assert not source.receive(100, 0.0).messages
    source.acknowledge([held.token])
    with pytest.raises(ConnectionLost, match=r"E7011 .*was removed"):
        source.receive(100, 0.0)


def test_a_file_that_is_not_followed_is_not_left(path: Path, seen: Seen) -> None:
    left(path, seen)
    rotate(path)
    write(path, "3")
    with pytest.raises(ConnectionLost, match="E7011"):
        source_of(path, follow=False)
