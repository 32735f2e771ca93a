"""`df.writeStream.format("correlator")`: rows become messages of an embedded broker, each batch once."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection, batches
from connectors.embedded.batches import MOST, Batch, store_batch
from connectors.messaging import ConnectionFactory
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Message
from pyspark_correlator import options
from pyspark_correlator.sink import Portion, QueueSink, _encoder
from tests.spark_programs.queries import finish
from tests.spark_programs.test_tables import address

FIRST, SECOND = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/broker.db"
    return request.getfixturevalue("postgres_server").fresh_schema()


def send(broker, *bodies, query=FIRST, number=0, producer="w", to="queue:q", instead_of=""):
    sends = [(to, Message(body.encode())) for body in bodies]
    return store_batch(broker, Batch(producer=producer, query=query, number=number, sends=sends, instead_of=instead_of))


def taken(broker, *destinations, first=()):
    """All messages of the queues, which are then empty."""
    with ConnectionFactory(EmbeddedConnection, {"store": broker}).create_connection() as connection:
        session = connection.create_session()
        found = []
        for destination in destinations or ("queue:q",):
            consumer = session.create_consumer(destination)
            while (message := consumer.receive(timeout_s=0)) is not None:
                found.append(message)
        return found


def bodies(broker, *destinations):
    return [message.body.decode() for message in taken(broker, *destinations)]


# --- a batch of a producer ---


def test_a_repeated_batch_adds_nothing_whatever_rows_it_has(broker):
    assert send(broker, "a", "b")
    assert not send(broker, "a", "b")
    assert not send(broker, "b", "a", "c")
    assert not send(broker, "x", to="queue:other")
    assert send(broker, "c", number=1)
    assert send(broker, "e", number=4)
    assert bodies(broker) == ["a", "b", "c", "e"]
    assert bodies(broker, "queue:other") == []


def test_an_older_copy_of_the_checkpoint_directory_is_refused(broker):
    """Spark repeats the last batch only. An older number comes from an older copy, and its batch may have new rows."""
    for number in range(3):
        assert send(broker, str(number), number=number)
    for number in range(2):
        with pytest.raises(UsageError, match=f"^E8113 producer w: .* batch {number} .* batch 2 .*takeover={FIRST}"):
            send(broker, "new", number=number)
    assert not send(broker, "2", number=2)
    assert send(broker, "new", number=0, query=SECOND, instead_of=FIRST)
    assert bodies(broker) == ["0", "1", "2", "new"]


def test_messages_carry_the_unique_id_of_an_exactly_once_sender(broker):
    send(broker, "a", "b", number=2)
    source = f"batches:w:{FIRST}"
    assert [message.properties for message in taken(broker)] == [
        {"uniqueMessageId": f"{3 * MOST - 1}:{source}", "messageSourceId": source},
        {"uniqueMessageId": f"{3 * MOST}:{source}", "messageSourceId": source},
    ]


def test_another_query_is_refused_unless_it_may_take_over(broker):
    send(broker, "a", number=7)
    with pytest.raises(UsageError, match=f"^E8111 producer w: belongs to the query {FIRST}.*takeover={FIRST}"):
        send(broker, "b", query=SECOND)
    with pytest.raises(UsageError, match=r"^E8111"):
        send(broker, query=SECOND)
    with pytest.raises(UsageError, match=r"^E8111"):
        send(broker, "b", query=SECOND, instead_of="another")
    assert send(broker, "c", query=SECOND, instead_of=FIRST)
    assert not send(broker, "c", query=SECOND, instead_of=FIRST)
    with pytest.raises(UsageError, match=f"^E8111 .*belongs to the query {SECOND}"):
        send(broker, "d", number=8)
    assert bodies(broker) == ["a", "c"]


def test_of_two_attempts_at_the_same_time_one_stores_the_batch(broker):
    send(broker, "first")
    with ThreadPoolExecutor(2) as pool:
        for number in range(1, 9):
            tries = [pool.submit(send, broker, "x", number=number, to=f"queue:{queue}") for queue in "qr"]
            assert sorted(one.result() for one in tries) == [False, True]
    assert len(bodies(broker, "queue:q", "queue:r")) == 9


def test_names_do_not_hide_one_another(broker):
    assert send(broker, "a", producer="w")
    assert send(broker, "b", producer="w2", query=SECOND)
    assert send(broker, "c", producer="W", query=SECOND)
    assert send(broker, "d", producer="w", number=1)
    for name in ("", "a b", "a:b", "x" * 201, "ü", "a%"):
        with pytest.raises(UsageError, match=r"^E2207 here"):
            batches.check_producer("here", name)


def test_nothing_of_a_batch_is_stored_if_a_message_is_refused(broker):
    sends = [("queue:q", Message(b"a")), ("queue:mq.sys.dmq", Message(b"b"))]
    with pytest.raises(SendRejected, match=r"^E8109"):
        store_batch(broker, Batch(producer="w", query=FIRST, number=0, sends=sends))
    assert send(broker, "good")
    assert bodies(broker) == ["good"]


def test_a_full_destination_stops_the_producer(broker, monkeypatch):
    monkeypatch.setattr(batches, "PATIENCE_S", 0.01)
    connection = EmbeddedConnection("c", options_of(broker))
    connection.create("queue:q", {"max_num_msgs": 2})
    assert send(broker, "a", "b")
    with pytest.raises(SendRejected, match=r"^E8108"):
        send(broker, "c", number=1)
    assert bodies(broker) == ["a", "b"]
    assert send(broker, "c", number=1)


def options_of(broker):
    from correlator.settings import ConnectionSettings  # noqa: PLC0415

    return ConnectionSettings(type="embedded", options={"store": broker})


def test_the_store_of_an_engine_is_no_broker(sqlite_store):
    with pytest.raises(ConnectionLost, match=r"E3003 .*belongs to another application"):
        send(sqlite_store.url, "a")


# --- the sink ---


def sink(broker, **more):
    return QueueSink(options.writing({**address(broker), "name": "w", "to": "queue:q", **more}))


def portion(*bodies, query=FIRST):
    return Portion(query, _encoder.encode([Message(body.encode(), destination="queue:q") for body in bodies]))


def test_only_a_commit_publishes_and_only_the_tasks_that_spark_names(broker):
    one = sink(broker)
    early, late, other = portion("a"), portion("a"), portion("b")
    assert early == late
    one.commit([late, other], 0)
    one.abort([early, other], 0)
    one.commit([early, other], 0)
    assert bodies(broker) == ["a", "b"]


def test_a_failed_commit_that_happened_is_followed_by_abort_and_a_repeat(broker):
    one = sink(broker)
    one.commit([portion("a")], 3)
    one.abort([portion("a"), None], 3)
    one.commit([portion("a")], 3)
    assert bodies(broker) == ["a"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"name": ""}, "E1022 correlator.name"),
        ({"name": "a b"}, "E2207 correlator.name"),
        ({"to": "q"}, "E1215 correlator.to.destination"),
        ({"store": "mysql://u:hunter2@h/d"}, "E1301 store"),
        ({"store": "postgresql://u:hunter2@h/d"}, "E2201 correlator.store"),
        ({"queue": "q"}, "E1020 correlator.queue: unknown key"),
    ],
)
def test_wrong_options(given, code):
    with pytest.raises((ConfigError, UsageError), match=f"^{code}") as caught:
        sink("sqlite:///broker.db", **given)
    assert "hunter2" not in str(caught.value)


# --- with Spark ---


def rate(spark, directory):
    """A stream that finds the files of a directory."""
    return spark.readStream.schema("n INT, q STRING").option("maxFilesPerTrigger", 1).json(str(directory))


def start(frame, broker, checkpoint, **more):
    writer = frame.writeStream.format("correlator").option("name", "w")
    for name, value in {**address(broker), "checkpointLocation": str(checkpoint), **more}.items():
        writer = writer.option(name, value)
    return writer.trigger(availableNow=True).start()


def drop(directory, name, *numbers, queue="q"):
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("".join(f'{{"n": {n}, "q": "queue:{queue}"}}\n' for n in numbers))


def test_rows_become_messages_each_once_over_restarts(spark, broker, tmp_path):
    drop(tmp_path / "in", "1.json", 1, 2)
    drop(tmp_path / "in", "2.json", 3, queue="r")
    frame = rate(spark, tmp_path / "in").selectExpr(
        "to_json(struct(n)) AS body",
        "CAST(n AS STRING) AS key",
        "q AS destination",
        "map('colour', 'red', 'none', CAST(NULL AS STRING)) AS properties",
        "named_struct('priority', n, 'correlation_id', concat('c', n), 'type', CAST(NULL AS STRING)) AS headers",
    )
    finish(lambda: start(frame, broker, tmp_path / "c"))
    for path in (tmp_path / "c" / "commits").glob("*1*"):  # as if the driver had died before its commit log
        path.unlink()
    finish(lambda: start(frame, broker, tmp_path / "c"))
    drop(tmp_path / "in", "3.json", 4)
    finish(lambda: start(frame, broker, tmp_path / "c"))
    found = taken(broker, "queue:q", "queue:r")
    assert sorted(message.body for message in found) == [b'{"n":%d}' % n for n in (1, 2, 3, 4)]
    first = next(message for message in found if message.key == "1")
    assert first.properties["colour"] == "red"
    assert "none" not in first.properties
    assert (first.headers.priority, first.headers.correlation_id, first.headers.type) == (1, "c1", None)


def test_a_removed_checkpoint_directory_is_refused_with_the_remedy(spark, broker, tmp_path):
    drop(tmp_path / "in", "1.json", 1, 2)
    frame = rate(spark, tmp_path / "in").selectExpr("CAST(n AS STRING) AS body")
    query = finish(lambda: start(frame, broker, tmp_path / "c", to="queue:q"))
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(Exception, match=f"E8111 producer w: belongs to the query {query.id}.*takeover={query.id}"):
        finish(lambda: start(frame, broker, tmp_path / "c", to="queue:q"))
    shutil.rmtree(tmp_path / "c")
    finish(lambda: start(frame, broker, tmp_path / "c", to="queue:q", takeover=str(query.id)))
    assert sorted(bodies(broker)) == ["1", "1", "2", "2"]


def test_refusals_arrive_in_the_error_of_spark(spark, tmp_path):
    broker = f"sqlite:///{tmp_path}/broker.db"
    drop(tmp_path / "in", "1.json", 1)
    frame = rate(spark, tmp_path / "in")
    with pytest.raises(Exception, match=r"E2202 correlator: a row has the column 'n'"):
        finish(lambda: start(frame, broker, tmp_path / "c1", to="queue:q"))
    body = frame.selectExpr("CAST(n AS STRING) AS body")
    with pytest.raises(Exception, match=r"E1020 correlator\.queue: unknown key"):
        finish(lambda: start(body, broker, tmp_path / "c2", queue="q"))
    counted = frame.groupBy("q").count().selectExpr("q AS body")
    writer = counted.writeStream.format("correlator").option("store", broker).option("name", "w").outputMode("complete")
    with pytest.raises(Exception, match=r"E2206 .*'complete' replaces all rows"):
        finish(writer.option("checkpointLocation", str(tmp_path / "c3")).trigger(availableNow=True).start)
    assert not (tmp_path / "broker.db").exists()
