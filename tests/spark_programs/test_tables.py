"""`spark.read.format("correlator")`: each table as the store's own inspection shows it, and what is refused."""

import itertools
import sqlite3

import msgspec
import pytest
from sqlalchemy import URL

from correlator.errors import ConfigError, RecoveryRefused, StoreError, UsageError
from correlator.pipeline.headers import property_text
from correlator.storage import inspect, loading, scanning, tables
from correlator.storage.database import parse, reading
from correlator.storage.states import shown_state
from pyspark_correlator import options, rows
from pyspark_correlator.options import TABLES
from pyspark_correlator.reader import FilteringReader, TableReader
from pyspark_correlator.source import CorrelatorSource
from tests.spark_programs.queries import finish
from tests.storage import values

SECRET = "hunter2"


def load(spark, url, table, **more):
    reader = spark.read.format("correlator").option("table", table)
    for name, value in {**address(url), **more}.items():
        reader = reader.option(name, value)
    return reader.load()


def address(url):
    """The options that name a database."""
    parsed = parse(url)
    if parsed.password is None:
        return {"store": url}
    bare = URL.create(parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database, parsed.query)
    return {"store": bare.render_as_string(), "password": parsed.password}


def message_row(message):
    texts = {name: None if value is None else property_text(value) for name, value in message.properties.items()}
    headers = None if message.headers is None else msgspec.structs.asdict(message.headers)
    return message.body, message.key, message.destination, texts, headers


def expected(url, table):
    """The rows of a table, by the readers with which a start and the commands read a store."""
    if table == "state":
        shown = shown_state(inspect.state(url))
        return [(*one[:3], None if one[4] else msgspec.json.encode(one[3]).decode(), one[4] or None) for one in shown]
    if table == "dead_letters":
        return [
            (
                one.number,
                one.letter.kind,
                one.letter.origin,
                one.letter.reason,
                one.letter.unique_id,
                one.letter.time,
                one.letter.receiver or None,
                one.letter.number or None,
                *message_row(one.letter.message),
            )
            for one in inspect.dead_letters(url)
        ]
    source, read = {
        "receive_log": (tables.receive_log, loading.received_of),
        "outbox": (tables.outbox, loading.outbound_of),
    }[table]
    with reading(url) as connection:
        segments = [read(row) for row in connection.execute(source.select().order_by(*source.primary_key))]
    return [
        (segment.receiver if table == "receive_log" else segment.sender, number, *message_row(message))
        for segment in segments
        for number, message in enumerate(segment.messages, segment.first)
    ]


def by_owner(found):
    return sorted(found, key=lambda row: row[:2])


def plain(row):
    return tuple(value.asDict() if hasattr(value, "asDict") else value for value in row)


def reader_of(url, table, kind=TableReader, **more):
    return kind(options.batch({**address(url), "table": table, **{name: str(one) for name, one in more.items()}}))


def read(reader):
    return [row for part in reader.partitions() for row in reader.read(part)]


def as_dictionaries(found):
    """The rows of a reader, whose headers are tuples for Spark."""
    names = [one.name for one in msgspec.structs.fields(values.message("x").headers)]
    return [
        tuple(dict(zip(names, one, strict=True)) if isinstance(one, tuple) else one for one in row) for row in found
    ]


@pytest.mark.parametrize("table", TABLES)
def test_spark_reads_what_the_inspection_shows_while_an_engine_runs(table, spark, store):
    wanted = expected(store.url, table)
    assert wanted
    for partitions in (1, 3):
        found = load(spark, store.url, table, partitions=partitions).collect()
        assert by_owner(map(plain, found)) == by_owner(wanted)
    store.stop()
    assert list(map(plain, load(spark, store.url, table).collect())) == wanted


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("partitions", [1, 2, 7, 200])
def test_each_row_is_in_one_part(table, partitions, store):
    reader = reader_of(store.url, table, partitions=partitions)
    assert len(reader.partitions()) <= partitions
    found = as_dictionaries(read(reader))
    by_key = by_owner if table == "state" else list
    assert by_key(found) == by_key(expected(store.url, table))


def test_more_segments_than_a_page(sqlite_store):
    with reading(sqlite_store.url) as connection:
        segments = connection.execute(tables.receive_log.select()).all()
        parts = scanning.divide(connection, tables.receive_log, 3)
    assert len(segments) > 2 * scanning.PAGE
    assert len(parts) == 3
    assert all(left.stop == right.start for left, right in itertools.pairwise(parts))


def test_a_store_without_rows(spark, tmp_path, opened):
    url = f"sqlite:///{tmp_path}/empty.db"
    from correlator.storage import migrate  # noqa: PLC0415

    migrate.upgrade(url)
    for table in TABLES:
        assert load(spark, url, table, partitions=4).count() == 0


# --- one moment ---


def test_parts_do_not_fit_together_after_a_commit(sqlite_store):
    reader = reader_of(sqlite_store.url, "receive_log", partitions=2)
    first, second = reader.partitions()
    assert list(reader.read(first))
    sqlite_store.commit(values.received(91, 10))
    with pytest.raises(StoreError, match=r"^E2205 .*partitions=1.*db backup"):
        list(reader.read(second))


def test_one_part_sees_one_moment_although_the_engine_commits(sqlite_store):
    (part,) = (reader := reader_of(sqlite_store.url, "receive_log")).partitions()
    found = reader.read(part)
    begin = next(found)
    sqlite_store.commit(values.checkpoint(2, consumed={"orders": 90, "others": 3}))
    assert as_dictionaries([begin, *found]) != []
    assert len(read(reader)) == 0


def test_a_copy_of_the_moment_is_the_whole_of_it(sqlite_store):
    wanted = expected(sqlite_store.url, "receive_log")
    (part,) = (reader := reader_of(sqlite_store.url, "receive_log")).partitions()
    found = reader.read(part)
    begin = next(found)
    sqlite_store.commit(values.checkpoint(2, consumed={"orders": 90, "others": 3}))
    assert as_dictionaries([begin, *found]) == wanted


# --- filters ---


def test_filters_reach_the_store(spark, sqlite_store):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, sqlite_store.url, "receive_log", push_filters="true", partitions=2)
        wanted = frame.where("receiver = 'orders' AND number > 40 AND number <= 52 AND key LIKE 'k%'")
        assert sorted(row.number for row in wanted.collect()) == list(range(41, 53))
        assert load(spark, sqlite_store.url, "state", push_filters="true").where("owner = 'x'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_which_filters_the_store_takes(sqlite_store):
    from pyspark.sql.datasource import (  # noqa: PLC0415
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )

    reader = reader_of(sqlite_store.url, "receive_log", FilteringReader)
    left = [
        IsNotNull(("number",)),
        EqualTo(("key",), "k"),
        EqualTo(("headers", "type"), "x"),
        EqualTo(("receiver",), "b"),
    ]
    taken = [
        EqualTo(("receiver",), "orders"),
        GreaterThan(("number",), 3),
        GreaterThanOrEqual(("number",), 5),
        LessThan(("number",), 9),
        LessThanOrEqual(("number",), 10),
    ]
    assert list(reader.pushFilters([*taken, *left])) == left
    assert [row[1] for row in read(reader)] == [5, 6, 7, 8]
    reader = reader_of(sqlite_store.url, "dead_letters", FilteringReader)
    assert list(reader.pushFilters([EqualTo(("number",), 3), EqualTo(("origin",), "orders")])) == []
    assert [row[0] for row in read(reader)] == [3]
    reader = reader_of(sqlite_store.url, "state", FilteringReader)
    assert list(reader.pushFilters([EqualTo(("owner",), "table:T#0.x"), EqualTo(("number",), 3)])) == [
        EqualTo(("number",), 3)
    ]
    assert len(read(reader)) == 38


# --- refusals ---


def source(**given):
    return CorrelatorSource(given)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"table": "state"}, "E1021 correlator: 'store' is missing"),
        ({"store": "sqlite:///x.db"}, "E1022 correlator.table: 'None' is not allowed. state, receive_log"),
        ({"store": "sqlite:///x.db", "table": "registry"}, "E1022 correlator.table: 'registry' is not allowed"),
        ({"store": f"postgresql://u:{SECRET}@h/d", "table": "state"}, "E2201 correlator.store: .*option 'password'"),
        ({"store": f"postgresql://h/d?password={SECRET}", "table": "state"}, "E2201 correlator.store"),
        ({"store": "sqlite:///x.db", "password": SECRET, "table": "state"}, "E2201 correlator.password"),
        ({"store": f"mysql://u:{SECRET}@h/d", "table": "state"}, "E1301 store: 'mysql:…' is not the address"),
        ({"store": "sqlite:///x.db", "table": "state", "partitions": "0"}, "E1022 correlator.partitions: '0'"),
        ({"store": "sqlite:///x.db", "table": "state", "tabel": "x"}, "E1020 correlator.tabel: unknown key"),
        ({"store": "sqlite:///nowhere/x.db", "table": "state"}, "E3010 .*x.db: there is no store yet"),
    ],
)
def test_wrong_options(given, code):
    with pytest.raises((ConfigError, StoreError, UsageError), match=f"^{code}") as caught:
        source(**given).schema()
    assert SECRET not in str(caught.value)


def test_an_option_of_streams_is_none_of_a_batch(sqlite_store):
    with pytest.raises(ConfigError, match=r"^E1020 correlator.missing_up_to"):
        options.batch({"store": sqlite_store.url, "table": "dead_letters", "missing_up_to": "3"})


def test_foreign_older_and_newer_databases(tmp_path, sqlite_store):
    sqlite_store.stop()
    path = tmp_path / "store.db"
    with pytest.raises(StoreError, match=r"^E3001 .*is not a SQLite database"):
        (tmp_path / "text.db").write_text("no database, but a text of some length" * 20)
        source(store=f"sqlite:///{tmp_path}/text.db", table="state").schema()
    edit(tmp_path / "other.db", "CREATE TABLE customers (id INTEGER)")
    with pytest.raises(StoreError, match=r"^E3010 .*holds no store"):
        source(store=f"sqlite:///{tmp_path}/other.db", table="state").schema()
    edit(tmp_path / "named.db", "CREATE TABLE engine (id INTEGER)")
    with pytest.raises(StoreError, match=r"^E3003 .*belongs to another application"):
        source(store=f"sqlite:///{tmp_path}/named.db", table="state").schema()
    edit(path, "UPDATE correlator_schema SET version_num = '0001'")
    with pytest.raises(StoreError, match=r"^E3012 .*has schema 1, this is schema \d+.*correlator db upgrade"):
        source(store=sqlite_store.url, table="state").schema()
    edit(path, "UPDATE correlator_schema SET version_num = '0999'")
    with pytest.raises(StoreError, match=r"^E3004 .*\(schema 999\).*Upgrade this program"):
        source(store=sqlite_store.url, table="state").schema()


def edit(path, statement):
    raw = sqlite3.connect(path)
    raw.execute(statement)
    raw.commit()
    raw.close()


def test_an_altered_row_is_no_row(sqlite_store, tmp_path):
    sqlite_store.stop()
    edit(tmp_path / "store.db", "UPDATE receive_log SET crc = crc + 1 WHERE first = 11")
    with pytest.raises(RecoveryRefused, match=r"^E4201 receive log of 'orders' from 11"):
        read(reader_of(sqlite_store.url, "receive_log"))


def test_the_message_arrives_in_the_error_of_spark(spark, tmp_path, sqlite_store):
    with pytest.raises(Exception, match=r"E3010 .*x\.db: there is no store yet\. Start the engine once"):
        load(spark, f"sqlite:///{tmp_path}/x.db", "state")
    with pytest.raises(Exception, match=r"E1022 correlator\.table: 'nothing' is not allowed"):
        load(spark, sqlite_store.url, "nothing")
    frame = spark.read.format("correlator").option("store", sqlite_store.url).option("table", "state")
    with pytest.raises(Exception, match=r"E2202 correlator\.table: the program asks for the columns"):
        frame.schema("owner STRING").load().collect()
    with pytest.raises(Exception, match=r"E2206 correlator: a batch of df\.write has no identity"):
        spark.range(3).write.format("correlator").mode("append").save()


def test_spark_can_leave_out_the_frames_of_python(spark, tmp_path):
    setting = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
    spark.conf.set(setting, "true")
    try:
        with pytest.raises(Exception, match=r"E3010") as caught:
            load(spark, f"sqlite:///{tmp_path}/x.db", "state")
    finally:
        spark.conf.unset(setting)
    assert "Traceback" not in str(caught.value).partition("JVM stacktrace")[0]


@pytest.mark.postgres
def test_no_password_in_plans_and_errors(spark, postgres_server, opened, tmp_path):
    url = postgres_server.fresh_schema()
    secret = parse(url).password
    assert secret
    opened(url)
    frame = load(spark, url, "dead_letters").where("number > 1")
    assert frame.count() == 6
    stream = spark.readStream.format("correlator").options(**address(url), table="dead_letters").load()
    written = stream.writeStream.format("correlator").options(**address(url), name="w", to="q")
    texts = [frame._jdf.queryExecution().explainString(mode) for mode in modes(spark)]
    assert all("correlator" in one for one in texts)
    texts += [str(frame), repr(stream), stream._jdf.queryExecution().toString()]
    nowhere = parse(url).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(Exception, match=r"E3303 .*nowhere") as caught:
        load(spark, nowhere, "state")
    texts.append(str(caught.value))
    with pytest.raises(Exception, match=r"E1215") as caught:
        finish(written.option("checkpointLocation", str(tmp_path / "c")).start)
    texts.append(str(caught.value))
    assert [one for one in texts if secret in one] == []


def modes(spark):
    names = ("simple", "extended", "codegen", "cost", "formatted")
    return [spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(name) for name in names]


def test_rows_that_cannot_be_messages():
    from pyspark.sql.types import IntegerType, MapType, StringType, StructType  # noqa: PLC0415

    text = StringType()
    fine = StructType().add("body", text).add("key", text).add("properties", MapType(text, text))
    rows.check_written(fine, "queue:x")
    wrong = [
        (StructType().add("key", text), "no column 'body'"),
        (fine.add("other", text), "the column 'other'"),
        (StructType().add("body", IntegerType()), "body is int"),
        (StructType().add("body", text).add("properties", text), "properties is string"),
        (StructType().add("body", text).add("headers", text), "headers is string"),
        (StructType().add("body", text).add("headers", StructType().add("timestamp", text)), "field 'timestamp'"),
        (StructType().add("body", text).add("headers", StructType().add("priority", text)), "'priority' is string"),
    ]
    for schema, said in wrong:
        with pytest.raises(UsageError, match=f"^E2202 correlator: .*{said}"):
            rows.check_written(schema, "queue:x")
    with pytest.raises(UsageError, match=r"^E2202 .*no column 'destination'"):
        rows.check_written(StructType().add("body", text), "")
