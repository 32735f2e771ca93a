"""Files through an engine: what is read again is a repeat, what is new is not, and no line stops the others."""

from pathlib import Path

import pytest

from connectors.file import FileConnection
from correlator.settings import ConnectionSettings
from tests.runtime.flows import Keeps
from tests.runtime.world import receiver


@pytest.fixture
def read(any_world, tmp_path: Path):
    """Reads a file to its end, with the engine's own store; how many messages were delivered and how many dropped."""

    def run(name: str, **settings) -> tuple[int, int]:
        files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(tmp_path)}))
        lines = receiver(connection="files", destination=f"queue:{name}", **settings)
        with any_world.engine(lines, monitors=[Keeps], connections={"files": files}) as engine:
            any_world.wait(lambda: engine.receivers["in"].state == "ended")
            counters = engine.status().receivers["in"][1]
        return counters.delivered, counters.duplicates

    return run


def test_e7011_a_file_that_takes_the_name_of_another_is_delivered(read, tmp_path):
    """Given a file that was read, when another one takes its name and the position is removed, then it is all new."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    assert read("a.jsonl") == (3, 0)
    path.write_bytes(b"7\n2\n3\n4\n")
    (tmp_path / ".positions" / "a.jsonl.in.position").unlink()
    assert read("a.jsonl") == (4, 0)


def test_the_same_file_read_again_is_dropped(read, tmp_path):
    """Given a file that was read, when it has grown and the position is lost, then only what was added is new."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3")
    assert read("a.jsonl") == (3, 0)
    path.write_bytes(b"1\n2\n3\n4\n")
    (tmp_path / ".positions" / "a.jsonl.in.position").unlink()
    assert read("a.jsonl") == (1, 3)


def test_lines_around_one_that_is_too_large_are_delivered(read, any_world, tmp_path, script, monkeypatch):
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 5000)
    (tmp_path / "a.jsonl").write_bytes(b"1\n" + b"x" * 2_000_000 + b"\n2\n")
    assert read("a.jsonl", max_message_bytes=1000) == (2, 0)
    assert script.of("Keeps") == ["1", "2"]
    (reason,) = any_world.dead_letters()
    assert reason == "E5001 receiver in: message of 2000000 bytes, the limit is 1000."


def test_rows_around_one_that_is_no_csv_are_delivered(read, any_world, tmp_path, script):
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"%s"\n2,"a"\rb\n3,c\n' % (b"a" * 200_000))
    assert read("a.csv", unique_message_id="${row.id}") == (2, 0)
    assert [one[:2] for one in script.of("Keeps")] == ["1,", "3,"]
    (reason,) = any_world.dead_letters()
    assert reason.startswith("E5403 row.id")


@pytest.fixture
def follower(any_world, tmp_path: Path):
    """Makes engines that follow files."""
    files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(tmp_path)}))

    def make(*names: str):
        receivers = [
            receiver(f"in-{name}", connection="files", destination=f"queue:{name}", options={"follow": True})
            for name in names
        ]
        return any_world.engine(*receivers, monitors=[Keeps], connections={"files": files})

    return make


def test_a_file_is_followed_through_rotations(follower, any_world, tmp_path, script):
    """Given an engine that follows a file, when it is rotated, also while the engine is down, then each line counts once."""
    path = tmp_path / "a.jsonl"
    same = "x" * 5000
    path.write_text(f"{same}\n1\n")
    wanted = [same, "1"]

    def wait_handled() -> None:
        any_world.wait(lambda: script.of("Keeps") == wanted)

    for life in range(3):
        with follower("a.jsonl"):
            wait_handled()
            path.rename(tmp_path / f"a.jsonl-{life}1")
            path.write_text(f"{same}\nwhile {life} ran\n")
            wanted += [same, f"while {life} ran"]
            wait_handled()
        with path.open("a") as file:
            file.write(f"after {life}\n")
        path.rename(tmp_path / f"a.jsonl-{life}2")
        path.write_text(f"{same}\n1\n")
        wanted += [f"after {life}", same, "1"]


def test_a_receiver_whose_file_was_cut_stops_alone(follower, any_world, tmp_path, script, logs):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("1\n")
    with follower("a.jsonl", "b.jsonl") as engine:
        any_world.wait(lambda: script.of("Keeps") == ["1", "1"])
        (tmp_path / "a.jsonl").write_text("")
        any_world.wait(lambda: any("E7011" in str(line) for line in logs))
        with (tmp_path / "b.jsonl").open("a") as file:
            file.write("2\n")
        any_world.wait(lambda: script.of("Keeps") == ["1", "1", "2"])
        assert engine.failure is None
