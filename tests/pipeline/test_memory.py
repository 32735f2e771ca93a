"""What Spark has made of messages that come again: the same rows, and Spark does not see them a second time."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import ArithmeticException

from correlator.pipeline import memory
from correlator.pipeline.memory import Memory

IN = pa.schema([("_position", pa.int64()), ("text", pa.string())])
OUT = pa.schema([("_part", pa.string()), ("_position", pa.int64()), ("letter", pa.string())])
BATCHES = st.lists(st.lists(st.text("abc", max_size=3), max_size=5), max_size=6)


def rows(*texts):
    return pa.table([range(len(texts)), texts], schema=IN)


class Letters:
    """Makes a row of each letter; `x` cannot be read, and at `!` Spark is gone."""

    def __init__(self):
        self.seen = []

    def __call__(self, table):
        made = []
        for position, text in zip(*table.to_pydict().values(), strict=True):
            self.seen.append(text)
            if "!" in text:
                raise ConnectionError("Spark is gone")
            if "x" in text:
                raise ArithmeticException("x")
            made += [{"_part": f"{at}", "_position": position, "letter": one} for at, one in enumerate(text)]
        return pa.Table.from_pylist(made[::-1], OUT)


def in_order(table):
    return table.sort_by([("_position", "ascending"), ("_part", "ascending")]).to_pylist()


@given(BATCHES)
def test_the_rows_are_those_of_an_execution_and_each_message_is_executed_once(batches):
    letters, recalled = Letters(), Memory()
    for batch in batches:
        table = rows(*batch)
        assert recalled.recall("a", table, letters).schema == OUT
        assert in_order(recalled.recall("a", table, letters)) == in_order(Letters()(table))
    new = [batch.count(text) for batch in batches for text in set(batch)]
    assert sorted(set(letters.seen)) == sorted({text for batch in batches for text in batch})
    assert len(letters.seen) <= sum(new)


def test_a_message_that_came_before_is_not_executed_at_another_place():
    letters, recalled = Letters(), Memory()
    recalled.recall("a", rows("a", "b"), letters)
    assert in_order(recalled.recall("a", rows("c", "b", "a"), letters)) == in_order(Letters()(rows("c", "b", "a")))
    assert letters.seen == ["a", "b", "c"]


def test_parts_of_a_pipeline_are_apart():
    letters, recalled = Letters(), Memory()
    for part in ("a", "b", "a"):
        recalled.recall(part, rows("a"), letters)
    assert letters.seen == ["a", "a"]


def test_a_value_that_spark_has_refused_is_refused_again_once_it_is_known():
    letters, recalled = Letters(), Memory()
    for _ in range(2):
        with pytest.raises(ArithmeticException):
            recalled.recall("a", rows("a", "x"), letters)
    with pytest.raises(ArithmeticException) as first:
        recalled.recall("a", rows("x"), letters)
    seen = len(letters.seen)
    for batch in (rows("x"), rows("x", "x")):
        with pytest.raises(ArithmeticException) as again:
            recalled.recall("a", batch, letters)
        assert again.value is first.value
    assert len(letters.seen) == seen


def test_another_failure_is_not_remembered():
    letters, recalled = Letters(), Memory()
    for _ in range(2):
        with pytest.raises(ConnectionError):
            recalled.recall("a", rows("!"), letters)
    assert letters.seen == ["!", "!"]


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "MOST_MESSAGES", 3)
    letters, recalled = Letters(), Memory()
    for text in "abcabc":
        assert recalled.recall("a", rows(text), letters).num_rows == 1
        assert len(recalled._made) <= 3
    assert recalled.recall("a", rows(*"abcde"), letters).num_rows == 5
    assert letters.seen.count("a") == 3
