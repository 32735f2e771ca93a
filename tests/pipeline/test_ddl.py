"""Schemas in DDL, read without Spark; Spark reads them in the same way."""

import contextlib

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType, _parse_datatype_string

from correlator.errors import ConfigError
from correlator.pipeline.ddl import columns_of

READ = [
    "a INT",
    "a INT NOT NULL, b STRING NOT NULL COMMENT 'x, y', c DATE COMMENT \"it's\"",
    "a BYTE, b SHORT, c INTEGER, d LONG, e REAL, f DOUBLE, g BOOLEAN, h BINARY, i TINYINT, j SMALLINT, k BIGINT, l FLOAT",
    "a DECIMAL, b DEC(3), c NUMERIC(3, 1), d DECIMAL(38,38)",
    "a TIMESTAMP, b TIMESTAMP_NTZ, c TIMESTAMP_LTZ, d VOID, e VARIANT",
    "a STRUCT<b: INT NOT NULL COMMENT 'x', c: STRING>, d struct<e int, `f g`: string>, h STRUCT<>",
    "a MAP<STRING, STRUCT<x: INT>>, b ARRAY<ARRAY<DECIMAL(9,2)>>",
    "`a b` INT, `c``d` INT, 1a INT, _b INT",
    "select INT, date DATE, timestamp timestamp, array INT",
    "a INT\n, b INT",
    "a TIMESTAMP(6), b ARRAY<TIMESTAMP_NTZ( 6 )>, c TIMESTAMP_LTZ(6) NOT NULL",
    "a INT, a STRING",
    "a TIME, b TIME(0), c ARRAY<TIME(6)>, time TIME NOT NULL",
    "a CHAR(3), b CHARACTER(3), c VARCHAR(10), d MAP<VARCHAR(3), CHAR(1)>",
    "a INTERVAL, b INTERVAL YEAR, c INTERVAL YEAR TO MONTH, d INTERVAL MONTH, e interval day to hour",
    "a INTERVAL DAY TO SECOND NOT NULL, b INTERVAL MINUTE TO SECOND, c ARRAY<INTERVAL SECOND>, d INTERVAL DAY COMMENT 'x'",
]
REFUSED = [
    ("a INTEGERS", "'INTEGERS' is not a type", "Did you mean 'integer'?"),
    ("a BOOL", "'BOOL' is not a type", ""),
    ("a ARRAY<STRIG>", "'STRIG' is not a type", "Did you mean 'string'?"),
    ("INT", "needs names and types", ""),
    ("abc", "needs names and types", ""),
    ("a, b INT", "column 'a' has no type", ""),
    ("a INT, b", "column 'b' has no type", ""),
    ("a INT b INT", "there is no ',' before 'b'", ""),
    ("a INT,", "ends with ','", ""),
    ("a ARRAY<INT", "a '>' is missing after ARRAY<", ""),
    ("a STRUCT<b: INT, c: MAP<STRING, INT>", "a '>' is missing after STRUCT<", ""),
    ("a ARRAY<INT>>", "'>' closes nothing", ""),
    ("a TIMESTAMP(3)", "there is no TIMESTAMP(3)", "Write TIMESTAMP"),
    ("a TIMESTAMP_NTZ (3), b INT", "there is no TIMESTAMP_NTZ(3)", "Write TIMESTAMP_NTZ"),
    ("a INT(3)", "there is no INT(3)", "Write INT"),
    ("a ARRAY<STRING(3)>", "there is no STRING(3)", "Write STRING"),
    ("a DECIMAL(50,1)", "there is no DECIMAL(50,1)", ""),
    ("a DECIMAL(3,5)", "there is no DECIMAL(3,5)", ""),
]
NOT_JUDGED = [
    *("", " ", "a: INT", "struct<a: int>", "a INT -- c", "a INT /* c */", "a CHAR", "a VARCHAR()", "a TIME(9)"),
    *(
        "a INTERVAL SECOND TO DAY",
        "a TIME WITHOUT TIME ZONE",
        "a STRING COLLATE UTF8_LCASE",
        "a TIMESTAMP WITHOUT TIME ZONE",
        "a GEOMETRY(4326)",
    ),
    *("a TIMESTAMP(6) WITHOUT TIME ZONE", "a INT()", "a TIMESTAMP(9)"),
    *("a DOUBLE PRECISION", "a ARRAY", "a MAP<INT>", "a-b INT", "é INT", "1 INT", "'a' INT", "a.b INT"),
]


@pytest.fixture
def spark(session):
    yield session.acquire()
    session.release()


@pytest.mark.parametrize("ddl", READ)
def test_columns_and_types_are_those_of_spark(spark, ddl):
    expected = [(one.name, one.dataType.simpleString()) for one in _parse_datatype_string(ddl)]
    assert [(name, kind.name) for name, kind in columns_of(ddl)] == expected


@pytest.mark.parametrize(("ddl", "what", "hint"), REFUSED)
def test_what_is_refused_is_refused_by_spark(spark, ddl, what, hint):
    with pytest.raises(ConfigError, match="^E1511 schema: schema: ") as caught:
        columns_of(ddl)
    assert what in caught.value.what
    assert caught.value.todo == hint
    with contextlib.suppress(PySparkException, Py4JJavaError):
        assert not isinstance(_parse_datatype_string(ddl), StructType)


@pytest.mark.parametrize("ddl", NOT_JUDGED)
def test_what_this_grammar_does_not_know_is_not_judged(ddl):
    assert columns_of(ddl) is None


def test_fields_of_structs_are_known():
    ((_, kind),) = columns_of("a STRUCT<b: STRUCT<c: INT>, `d e` ARRAY<INT>>")
    assert kind.fields["b"].fields["c"].name == "int"
    assert kind.fields["d e"].name == "array<int>"
