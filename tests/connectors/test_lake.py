"""The lake: rows, refusals, repeats, and whatever can be wrong with the directory of a table between two lives."""

import contextlib
import errno
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.created_once import name_of_source
from connectors.lake import LakeConnection, places, read
from connectors.lake.delta import RETENTION, DeltaLog
from connectors.lake.places import OLD_S, TablePlace
from connectors.lake.sink import LakeSink
from correlator import Reliability
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message, Outgoing
from correlator.processes import LockFile
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from tests.connectors.delta import delta_rows

FORMATS = ("delta", "parquet")
each_format = pytest.mark.parametrize("form", FORMATS)
SOURCE = "host:17:4711:S01"


def connection(path: Path, form: str) -> LakeConnection:
    return LakeConnection("lake", ConnectionSettings(type="lake", options={"path": str(path), "format": form}))


def sender(reliability: Reliability = Reliability.EXACTLY_ONCE, table: str = "t", **options: object) -> SenderSettings:
    options = {"schema": "id BIGINT", **options}
    return SenderSettings(
        id="s", connection="lake", destination=f"queue:{table}", reliability=reliability, options=options
    )


def opened(path: Path, form: str, reliability: Reliability = Reliability.EXACTLY_ONCE, **options: object) -> LakeSink:
    sink = connection(path, form).sink(sender(reliability, **options))
    sink.connect()
    return sink


def batch(numbers: Sequence[int], source: str = SOURCE, bodies: dict[int, bytes] | None = None) -> list[Outgoing]:
    return [Outgoing(n, source, "queue:t", Message((bodies or {}).get(n, b'{"id": %d}' % n))) for n in numbers]


def rows(path: Path, form: str) -> list[dict[str, object]]:
    table = path / "t"
    return (delta_rows(table) if form == "delta" else read(table)).to_pylist()


def ids(path: Path, form: str) -> list[object]:
    return sorted(row["id"] for row in rows(path, form))


def codes(results: Sequence[SendRejected | None]) -> list[str | None]:
    return [None if one is None else one.code for one in results]


# --- settings ---


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({}, "E1021", "'path' is missing"),
        ({"path": "x"}, "E1022", "delta, parquet"),
        ({"path": "x", "format": "iceberg"}, "E1022", "delta, parquet"),
        ({"path": "x", "format": "delta", "pth": "y"}, "E1020", "Did you mean 'path'?"),
    ],
)
def test_options_of_connections(options: dict[str, object], code: str, text: str) -> None:
    with pytest.raises(ConfigError, match=code) as raised:
        LakeConnection("lake", ConnectionSettings(type="lake", options=options))
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"schema": None}, "E1021", "'schema' is missing"),
        ({"schema": 7}, "E1022", "senders.s.schema"),
        ({"schema": "id"}, "E1022", "needs names and types"),
        ({"schema": "id BIGINT NOT NULL"}, "E1022", "NOT NULL is not supported"),
        ({"schema": "id BIGNIT"}, "E1022", "Did you mean 'bigint'?"),
        ({"schema": "id ARRAY<INT>"}, "E1022", "which cannot be written"),
        (
            {"schema": "id INT, name VARCHAR(10)"},
            "E1022",
            "column 'name' has type 'VARCHAR(10)', which cannot be",
        ),
        ({"schema": "id INT, at TIME"}, "E1022", "column 'at' has type 'TIME(6)', which cannot be written"),
        ({"schema": "id INT, took INTERVAL DAY TO SECOND"}, "E1022", "column 'took' has type 'INTERVAL DAY TO SECOND'"),
        ({"schema": "id GEOMETRY(4326)"}, "E1022", "cannot be understood"),
        ({"schema": "id INT, ID INT"}, "E1022", "named twice"),
        ({"schema": "`a b` INT"}, "E1022", "not a name of a column"),
        ({"key_column": "id"}, "E1022", "named twice"),
        ({"key_column": ""}, "E1022", "senders.s.key_column"),
        ({"extra_fields": "drop"}, "E1022", "refuse, ignore"),
        ({"missing_up_to": -1}, "E1022", "senders.s.missing_up_to"),
        ({"shema": "id INT"}, "E1020", "Did you mean 'schema'?"),
    ],
)
def test_options_of_senders(tmp_path: Path, options: dict[str, object], code: str, text: str) -> None:
    given = {name: value for name, value in {"schema": "id BIGINT", **options}.items() if value is not None}
    settings = SenderSettings(id="s", connection="lake", destination="queue:t", options=given)
    with pytest.raises(ConfigError, match=code) as raised:
        connection(tmp_path, "delta").sink(settings)
    assert text in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("destination", "code"),
    [
        ("t", "E1215"),
        ("table:t", "E1215"),
        ("topic:t", "E1216"),
        ("queue:../t", "E1216"),
        ("queue:a/b", "E1216"),
        ("queue:.t", "E1216"),
        ("queue:_t", "E1216"),
        (None, "E1216"),
    ],
)
def test_destinations(tmp_path: Path, destination: str | None, code: str) -> None:
    settings = SenderSettings(id="s", connection="c", destination=destination, options={"schema": "id INT"})
    with pytest.raises(ConfigError, match=rf"{code} senders\.s\.destination"):
        connection(tmp_path, "delta").sink(settings)


def test_a_lake_has_no_receivers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"E1216 receivers\.r\.destination: a lake has no receivers"):
        connection(tmp_path, "delta").source(ReceiverSettings(id="r", connection="c", destination="queue:t"))


def test_small_batches_are_warned_of() -> None:
    (advice,) = LakeConnection.advice(sender())
    assert (advice.code, advice.option) == ("W1412", "")
    patient = SenderSettings(id="s", connection="c", destination="queue:t", max_batch_interval_ms=5000)
    assert not list(LakeConnection.advice(patient))
    assert not list(LakeConnection.advice(ReceiverSettings(id="r", connection="c", destination="queue:t")))


# --- rows ---

SCHEMA = (
    "o BOOLEAN, t TINYINT, s SMALLINT, i INT, b BIGINT, f FLOAT, d DOUBLE, day DATE, at TIMESTAMP, "
    "local TIMESTAMP_NTZ, name STRING, raw BINARY, amount DECIMAL(9,2)"
)
VALUES = {
    "o": (True, True),
    "t": (-128, -128),
    "s": (32767, 32767),
    "i": (-(2**31), -(2**31)),
    "b": (2**63 - 1, 2**63 - 1),
    "f": (0.5, 0.5),
    "d": (1, 1.0),
    "day": ("2013-01-31", date(2013, 1, 31)),
    "at": ("2013-01-31T05:00:00.123456+02:00", datetime(2013, 1, 31, 3, 0, 0, 123456, tzinfo=UTC)),
    "local": ("2013-01-31T05:00:00", datetime(2013, 1, 31, 5)),  # noqa: DTZ001
    "name": ("Ünï🚚", "Ünï🚚"),
    "raw": ("AP8=", b"\x00\xff"),
    "amount": (1234567.80, Decimal("1234567.80")),
}


@each_format
def test_every_type(tmp_path: Path, form: str) -> None:
    body = json.dumps({name: value for name, (value, _) in VALUES.items()}).encode()
    with_nulls = json.dumps(dict.fromkeys(VALUES)).encode()
    sink = opened(tmp_path, form, schema=SCHEMA)
    assert codes(sink.send(batch([1, 2, 3], bodies={1: body, 2: with_nulls, 3: b"{}"}))) == [None] * 3
    nothing = dict.fromkeys(VALUES)
    assert rows(tmp_path, form) == [{name: value for name, (_, value) in VALUES.items()}, nothing, nothing]


def test_a_table_of_parquet_has_times_of_a_day(tmp_path: Path) -> None:
    bodies = {1: b'{"at": "23:59:59.123456"}', 2: b'{"at": "10:11:12"}', 3: b'{"at": "10:11:12Z"}', 4: b"{}"}
    sink = opened(tmp_path, "parquet", schema="at TIME")
    assert codes(sink.send(batch([1, 2, 3, 4], bodies=bodies))) == [None, None, "E8110", None]
    assert rows(tmp_path, "parquet") == [
        {"at": time_of_day(23, 59, 59, 123456)},
        {"at": time_of_day(10, 11, 12)},
        {"at": None},
    ]
    sink.close()
    assert codes(opened(tmp_path, "parquet", schema="at TIME(6)").send(batch([5], bodies={5: b"{}"}))) == [None]
    with pytest.raises(ConfigError, match=r"E1022.*'TIME\(0\)', which cannot be written.* TIME,"):
        opened(tmp_path, "parquet", schema="at TIME(0)")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Input data was truncated"),
        (b"[]", "Expected `object`"),
        (b"\xff", "malformed"),
        (b"[" * 10_000, ""),
        (b'{"o": 1}', "$.o"),
        (b'{"t": 128}', "$.t"),
        (b'{"i": 1.5}', "$.i"),
        (b'{"b": 9223372036854775808}', "$.b"),
        (b'{"f": 1e39}', "$.f"),
        (b'{"d": "NaN"}', "$.d"),
        (b'{"day": "2013-02-30"}', "$.day"),
        (b'{"at": "2013-01-31T05:00:00"}', "$.at"),
        (b'{"local": "2013-01-31T05:00:00Z"}', "$.local"),
        (b'{"name": 1}', "$.name"),
        (b'{"raw": "%"}', "$.raw"),
        (b'{"amount": 12345678}', "$.amount"),
        (b'{"amount": 1.234}', "$.amount"),
        (b'{"amount": "NaN"}', "$.amount"),
        (b'{"amount": "1e999999"}', "$.amount"),
        (b'{"amount": "1e-999999"}', "$.amount"),
        (b'{"other": 1}', "unknown field `other`"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_alone(tmp_path: Path, body: bytes, text: str) -> None:
    sink = opened(tmp_path, "parquet", schema=f"id BIGINT, {SCHEMA}")
    results = sink.send(batch([1, 2, 3], bodies={2: body}))
    assert codes(results) == [None, "E8110", None]
    assert str(results[1]).startswith("E8110 senders.s message 2: the body does not fit the schema: ")
    assert text in str(results[1])
    assert ids(tmp_path, "parquet") == [1, 3]


@pytest.mark.parametrize("amount", ["1.10", "1.1000", "-9999999.99", "0e-30", "1e3", "0", "12E5"])
def test_decimals_that_fit(tmp_path: Path, amount: str) -> None:
    sink = opened(tmp_path, "parquet", schema="amount DECIMAL(9,2)")
    assert codes(sink.send(batch([1], bodies={1: b'{"amount": "%s"}' % amount.encode()}))) == [None]
    assert rows(tmp_path, "parquet") == [{"amount": Decimal(amount)}]


def test_extra_fields_can_be_ignored(tmp_path: Path) -> None:
    sink = opened(tmp_path, "parquet", extra_fields="ignore")
    assert codes(sink.send(batch([1], bodies={1: b'{"id": 1, "more": [2]}'}))) == [None]
    assert rows(tmp_path, "parquet") == [{"id": 1}]


@each_format
def test_columns_of_the_message(tmp_path: Path, form: str) -> None:
    options = {"key_column": "k", "unique_id_column": "u", "properties_column": "p"}
    sink = opened(tmp_path, form, **options)
    messages = [
        Message(b'{"id": 1}', {"a": 1, "b": b"x"}, "key"),
        Message(b'{"id": 2}'),
        Message(b'{"id": 3}', {"a": object()}),  # type: ignore[dict-item]
        Message(b'{"id": 4}', {}, "\ud800"),
        Message(b'{"id": 5}', {}, 5),  # type: ignore[arg-type]
        Message("text"),  # type: ignore[arg-type]
        Message(b'{"id": 7}', headers=Headers(delivery_delay_ms=5)),
    ]
    sends = [Outgoing(n, SOURCE, "queue:t", message) for n, message in enumerate(messages, 1)]
    assert codes(sink.send(sends)) == [None, None, *["E8110"] * 5]
    assert rows(tmp_path, form) == [
        {"id": 1, "k": "key", "u": f"1:{SOURCE}", "p": '{"a":1,"b":"eA=="}'},
        {"id": 2, "k": None, "u": f"2:{SOURCE}", "p": "{}"},
    ]


# --- repeats ---


@each_format
def test_what_a_batch_has_in_common_with_earlier_ones_is_stored_once(tmp_path: Path, form: str) -> None:
    for numbers in ([1, 2, 3], [1, 2, 3], [2, 3, 4, 5], [5, 6], [6]):
        sink = opened(tmp_path, form)
        for _ in range(2):
            assert codes(sink.send(batch(numbers))) == [None] * len(numbers)
        sink.close()
    assert ids(tmp_path, form) == [1, 2, 3, 4, 5, 6]


@each_format
@settings(max_examples=15)
@given(data=st.data())
def test_lives_with_overlapping_batches_and_deaths(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    """A model of the engine: each life begins at a number that is not confirmed, with batches of any size.

    A death falls before the data file, before the commit or behind it. Each message is stored once or refused always.
    """
    path = tmp_path_factory.mktemp("lake")
    last = 25
    misfits = data.draw(st.sets(st.integers(1, last)))
    bodies = dict.fromkeys(misfits, b'{"id": "none"}')
    settled = 0
    while settled < last:
        sink = opened(path, form)
        number, dies = settled + 1, data.draw(st.booleans())
        while number <= last:
            size = data.draw(st.integers(1, 8))
            sends = batch(range(number, min(number + size, last + 1)), bodies=bodies)
            place = data.draw(st.sampled_from(["write", "commit", "behind", ""])) if dies else ""
            if place:
                _die(sink, sends, place)
                break
            results = sink.send(sends)
            assert [out.sequence for out, result in zip(sends, results, strict=True) if result] == [
                out.sequence for out in sends if out.sequence in misfits
            ]
            number += size
            if data.draw(st.booleans()):
                settled = min(number - 1, last)
        else:
            settled = last
        sink.close()
    assert ids(path, form) == [n for n in range(1, last + 1) if n not in misfits]


class _Death(BaseException):
    pass


def _die(sink: LakeSink, sends: Sequence[Outgoing], place: str) -> None:
    def die(*_: object) -> None:
        raise _Death

    with pytest.MonkeyPatch.context() as patched:
        if place == "write":
            patched.setattr(sink._place, "write", die)
        elif place == "commit":
            patched.setattr(sink._log, "commit", die)
        else:
            commit = sink._log.commit
            patched.setattr(sink._log, "commit", lambda one: (commit(one), die()))
        with pytest.raises(_Death) if not _is_known(sink, sends) else contextlib.nullcontext():
            sink.send(sends)


def _is_known(sink: LakeSink, sends: Sequence[Outgoing]) -> bool:
    return sink._log.last(SOURCE) >= sends[-1].sequence or _writes_nothing(sink, sends)


def _writes_nothing(sink: LakeSink, sends: Sequence[Outgoing]) -> bool:
    """Whether no row is written, since all new messages are refused."""
    new = [out for out in sends if out.sequence > sink._log.last(SOURCE)]
    return all(b"none" in out.message.body for out in new) and "write" in vars(sink._place)


@each_format
def test_a_message_that_was_refused_stays_refused_whatever_the_schema_is(tmp_path: Path, form: str) -> None:
    sink = opened(tmp_path, form, extra_fields="refuse")
    extra = {2: b'{"id": 2, "x": 1}', 5: b'{"id": 5, "x": 1}'}
    assert codes(sink.send(batch([1, 2, 3], bodies=extra))) == [None, "E8110", None]
    sink.close()
    sink = opened(tmp_path, form, extra_fields="ignore")
    results = sink.send(batch([1, 2, 3, 4, 5], bodies=extra))
    assert codes(results) == [None, "E8110", None, None, None]
    assert "did not fit the schema when it was first sent" in str(results[1])
    assert ids(tmp_path, form) == [1, 3, 4, 5]


@each_format
def test_refused_messages_of_far_commits_are_found(tmp_path: Path, form: str) -> None:
    sink = opened(tmp_path, form)
    assert codes(sink.send(batch([1], bodies={1: b"{"}))) == ["E8110"]
    other = opened(tmp_path, form)
    for n in range(2, 72):
        sink.send(batch([n]))
        other.send(batch([n - 1], source="other"))
    sink.close()
    sink = opened(tmp_path, form)
    assert codes(sink.send(batch([1, 2, 3], bodies={1: b'{"id": 1}'}))) == ["E8110", None, None]


@each_format
def test_a_batch_of_refused_messages_has_no_rows(tmp_path: Path, form: str) -> None:
    sink = opened(tmp_path, form)
    assert codes(sink.send(batch([1, 2], bodies={1: b"1", 2: b"2"}))) == ["E8110"] * 2
    assert rows(tmp_path, form) == []
    assert codes(sink.send(batch([3]))) == [None]
    assert ids(tmp_path, form) == [3]


@each_format
def test_a_best_effort_sender_has_a_source_in_each_life(tmp_path: Path, form: str) -> None:
    for life in ("a", "b"):
        sink = opened(tmp_path, form, Reliability.BEST_EFFORT)
        assert codes(sink.send(batch([1, 2], life))) == [None] * 2
        assert codes(sink.send(batch([2, 3], life))) == [None] * 2
        assert codes(sink.send(batch([9], life))) == [None]  # what it gave up is lost
        sink.close()
    assert ids(tmp_path, form) == [1, 1, 2, 2, 3, 3, 9, 9]


# --- what happens to tables between two lives ---


@each_format
def test_a_removed_table_is_told(tmp_path: Path, form: str) -> None:
    sink = opened(tmp_path, form)
    sink.send(batch([1, 2, 3]))
    sink.close()
    shutil.rmtree(tmp_path / "t")
    sink = opened(tmp_path, form)
    with pytest.raises(ConnectionLost, match=r"E7043 senders\.s: .* lacks messages 1 to 3 .* set missing_up_to: 3"):
        sink.send(batch([4]))
    assert rows(tmp_path, form) == []
    sink = opened(tmp_path, form, missing_up_to=3)
    assert codes(sink.send(batch([4]))) == [None]
    assert ids(tmp_path, form) == [4]


@each_format
def test_a_restored_table_is_told(tmp_path: Path, form: str) -> None:
    sink = opened(tmp_path, form)
    sink.send(batch([1, 2]))
    shutil.copytree(tmp_path / "t", tmp_path / "backup")
    sink.send(batch([3, 4]))
    sink.close()
    shutil.rmtree(tmp_path / "t")
    (tmp_path / "backup").rename(tmp_path / "t")
    sink = opened(tmp_path, form)
    with pytest.raises(ConnectionLost, match=r"E7043 .* lacks messages 3 to 4"):
        sink.send(batch([5]))
    sink.connect()
    assert codes(sink.send(batch([3, 4, 5]))) == [None] * 3  # the engine has not noted their confirm
    assert ids(tmp_path, form) == [1, 2, 3, 4, 5]


@each_format
@pytest.mark.parametrize("bodies", [{}, {2: b"{"}])
def test_a_table_that_is_replaced_while_it_is_in_use_is_told(
    tmp_path: Path, form: str, bodies: dict[int, bytes]
) -> None:
    sink = opened(tmp_path, form)
    sink.send(batch([1]))
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    shutil.rmtree(tmp_path / "t")
    (tmp_path / "copy").rename(tmp_path / "t")
    with pytest.raises(ConnectionLost, match=r"E7043 .* was removed or replaced while it was in use"):
        sink.send(batch([2], bodies=bodies))
    sink.connect()
    sink.send(batch([2]))
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(ConnectionLost, match=r"E7043 .* was removed or replaced"):
        sink.send(batch([3], bodies=bodies))
    assert not (tmp_path / "t").exists()


@each_format
def test_two_engines_with_one_source_exclude_each_other(tmp_path: Path, form: str) -> None:
    first, second = opened(tmp_path, form), opened(tmp_path, form)
    first.send(batch([1]))
    with pytest.raises(ConnectionLost, match=r"E7012 .* is in use by another sender"):
        second.send(batch([1]))
    assert codes(opened(tmp_path, form).send(batch([1], source="other"))) == [None]
    first.close()
    second.connect()
    assert codes(second.send(batch([1, 2]))) == [None] * 2
    assert ids(tmp_path, form) == [1, 1, 2]


def test_another_writer_of_the_same_batch_is_told(tmp_path: Path) -> None:
    """Such a writer does not keep to the lock."""
    sink = opened(tmp_path, "parquet")
    sink.send(batch([1]))
    entry = next((tmp_path / "t" / "_log").glob("*/*.json"))
    foreign = json.loads(entry.read_bytes()) | {"first": 2, "last": 2, "digest": "other"}
    entry.with_name(f"{2:020}.json").write_text(json.dumps(foreign))
    with pytest.raises(ConnectionLost, match=r"E7044 .*0002.json was written by another engine"):
        sink.send(batch([2]))


def test_a_commit_of_another_writer_with_the_same_source_is_told(tmp_path: Path) -> None:
    sink = opened(tmp_path, "delta")
    sink.send(batch([1]))
    properties = CommitProperties(app_transactions=[Transaction(SOURCE, 2)])
    write_deltalake(tmp_path / "t", pa.table({"id": [2]}), mode="append", commit_properties=properties)
    with pytest.raises(ConnectionLost, match=r"E7045 .* Concurrent transaction failed"):
        sink.send(batch([2, 3]))
    sink.connect()
    assert codes(sink.send(batch([2, 3]))) == [None] * 2
    assert ids(tmp_path, "delta") == [1, 2, 3]


def test_rows_of_other_programs_stay(tmp_path: Path) -> None:
    sink = opened(tmp_path, "delta")
    sink.send(batch([1]))
    write_deltalake(tmp_path / "t", pa.table({"id": [100]}), mode="append")
    sink.send(batch([2]))
    DeltaTable(tmp_path / "t").optimize.compact()
    sink.send(batch([3]))
    sink.close()
    DeltaTable(tmp_path / "t").vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    sink = opened(tmp_path, "delta")
    sink.send(batch([3, 4]))
    assert ids(tmp_path, "delta") == [1, 2, 3, 4, 100]


def test_the_source_outlasts_checkpoints_of_the_log(tmp_path: Path) -> None:
    sink = opened(tmp_path, "delta")
    sink.send(batch([1, 2]))
    other = opened(tmp_path, "delta")
    for n in range(1, 120):
        other.send(batch([n], source="other"))
    sink.close()
    table = DeltaTable(tmp_path / "t")
    table.create_checkpoint()
    for old in range(100):
        (tmp_path / "t" / "_delta_log" / f"{old:020}.json").unlink()
    sink = opened(tmp_path, "delta")
    assert codes(sink.send(batch([1, 2, 3]))) == [None] * 3
    assert ids(tmp_path, "delta") == sorted([1, 2, 3, *range(1, 120)])


def test_an_empty_file_of_the_log_after_a_power_cut(tmp_path: Path) -> None:
    sink = opened(tmp_path, "delta")
    sink.send(batch([1]))
    sink.send(batch([2]))
    sink.close()
    (tmp_path / "t" / "_delta_log" / f"{2:020}.json").write_bytes(b"")
    sink = opened(tmp_path, "delta")
    assert codes(sink.send(batch([2, 3]))) == [None] * 2
    assert ids(tmp_path, "delta") == [1, 2, 3]


# --- tables that a sender refuses ---


@each_format
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("id INT", "column 'id' is BIGINT in the table and INT here"),
        ("id BIGINT, more INT", "the table has no column 'more'"),
        ("other BIGINT", "the table has no column 'other'"),
        ("b DECIMAL(9,2)", "the table has no column 'b'"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, form: str, schema: str, text: str) -> None:
    opened(tmp_path, form).close()
    sink = connection(tmp_path, form).sink(sender(schema=schema))
    with pytest.raises(ConnectionLost, match=r"E7041 senders\.s: ") as refused:
        sink.connect()
    assert text in str(refused.value)
    (found,) = connection(tmp_path, form).examine([], [sender(schema=schema)])
    assert str(found) == str(refused.value)


@each_format
def test_a_column_too_many_and_another_order_are_refused(tmp_path: Path, form: str) -> None:
    opened(tmp_path, form, schema="a INT, b DECIMAL(9,2)").close()
    for schema, text in (("a INT", "also has column 'b'"), ("b DECIMAL(9,2), a INT", "in the order a, b")):
        with pytest.raises(ConnectionLost, match=rf"E7041 .*{text}"):
            opened(tmp_path, form, schema=schema)


@each_format
def test_a_table_of_the_other_format_is_refused(tmp_path: Path, form: str) -> None:
    opened(tmp_path, form).close()
    other = FORMATS[1 - FORMATS.index(form)]
    with pytest.raises(ConnectionLost, match=rf"E7042 .* is a table of format {form}"):
        opened(tmp_path, other)


@pytest.mark.parametrize(
    ("configuration", "partition_by", "text"),
    [
        ({RETENTION: "interval 7 days"}, None, "does not remember its messages"),
        ({"delta.enableChangeDataFeed": "true"}, None, "needs writers of version|has the features"),
        ({}, ["id"], "is partitioned by id"),
    ],
)
def test_delta_tables_that_are_refused(
    tmp_path: Path, configuration: dict[str, str | None], partition_by: list[str] | None, text: str
) -> None:
    columns = Schema([Field("id", "long")]) if not partition_by else Schema([Field("id", "long"), Field("x", "long")])
    DeltaTable.create(tmp_path / "t", columns, configuration=configuration, partition_by=partition_by)
    schema = "id BIGINT, x BIGINT" if partition_by else "id BIGINT"
    with pytest.raises(ConnectionLost, match=rf"E7042 .*({text})"):
        opened(tmp_path, "delta", schema=schema)


def test_a_best_effort_sender_may_write_to_a_table_that_forgets(tmp_path: Path) -> None:
    columns = Schema([Field("id", "long")])
    DeltaTable.create(tmp_path / "t", columns, configuration={RETENTION: "interval 7 days"})
    assert codes(opened(tmp_path, "delta", Reliability.BEST_EFFORT).send(batch([1]))) == [None]


def test_columns_that_hold_no_nulls_are_refused(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "t", Schema([Field("id", "long", nullable=False)]))
    with pytest.raises(ConnectionLost, match=r"E7041 .* 'id' is NOT NULL in the table"):
        opened(tmp_path, "delta")


@each_format
def test_links_and_files_are_refused(tmp_path: Path, form: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("lake", "lake/t", "lake/t/data", "lake/t/_locks"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(elsewhere)
        with pytest.raises(ConnectionLost, match=rf"E7013 .*{name} is a symbolic link"):
            opened(tmp_path / "lake", form)
        path.unlink()
        path.write_bytes(b"")
        with pytest.raises(ConnectionLost, match=rf"E7042 .*{name} is not a directory"):
            opened(tmp_path / "lake", form)
        path.unlink()
    assert not list(elsewhere.iterdir())


def test_the_directory_of_a_source_may_be_no_link(tmp_path: Path) -> None:
    sink = opened(tmp_path / "lake", "parquet")
    (tmp_path / "lake" / "t" / "data" / name_of_source(SOURCE)).symlink_to(tmp_path)
    with pytest.raises(ConnectionLost, match=r"E7013 .* is a symbolic link"):
        sink.send(batch([1]))


def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr("correlator.storage.files._MOUNTS", mounts)
    with pytest.raises(ConnectionLost, match=r"E7042 .*lies on a network file system \(nfs4\)"):
        opened(tmp_path / "lake", "delta")
    assert not (tmp_path / "lake").exists()


# --- files ---


@each_format
def test_a_full_disk_loses_nothing(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path, form)
    sink.send(batch([1]))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("fsync", "link"):
        with monkeypatch.context() as patched, pytest.raises(ConnectionLost, match=r"E7003 .*No space left"):
            patched.setattr(os, name, full)
            sink.send(batch([2, 3]))
        sink.connect()
    assert codes(sink.send(batch([2, 3]))) == [None] * 2
    assert ids(tmp_path, form) == [1, 2, 3]
    assert not list(tmp_path.rglob("*.part"))


@each_format
def test_files_belong_to_their_owner_alone(tmp_path: Path, form: str) -> None:
    before = os.umask(0)
    try:
        opened(tmp_path / "lake", form).send(batch([1]))
    finally:
        os.umask(before)
    ours = [path for path in (tmp_path / "lake").rglob("*") if "_delta_log" not in path.parts]
    assert {path.stat().st_mode & 0o777 for path in ours if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in ours if path.is_dir()} == {0o700}
    assert (tmp_path / "lake").stat().st_mode & 0o777 == 0o700


def test_a_file_that_another_sender_names_while_a_sender_looks_for_old_files_is_none(tmp_path: Path) -> None:
    partial = tmp_path / "1-10-a.parquet.b.part"
    partial.touch()
    with os.scandir(tmp_path) as entries:
        [entry] = entries
    assert places._before(entry, float("inf"))
    with os.scandir(tmp_path) as entries:
        [entry] = entries
    partial.unlink()
    assert not places._before(entry, float("inf"))


def test_old_files_without_an_entry_are_removed(tmp_path: Path) -> None:
    """Young ones stay, and those of a source that is in use; nothing that the log names is removed."""
    sink = opened(tmp_path, "parquet")
    sink.send(batch([1, 2]))
    sink.close()
    directory = next((tmp_path / "t" / "data").iterdir())
    named = next(directory.iterdir())
    lefts = [directory / name for name in ("3-4-aa.parquet", "2-2-bb.parquet", "3-4-aa.parquet.0f.part")]
    foreign = directory / "notes.parquet"
    for path in (*lefts, foreign, named):
        path.write_bytes(named.read_bytes())
    opened(tmp_path, "parquet").close()
    assert all(path.exists() for path in lefts)
    old = time.time() - OLD_S - 1
    for path in (*lefts, foreign, named):
        os.utime(path, (old, old))
    with TablePlace("x", tmp_path, "t").unused(directory.name) as is_unused:
        assert is_unused
        opened(tmp_path, "parquet").close()
    assert all(path.exists() for path in lefts)
    opened(tmp_path, "parquet").close()
    assert {*directory.iterdir()} == {named, foreign}
    assert ids(tmp_path, "parquet") == [1, 2]


def test_a_data_file_of_a_killed_process_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path, "parquet")
    with monkeypatch.context() as patched, pytest.raises(_Death):
        patched.setattr(sink._log, "commit", lambda _: (_ for _ in ()).throw(_Death()))
        sink.send(batch([1, 2]))
    (left,) = (tmp_path / "t" / "data").glob("*/*.parquet")
    inode = left.stat().st_ino
    assert rows(tmp_path, "parquet") == []
    opened(tmp_path, "parquet").send(batch([1, 2]))
    assert [path.stat().st_ino for path in (tmp_path / "t" / "data").glob("*/*.parquet")] == [inode]
    assert ids(tmp_path, "parquet") == [1, 2]


def test_damaged_tables_are_told(tmp_path: Path) -> None:
    sink = opened(tmp_path, "parquet")
    sink.send(batch([1]))
    sink.close()
    table = tmp_path / "t"
    (data,) = (table / "data").glob("*/*.parquet")
    (entry,) = (table / "_log").glob("*/*.json")
    content = data.read_bytes()
    data.write_bytes(content + b"x")
    with pytest.raises(ConnectionLost, match=r"E7044 .* bytes, and the log says"):
        read(table)
    data.unlink()
    with pytest.raises(ConnectionLost, match=r"E7044 .* which is missing"):
        read(table)
    entry.write_bytes(b"{")
    with pytest.raises(ConnectionLost, match=r"E7044 .* is damaged"):
        read(table)
    (table / "_columns.json").write_bytes(b'{"version":1,"columns":[["id","STRANGE"]]}')
    with pytest.raises(ConnectionLost, match=r"E7044 .*_columns.json is damaged"):
        opened(tmp_path, "parquet")
    (table / "_columns.json").unlink()
    with pytest.raises(ConnectionLost, match=r"E7044 .*_columns.json is missing, and the table has rows"):
        opened(tmp_path, "parquet")
    with pytest.raises(ConnectionLost, match="E7010"):
        read(tmp_path / "none")


@each_format
def test_doctor_changes_nothing(tmp_path: Path, form: str) -> None:
    assert list(connection(tmp_path / "lake", form).examine([], [sender()])) == []
    assert not (tmp_path / "lake").exists()
    opened(tmp_path / "lake", form).close()
    assert list(connection(tmp_path / "lake", form).examine([], [sender()])) == []


def test_a_damaged_delta_log_is_told(tmp_path: Path) -> None:
    opened(tmp_path, "delta").close()
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_bytes(b"{")
    with pytest.raises(ConnectionLost, match=r"E7003 senders\.s: table .* cannot be used"):
        opened(tmp_path, "delta")
    assert [one.code for one in connection(tmp_path, "delta").examine([], [sender()])] == ["E7003"]


def _use_in_child(sink: LakeSink, told: "multiprocessing.SimpleQueue[str]") -> None:
    sink.close()
    try:
        sink.send(batch([2]))
    except UsageError as error:
        told.put(error.code)


def test_a_forked_child_cannot_use_the_sink(tmp_path: Path) -> None:
    sink = opened(tmp_path, "parquet")
    sink.send(batch([1]))
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    child = context.Process(target=_use_in_child, args=(sink, told))
    child.start()
    assert told.get() == "E2050"
    child.join()
    assert codes(sink.send(batch([2]))) == [None]


def test_making_a_table_waits_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path, "delta").close()
    monkeypatch.setattr(places, "_MAKING_S", 0.01)
    taken = LockFile(tmp_path / "t" / "_locks" / "table.lock")
    assert taken.try_lock()
    with pytest.raises(ConnectionLost, match=r"E7012 .* has been making"):
        opened(tmp_path, "delta")
    taken.close()


def test_a_log_that_is_not_open_says_so(tmp_path: Path) -> None:
    log = DeltaLog(TablePlace("senders.s", tmp_path, "t"), pa.schema([]), sends_again=True)
    with pytest.raises(ConnectionLost, match="E7003"):
        log.last(SOURCE)
