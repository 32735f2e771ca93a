"""Files that a `lookup` cannot use: one line with a code, the step, the file, what is wrong and what to do."""

import pytest

from correlator.errors import ConfigError
from correlator.pipeline.processor import SparkProcessor
from correlator.pipeline.spec import DecodeStep, LookupStep, PipelineSettings, RouteStep, WhereStep
from correlator.pipeline.static_checks import check_steps
from tests.pipeline.conftest import TinyEngine

DECODE = DecodeStep(format="json", schema="sku STRING, count INT")
TYPED = "sku STRING, n INT"
OUT = RouteStep(to="out")

UNUSABLE = [
    ("wrong type", "csv", TYPED, b"sku,n\ntea,1\ncup,x\n", """a value of the record '[cup,null]' has another type than its column: For input string: "x".""", f"Its schema: {TYPED}. Correct the record or the schema."),
    ("too few values", "csv", TYPED, b"sku,n\ntea,1\ncup\n", "the record 'cup' has another number of values than the file has columns.", "Correct the record."),
    ("too many values", "csv", TYPED, b"sku,n\ntea,1\ncup,1,2\n", "the record 'cup,1,2' has another number of values than the file has columns.", "Correct the record."),
    ("too many values", "csv", None, b"sku,n\ntea,1\ncup,1,2\n", "the record 'cup,1,2' has another number of values than the file has columns.", "Correct the record."),
    ("a quote that nothing ends", "csv", None, b'sku,n\n"tea,1\ncup,2\n', "the record '\"tea,1' has another number of values than the file has columns.", "Correct the record."),
    ("another order", "csv", TYPED, b"n,sku\n1,tea\n", "the header is 'n, sku', the schema has 'sku, n'.", "Both must name the same columns in the same order. Correct the file or the schema."),
    ("another name", "csv", TYPED, b"sku,m\ntea,1\n", "the header is 'sku, m', the schema has 'sku, n'.", "Both must name the same columns in the same order. Correct the file or the schema."),
    ("one column more", "csv", TYPED, b"sku,n,m\ntea,1,2\n", "the header has 3 columns, the schema has 2.", "Both must name the same columns in the same order. Correct the file or the schema."),
    ("two columns of one name", "csv", None, b"n,n,sku\n1,2,tea\n", "the header is 'n, n, sku'.", "Each column needs a name of its own. Correct the file."),
    ("a column without a name", "csv", None, b"sku,\ntea,1\n", "the header is 'sku, '.", "Each column needs a name of its own. Correct the file."),
    ("an empty file", "csv", None, b"", "is empty.", "The first line of a CSV file names the columns."),
    ("an empty file", "csv", TYPED, b"\n \n", "is empty.", "The first line of a CSV file names the columns."),
    ("other bytes", "csv", TYPED, b"sku,n\ncaf\xe9,1\n", "the line 'caf�,1' is not UTF-8.", "Convert the file to UTF-8."),
    ("other bytes", "json", TYPED, b'{"sku": "caf\xe9"}\n', """the line '{"sku": "caf�"}' is not UTF-8.""", "Convert the file to UTF-8."),
    ("a wrong type", "json", TYPED, b'{"sku":"tea","n":1}\n{"sku":"cup","n":"x"}\n', "a value of the record ", f"Its schema: {TYPED}. Correct the record or the schema."),
    ("no json", "json", TYPED, b'{"sku":"tea","n":1}\n{"sku"\n', "a value of the record ", f"Its schema: {TYPED}. Correct the record or the schema."),
    ("no parquet", "parquet", None, b"not parquet", "is not a Parquet file", ""),
    ("a wrong schema", "csv", "sku STRING, n TIMESTAMP(3)", b"sku,n\n", "The seconds precision 3 of TIMESTAMP", ""),
    ("no file", "csv", None, None, "Path does not exist", "A relative path counts from the directory in which the engine was started. Correct 'file'."),
    ("no file", "csv", TYPED, None, "Path does not exist", "A relative path counts from the directory in which the engine was started. Correct 'file'."),
    ("no column", "csv", None, b"skuu,n\ntea,1\n", "has no column 'sku'.", "Columns: skuu, n."),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "format_", "schema", "content", "what", "rest"), UNUSABLE)
def test_a_file_that_cannot_be_used_is_an_error_of_one_line(
    engine, tmp_path, kind, format_, schema, content, what, rest
):
    file = tmp_path / f"products.{format_}"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        engine(DECODE, LookupStep(file=str(file), format=format_, schema=schema, on=("sku",)), OUT)
    text = str(caught.value)
    assert text.startswith(f"E1518 pipeline p step 2 (lookup): {file}")
    assert what in text
    assert text.endswith(rest)
    for word in ("\n", "org.apache", "Py4J", "java.", "SQLSTATE", "An error occurred"):
        assert word not in text


def test_a_file_with_a_header_only_has_no_records(engine, tmp_path):
    file = tmp_path / "products.csv"
    file.write_text("sku,n\n")
    e = engine(DECODE, LookupStep(file=str(file), schema=TYPED, on=("sku",)), OUT)
    e.run('{"sku": "tea", "count": 1}')
    assert e.bodies() == ['{"sku":"tea","count":1,"n":null}']


def test_a_file_that_has_become_unusable_stops_the_batch_with_the_same_error(engine, tmp_path):
    file = tmp_path / "products.csv"
    file.write_text("sku,n\ntea,1\n")
    e = engine(DECODE, LookupStep(file=str(file), schema=TYPED, on=("sku",), refresh=1.0), OUT)
    e.run('{"sku": "tea", "count": 1}')
    file.write_text("sku,n\ntea,many\n")
    e.processor._opened.lookups[0]._read_at = 0.0
    with pytest.raises(ConfigError, match=r"E1518 pipeline p step 2 \(lookup\): .* has another type than its column"):
        e.run('{"sku": "tea", "count": 1}')


@pytest.mark.parametrize(
    ("header", "what"),
    [("n,sku", "the header is 'n, sku', the schema has 'sku, n'"), ("sku,n", None), ("SKU,N", None), ('"sku",n', None)],
)
def test_lint_compares_the_header_with_the_schema(tmp_path, header, what):
    file = tmp_path / "products.csv"
    file.write_text(f"{header}\ntea,1\n")
    steps = (DECODE, LookupStep(file=str(file), schema=TYPED, on=("sku",)), OUT)
    found = check_steps(PipelineSettings(name="p", from_=("in",), steps=steps)).mistakes
    assert [(one.step, one.error.code, one.error.where) for one in found] == ([(1, "E1518", "schema")] if what else [])
    assert all(one.error.what == f"{file}: {what}" for one in found)


@pytest.mark.parametrize("last", [OUT, WhereStep(condition="nope")], ids=["opened", "refused"])
def test_nothing_of_a_closed_pipeline_stays_in_a_session_that_others_share(session, tmp_path, last):
    (tmp_path / "products.csv").write_text("sku,n\ntea,1\n")
    spark = session.acquire()
    spark.catalog.clearCache()  # what other tests have left open
    cached = spark._jsparkSession.sharedState().cacheManager()
    before = {table.name for table in spark.catalog.listTables()}
    lookup = LookupStep(file=str(tmp_path / "products.csv"), format="csv", on=("sku",))
    pipeline = PipelineSettings(name="p", from_=("in",), steps=(DECODE, lookup, last))
    processor = SparkProcessor(pipeline, session)
    if last is OUT:
        processor.open()
        TinyEngine(processor).run('{"sku": "tea", "count": 2}', '{"sku": "cup", "count": 2}')
        assert not cached.isEmpty()
        processor.close()
    else:
        with pytest.raises(ConfigError, match="^E1511"):
            processor.open()
    assert cached.isEmpty()
    assert {table.name for table in spark.catalog.listTables()} == before
    session.release()
