"""The page about clusters shows what the product does. tests/spark_cluster.py starts clusters with the commands of the page."""

import re
import sys

from correlator.pipeline import spark
from correlator.pipeline.deadline import LEAST_S, REMEMBERED, TIMES
from correlator.pipeline.processor import MOST_ATTEMPTS
from correlator.pipeline.spec import SparkSettings
from tests.cli.commands import run
from tests.docs.test_pages import ROOT

PAGE = (ROOT / "docs" / "cluster.md").read_text()


def test_the_command_prints_what_the_page_shows(tmp_path):
    done = run("package", "config/flights.yaml", "-o", str(tmp_path / "app.zip"), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    shown = re.search(
        r"^\$ correlator package config/flights.yaml -o app.zip\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    printed = re.sub(r"\d+ modules", "… modules", done.stdout.replace(f"{tmp_path}/", ""))
    version = ".".join(map(str, sys.version_info[:2]))
    assert printed == shown[1].replace("Python 3.11", f"Python {version}")


def test_the_settings_are_those_of_the_product():
    rows = dict(re.findall(r"^\| `(spark[\w.]+)` \| `(\w+)` \|", PAGE, re.MULTILINE))
    made = spark.settings_of(SparkSettings(master="spark://one:7077"), "")
    assert rows == spark._OF_A_CLUSTER
    assert rows.items() <= made.items()


def test_the_numbers_are_those_of_the_product():
    assert (TIMES, REMEMBERED, LEAST_S, MOST_ATTEMPTS) == (3, 20, 60.0, 5)
    text = " ".join(PAGE.split())
    assert "three times the duration of the slowest of the last twenty batches, but not less than 60 s" in text
    assert "If a batch fails five times in a row, the engine stops" in text


def test_the_error_of_the_page_is_the_one_of_the_test_on_a_cluster():
    (error,) = re.findall(r"E5510 .*", PAGE)[-1:]
    test = (ROOT / "tests" / "cluster" / "test_cluster.py").read_text()
    assert error in re.sub(r'"\s+"', "", test)
