"""Pipelines that cannot be used: one line that names pipeline and step, no Java."""

import pytest

from correlator.errors import ConfigError
from correlator.pipeline.spec import (
    AggregateStep,
    CorrelateStep,
    DecodeStep,
    ExplodeStep,
    LookupStep,
    MonitorStep,
    PipelineSettings,
    PythonStep,
    RouteStep,
    SelectStep,
    SqlStep,
    WhereStep,
)

DECODE = DecodeStep(format="json", schema="sensor STRING, at TIMESTAMP, value INT")


def sums(**changes):
    return MonitorStep(**{"class_": "machines:Sums", "key": "sensor", "event_time": "at", **changes})


def route(**headers):
    return RouteStep(to="x", headers=headers)


@pytest.mark.parametrize(
    ("code", "words", "steps"),
    [
        ("E1511", "`valu` cannot be resolved", [DECODE, WhereStep(condition="valu > 1")]),
        ("E1511", "Syntax error at or near", [DECODE, WhereStep(condition="value >")]),
        ("E1511", "DATATYPE_MISMATCH", [DECODE, WhereStep(condition="value + 1")]),
        ("E1511", "schema: ", [DecodeStep(format="csv", schema="a INTEGERS")]),
        ("E1511", "precision 50 exceeds", [DecodeStep(format="csv", schema="a DECIMAL(50,1)")]),
        ("E1511", "needs names and types", [DecodeStep(format="csv", schema="INT")]),
        ("E1511", "The seconds precision 3", [DecodeStep(format="json", schema="a TIMESTAMP(3)")]),
        ("E1511", "The seconds precision 3", [DecodeStep(format="json", schema="a ARRAY<TIMESTAMP_NTZ(3)>")]),
        ("E1511", "correct collation name", [DecodeStep(format="json", schema="a STRING COLLATE nope")]),
        ("E1511", "char/varchar", [DecodeStep(format="json", schema="a VARCHAR(3)")]),
        ("E1511", "Unsupported data type", [DecodeStep(format="json", schema="a GEOMETRY(4326)")]),
        ("E1511", "STRING as a key type", [DecodeStep(format="json", schema="a MAP<INT, INT>")]),
        ("E1511", "Unsupported data type", [DecodeStep(format="csv", schema="a ARRAY<INT>")]),
        ("E1511", "Unsupported data type", [DecodeStep(format="csv", schema="a INT, b STRUCT<c: INT>")]),
        ("E1511", "Unsupported data type", [DecodeStep(format="csv", schema="a VOID")]),
        ("E1511", "", [DecodeStep(format="csv", schema="")]),
        ("E1511", "", [DecodeStep(format="csv", schema="STRUCT<a: INT>")]),
        ("E1511", "The seconds precision 3", [DECODE, PythonStep(function="machines:same", schema="a TIMESTAMP(3)")]),
        ("E1513", "column 'a' is varchar(3)", [DECODE, PythonStep(function="machines:same", schema="a VARCHAR(3)")]),
        ("E1511", "does not begin with SELECT", [DECODE, SqlStep(query="FROM input")]),
        ("E1511", "MISSING_GROUP_BY", [DECODE, SqlStep(query="SELECT sensor, count(*) FROM input")]),
        ("E1516", "(Aggregate)", [DECODE, SqlStep(query="SELECT sensor, count(*) FROM input GROUP BY sensor")]),
        ("E1517", "two columns 'value'", [DECODE, SqlStep(query="SELECT *, value FROM input")]),
        ("E1511", "MISSING_GROUP_BY", [DECODE, SelectStep(columns={"n": "count(*)"})]),
        ("E1511", "other", [DECODE, SqlStep(query="SELECT * FROM other")]),
        ("E1511", "nope", [DECODE, RouteStep(to="x", headers={"a": "nope"})]),
        ("E1513", "header 'priority' is string. A whole number", [DECODE, route(priority="sensor")]),
        ("E1513", "header 'priority' is double. A whole number", [DECODE, route(priority="value / 2")]),
        ("E1513", "header 'time_to_live_ms' is timestamp. A whole", [DECODE, route(time_to_live_ms="at")]),
        ("E1513", "header 'persistent' is int. A boolean", [DECODE, route(persistent="value")]),
        ("E1513", "header 'correlation_id' is int. Text", [DECODE, route(correlation_id="value")]),
        ("E1513", "header 'all' is array<int>. Numbers, ", [DECODE, route(all="array(value)")]),
        ("E1513", "header 'm' is struct<", [DECODE, route(m="_message")]),
        ("E1511", "_message", [DECODE, sums(), WhereStep(condition="_message.key = 'a'")]),
        ("E1511", "", [DECODE, ExplodeStep(array="value", name="v")]),
        ("E1516", "(Window)", [DECODE, SelectStep(columns={"n": "row_number() OVER (ORDER BY value)"})]),
        ("E1516", "(Window)", [DECODE, SqlStep(query="SELECT *, sum(value) OVER () AS s FROM input")]),
        ("E1516", "(Sort)", [DECODE, SqlStep(query="SELECT * FROM input ORDER BY value")]),
        ("E1516", "(GlobalLimit)", [DECODE, SqlStep(query="SELECT * FROM input LIMIT 1")]),
        ("E1516", "(Join)", [DECODE, SqlStep(query="SELECT a.* FROM input a JOIN input b USING (sensor)")]),
        ("E1516", "(Union)", [DECODE, SqlStep(query="SELECT * FROM input UNION ALL SELECT * FROM input")]),
        (
            "E1516",
            "(Generate)",
            [DECODE, SqlStep(query="SELECT value, x FROM input LATERAL VIEW explode(array(1)) t AS x")],
        ),
        ("E1516", "(Except)", [DECODE, SqlStep(query="SELECT sensor FROM input EXCEPT SELECT 'a' FROM input")]),
        ("E1516", "(Intersect)", [DECODE, SqlStep(query="SELECT sensor FROM input INTERSECT SELECT 'a' FROM input")]),
        ("E1516", "(Offset)", [DECODE, SqlStep(query="SELECT * FROM input OFFSET 1")]),
        ("E1516", "(Distinct)", [DECODE, SqlStep(query="SELECT DISTINCT sensor FROM input")]),
        ("E1516", "(Sample)", [DECODE, SqlStep(query="SELECT * FROM input TABLESAMPLE (10 PERCENT)")]),
        ("E1516", "(OneRowRelation)", [DECODE, SqlStep(query="SELECT 1 AS one")]),
        (
            "E1516",
            "(Aggregate)",
            [DECODE, SqlStep(query="SELECT * FROM input WHERE value = (SELECT max(value) FROM input)")],
        ),
        (
            "E1516",
            "(a subquery)",
            [DECODE, SqlStep(query="SELECT * FROM input WHERE EXISTS (SELECT 1 FROM input i WHERE i.value > 3)")],
        ),
        (
            "E1516",
            "(a subquery)",
            [DECODE, SqlStep(query="SELECT * FROM input WHERE value IN (SELECT value FROM input)")],
        ),
        ("E1517", "no column 'body'", [DECODE, DECODE]),
        ("E1517", "column '_live'", [DECODE, SelectStep(columns={"_live": "1"})]),
        ("E1517", "column '_Out'", [DECODE, SelectStep(columns={"_Out": "1"})]),
        ("E1517", "column '_live'", [DECODE, SqlStep(query="SELECT sensor, true AS _live FROM input")]),
        ("E1517", "column '_message'", [DECODE, SqlStep(query="SELECT sensor AS _message FROM input")]),
        ("E1517", "column '_message'", [DECODE, SqlStep(query="SELECT *, _message.key AS _message FROM input")]),
        ("E1511", "_message", [DECODE, sums(), SqlStep(query="SELECT _message.key AS k FROM input")]),
        (
            "E1517",
            "'value' of Reading is not a column",
            [DECODE, SelectStep(columns={"sensor": "sensor", "at": "at"}), sums()],
        ),
        ("E1501", "No module named 'nowhere'", [DECODE, sums(class_="nowhere:X")]),
        ("E1501", "has no 'Nobody'", [DECODE, sums(class_="machines:Nobody")]),
        ("E1503", "is not a KeyedMonitor", [DECODE, sums(class_="machines:NOT_A_MONITOR")]),
        ("E1501", "has no 'nothing'", [DECODE, PythonStep(function="machines:nothing")]),
        (
            "E1512",
            "'median(value)' is not an aggregate",
            [DECODE, AggregateStep(key="sensor", event_time="at", window=1.0, values={"m": "median(value)"})],
        ),
        (
            "E1513",
            "cannot be aggregated",
            [DECODE, AggregateStep(key="sensor", event_time="at", window=1.0, values={"m": "last(array(value))"})],
        ),
        *(
            (
                "E1513",
                f"{function} of '{argument}', whose type is {kind}. {function} takes tinyint",
                [
                    DECODE,
                    AggregateStep(key="sensor", event_time="at", window=1.0, values={"m": f"{function}({argument})"}),
                ],
            )
            for function in ("sum", "avg")
            for argument, kind in (("sensor || 'x'", "string"), ("value > 1", "boolean"), ("CAST(at AS DATE)", "date"))
        ),
        ("E1518", "Path does not exist", [DECODE, LookupStep(file="/nowhere.csv", on=("sensor",))]),
        ("E1518", "has no column 'sensor'", [DECODE, LookupStep(table="(one)", on=("sensor",))]),
    ],
)
def test_refused(engine, session, tmp_path, code, words, steps):
    if words.startswith("has no column"):
        (tmp_path / "f.csv").write_text("a,b\n1,2\n")
        steps = [DECODE, LookupStep(file=str(tmp_path / "f.csv"), on=("sensor",))]
    with pytest.raises(ConfigError) as caught:
        engine(*steps, name="orders")
    error = caught.value
    assert error.code == code
    assert words in str(error)
    assert error.where == f"pipeline orders step {len(steps)} ({steps[-1].word})"
    assert "\n" not in str(error).partition("Raised at")[0]
    assert "org.apache" not in str(error)


CHANCE, CLOCK, PLACE = "rand() < 0.1", "at > now() - INTERVAL 1 DAY", "spark_partition_id() = 0"


@pytest.mark.parametrize(
    ("named", "step"),
    [
        ("rand()", WhereStep(condition=CHANCE)),
        ("now()", WhereStep(condition=CLOCK)),
        ("spark_partition_id()", WhereStep(condition=PLACE)),
        ("rand(7)", SelectStep(columns={"a": "value + rand(7)"})),
        ("randn()", SelectStep(columns={"a": "randn()"})),
        ("uuid()", SelectStep(columns={"a": "struct(sensor, uuid() AS id).id"})),
        ("shuffle(array(1, 2))", SelectStep(columns={"a": "shuffle(array(1, 2))"})),
        ("uniform(1, 5)", SelectStep(columns={"a": "uniform(1, 5)"})),
        ("rand()", SelectStep(columns={"a": "transform(array(value), x -> x + rand())"})),
        ("monotonically_increasing_id()", SelectStep(columns={"a": "monotonically_increasing_id()"})),
        ("input_file_name()", SelectStep(columns={"a": "input_file_name()"})),
        ("current_timestamp", SelectStep(columns={"a": "current_timestamp"})),
        ("current_date", SelectStep(columns={"a": "datediff(current_date, at)"})),
        ("localtimestamp()", SelectStep(columns={"a": "localtimestamp()"})),
        ("current_timezone()", SelectStep(columns={"a": "current_timezone()"})),
        ("current_user()", SelectStep(columns={"a": "current_user()"})),
        ("unix_timestamp()", SelectStep(columns={"a": "unix_timestamp()"})),
        ("CAST('now' AS TIMESTAMP)", SelectStep(columns={"a": "CAST('now' AS TIMESTAMP)"})),
        ("to_date('yes' || 'terday')", SelectStep(columns={"a": "to_date('yes' || 'terday')"})),
        ("DATE 'today'", SelectStep(columns={"a": "DATE 'today'"})),
        ("timestamp_ltz ' NOW'", SelectStep(columns={"a": "date_trunc('hour', timestamp_ltz ' NOW')"})),
        (
            "reflect('java.lang.System', 'nanoTime')",
            SelectStep(columns={"a": "reflect('java.lang.System', 'nanoTime')"}),
        ),
        (
            "aes_encrypt(sensor, '0123456789abcdef')",
            SelectStep(columns={"a": "aes_encrypt(sensor, '0123456789abcdef')"}),
        ),
        ("rand()", SqlStep(query="SELECT sensor, rand() AS a FROM input")),
        ("now()", SqlStep(query="SELECT * FROM input WHERE at < now()")),
        ("uuid()", ExplodeStep(array="array(uuid())", name="id")),
        ("uuid()", RouteStep(to="x", headers={"id": "uuid()"})),
        ("now()", RouteStep(to="x", where=CLOCK)),
        ("rand()", RouteStep(to="x", key="CAST(rand() AS STRING)")),
        ("uuid()", sums(key="concat(sensor, uuid())")),
        ("now()", sums(event_time="now()")),
        ("rand()", AggregateStep(key="sensor", event_time="at", window=1.0, values={"n": "sum(value * rand())"})),
        (
            "now()",
            CorrelateStep(first=CLOCK, second="value = 2", key="sensor", event_time="at", within=1.0),
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else one.word,
)
def test_what_may_have_another_value_when_a_batch_comes_again_is_refused(engine, named, step):
    with pytest.raises(ConfigError, match="E1525") as caught:
        engine(DECODE, step, name="orders")
    assert caught.value.where == f"pipeline orders step 2 ({step.word})"
    assert caught.value.what.startswith(f"'{named}' may have another value")
    assert "column of the message" in caught.value.todo


@pytest.mark.parametrize(
    "expression",
    [
        "to_timestamp(sensor)",
        "CAST(sensor AS TIMESTAMP)",
        "DATE 'epoch'",
        "CAST('epoch' AS TIMESTAMP)",
        "DATE '2020-01-01'",
        "'DATE ''today'' and rand()'",
        "hash(sensor)",
        "concat(_message.receiver, ':', _message.number)",
        "unix_timestamp(at)",
        "aes_encrypt(sensor, '0123456789abcdef', 'ecb')",
        "aes_encrypt(sensor, '0123456789abcdef', 'CBC', 'DEFAULT', unhex(repeat('0', 32)))",
        "transform(array(value), x -> x + 1)",
    ],
)
def test_what_follows_from_the_row_alone_is_taken(engine, expression):
    engine(DECODE, SelectStep(columns={"a": expression}), RouteStep(to="out")).run('{"sensor": "a"}')


def test_two_records_for_one_row(engine, tmp_path):
    (tmp_path / "f.csv").write_text("sensor,room\na,1\na,2\n")
    with pytest.raises(ConfigError, match=r"E1518 .*several records for sensor = a"):
        engine(DECODE, LookupStep(file=str(tmp_path / "f.csv"), on=("sensor",)))


def test_a_column_that_is_there_already(engine, tmp_path):
    (tmp_path / "f.csv").write_text("sensor,value\na,1\n")
    with pytest.raises(ConfigError, match=r"E1517 .*column 'value' is there already"):
        engine(DECODE, LookupStep(file=str(tmp_path / "f.csv"), on=("sensor",)))


def test_settings_that_do_not_fit_together():
    with pytest.raises(ConfigError, match="E1510 decode: format csv has no 'schema'"):
        DecodeStep(format="csv")
    with pytest.raises(ConfigError, match="E1510 schema: format text has 'schema'. It is for json and csv and avro"):
        DecodeStep(format="text", schema="a INT")
    for more in ({}, {"schema": "{}", "schema_file": "x.avsc"}):
        with pytest.raises(
            ConfigError, match="E1510 decode: format avro needs exactly one of 'schema' and 'schema_file'"
        ):
            DecodeStep(format="avro", **more)
    for more in ({}, {"descriptor": "x.desc"}, {"message": "M"}):
        with pytest.raises(ConfigError, match="E1510 decode: format protobuf needs 'descriptor' and 'message'"):
            DecodeStep(format="protobuf", **more)
    with pytest.raises(
        ConfigError, match="E1510 writer_schema: format json has 'writer_schema'. It is for avro. Remove"
    ):
        DecodeStep(format="json", schema="a INT", writer_schema="{}")
    with pytest.raises(ConfigError, match="E1510 schema: format xml has 'schema'"):
        DecodeStep(format="xml", schema="a INT")
    with pytest.raises(ConfigError, match="E1510 lookup: needs exactly one"):
        LookupStep(on=("a",))


@pytest.mark.parametrize("name", ["a/b", "aggregate#0"])
def test_a_name_that_could_be_a_place_is_refused(name):
    with pytest.raises(ConfigError, match="E1510 name: .* has a '/' or '#' in it"):
        sums(name=name)


@pytest.mark.parametrize("state", ["discard", "keep 3F2A9C1B", "migrate 3f2a9c1b", "discard 3f2a9c1b "])
def test_what_is_no_decision_is_refused(state):
    with pytest.raises(
        ConfigError, match="E1510 state: .* is no decision. Write keep FINGERPRINT or discard FINGERPRINT"
    ):
        sums(state=state)


@pytest.mark.parametrize("setting", ["name", "was"])
def test_two_steps_of_one_name_are_refused(setting):
    steps = (sums(**{setting: "a"}), sums(**{setting: "a"}))
    with pytest.raises(ConfigError, match=f"E1510 pipeline p: two steps have {setting} 'a'"):
        PipelineSettings(name="p", from_=("in",), steps=steps)


def test_the_default_name_is_the_place_whether_its_neighbours_have_names_or_not():
    steps = (DECODE, sums(), sums(name="n"), sums(class_="machines:Silence"), sums())
    names = PipelineSettings(name="p", from_=("in",), steps=steps).keyed_names()
    assert names == {1: "monitor:Sums#0", 2: "n", 3: "monitor:Silence#0", 4: "monitor:Sums#2"}
