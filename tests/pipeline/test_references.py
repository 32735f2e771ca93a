"""Which columns an expression names for certain; no name that means something else in Spark counts."""

import pytest
from pyspark.errors import PySparkException

from correlator.pipeline.references import _VALUES, Item, Query, References, references, simple_query

NAMED = {
    "a": ["a"],
    "`a b`": ["a b"],
    "s.x": ["s.x"],
    "a > 1 AND NOT b": ["a", "b"],
    "coalesce(a, upper(b)) || 'c' || \"d\"": ["a", "b"],
    "CASE a WHEN 1 THEN b ELSE b END": ["a", "b", "b"],
    "CASE WHEN a > 1 THEN 'x' END": ["a"],
    "a IS NOT NULL OR a IS DISTINCT FROM 1": ["a", "a"],
    "a BETWEEN 1 AND 2": ["a"],
    "a IN (1, value)": ["a", "value"],
    "arr[a]": ["arr", "a"],
    "-a * 1.5e3 / 10L": ["a"],
    "CAST(a AS STRING)": ["a"],
    "a::STRING": [],
    "transform(arr, x -> x + a)": ["arr", "a"],
    "aggregate(arr, 0, (acc, x) -> acc + x)": ["arr"],
    "filter(arr, a -> a > 1)": ["arr"],
    "exists(arr, x -> x IS NULL)": ["arr"],
    "struct(a AS x, b y, s.x AS z).x": ["a", "s.x"],
    "named_struct('n', a).n": ["a"],
    "CAST(NULL AS STRUCT<q: INT>)": [],
    "EXTRACT(DOW FROM t)": ["t"],
    "trim(BOTH b FROM b)": ["b"],
    "substring(b FROM 1 FOR 2)": [],
    "position(b IN b)": ["b", "b"],
    "overlay(b PLACING b FROM 1)": [],
    "timestampadd(MONTH, a, t)": ["a", "t"],
    "datediff(DAY, t, t)": ["t", "t"],
    "t + INTERVAL 1 DAY > TIMESTAMP '2026-01-01'": ["t"],
    "t - INTERVAL '1' DAY < t": ["t", "t"],
    "DATE '2026-01-01' < t": ["t"],
    "current_date > t": ["t"],
    "b LIKE 'x%' ESCAPE '!'": ["b"],
    "b LIKE ANY ('x%', 'y')": ["b"],
    "r'\\' = b": ["b"],
    "X'1F' = unhex(b)": ["b"],
    "count(DISTINCT a)": [],
    "m.k = m['k']": ["m.k", "m"],
    "b COLLATE UTF8_LCASE = 'a'": [],
    "a -- comment\n": [],
    "a /* comment */": [],
    "(SELECT max(q) FROM t)": [],
    "a DIV 2 % 3": ["a"],
    "mask(b, lowerChar => 'q')": ["b"],
    "if(a > 1, TRUE, NULL)": ["a"],
    "from_json(b, 'q INT').q": ["b"],
    "'it''s \\' a'": [],
    "1": [],
    "NULL": [],
}


@pytest.fixture
def spark(session):
    found = session.acquire()
    schema = "a INT, b STRING, t TIMESTAMP, value INT, arr ARRAY<INT>, s STRUCT<x: INT>, m MAP<STRING, INT>, `a b` INT"
    found.createDataFrame([], schema).createOrReplaceTempView("known")
    yield found
    found.catalog.dropTempView("known")
    session.release()


@pytest.mark.parametrize("expression", NAMED)
def test_names(expression):
    expected = NAMED[expression]
    assert [".".join(path) for path in references(expression).paths] == expected


def test_spark_takes_the_same_expressions(spark):
    """So a name that is wrongly taken for a column would be a false report."""
    for expression in NAMED:
        if "SELECT" not in expression and "'it''s" not in expression:
            spark.sql(f"SELECT {expression} FROM known")


def test_no_word_that_is_a_value_counts_as_a_column(spark):
    values = set()
    for (word,) in spark.sql("SELECT lower(keyword) FROM sql_keywords()").collect():
        try:
            spark.sql(f"SELECT coalesce({word}) FROM known")
        except PySparkException:
            continue
        values.add(word)
    assert "current_date" in values
    assert values <= _VALUES | {"value"}


@pytest.mark.parametrize(
    ("expression", "complete"),
    [("a", True), ("a.b", True), ("1", True), ("'a'", True), ("NULL", True), ("a + 1", False), ("f(a)", False)],
)
def test_an_expression_with_nothing_more_to_check(expression, complete):
    assert references(expression).complete is complete


def test_an_expression_that_is_a_value():
    assert references("current_date") == References(complete=True)


def test_the_parts_of_a_simple_query():
    query = simple_query(
        "SELECT *, a, s.x, a + 1 AS n, CASE WHEN a THEN 1 END AS `m o`, f(a, b) FROM input WHERE a > 1"
    )
    names = [item.name for item in query.items]
    assert names == ["*", "a", "x", "n", "m o", ""]
    assert query.items[3] == Item("a + 1", "n")
    assert query.condition == "a > 1"
    assert simple_query("select a from INPUT") == Query((Item("a", "a"),), "")
    assert simple_query("SELECT EXTRACT(DAY FROM t) AS d FROM input").items[0].name == "d"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM input i",
        "SELECT a FROM input ORDER BY a",
        "SELECT a FROM other",
        "SELECT a FROM input, input",
        "SELECT DISTINCT a FROM input",
        "SELECT /*+ BROADCAST(x) */ a FROM input",
        "SELECT a FROM (SELECT * FROM input)",
        "SELECT * EXCEPT (a) FROM input",
        "SELECT a, FROM input",
        "SELECT 1",
        "FROM input SELECT a",
        "SELECT a FROM input WHERE",
        "",
    ],
)
def test_every_other_query(query):
    assert simple_query(query) is None
