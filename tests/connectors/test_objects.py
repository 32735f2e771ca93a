"""The connector of objects: what a sender stores when it repeats, what a receiver reads, and objects that people change."""

import datetime as dt
import gzip
import io
import json
import multiprocessing
import os
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from connectors.created_once import name_of_source
from connectors.objects import bucket as bucket_module
from connectors.objects import position as position_module
from connectors.objects import source as source_module
from connectors.objects.bucket import Bucket
from connectors.objects.connection import ObjectsConnection
from connectors.objects.folder import Folder
from connectors.objects.series import _last, _runs
from connectors.objects.sink import ObjectsSink
from connectors.objects.source import ObjectsSource
from correlator.cli import main
from correlator.connector import Backlog, Chunk
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import CUT_FROM, Headers, Message, Outgoing
from correlator.reliability import Reliability
from correlator.secrets import is_secret_name
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from tests.connectors.places import BucketPlace, FolderPlace, Place
from tests.s3_server import S3Server

SOURCE = "host:1:abc:S01"
DIRECTORY = f"out/{name_of_source(SOURCE)}"
SCHEMA = "n BIGINT"


@pytest.fixture
def folder(tmp_path: Path) -> FolderPlace:
    return FolderPlace(tmp_path / "place")


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path) -> BucketPlace:
    return BucketPlace(s3, tmp_path / "state")


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def name(number: int, ending: str = ".jsonl") -> str:
    return f"{DIRECTORY}/{number:020}{ending}"


def sink(place: Place, ending: str = ".jsonl", mode: str = "EXACTLY_ONCE", **options: Any) -> ObjectsSink:
    made = place.connection().sink(
        SenderSettings(
            id="s",
            connection="objects",
            destination=f"queue:out/*{ending}",
            reliability=Reliability(mode),
            options=options,
        )
    )
    made.connect()
    return made


def outgoing(numbers: Sequence[int], ending: str = ".jsonl", bad: Sequence[int] = ()) -> list[Outgoing]:
    return [
        Outgoing(n, SOURCE, f"queue:out/*{ending}", Message(b"{" if n in bad else b'{"n": %d}' % n)) for n in numbers
    ]


def codes(results: Sequence[SendRejected | None]) -> list[str | None]:
    return [None if one is None else one.code for one in results]


def stored(place: Place, ending: str = ".jsonl") -> list[int]:
    numbers = []
    for one in place.names():
        if one.startswith("out/") and one.endswith(ending):
            content = place.get(one)
            if ending == ".parquet":
                numbers += pq.ParquetFile(io.BytesIO(content)).read()["n"].to_pylist()
            else:
                lines = gzip.decompress(content) if ending == ".jsonl.gz" else content
                numbers += [json.loads(line)["n"] for line in lines.splitlines()]
    return numbers


def source(place: Place, destination: str = "queue:in/*.jsonl", batch: int = 1000, **options: Any) -> ObjectsSource:
    settings = {key: options.pop(key) for key in ("max_message_bytes", "max_batch_bytes") if key in options}
    if isinstance(place, FolderPlace) and place.path.is_dir():
        place.make_folder(destination.removeprefix("queue:").partition("/*")[0])
    made = place.connection().source(
        ReceiverSettings(
            id="r",
            connection="objects",
            destination=destination,
            max_batch_size=batch,
            options={"poll_interval": "10ms", **options},
            **settings,
        )
    )
    made.connect()
    return made


def take(one: ObjectsSource, wanted: int, acknowledge: bool = True) -> list[Message]:
    """Receive until there are so many messages; then look once more, and find none."""
    chunks: list[Chunk] = []
    while sum(len(chunk.messages) for chunk in chunks) < wanted:
        chunks.append(one.receive(wanted, 10.0))
        assert chunks[-1].messages
        if acknowledge:
            one.acknowledge(chunks[-1].tokens)
    return [message for chunk in chunks for message in chunk.messages]


def nothing(one: ObjectsSource) -> None:
    one._next_look = 0.0
    assert not one.receive(10, 0.0).messages


def bodies(messages: Sequence[Message]) -> list[bytes]:
    return [one.body for one in messages]


def rows(*values: dict[str, Any], group: int = 1000) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(values)), file, row_group_size=group)
    return file.getvalue()


def lost(call: Callable[[], object]) -> str:
    with pytest.raises(ConnectionLost) as raised:
        call()
    return raised.value.code


# --- senders ---


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_each_batch_is_an_object_and_a_repeat_is_left_out(place: Place, ending: str) -> None:
    options = {"schema": SCHEMA} if ending == ".parquet" else {}
    first = sink(place, ending, **options)
    first.send(outgoing(range(1, 4), ending))
    first.send(outgoing(range(4, 6), ending))
    first.close()
    second = sink(place, ending, **options)
    assert codes(second.send(outgoing(range(2, 8), ending))) == [None] * 6
    second.send(outgoing(range(8, 9), ending))
    second.close()
    assert place.names() == [name(n, ending) for n in (1, 4, 6, 8)]
    assert stored(place, ending) == list(range(1, 9))


def test_a_refused_message_is_refused_again_and_counts(place: Place) -> None:
    one = sink(place)
    first = one.send(outgoing(range(1, 6), bad=[1, 3, 5]))
    assert codes(first) == ["E8110", None, "E8110", None, "E8110"]
    assert codes(one.send(outgoing([6, 7], bad=[6, 7]))) == ["E8110", "E8110"]
    one.close()
    other = sink(place)
    assert codes(other.send(outgoing(range(1, 8), bad=[1, 3, 5, 6, 7]))) == [*codes(first), "E8110", "E8110"]
    assert codes(other.send(outgoing([8]))) == [None]
    other.close()
    assert stored(place) == [2, 4, 8]


def test_what_was_refused_stays_refused_whatever_the_schema_is(folder: FolderPlace) -> None:
    one = sink(folder, ".parquet", schema="n TINYINT")
    assert codes(one.send(_tiny([1, 200, 3]))) == [None, "E8110", None]
    one.close()
    other = sink(folder, ".parquet", schema=SCHEMA)
    assert codes(other.send(_tiny([1, 200, 3, 201]))) == [None, "E8110", None, None]
    other.close()
    assert stored(folder, ".parquet") == [1, 3, 201]


def _tiny(values: Sequence[int]) -> list[Outgoing]:
    return [
        Outgoing(at, SOURCE, "queue:out/*.parquet", Message(b'{"n": %d}' % value)) for at, value in enumerate(values, 1)
    ]


def test_a_crash_between_the_refusals_and_the_object(folder: FolderPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the refused numbers is there and the object is not; then another message is refused, too."""
    create = Folder.create

    def dying(self: Folder, name: str, content: bytes) -> bool:
        if "_refused" not in name:
            raise ConnectionLost("E7003", "here", "died")
        return create(self, name, content)

    one = sink(folder, ".parquet", schema="n TINYINT")
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "create", dying)
        assert lost(lambda: one.send(_tiny([1, 200, 3, 4]))) == "E7003"
    other = sink(folder, ".parquet", schema=SCHEMA)
    batch = _tiny([1, 200, 3, 4])
    batch[2] = msgspec.structs.replace(batch[2], message=Message(b"{"))
    assert codes(other.send(batch)) == [None, "E8110", "E8110", None]
    other.close()
    third = sink(folder, ".parquet", schema=SCHEMA)
    assert codes(third.send(_tiny([1, 200, 3, 4, 5]))) == [None, "E8110", "E8110", None, None]
    third.close()
    assert stored(folder, ".parquet") == [1, 4, 5]


@hypothesis_settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 50))
def test_rows_and_refused_numbers_tell_the_last_number(refused: list[bool], first: int) -> None:
    numbers = range(first, first + len(refused))
    marked = {number for number, is_refused in zip(numbers, refused, strict=True) if is_refused}
    kept = [None if number in marked else number for number in numbers]
    runs = list(_runs(numbers, kept))
    assert [one for _, part in runs for one in part] == [one for one in kept if one is not None]
    assert len(runs) <= 1
    begin, part = runs[0] if runs else (first, [])
    assert _last(begin, len(part), marked) == numbers[-1]


def test_numbers_with_gaps_become_several_objects() -> None:
    assert list(_runs([1, 2, 3, 7, 9, 10], ["a", None, "c", "d", "e", None])) == [
        (1, ["a", "c"]),
        (7, ["d"]),
        (9, ["e"]),
    ]


def test_a_sender_whose_objects_are_gone_says_so(place: Place) -> None:
    one = sink(place)
    one.send(outgoing([1, 2]))
    one.send(outgoing([3]))
    one.close()
    place.remove(name(3))
    one = sink(place)
    with pytest.raises(ConnectionLost, match="lacks messages 3 to 3") as raised:
        one.send(outgoing([4]))
    assert raised.value.code == "E7043"
    one = sink(place, missing_up_to=3)
    one.send(outgoing([4]))
    one.close()
    assert stored(place) == [1, 2, 4]


def test_two_engines_with_one_source_store_each_message_once(bucket: BucketPlace) -> None:
    """The second one was overtaken: its batches have other boundaries."""
    late, early = sink(bucket), sink(bucket)
    late.send(outgoing([1]))
    early.send(outgoing([1, 2]))  # looks up what is there
    assert lost(lambda: late.send(outgoing([2, 3, 4]))) == "E7666"
    late.connect()
    assert codes(late.send(outgoing([2, 3, 4]))) == [None] * 3
    assert lost(lambda: early.send(outgoing([3]))) == "E7666"
    early.connect()
    early.send(outgoing([3, 4, 5]))
    assert stored(bucket) == [1, 2, 3, 4, 5]


def test_two_engines_with_equal_batches_need_no_error(bucket: BucketPlace) -> None:
    one, other = sink(bucket), sink(bucket)
    one.send(outgoing([1]))
    other.send(outgoing([1]))
    one.send(outgoing([2, 3]))
    other.send(outgoing([2, 3]))
    assert stored(bucket) == [1, 2, 3]


def test_two_engines_in_a_folder(folder: FolderPlace) -> None:
    one, other = sink(folder), sink(folder)
    one.send(outgoing([1]))
    assert lost(lambda: other.send(outgoing([1]))) == "E7012"
    one.close()
    other.connect()
    other.send(outgoing([1, 2]))
    other.close()
    assert stored(folder) == [1, 2]


def test_a_store_that_replaces_objects_is_refused(bucket: BucketPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    def replacing(self: Bucket, name: str, content: bytes) -> bool:
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)
        return True

    monkeypatch.setattr(Bucket, "create", replacing)
    assert lost(lambda: sink(bucket)) == "E7660"


def test_the_newest_of_many_objects_in_a_bucket_is_found(bucket: BucketPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "PAGE", 3)
    store = Bucket(*bucket.connection()._bucket)
    store.connect("here")
    bucket.put("many/zzz.txt", b"")
    assert store.newest("many", ".jsonl") is None
    for number in (1, 2, 3, 4, 9, 40, 1000, 1001, 10**17):
        bucket.put(f"many/{number:020}.jsonl", b"")
        assert store.newest("many", ".jsonl") == f"many/{number:020}.jsonl"
    assert [found.name for found in store.found("many")][-1] == "many/zzz.txt"
    assert len(list(store.names("many"))) == 10
    store.close()


def test_a_best_effort_sender_forgets_nothing_within_a_life(folder: FolderPlace) -> None:
    one = sink(folder, mode="BEST_EFFORT")
    one.send(outgoing([1, 2, 5]))
    one.connect()
    one.send(outgoing([5, 6, 9]))
    one.close()
    assert stored(folder) == [1, 2, 5, 6, 9]


def test_messages_that_no_object_can_hold(folder: FolderPlace) -> None:
    one = sink(folder)
    delayed = Outgoing(1, SOURCE, "queue:out/*.jsonl", Message(b"{}", headers=Headers(delivery_delay_ms=5)))
    elsewhere = Outgoing(2, SOURCE, "queue:other/*.jsonl", Message(b"{}"))
    broken = Outgoing(3, SOURCE, "queue:out/*.jsonl", Message(b'"\xff"'))
    assert codes(one.send([delayed, elsewhere, broken])) == ["E8110", "E8104", "E8110"]
    one.close()


def test_what_is_stored_is_private(folder: FolderPlace) -> None:
    one = sink(folder)
    one.send(outgoing([1], bad=[1]) + outgoing([2]))
    one.close()
    made = [path for path in folder.path.rglob("*") if path.name != ".positions"]
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_file()} == {"0o600"}
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_dir()} == {"0o700"}


@pytest.mark.parametrize(
    ("broken", "code"), [(b"not packed", "E7663"), (gzip.compress(b"{}\n", mtime=0)[:-4], "E7663")]
)
def test_a_broken_newest_object_stops_its_sender(folder: FolderPlace, broken: bytes, code: str) -> None:
    folder.put(name(1, ".jsonl.gz"), broken)
    assert lost(lambda: sink(folder, ".jsonl.gz").send(outgoing([1], ".jsonl.gz"))) == code


def test_a_damaged_list_of_refusals_stops_its_sender(folder: FolderPlace) -> None:
    one = sink(folder)
    one.send(outgoing([1], bad=[1]))
    one.close()
    (refused,) = folder.names()
    folder.put(refused, b"[1")
    assert lost(lambda: sink(folder).send(outgoing([2]))) == "E7667"


# --- receivers ---


def test_objects_are_read_in_order_and_a_late_one_is_read_once(place: Place) -> None:
    place.put("in/b.jsonl", b'{"n": 1}\r\n\n{"n": 2}')
    place.put("in/deep/er/c.jsonl", b"\xef\xbb\xbf3\n")
    for skipped in ("in/_tmp/x.jsonl", "in/.x.jsonl", "in/x.json", "in/x.jsonl.gz", "inner/x.jsonl"):
        place.put(skipped, b"x\n")
    one = source(place)
    assert one.backlog() == Backlog(size=24)
    messages = take(one, 3)
    assert bodies(messages) == [b'{"n": 1}', b'{"n": 2}', b"3"]
    assert [(m.properties["object"], m.properties["row"]) for m in messages] == [
        ("in/b.jsonl", 1), ("in/b.jsonl", 3), ("in/deep/er/c.jsonl", 1),
    ]  # fmt: skip
    ids = [message.properties["uniqueMessageId"] for message in messages]
    assert len(set(ids)) == 3
    assert messages[0].headers == Headers(message_id=ids[0])
    assert messages[0].properties["messageSourceId"] == "queue:in/*.jsonl"
    nothing(one)
    place.put("in/a.jsonl", b"late\n")
    assert bodies(take(one, 1)) == [b"late"]
    one.close()
    one = source(place)
    nothing(one)
    one.close()


def test_objects_that_came_together_are_read_by_their_time(folder: FolderPlace) -> None:
    for at, letter in enumerate("bca"):
        folder.put(f"in/{letter}.jsonl", letter.encode() + b"\n")
        os.utime(folder.path / f"in/{letter}.jsonl", (at, at))
    one = source(folder, order="modified")
    assert bodies(take(one, 3)) == [b"b", b"c", b"a"]
    one.close()


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_a_receiver_goes_on_in_the_middle_of_an_object(place: Place, ending: str) -> None:
    texts = [{"n": n, "text": "x" * (n % 7)} for n in range(40)]
    lines = b"".join(msgspec.json.encode(text) + b"\n" for text in texts)
    content = {".jsonl": lines, ".jsonl.gz": gzip.compress(lines), ".parquet": rows(*texts, group=7)}[ending]
    place.put(f"in/a{ending}", content)
    seen: list[int] = []
    for limit in (5, 9, 1, 13, 12):
        one = source(place, f"queue:in/*{ending}")
        chunk = one.receive(limit, 0.0)
        one.acknowledge(chunk.tokens)
        seen += [json.loads(message.body)["n"] for message in chunk.messages]
        one.receive(3, 0.0)  # not acknowledged
        one.close()
    one = source(place, f"queue:in/*{ending}")
    seen += [json.loads(message.body)["n"] for message in take(one, 40 - len(seen))]
    assert seen == list(range(40))
    nothing(one)
    one.close()


@pytest.mark.parametrize("after", ["keep", "delete", "move"])
def test_an_object_that_was_replaced_after_it_was_read(place: Place, after: str) -> None:
    place.put("in/a.jsonl", b"1\n")
    one = source(place, after=after)
    (first,) = take(one, 1)
    nothing(one)
    place.put("in/a.jsonl", b"two\n")
    if after == "keep":
        one._next_look = 0.0
        assert lost(lambda: one.receive(1, 0.0)) == "E7661"
        assert lost(one.connect) == "E7661"
        place.remove("in/a.jsonl")
        one.connect()
        nothing(one)
    else:
        (second,) = take(one, 1)
        assert second.body == b"two"
        assert first.properties["uniqueMessageId"] != second.properties["uniqueMessageId"]
        nothing(one)
        assert [n for n in place.names() if "_done" not in n] == []
        assert len([n for n in place.names() if n.startswith("in/_done/a.")]) == (2 if after == "move" else 0)
    one.close()


@pytest.mark.parametrize("after", ["delete", "move"])
def test_an_object_that_is_replaced_before_it_is_removed_is_read(place: Place, after: str) -> None:
    place.put("in/a.jsonl", b"1\n")
    one = source(place, after=after)
    held = one.receive(10, 10.0)
    nothing(one)
    place.put("in/a.jsonl", b"two\n")
    one.acknowledge(held.tokens)
    assert "in/a.jsonl" in place.names()
    assert bodies([*held.messages, *take(one, 1)]) == [b"1", b"two"]
    one.close()


def test_an_object_that_changes_or_vanishes_while_it_is_read(place: Place) -> None:
    place.put("in/a.jsonl", b"1\n2\n3\n")
    one = source(place)
    one.acknowledge(one.receive(1, 0.0).tokens)
    one.close()
    place.put("in/a.jsonl", b"1\n2\nother\n")
    assert lost(lambda: source(place)) == "E7661"
    place.remove("in/a.jsonl")
    assert lost(lambda: source(place)) == "E7662"
    place.put("in/a.jsonl", b"")  # the user gives up the rest
    place.put("in/b.jsonl", b"b\n")
    one = source(place)
    assert bodies(take(one, 1)) == [b"b"]
    nothing(one)
    one.close()
    one = source(place)
    nothing(one)
    one.close()


def test_an_object_that_changes_between_two_blocks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.records.BLOCK_BYTES", 4)
    monkeypatch.setattr(bucket_module, "AHEAD_BYTES", 4)
    place.put("in/a.jsonl", b"1\n2\n3\n4\n")
    one = source(place)
    one.receive(1, 0.0)
    if isinstance(place, FolderPlace):
        with (place.path / "in/a.jsonl").open("ab") as file:
            file.write(b"5\n")
    else:
        place.put("in/a.jsonl", b"1\n2\n3\n4\n5\n")
    assert lost(lambda: [one.receive(2, 0.0) for _ in range(9)]) == "E7661"
    one.connect()
    assert bodies(take(one, 5)) == [b"1", b"2", b"3", b"4", b"5"]  # nothing of it was acknowledged
    one.close()


def test_an_object_that_is_removed_before_its_turn_is_no_error_for_long(place: Place) -> None:
    place.put("in/a.jsonl", b"1\n")
    place.put("in/b.jsonl", b"2\n")
    one = source(place)
    place.remove("in/a.jsonl")
    assert lost(lambda: one.receive(1, 0.0)) == "E7662"
    one.connect()
    assert bodies(take(one, 1)) == [b"2"]
    one.close()


@pytest.mark.parametrize("after", ["delete", "move"])
def test_the_newest_object_of_a_sender_stays(place: Place, after: str) -> None:
    giver = sink(place)
    giver.send(outgoing([1, 2]))
    giver.send(outgoing([3]))
    taker = source(place, "queue:out/*.jsonl", after=after)
    take(taker, 3)
    nothing(taker)
    assert [n for n in place.names() if "_done" not in n] == [name(3)]
    giver.connect()
    giver.send(outgoing([2, 3, 4, 5]))
    assert [json.loads(body)["n"] for body in bodies(take(taker, 2))] == [4, 5]
    nothing(taker)
    assert [n for n in place.names() if "_done" not in n] == [name(4)]
    taker.close()
    taker = source(place, "queue:out/*.jsonl", after=after)
    nothing(taker)
    assert len([n for n in place.names() if "_done" in n]) == (2 if after == "move" else 0)
    taker.close()
    giver.close()


@pytest.mark.parametrize("after", ["delete", "move"])
def test_no_object_stays_of_a_source_that_never_comes_back(place: Place, after: str) -> None:
    life, producer = sink(place, mode="BEST_EFFORT"), sink(place)
    life.send(outgoing([1, 2]))
    producer.send([Outgoing(0, "", "queue:out/*.jsonl", Message(b'{"n": 3}'))])
    taker = source(place, "queue:out/*.jsonl", after=after)
    take(taker, 3)
    nothing(taker)
    left = place.names()
    assert len(left) == (2 if after == "move" else 0)
    assert all(one.startswith("out/_done/once-") for one in left)
    assert not isinstance(place, FolderPlace) or not (place.path / "out/_locks").exists()
    life.send(outgoing([3]))
    assert bodies(take(taker, 1)) == [b'{"n": 3}']
    taker.close()
    life.close()
    producer.close()


@pytest.mark.parametrize("removes", [True, False])
def test_a_crash_around_the_removal(folder: FolderPlace, monkeypatch: pytest.MonkeyPatch, removes: bool) -> None:
    remove = Folder.remove

    def dying(self: Folder, found: Any, moved_to: str) -> None:
        if removes:
            remove(self, found, moved_to)
        raise ConnectionLost("E7003", "here", "died")

    folder.put("in/a.jsonl", b"1\n")
    one = source(folder, after="move")
    take(one, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "remove", dying)
        assert lost(lambda: one.receive(1, 0.0)) == "E7003"
    folder.put("in/b.jsonl", b"2\n")
    one = source(folder, after="move")
    assert bodies(take(one, 1)) == [b"2"]
    nothing(one)
    assert [n[:11] for n in folder.names()] == ["in/_done/a.", "in/_done/b."]
    one.close()


def test_after_may_change_between_two_lives(folder: FolderPlace) -> None:
    folder.put("in/a.jsonl", b"1\n")
    one = source(folder)
    take(one, 1)
    nothing(one)
    one.close()
    folder.put("in/b.jsonl", b"2\n")
    one = source(folder, after="delete")
    assert bodies(take(one, 1)) == [b"2"]
    nothing(one)
    assert folder.names() == ["in/a.jsonl"]
    one.close()


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".parquet", b"PAR1 nonsense PAR1"),
        (".parquet", b""),
        (".parquet", rows({"n": 1})[:-9]),
        (".jsonl.gz", b"no gzip"),
        (".jsonl.gz", gzip.compress(b"1\n" * 99, mtime=0)[:-9]),
    ],
)
def test_a_broken_object_holds_its_receiver_until_it_is_replaced(place: Place, ending: str, content: bytes) -> None:
    place.put(f"in/a{ending}", content)
    one = source(place, f"queue:in/*{ending}")
    with pytest.raises(ConnectionLost) as raised:
        while one.receive(10, 0.0).messages:
            pass
    assert raised.value.code == "E7663"
    place.put(f"in/a{ending}", rows({"n": 7}) if ending == ".parquet" else gzip.compress(b'{"n":7}\n'))
    one.connect()
    assert bodies(take(one, 1)) == [b'{"n":7}']
    one.close()


def test_a_line_that_is_too_large_is_cut(folder: FolderPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.records.BLOCK_BYTES", 64)
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 200)
    folder.put("in/a.jsonl.gz", gzip.compress(b"before\n" + b"x" * 100_000 + b"\nbehind\n"))
    one = source(folder, "queue:in/*.jsonl.gz", max_message_bytes=100)
    before, large, behind = take(one, 3)
    assert (before.body, large.body, behind.body) == (b"before", b"x" * 101, b"behind")
    assert large.properties[CUT_FROM] == 100_000
    one.close()


def test_rows_become_json(folder: FolderPlace) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
    table = pa.table({
        "n": pa.array([1, None]),
        "d": pa.array([Decimal("1.50"), None]),
        "t": pa.array([at, None], pa.timestamp("ns", "UTC")),
        "day": pa.array([at.date(), None]),
        "b": pa.array([b"\x00\xff", None]),
        "l": pa.array([[{"x": [1]}], []]),
        "f": pa.array([float("nan"), 0.5]),
    })  # fmt: skip
    file = io.BytesIO()
    pq.write_table(table, file)
    folder.put("in/a.parquet", file.getvalue())
    folder.put("in/b.parquet", rows({"other": "schema"}))
    one = source(folder, "queue:in/*.parquet")
    first, second, third = (json.loads(body) for body in bodies(take(one, 3)))
    assert first == {
        "n": 1, "d": "1.50", "t": "2026-01-02T03:04:05.678901Z", "day": "2026-01-02", "b": "AP8=", "l": [{"x": [1]}],
        "f": None,
    }  # fmt: skip
    assert second == {"n": None, "d": None, "t": None, "day": None, "b": None, "l": [], "f": 0.5}
    assert third == {"other": "schema"}
    one.close()


def test_chunks_of_rows_are_bounded(folder: FolderPlace) -> None:
    folder.put("in/a.parquet", rows(*({"text": "x" * 1000} for _ in range(50))))
    one = source(folder, "queue:in/*.parquet", max_batch_bytes=10_000)
    assert len(one.receive(1000, 0.0).messages) == 10
    one.close()


def test_a_receiver_lists_again_what_it_cannot_hold(folder: FolderPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MOST_WAITING", 3)
    for n in range(10):
        folder.put(f"in/{n}.jsonl", b"%d\n" % n if n % 3 else b"")
    one = source(folder)
    assert one.backlog() is None
    assert bodies(take(one, 6)) == [b"%d" % n for n in range(10) if n % 3]
    nothing(one)
    one.close()


def test_what_a_receiver_remembers_is_bounded(folder: FolderPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_module, "MOST_READ", 2)
    for n in range(3):
        folder.put(f"in/{n}.jsonl", b"%d\n" % n)
    one = source(folder)
    take(one, 3)
    assert lost(lambda: one.receive(1, 0.0)) == "E7664"
    folder.remove("in/0.jsonl")
    one.connect()
    nothing(one)
    one.close()


def test_an_object_that_vanished_after_it_was_read_is_forgotten(place: Place) -> None:
    for letter in "abcdef":
        place.put(f"in/{letter}.jsonl", b"1\n")
    one = source(place)
    take(one, 6)
    nothing(one)
    for letter in "fe":
        place.remove(f"in/{letter}.jsonl")
        nothing(one)
        one.close()
        one = source(place)  # the position has nothing of it either
        nothing(one)
        one.close()
        place.put(f"in/{letter}.jsonl", b"another\n")
        one = source(place)
        assert bodies(take(one, 1)) == [b"another"]
        nothing(one)
    one.close()
    one = source(place)
    nothing(one)
    one.close()


def test_what_a_receiver_remembers_does_not_grow(folder: FolderPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_module, "MOST_READ", 5)
    most = 0
    one = source(folder)
    for n in range(20):
        folder.put(f"in/{n}.jsonl", b"%d\n" % n)
        take(one, 1)
        nothing(one)
        if n >= 3:
            folder.remove(f"in/{n - 3}.jsonl")
            nothing(one)
        (read,) = (folder.path / ".positions").glob("*.read")
        most = max(most, len(read.read_bytes().splitlines()))
    assert most <= 8
    one.close()
    one = source(folder)
    nothing(one)
    one.close()


def test_names_and_links_that_cannot_be_used(folder: FolderPlace) -> None:
    folder.put("in/a\n.jsonl", b"1\n")
    assert lost(lambda: source(folder)) == "E7665"
    folder.remove("in/a\n.jsonl")
    (folder.path / "in/b.jsonl").symlink_to("/etc/passwd")
    assert lost(lambda: source(folder)) == "E7013"


def test_a_long_name_makes_an_id_that_fits(folder: FolderPlace) -> None:
    long = "/".join(["ü" * 60] * 4)
    folder.put(f"in/{long}/a.jsonl", b"1\n")
    folder.put(f"in/{long}/b.jsonl", b"1\n")
    one = source(folder)
    ids = [str(message.properties["uniqueMessageId"]) for message in take(one, 2)]
    assert ids[0] != ids[1]
    assert all(len(unique.encode()) < 512 for unique in ids)
    one.close()


def test_an_unfinished_line_of_the_position_is_cut_off(folder: FolderPlace) -> None:
    folder.put("in/a.jsonl", b"1\n")
    one = source(folder)
    take(one, 1)
    nothing(one)
    one.close()
    (read,) = (folder.path / ".positions").glob("*.read")
    content = read.read_bytes()
    read.write_bytes(content + content[:9])
    one = source(folder)
    nothing(one)
    one.close()
    assert read.read_bytes() == content


@pytest.mark.parametrize("ending", ["read", "position"])
def test_a_damaged_position_is_refused(folder: FolderPlace, ending: str) -> None:
    folder.put("in/a.jsonl", b"1\n")
    one = source(folder)
    take(one, 1)
    nothing(one)
    one.close()
    (damaged,) = (folder.path / ".positions").glob(f"*.{ending}")
    damaged.write_bytes(b"nonsense\n")
    assert lost(lambda: source(folder)) == "E7017"


def test_a_second_receiver_of_the_same_name_waits(folder: FolderPlace) -> None:
    one = source(folder)
    assert lost(lambda: source(folder)) == "E7012"
    one.close()
    source(folder).close()


def test_a_forked_child_uses_nothing_of_its_parent(folder: FolderPlace) -> None:
    folder.put("in/a.jsonl", b"1\n")
    taker, giver = source(folder), sink(folder)
    giver.send(outgoing([1]))

    def child(told: Any) -> None:
        for call in (lambda: taker.receive(1, 0.0), lambda: giver.send(outgoing([2])), taker.connect, giver.connect):
            try:
                call()
            except UsageError as error:
                told.send(error.code)
        taker.close()
        giver.close()
        told.close()

    told, childs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(childs,))
    process.start()
    assert [told.recv() for _ in range(4)] == ["E2050"] * 4
    process.join()
    assert len(take(taker, 1)) == 1
    assert lost(lambda: sink(folder).send(outgoing([2]))) == "E7012"  # the lock is still held
    taker.close()
    giver.close()


def test_a_bucket_of_another_store_is_another_place(tmp_path: Path) -> None:
    def position(endpoint: str, path: str = "s3://b3t/some") -> Path:
        options = {"path": path, "state": str(tmp_path), **({"endpoint": endpoint} if endpoint else {})}
        connection = ObjectsConnection("o", ConnectionSettings(type="objects", options=options))
        receiver = ReceiverSettings(id="r", connection="o", destination="queue:in/*.jsonl")
        return connection.source(receiver)._lock_path

    same = ["http://store:9000", "https://STORE:9000/"]
    others = ["", "http://store", "http://store:9001", "http://store:9000/s3", "http://other:9000"]
    assert len({position(endpoint) for endpoint in same}) == 1
    assert len({position(endpoint) for endpoint in [*others, same[0]]}) == 6
    assert position("http://a.b", "s3://c3t/d") != position("http://a", "s3://b.c3t/d")
    assert position("http://a/b3t", "s3://c3t/d") != position("http://a", "s3://b3t/c3t/d")


# --- stores that cannot be used ---


def test_a_bucket_that_is_not_there(bucket: BucketPlace) -> None:
    bucket.bucket = "missing"
    bucket.options["path"] = "s3://missing-bucket"
    assert lost(lambda: source(bucket)) == "E7010"
    assert lost(lambda: sink(bucket)) == "E7010"
    receiver = ReceiverSettings(id="r", connection="objects", destination="queue:in/*.jsonl")
    sender = SenderSettings(id="s", connection="objects", destination="queue:in/*.jsonl")
    found = bucket.connection().examine([receiver], [sender])
    assert [(error.code, error.where) for error in found] == [("E7010", "receivers.r"), ("E7010", "senders.s")]


def test_a_store_that_cannot_be_reached(bucket: BucketPlace) -> None:
    bucket.options["endpoint"] = "http://127.0.0.1:9"
    assert lost(lambda: source(bucket)) == "E7001"
    bucket.options["endpoint"] = bucket.server.endpoint.replace("http://", "https://")
    assert lost(lambda: source(bucket)) == "E7016"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "place")
    receiver = ReceiverSettings(id="r", connection="objects", destination="queue:in/*.jsonl")
    sender = SenderSettings(id="s", connection="objects", destination="queue:in/*.jsonl")

    def examined() -> list[str]:
        return [error.code for error in place.connection().examine([receiver], [sender])]

    assert examined() == ["E7010"]
    place.make_folder("in")
    place.put("in/a.jsonl.gz", b"")
    assert examined() == ["W7668"]
    place.put("in/a.jsonl", b"")
    assert examined() == []
    one = source(place)
    nothing(one)
    (place.path / "in").rename(place.path / "moved")
    one._next_look = 0.0
    assert lost(lambda: one.receive(1, 0.0)) == "E7010"  # a file system that is not mounted is no empty folder
    place.path.rename(tmp_path / "elsewhere")
    assert examined() == ["E7010"]
    assert lost(lambda: source(place)) == "E7010"
    assert not place.path.exists()
    place.path.symlink_to(tmp_path)
    assert lost(lambda: sink(place)) == "E7013"


def test_a_store_that_refuses_says_why(bucket: BucketPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for option in ("access_key", "secret_key"):
        del bucket.options[option]
    assert lost(lambda: source(bucket)) == "E7002"


@pytest.mark.parametrize("option", ["access_key", "secret_key", "session_token"])
def test_credentials_are_known_as_secrets(option: str) -> None:
    assert is_secret_name(option)
    options = {"path": "s3://bucket", option: 17}
    with pytest.raises(ConfigError) as raised:
        ObjectsConnection("o", ConnectionSettings(type="objects", options=options))
    assert "17" not in str(raised.value) or option == "access_key"


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({}, "E1021", "'path' is missing"),
        ({"path": "p", "pth": 1}, "E1020", "unknown key"),
        ({"path": "gs://bucket"}, "E1022", "not a place for objects"),
        ({"path": "s3://"}, "E1022", "not a place for objects"),
        ({"path": "p", "endpoint": "http://x"}, "E1022", "endpoint is of no use in a folder"),
        ({"path": "s3://b3t", "endpoint": "ftp://x"}, "E1214", "not the address of a store"),
        ({"path": "s3://b3t", "endpoint": "https://me:secret@x"}, "E1214", "not the address of a store"),
        ({"path": "s3://b3t", "access_key": "x"}, "E1021", "one is missing"),
        ({"path": "s3://b3t", "ca_file": "x", "endpoint": "http://x"}, "E1022", "of no use without TLS"),
    ],
)
def test_options_of_connections(options: dict[str, Any], code: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ObjectsConnection("o", ConnectionSettings(type="objects", options=options))
    assert raised.value.code == code
    assert text in str(raised.value).replace(": ", " ")
    assert "secret@" not in str(raised.value)


@pytest.mark.parametrize(
    "destination",
    ["topic:a/*.jsonl", "queue:*.jsonl", "queue:a/*.csv", "queue:a/b.jsonl", "queue:../a/*.jsonl", "queue:_a/*.jsonl",
     "queue:a//*.jsonl", "queue:/a/*.jsonl", "queue:a/.b/*.parquet", "queue:a b/*.jsonl", "queue:a/x*.jsonl"],
)  # fmt: skip
def test_destinations_that_name_no_objects(folder: FolderPlace, destination: str) -> None:
    with pytest.raises(ConfigError, match="E1216"):
        source(folder, destination)
    with pytest.raises(ConfigError, match="E1216"):
        folder.connection().sink(SenderSettings(id="s", connection="o", destination=destination))


@pytest.mark.parametrize(
    ("options", "code"),
    [({"order": "size"}, "E1022"), ({"after": "archive"}, "E1022"), ({"poll_interval": "0s"}, "E1022"),
     ({"follow": True}, "E1020")],
)  # fmt: skip
def test_options_of_receivers(folder: FolderPlace, options: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError, match=code):
        source(folder, **options)


@pytest.mark.parametrize(
    ("ending", "options", "code"),
    [(".parquet", {}, "E1021"), (".jsonl", {"schema": SCHEMA}, "E1020"), (".jsonl", {"missing_up_to": -1}, "E1022")],
)
def test_options_of_senders(folder: FolderPlace, ending: str, options: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError, match=code):
        sink(folder, ending, **options)


def test_a_sender_needs_a_destination_and_receivers_of_a_bucket_a_state() -> None:
    connection = ObjectsConnection("o", ConnectionSettings(type="objects", options={"path": "s3://b3t"}))
    with pytest.raises(ConfigError, match="E1216"):
        connection.sink(SenderSettings(id="s", connection="o"))
    with pytest.raises(ConfigError, match="E1021"):
        connection.source(ReceiverSettings(id="r", connection="o", destination="queue:a/*.jsonl"))


def test_small_batches_are_warned_of() -> None:
    hasty = SenderSettings(id="s", connection="o", destination="queue:a/*.jsonl")
    assert [advice.code for advice in ObjectsConnection.advice(hasty)] == ["W1412"]
    patient = SenderSettings(id="s", connection="o", destination="queue:a/*.jsonl", max_batch_interval_ms=1000)
    assert not list(ObjectsConnection.advice(patient))


def test_lint_warns_of_a_sender_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(
        f"version: 1\nname: a\nstore: sqlite:///{tmp_path}/a.db\n"
        f"connections: {{files: {{type: objects, path: {tmp_path}}}}}\n"
        'senders: [{id: s, connection: files, destination: "queue:a/*.jsonl", reliability: EXACTLY_ONCE}]\n'
        'monitors: [{type: "correlator:Monitor"}]\n'
    )
    assert main.execute(["lint", str(file)]) == 0
    assert re.search(r"W1412 \S+ senders\[0\]: each batch is an object", capsys.readouterr().out)
