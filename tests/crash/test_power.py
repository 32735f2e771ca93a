"""Power cuts: the quick form of `python -m tests.harness.power`, and its parts on traces made by hand."""

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from correlator.core.commit import SenderCut
from correlator.errors import UsageError
from correlator.events import Message
from correlator.testing.power.disk import SECTOR, Disk
from correlator.testing.syscalls.trace import CallKind, CallRecord, Trace, encoded
from tests.harness.power import __main__, facts, workload
from tests.harness.power.campaign import PowerFigures, campaign, moments
from tests.harness.power.facts import PowerFacts
from tests.harness.power.judge import violations
from tests.harness.power.reading import ImageContent, opened, read
from tests.harness.power.record import record
from tests.harness.power.restart import contradictions, restart

DRAWS = 300


# --- the campaign ---


@pytest.mark.campaign
@pytest.mark.kill9
def test_t4_no_image_of_the_product_is_bad() -> None:
    """Given power cuts at every call, when an engine looks again, then A1, S1, S9, G1, G8 hold."""
    figures = campaign(2800, seed=7)
    assert figures.told == []
    assert figures.bad == 0
    assert figures.images == 2800
    assert figures.restarts >= 24
    assert all(figures.kinds[kind].images > 100 for kind in ("lost", "torn", "absent"))
    assert figures.kinds["whole"].images > 0
    assert figures.no_effect < figures.images / 2


@pytest.mark.campaign
@pytest.mark.kill9
@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_store_that_syncs_less_is_found_bad(synchronous: str) -> None:
    """The control of the control."""
    figures = campaign(360, seed=7, synchronous=synchronous)
    assert figures.bad > 20
    assert set(figures.invariants) >= {"A1", "S1", "G1", "G8"}


@pytest.mark.parametrize(
    ("bad", "control", "status"), [(0, [], 0), (1, [], 1), (0, ["--control", "OFF"], 1), (1, ["--control", "OFF"], 0)]
)
def test_the_command_fails_on_a_violation_or_on_a_control_without_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: int, control: list[str], status: int
) -> None:
    asked = []

    def found(images: int, **how: object) -> PowerFigures:
        asked.append((images, how["synchronous"]))
        return PowerFigures(images=images, bad=bad)

    monkeypatch.setattr(__main__, "campaign", found)
    assert __main__.main(["--images", "5", "--report", str(tmp_path / "report.json"), *control]) == status
    assert asked == [(5, "OFF" if control else "FULL")]
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert (report["images"], report["bad"], report["no_effect"]) == (5, bad, 0)
    assert report["kinds"]["torn"] == {"images": 0, "bad": 0}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[CallRecord]]:
    """The directory of a recorded run, and its trace."""
    directory = tmp_path_factory.mktemp("power") / "store"
    directory.mkdir(mode=0o700)
    trace = directory.with_name("trace")
    record(directory, trace, seed=3)
    return directory, list(Trace(trace))


def test_the_run_reaches_every_mechanism(recorded: tuple[Path, list[CallRecord]]) -> None:
    """Ids expire, segments are cleaned, the log is copied, a life is killed: else images of that would be missing."""
    directory, records = recorded
    calls = {(one.kind, one.path) for one in records}
    assert calls >= {
        (CallKind.WRITE, "store.db"),
        (CallKind.TRUNCATE, "store.db-wal"),
        (CallKind.UNLINK, "store.db-wal"),
        (CallKind.UNLINK, "store.db-journal"),
        (CallKind.RENAME, "store.db.witness.part"),
        (CallKind.WRITE, "store.db.lock"),
        (CallKind.FDATASYNC, ""),
    }
    assert sum(one.kind is CallKind.STRUCK for one in records) == 1
    with sqlite3.connect(directory / workload.FILE) as raw:
        assert raw.execute("SELECT min(number) FROM state_log").fetchone()[0] > 1
        assert raw.execute("SELECT min(number) FROM accepted_ids").fetchone()[0] > 1
        assert raw.execute("SELECT count(*) FROM dead_letter").fetchone()[0] > 0
    raw.close()


def test_the_last_image_of_a_trace_is_the_directory_that_the_run_left(recorded: tuple[Path, list[CallRecord]]) -> None:
    directory, records = recorded
    disk = Disk()
    for one in records:
        disk.apply(one)
    there = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert {name: bytes(content) for name, content in disk.draw("whole", random.Random(1)).files.items()} == there


def test_both_ways_of_reading_find_the_same(recorded: tuple[Path, list[CallRecord]], tmp_path: Path) -> None:
    _, records = recorded
    pairs = 0
    for number, (_, image, known, _) in enumerate(moments(records, seed=1, number=0)):
        if known.opened and number % 150 == 0:
            directory = tmp_path / str(number)
            directory.mkdir(mode=0o700)
            for name, content in image.files.items():
                (directory / name).write_bytes(content)
            assert read(directory) == opened(directory)
            pairs += 1
    assert pairs > 5


# --- an engine over an image ---

Moment = tuple[Path, PowerFacts, ImageContent]


@pytest.fixture
def moment(recorded: tuple[Path, list[CallRecord]], tmp_path: Path) -> Moment:
    """A cut in the middle of the run at which sends are under way: the directory, what was seen, what is there."""
    *_, (_, image, known, _) = moments(recorded[1][: len(recorded[1]) // 2], seed=1, number=1)
    directory = tmp_path / "image"
    directory.mkdir(mode=0o700)
    for name, content in image.files.items():
        (directory / name).write_bytes(content)
    return directory, known, read(directory)


def restarted(moment: Moment) -> list[str]:
    """The ids of what an engine contradicts."""
    return sorted({one.id for one in restart(*moment, random.Random(1))})


def test_an_engine_goes_on_from_an_image(moment: Moment) -> None:
    assert restarted(moment) == []


def test_an_engine_that_begins_elsewhere_contradicts_what_is_there(moment: Moment) -> None:
    directory, known, there = moment
    assert restarted((directory, known, there._replace(checkpoint=there.checkpoint + 1))) == ["G1"]


def test_a_message_that_is_never_handled_is_found(moment: Moment) -> None:
    directory, known, there = moment
    known.published["9.9"] = "queue:orders", Message(b"", {"pid": "9.9", "id": "o9.9"})
    known.acknowledged.add("9.9")
    assert restarted((directory, known, there)) == ["A2"]


def test_an_engine_that_does_not_start_is_found(moment: Moment) -> None:
    directory, known, there = moment
    (directory / "store.db.witness").write_bytes(b"")
    assert restarted((directory, known, there)) == ["G8"]


def test_an_engine_that_never_rests_is_found(moment: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "MOST_STEPS", 3)
    assert "G7" in restarted(moment)


@pytest.mark.parametrize(
    ("sends", "expected"),
    [
        ([facts.Sent("out", "S", 2, b"b"), facts.Sent("out", "S", 3, b"c")], []),
        ([facts.Sent("new", "N", 1, b"n")], []),
        ([facts.Sent("out", "S", 2, b"x")], ["S9: out had sent b'b' as 2, and now b'x'"]),
        ([facts.Sent("out", "T", 3, b"c")], ["S9: out had sent as S, and goes on as T"]),
        ([facts.Sent("out", "S", 4, b"d")], ["S3: out left out a number below 4"]),
    ],
)
def test_what_leaves_after_the_cut_agrees_with_what_left_before(sends: list[facts.Sent], expected: list[str]) -> None:
    assert [str(one) for one in contradictions(seen(), sends)] == expected


def test_a_run_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)^the run of seed \d+ failed: .*FileNotFoundError"):
        record(tmp_path / "missing", tmp_path / "trace", seed=1)


# --- traces ---


def test_a_trace_gives_back_its_records(tmp_path: Path) -> None:
    records = [
        written(5, b"abc"),
        CallRecord(CallKind.RENAME, "a", 0, b"b"),
        CallRecord(CallKind.MARK, "", 0, b"\x00fact"),
    ]
    assert list(Trace(trace_of(tmp_path, *records))) == records


@pytest.mark.parametrize(("cut", "text"), [(-1, "ends within"), (-4, "ends within"), (7, "ends within")])
def test_a_trace_that_ends_within_a_record_is_refused(tmp_path: Path, cut: int, text: str) -> None:
    path = trace_of(tmp_path, written(0, b"abc"))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match=rf"^E2403 .*{text} a record"):
        list(Trace(path))


def test_something_else_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(b"SQLite format 3\0" * 10)
    with pytest.raises(UsageError, match=r"^E2403 .*contains something that is not a record"):
        list(Trace(tmp_path / "trace"))


# --- which images are legal ---


def test_what_is_synced_is_never_missing() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"a" * 2000), CallRecord(CallKind.FDATASYNC, "f", 0, b""))
    assert disk.kinds == ["whole"]
    disk.apply(written(2000, b"b" * 2000))
    for image in images(disk, "lost", "torn"):
        assert image.startswith(b"a" * 2000)
        assert set(image[2000:]) <= {0, ord("b")}


def test_writes_without_a_sync_are_lost_in_every_combination() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"a" * SECTOR), written(SECTOR, b"b" * SECTOR))
    parts = {(image[:1] == b"a", image[SECTOR : SECTOR + 1] == b"b") for image in images(disk, "lost")}
    assert parts == {(False, False), (True, False), (False, True), (True, True)}


def test_a_missing_end_is_cut_off_or_zeros() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"a" * 100))
    assert set(images(disk, "lost")) == {b"", b"\0" * SECTOR, b"a" * 100}


def test_a_torn_write_keeps_some_sectors_and_lacks_others() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"a" * SECTOR * 4))
    torn = set(images(disk, "torn"))
    whole = [image for image in torn if len(image) == SECTOR * 4]
    assert {image[at : at + SECTOR] for image in whole for at in range(0, SECTOR * 4, SECTOR)} == {
        b"a" * SECTOR,
        b"\0" * SECTOR,
    }
    assert len(torn) > 8


def test_a_write_within_one_sector_is_not_torn() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(SECTOR, b"a" * SECTOR))
    assert disk.kinds == ["whole", "lost"]


def test_a_sector_never_holds_a_later_write_without_an_earlier_one() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"a" * 100), written(100, b"b" * (SECTOR - 100)))
    for image in images(disk, "lost"):
        assert b"b" not in image or image.startswith(b"a" * 100)


def test_what_follows_a_missing_truncation_is_missing_too() -> None:
    cut = CallRecord(CallKind.TRUNCATE, "f", 10, b"")
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"a" * 2000), SYNCED, cut, written(10, b"b" * 2000))
    found = set(images(disk, "lost"))
    assert b"a" * 2000 in found
    assert b"a" * 10 in found
    for image in found:
        assert image == b"a" * 2000 or (image[:10] == b"a" * 10 and b"a" not in image[10:])


def test_names_go_back_to_the_last_sync_of_the_directory_and_no_further() -> None:
    disk = disk_of(created("old"), SYNCED_NAMES, created("new.part"), written(0, b"x", "new.part"))
    disk.apply(CallRecord(CallKind.FSYNC, "new.part", 0, b""))
    disk.apply(CallRecord(CallKind.RENAME, "new.part", 0, b"old"))
    seen = [disk.draw("absent", random.Random(seed)).files for seed in range(DRAWS)]
    assert {tuple(sorted((name, bytes(content)) for name, content in files.items())) for files in seen} == {
        (("old", b""),),
        (("new.part", b"x"), ("old", b"")),
    }
    disk.apply(SYNCED_NAMES)
    assert disk.kinds == ["whole"]


def test_a_removed_file_may_come_back_as_it_was() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"abc"), SYNCED, CallRecord(CallKind.UNLINK, "f", 0, b""))
    assert disk.draw("absent", random.Random(1)).files == {"f": b"abc"}
    assert disk.draw("whole", random.Random(1)).files == {}


def test_shared_memory_is_no_part_of_an_image() -> None:
    assert disk_of(created("f-shm"), written(0, b"abc", "f-shm")).names == {}


def test_an_image_without_a_missing_part_says_so() -> None:
    disk = disk_of(created(), SYNCED_NAMES, written(0, b"\0" * SECTOR), SYNCED, written(0, b"\0" * SECTOR))
    assert not any(disk.draw("lost", random.Random(seed)).effective for seed in range(20))


# --- what an image must keep ---

SOUND = ImageContent(2, b"two", {"out": SenderCut("out", "S", 4, 1)}, {"out": {2: b"b", 3: b"c"}}, {"a"}, {"b"}, {"c"})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"counted": set()}, ["A1: acknowledged and lost: a"]),
        ({"waiting": set()}, ["A1: acknowledged and lost: b"]),
        ({"dead": set()}, ["A1: acknowledged and lost: c"]),
        ({"checkpoint": 1, "digest": b"one"}, ["G1: checkpoint 2 was reported, 1 is there"]),
        ({"checkpoint": 3, "digest": b"three"}, []),
        ({"digest": b"one"}, ["G1: checkpoint 2 has a digest that nobody announced"]),
        ({"checkpoint": 4}, ["G1: checkpoint 4 has a digest that nobody announced"]),
        ({"senders": {}}, ["S1: out has sent 2, 1 would be next"]),
        ({"senders": {"out": SenderCut("out", "S", 2, 1)}}, ["S1: out has sent 2, 2 would be next"]),
        ({"senders": {"out": SenderCut("out", "T", 4, 1)}}, ["S9: out has sent as S, and goes on as T"]),
        ({"outbox": {"out": {2: b"x", 3: b"c"}}}, ["S9: out has sent b'b' as 2, b'x' would follow"]),
        ({"outbox": {"out": {2: b"b"}}}, ["S2: out has still to send [3], which is gone"]),
        ({"refusal": "E4311 went back"}, ["G8: E4311 went back"]),
    ],
)
def test_a_violation_is_named(changes: dict[str, object], expected: list[str]) -> None:
    assert [str(one) for one in violations(seen(), SOUND._replace(**changes))] == expected


def test_what_is_not_acknowledged_waits_at_the_broker() -> None:
    known = seen()
    waiting = [Message(b"1", {"pid": "p1", "id": "a"}), Message(b"2", {"pid": "p2", "id": "z"})]
    known.add(facts.encode(facts.Published("queue:in", waiting)))
    assert known.waiting == {"queue:in": waiting[1:]}


def seen() -> PowerFacts:
    """Facts that SOUND keeps."""
    known = PowerFacts()
    for mark in (
        facts.Opened(0, b""),
        facts.Acknowledged([("p1", "a"), ("p3", "b"), ("p4", "c")]),
        facts.Announced(1, b"one"),
        facts.Reported(1),
        facts.Announced(2, b"two"),
        facts.Reported(2),
        facts.Sent("out", "S", 1, b"a"),
        facts.Sent("out", "S", 2, b"b"),
        facts.Announced(3, b"three"),
    ):
        known.add(facts.encode(mark))
    return known


def test_a_mark_of_somebody_else_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        PowerFacts().add(b"\x00")


# --- traces by hand ---

SYNCED_NAMES = CallRecord(CallKind.FSYNC, "", 0, b"")
SYNCED = CallRecord(CallKind.FSYNC, "f", 0, b"")


def created(name: str = "f") -> CallRecord:
    return CallRecord(CallKind.CREATE, name, 0, b"")


def written(offset: int, content: bytes, name: str = "f") -> CallRecord:
    return CallRecord(CallKind.WRITE, name, offset, content)


def trace_of(directory: Path, *records: CallRecord) -> Path:
    path = directory / "trace"
    path.write_bytes(b"".join(map(encoded, records)))
    return path


def disk_of(*records: CallRecord) -> Disk:
    disk = Disk()
    for one in records:
        disk.apply(one)
    return disk


def images(disk: Disk, *kinds: str) -> Iterator[bytes]:
    """What file `f` may hold."""
    for kind in kinds:
        for seed in range(DRAWS):
            yield bytes(disk.draw(kind, random.Random(seed)).files["f"])
