"""`spark.readStream.format("correlator")`: dead letters as a stream whose ranges can be read again."""

import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from correlator.errors import StoreError, UsageError
from correlator.storage import deadletters, reset
from correlator.storage.inspect import Selection, dead_letters
from pyspark_correlator import options
from pyspark_correlator.options import TABLES
from pyspark_correlator.reader import LetterStream
from tests.spark_programs.queries import finish
from tests.spark_programs.test_tables import address


def stream_of(url, **more):
    given = {**address(url), "table": "dead_letters", **{name: str(one) for name, one in more.items()}}
    return LetterStream(options.stream(given))


def read(stream, start, end):
    return [row[0] for part in stream.partitions(start, end) for row in stream.read(part)]


def run(spark, url, checkpoint, into, **more):
    """Run a query to its end; `into` gets the numbers of each batch."""
    reader = spark.readStream.format("correlator").option("store", url).option("table", "dead_letters")
    for name, value in more.items():
        reader = reader.option(name, value)

    def keep(frame, batch):
        into.append((batch, sorted(row.number for row in frame.collect())))

    writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    finish(writer.trigger(availableNow=True).start)


def test_a_stream_reads_each_letter_once_over_restarts(spark, tmp_path, sqlite_store):
    found = []
    run(spark, sqlite_store.url, tmp_path / "c", found, max_rows_per_trigger=3, partitions=2)
    assert found == [(0, [1, 2, 3]), (1, [4, 5, 6]), (2, [7])]
    run(spark, sqlite_store.url, tmp_path / "c", found)
    assert len(found) == 3
    sqlite_store.letters("E1 a", "E1 b")
    run(spark, sqlite_store.url, tmp_path / "c", found)
    assert found[3:] == [(3, [8, 9])]


def test_the_same_range_again_has_the_same_rows(spark, tmp_path, sqlite_store):
    found = []
    run(spark, sqlite_store.url, tmp_path / "c", found)
    for path in (tmp_path / "c" / "commits").iterdir():  # as if the driver had died before its commit log
        path.unlink()
    sqlite_store.letters("E1 later")
    run(spark, sqlite_store.url, tmp_path / "c", found)
    assert found == [(0, [1, 2, 3, 4, 5, 6, 7]), (0, [1, 2, 3, 4, 5, 6, 7]), (1, [8])]


def test_a_letter_that_is_gone_is_refused_and_not_skipped(spark, tmp_path, sqlite_store):
    found = []
    run(spark, sqlite_store.url, tmp_path / "c", found)
    for path in (tmp_path / "c" / "commits").iterdir():
        path.unlink()
    sqlite_store.stop()
    deadletters.discard(sqlite_store.url, Selection(numbers=[3, 4]))
    with pytest.raises(Exception, match=r"E2204 .*dead letters 3 to 4 are no longer there.*missing_up_to=4"):
        run(spark, sqlite_store.url, tmp_path / "c", found)
    run(spark, sqlite_store.url, tmp_path / "c", found, missing_up_to=4)
    assert found[1:] == [(0, [1, 2, 5, 6, 7])]
    shutil.rmtree(tmp_path / "c")


@pytest.mark.parametrize("gone", [[1], [7], [4], [1, 2, 3, 4, 5, 6, 7]])
def test_wherever_it_was_in_the_range(gone, store):
    store.stop()
    deadletters.discard(store.url, Selection(numbers=gone))
    for partitions in (1, 3, 7, 20):
        stream = stream_of(store.url, partitions=partitions)
        with pytest.raises(StoreError, match=r"^E2204"):
            read(stream, {"number": 0, "epoch": 1}, {"number": 7, "epoch": 1})
        there = [number for number in range(1, 8) if number not in gone]
        stream = stream_of(store.url, partitions=partitions, missing_up_to=gone[-1])
        assert read(stream, {"number": 0, "epoch": 1}, {"number": 7, "epoch": 1}) == there
    assert [one.number for one in dead_letters(store.url)] == there


def test_offsets(sqlite_store):
    stream = stream_of(sqlite_store.url)
    start = stream.initialOffset()
    assert start == {"number": 0, "epoch": 1}
    assert stream.latestOffset(start, ReadAllAvailable()) == {"number": 7, "epoch": 1}
    assert stream.latestOffset(start, ReadMaxRows(2)) == {"number": 2, "epoch": 1}
    end = {"number": 7, "epoch": 1}
    assert stream.latestOffset(end, ReadMaxRows(2)) is end
    assert stream.partitions(end, end) == []
    stream.prepareForTriggerAvailableNow()
    sqlite_store.letters("E1 later")
    assert stream.latestOffset(start, ReadAllAvailable()) == {"number": 7, "epoch": 1}
    assert isinstance(stream.getDefaultReadLimit(), ReadAllAvailable)
    assert stream_of(sqlite_store.url, max_rows_per_trigger=5).getDefaultReadLimit() == ReadMaxRows(5)


def test_a_new_stream_begins_with_the_first_letter_that_is_there(sqlite_store):
    sqlite_store.stop()
    deadletters.discard(sqlite_store.url, Selection(numbers=[1, 2]))
    assert stream_of(sqlite_store.url).initialOffset()["number"] == 2
    deadletters.discard(sqlite_store.url, Selection(numbers=[3, 4, 5, 6, 7]))
    assert stream_of(sqlite_store.url).initialOffset()["number"] == 7


def test_another_store_or_an_older_copy_is_refused(sqlite_store):
    stream = stream_of(sqlite_store.url)
    with pytest.raises(StoreError, match=r"^E2204 .*has the number 7 and the stream is at 8"):
        stream.latestOffset({"number": 8, "epoch": 1}, ReadAllAvailable())
    with pytest.raises(StoreError, match=r"^E2204"):
        stream.latestOffset({"number": 3, "epoch": 2}, ReadAllAvailable())
    sqlite_store.stop()
    reset.reset(sqlite_store.url, None)  # numbers go on, so what is gone shows
    latest = stream.latestOffset({"number": 3, "epoch": 1}, ReadAllAvailable())
    assert latest["number"] == 7
    with pytest.raises(StoreError, match=r"^E2204 .*4 to 7"):
        read(stream, {"number": 3, "epoch": 1}, latest)


@pytest.mark.parametrize("table", [one for one in TABLES if one != "dead_letters"])
def test_tables_whose_rows_go_are_no_streams(table, sqlite_store):
    with pytest.raises(UsageError, match=f"^E2203 correlator.table: {table} cannot be read as a stream.*lake"):
        options.stream({"store": sqlite_store.url, "table": table})


def test_the_refusal_arrives_in_the_error_of_spark(spark, sqlite_store, tmp_path):
    frame = spark.readStream.format("correlator").option("store", sqlite_store.url).option("table", "outbox").load()
    with pytest.raises(Exception, match=r"E2203 correlator\.table: outbox cannot be read as a stream"):
        finish(frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start)
