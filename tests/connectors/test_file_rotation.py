"""Followed files that others rename, cut, rewrite and remove: no line is lost or read twice without an error."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.file import FileConnection
from connectors.file import source as source_module
from connectors.file.opened import OpenedFile
from connectors.file.rotation import Identity, following
from connectors.file.source import MOST_SUCCESSORS, FileSource
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
    """Collects the bodies and ids that a receiver got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ids: list[object] = []

    def read(self, source: FileSource) -> list[bytes]:
        """Read and acknowledge everything that is there."""
        bodies: list[bytes] = []
        for _ in range(4):  # a file that was renamed is looked at again before the next one is begun
            while (chunk := source.receive(100, 0.0)).messages:
                source.acknowledge(chunk.tokens)
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


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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
    """Two programs write, and one of them changes to the new file later; the engine restarts meanwhile."""
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
    """It is read again as after a crash between commit and acknowledgement."""
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
    source.reject(first.tokens)
    again = source.receive(100, 0.0)
    assert [message.body for message in again.messages] == [b"1"]
    source.acknowledge(again.tokens)
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
    source.acknowledge(held.tokens)
    assert seen.read(source) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("name", ["a.jsonl.1", "a.jsonl-20240101", "whatever"])
def test_files_that_are_renamed_and_compressed_while_a_batch_is_held(path: Path, seen: Seen, name: str) -> None:
    """A file that was seen stays open, whatever becomes of its name."""
    write(path, "1")
    source = source_of(path)
    held = source.receive(100, 0.0)
    for number in range(2, 6):
        rotate(path, name)
        write(path, str(number))
        assert not source.receive(100, 0.0).messages
        compress(path.with_name(name))
    source.acknowledge(held.tokens)
    bodies = seen.read(source) + seen.read(source)
    assert bodies == [b"2", b"3", b"4", b"5"]
    assert len(set(seen.ids)) == 4


def test_a_file_that_is_read_for_long_does_not_keep_others_from_being_seen(path: Path, seen: Seen) -> None:
    """The receiver looks for new files while lines are left to read, and while it may hold no more messages."""
    write(path, "1", "2", "3")
    source = source_of(path)
    for number in (4, 5):
        rotate(path)
        write(path, str(number))
        chunk = source.receive(1, 0.0)
        source.acknowledge(chunk.tokens)
        compress(path.with_name("a.jsonl.1"))
    assert seen.read(source) == [b"3", b"4", b"5"]


def test_as_many_files_as_are_held_open_are_bounded_and_the_others_are_found_by_their_names(
    path: Path, seen: Seen
) -> None:
    write(path, "0")
    source = source_of(path)
    held = source.receive(100, 0.0)
    before = open_descriptors()
    last = MOST_SUCCESSORS + 4
    for number in range(1, last + 1):
        for old in range(number - 1, 0, -1):
            rotate(path.with_name(f"a.jsonl.{old}"), f"a.jsonl.{old + 1}")
        rotate(path)
        write(path, str(number))
        assert not source.receive(100, 0.0).messages
    assert open_descriptors() == before + MOST_SUCCESSORS
    source.connect()
    assert open_descriptors() == before
    held = source.receive(100, 0.0)
    assert open_descriptors() == before + MOST_SUCCESSORS
    source.acknowledge(held.tokens)
    bodies = []
    while chunk := seen.read(source):
        bodies += chunk
    assert bodies == [b"%d" % number for number in range(1, last + 1)]
    source.close()
    assert open_descriptors() < before


def test_what_is_missing_is_told_when_everything_before_it_is_read(path: Path, seen: Seen) -> None:
    write(path, "1")
    source = source_of(path)
    held = source.receive(100, 0.0)
    rotate(path, "a.jsonl.1")
    write(path, "2")
    assert not source.receive(100, 0.0).messages
    rotate(path.with_name("a.jsonl.1"), "a.jsonl.3")
    rotate(path, "a.jsonl.2")
    write(path, "4")  # a.jsonl.1 was there and was removed between two looks
    assert not source.receive(100, 0.0).messages
    source.acknowledge(held.tokens)
    with pytest.raises(ConnectionLost, match=r"E7030 .*a.jsonl.1 is missing"):
        seen.read(source)
    assert seen.bodies == [b"2"]


@pytest.mark.parametrize(
    ("first", "renamed_again", "second"),
    [("a.jsonl.1", "a.jsonl.2", "a.jsonl.1"), ("a.jsonl-20240101", "a.jsonl-20240101", "a.jsonl-20240102")],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_rotation_while_the_next_file_is_looked_for(
    path: Path,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    renamed_again: str,
    second: str,
    *,
    is_late: bool,
) -> None:
    """The rotation happens before the name is found, or before the file is opened by that name."""
    write(path, "1")
    source = source_of(path)
    assert seen.read(source) == [b"1"]
    rotate(path, first)
    write(path, "2")
    before = open_descriptors()
    rotations = [lambda: rotate(path.with_name(first), renamed_again), lambda: rotate(path, second)]

    def look_for(where: str, path: Path, old: Identity) -> Path:
        found = following(where, path, old) if is_late else None
        if rotations:
            for rotation in rotations:
                rotation()
            rotations.clear()
            write(path, "3")
        return found or following(where, path, old)

    monkeypatch.setattr(source_module, "following", look_for)
    assert seen.read(source) == [b"2", b"3"]
    assert open_descriptors() == before + 1


def test_a_file_that_gets_its_name_back_while_the_next_one_is_looked_for_is_read_once(
    path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    rotate(path)
    write(path, "2")

    def look_for(where: str, path: Path, old: Identity) -> Path:
        path.with_name("a.jsonl.1").replace(path)
        monkeypatch.undo()
        return following(where, path, old)

    monkeypatch.setattr(source_module, "following", look_for)
    assert seen.read(source) == []
    write(path, "3")
    assert seen.read(source) == [b"3"]


def test_a_file_that_is_compressed_while_the_next_one_is_looked_for(
    path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its name the file no longer shows which file follows."""
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    rotate(path)
    write(path, "2")

    def look_for(where: str, path: Path, old: Identity) -> Path:
        if not path.with_name("a.jsonl.1.gz").exists():
            compress(path.with_name("a.jsonl.1"))
            rotate(path)
            write(path, "3")
        return following(where, path, old)

    monkeypatch.setattr(source_module, "following", look_for)
    with pytest.raises(ConnectionLost, match=r"E7011 .*was removed"):
        seen.read(source)
    assert seen.bodies == [b"1"]


def test_a_new_file_without_content_is_not_opened_again_and_again(
    path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    rotate(path)
    path.touch()
    seen.read(source)

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(source_module, "OpenedFile", never)
    monkeypatch.setattr(source_module, "following", never)
    monkeypatch.setattr(OpenedFile, "next_history", property(never))
    assert seen.read(source) == []
    monkeypatch.undo()
    write(path, "2")
    assert seen.read(source) == [b"2"]


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
        ["a.jsonl.20240101", "a.jsonl.20240102", "a.jsonl.20240103"],
        ["a.jsonl.1718000000", "a.jsonl.1718000001", "a.jsonl.1718003600"],
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


@pytest.mark.parametrize("end", ["", ".jsonl"])
def test_a_link_that_moves_on_several_times(path: Path, seen: Seen, end: str) -> None:
    """The link moves on while nobody reads, and again while somebody reads."""

    def move_on(day: int, *lines: str) -> None:
        write(path.with_name(f"a-202401{day:02}{end}"), *lines)
        path.unlink(missing_ok=True)
        path.symlink_to(f"a-202401{day:02}{end}")

    move_on(1, "1")
    write(path.with_name(f"a-20240105{end}"), "made before the link comes to it")
    source = source_of(path)
    assert seen.read(source) == [b"1"]
    source.close()
    for day in (2, 3, 4):
        move_on(day, str(day))
    source = source_of(path)
    assert seen.read(source) == [b"2", b"3", b"4"]
    move_on(5)
    assert seen.read(source) == [b"made before the link comes to it"]
    move_on(2, "of a link that went back")
    assert seen.read(source) == [b"2", b"of a link that went back"]


def test_a_link_whose_file_was_not_read_yet_moves_on(path: Path, seen: Seen) -> None:
    """The old file still has its own name, so it is found."""
    path.with_name("blue").touch()
    path.symlink_to("blue")
    source_of(path).close()
    write(path, "1")
    path.unlink()
    path.symlink_to("green")
    write(path, "2")
    assert seen.read(source_of(path)) == [b"1", b"2"]


@pytest.mark.parametrize("name", ["a.jsonl.0101", "a.jsonl.01", "a.jsonl.-1", "a.jsonl.²"])
def test_what_is_no_number_of_a_rotation_is_any_name(path: Path, seen: Seen, name: str) -> None:
    left(path, seen)
    rotate(path, name)
    write(path, "3")
    assert seen.read(source_of(path)) == [b"2", b"3"]


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
    """One of three renamed files is missing; when it is back, reading goes on."""
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


def test_a_file_that_is_being_compressed_is_not_taken_for_a_younger_one(path: Path, seen: Seen) -> None:
    left(path, seen)
    rotate(path, "a.jsonl-20240101")
    path.with_name("a.jsonl-20240101.gz").touch()
    write(path, "3")
    assert seen.read(source_of(path)) == [b"2", b"3"]


@pytest.mark.parametrize("change", [Path.unlink, compress])
def test_a_renamed_file_that_is_gone_is_told(path: Path, seen: Seen, change: Callable) -> None:
    left(path, seen)
    rotate(path)
    change(path.with_name("a.jsonl.1"))
    write(path, "3")
    with pytest.raises(ConnectionLost, match=r"E7011 .*the content before line 2 differs from what was read"):
        source_of(path)


def test_a_file_that_got_the_inode_of_the_old_one_is_told(path: Path, seen: Seen) -> None:
    left(path, seen)
    path.write_text("x\ny\nz\n")  # the inode stays
    with pytest.raises(ConnectionLost, match="E7011"):
        source_of(path)


def test_a_copy_in_the_place_of_the_file_goes_on(path: Path, seen: Seen) -> None:
    """A move to another disk makes such a copy, and so does an editor that writes the whole file again."""
    left(path, seen)
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)
    write(path, "3")
    assert seen.read(source_of(path)) == [b"2", b"3"]


def test_a_position_without_the_file_s_identity_is_read(path: Path, seen: Seen) -> None:
    """Earlier versions wrote such positions."""
    left(path, seen)
    sidecar = path.parent / ".positions" / "a.jsonl.r.position"
    kept = json.loads(sidecar.read_bytes())
    sidecar.write_text(json.dumps({name: kept[name] for name in ("offset", "line", "done", "extracts")}))
    assert seen.read(source_of(path)) == [b"2"]


# --- files that were not read yet: their content tells nothing ---


def take_inode(path: Path, other: Path) -> None:
    """Act as if the file at the path were removed and `other` got its inode, which only some file systems do."""
    path.rename(other)


@pytest.mark.parametrize("content", ["", "h"])
@pytest.mark.parametrize("other", ["other", "a-errors", "b"])
def test_another_file_that_got_the_inode_is_not_read(tmp_path: Path, seen: Seen, content: str, other: str) -> None:
    """This holds for a file that was empty, and for files that all begin with the same header."""
    path = tmp_path / ("a.csv" if content else "a.jsonl")
    path.write_text(f"{content}\n" if content else "")
    source_of(path).close()
    take_inode(path, path.with_name(f"{other}{path.suffix}"))
    write(path.with_name(f"{other}{path.suffix}"), "666")
    write(path, *([content] if content else []), "1")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=r"E7011 .*no line of the former file.*\.position"):
            source_of(path)
    (tmp_path / ".positions" / f"{path.name}.r.position").unlink()
    assert seen.read(source_of(path)) == [b"1"]


def test_a_compressed_file_that_got_the_inode_is_not_read(path: Path) -> None:
    path.touch()
    source_of(path).close()
    take_inode(path, path.with_name("a.jsonl.1.gz"))
    write(path, "1")
    with pytest.raises(ConnectionLost, match="E7011"):
        source_of(path)


@pytest.mark.parametrize(
    "to",
    ["a.jsonl.1", "a.jsonl.20240101", "a.jsonl-20240101", "a-20240101.jsonl", "a.1.jsonl", "a.jsonl.old", "a.jsonl~"],
)
def test_a_file_that_was_renamed_before_its_first_line_was_read(path: Path, seen: Seen, to: str) -> None:
    path.touch()
    source_of(path).close()
    write(path, "1")
    rotate(path, to)
    write(path, "2")
    assert seen.read(source_of(path)) == [b"1", b"2"]


def test_a_file_that_is_renamed_twice_before_its_first_line_was_read(path: Path, seen: Seen) -> None:
    path.touch()
    source_of(path).close()
    rotate(path, "a.jsonl.1")
    write(path, "2")
    source_of(path).close()
    write(path.with_name("a.jsonl.1"), "1")
    rotate(path.with_name("a.jsonl.1"), "a.jsonl.old")
    assert seen.read(source_of(path)) == [b"1", b"2"]


def test_a_file_whose_second_line_is_acknowledged_is_known_by_its_content(path: Path, seen: Seen) -> None:
    write(path, "1", "2")
    source = source_of(path)
    source.receive(1, 0.0)
    source.acknowledge(source.receive(1, 0.0).tokens)
    source.close()
    rotate(path, "whatever")
    write(path, "3")
    assert seen.read(source_of(path)) == [b"1", b"3"]


def test_a_new_file_with_the_inode_of_an_empty_one_that_was_renamed_is_read_once(path: Path, seen: Seen) -> None:
    path.touch()
    source = source_of(path)
    rotate(path, "empty")
    write(path, "1")
    assert seen.read(source) == [b"1"]
    source.close()
    rotate(path)
    take_inode(path.with_name("empty"), path)
    write(path, "2")
    assert seen.read(source_of(path)) == [b"2"]


def test_a_file_that_is_gone_before_its_first_line_was_read_is_told(path: Path) -> None:
    """The file may have had lines."""
    path.touch()
    source_of(path).close()
    write(path, "1")
    rotate(path)
    with path.with_name("a.jsonl.1").open():  # so that the new file cannot get its inode, which nothing could tell
        compress(path.with_name("a.jsonl.1"))
        write(path, "2")
    with pytest.raises(ConnectionLost, match="E7011"):
        source_of(path)


def renumber(path: Path) -> None:
    """Act as if the file system had another device number when the receiver ran before: a restart of the machine can
    change this number, and so can a new mount of a network file system.
    """
    sidecar = path.parent / ".positions" / f"{path.name}.r.position"
    kept = json.loads(sidecar.read_bytes())
    for one in (kept, *kept.get("earlier", [])):
        one["file"][0] += 1
    sidecar.write_text(json.dumps(kept))


@pytest.mark.parametrize("lines", [(), ("1", "2")])
def test_a_file_system_that_got_another_number_is_no_other_file(path: Path, seen: Seen, lines: tuple[str, ...]) -> None:
    write(path, *lines)
    source = source_of(path)
    seen.read(source)
    source.close()
    renumber(path)
    write(path, "3")
    assert seen.read(source_of(path)) == [b"3"]


@pytest.mark.parametrize("lines", [(), ("1", "2")])
def test_a_file_that_was_rotated_on_a_file_system_with_another_number_is_found(
    path: Path, seen: Seen, lines: tuple[str, ...]
) -> None:
    """The new file begins with the same line, so its content does not show that it is another one."""
    write(path, *lines)
    source = source_of(path)
    seen.read(source)
    source.close()
    write(path, "unread")
    rotate(path)
    write(path, *lines, "new")
    renumber(path)
    assert seen.read(source_of(path)) == [b"unread", *[line.encode() for line in lines], b"new"]


def test_late_lines_of_an_earlier_file_on_a_file_system_with_another_number_are_read(path: Path, seen: Seen) -> None:
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    rotate(path)
    write(path, "2")
    assert seen.read(source) == [b"2"]
    source.close()
    write(path.with_name("a.jsonl.1"), "late")
    renumber(path)
    assert seen.read(source_of(path)) == [b"late"]


@pytest.mark.parametrize("content", ["", "\n", "1\n\n"])
def test_a_file_that_was_read_to_its_end_may_go(path: Path, seen: Seen, content: str) -> None:
    """This holds for a file without lines, and for a file with empty lines at its end."""
    path.write_text(content)
    source = source_of(path)
    seen.read(source)
    rotate(path)
    write(path, "2")
    assert seen.read(source) == [b"2"]
    source.close()
    path.with_name("a.jsonl.1").unlink()
    write(path, "3")
    assert seen.read(source_of(path)) == [b"3"]


# --- changes that are errors ---


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
    """The error comes again until somebody has repaired the file."""
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


@pytest.mark.parametrize("change", [cut, cut_and_write_more, write_over])
def test_what_is_not_growth_is_told_while_a_batch_is_held(path: Path, change: Callable[[Path], object]) -> None:
    """The position must not describe the new content, which the receiver has not read."""
    write(path, "1", "2", "3")
    source = source_of(path)
    source.acknowledge(source.receive(1, 0.0).tokens)
    held = source.receive(1, 0.0)
    change(path)
    with pytest.raises(ConnectionLost, match="E7011"):
        source.acknowledge(held.tokens)
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=r"E7011 .*remove .*\.position"):
            source.connect()


def test_a_file_that_is_removed_is_read_to_its_end_first(path: Path, seen: Seen) -> None:
    write(path, "1")
    source = source_of(path)
    seen.read(source)
    write(path, "2")
    path.unlink()
    held = source.receive(100, 0.0)
    assert [message.body for message in held.messages] == [b"2"]
    assert not source.receive(100, 0.0).messages
    source.acknowledge(held.tokens)
    with pytest.raises(ConnectionLost, match=r"E7011 .*was removed"):
        source.receive(100, 0.0)


def test_a_file_that_is_not_followed_is_not_left(path: Path, seen: Seen) -> None:
    left(path, seen)
    rotate(path)
    write(path, "3")
    with pytest.raises(ConnectionLost, match="E7011"):
        source_of(path, follow=False)
