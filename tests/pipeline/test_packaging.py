"""The zip file with the modules that the workers of a cluster need: what is in it, what is refused, what it needs."""

import os
import subprocess
import sys
import zipfile

import pytest

from correlator.errors import ConfigError
from correlator.pipeline.packaging import package_of
from correlator.pipeline.spec import MonitorStep, PipelineSettings, PythonStep
from tests.cli.commands import run
from tests.spark_cluster import python_without_project

MONITOR = """
from correlator import KeyedMonitor


class Counts(KeyedMonitor[dict, dict]):
    count: int = 0

    def on_event(self, row):
        yield row
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Makes modules of a user; nothing of them stays imported."""
    directory = tmp_path / "user"
    directory.mkdir()
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(**files):
        for name, text in files.items():
            path = directory / name.replace("__dot__", ".").replace("__in__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return directory

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def packed(directory, *steps):
    steps = [PythonStep(function=one) if one.islower() else MonitorStep(class_=one, key="k") for one in steps]
    return package_of([PipelineSettings(name="p", from_=("in",), steps=tuple(steps))], [str(directory)])


def others(package):
    return sorted(name for name in package.files if not name.startswith("correlator/"))


def test_a_worker_without_any_source_imports_all(user, tmp_path):
    made = user(
        alpha__in____init____dot__py="",
        alpha__in__steps__dot__py="from . import near\n" + MONITOR,
        alpha__in__near__dot__py="def later():\n    import beta.deep.gamma\n",
        beta__in__deep__in__gamma__dot__py="import delta_module\n",
        delta_module__dot__py="def same(rows):\n    return rows\n",
    )
    package = packed(made, "alpha.steps:Counts", "delta_module:same")
    assert package.packages == ["alpha", "beta", "correlator", "delta_module"]
    assert package.needed == ["msgspec", "pyarrow"]
    path = package.write_into(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    text = "import correlator.pipeline.worker, alpha.steps, beta.deep.gamma, delta_module, sys; print(alpha.__file__)"
    python = python_without_project(tmp_path)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(path)}
    done = subprocess.run([python, "-c", text], env=environment, cwd=empty, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{path}/alpha/__init__.py"
    without = subprocess.run(
        [python, "-c", "import correlator"], env={}, cwd=empty, capture_output=True, text=True, check=False
    )
    assert "No module named 'correlator'" in without.stderr, "the Python of the test has nothing of the project"


def test_equal_modules_give_an_equal_file(user, tmp_path):
    made = user(alpha__in____init____dot__py="", alpha__in__steps__dot__py=MONITOR)
    first = packed(made, "alpha.steps:Counts").write_into(tmp_path)
    content = first.read_bytes()
    os.utime(made / "alpha" / "steps.py", (1, 1))
    (made / "alpha" / "steps.py").chmod(0o600)
    assert packed(made, "alpha.steps:Counts").write_into(tmp_path) == first
    assert first.read_bytes() == content
    (made / "alpha" / "steps.py").write_text(MONITOR + "\n")
    assert packed(made, "alpha.steps:Counts").write_into(tmp_path) != first, "another content has another name"


@pytest.mark.parametrize("name", ["_fast.so", "_fast.cpython-311-x86_64-linux-gnu.so", "fast.pyd"])
def test_a_native_part_is_refused_by_its_name(user, name):
    made = user(alpha__in____init____dot__py=MONITOR)
    (made / "alpha" / name).write_bytes(b"\x7fELF")
    with pytest.raises(ConfigError, match=rf"E1538 package: {made}/alpha/{name} is native code"):
        packed(made, "alpha:Counts")


def test_what_is_installed_is_needed_and_not_packed(user):
    made = user(alpha__dot__py="import json, msgspec, yaml\n" + MONITOR)
    package = packed(made, "alpha:Counts")
    assert others(package) == ["alpha.py"]
    assert package.needed == ["msgspec", "pyarrow", "yaml"]


def test_what_no_imported_module_needs_is_not_needed(user):
    """A module of the package that no step uses, and a package that is not even here."""
    made = user(
        alpha__in____init____dot__py="try:\n    import no_such_module\nexcept ImportError:\n    pass\n" + MONITOR,
        alpha__in__tool__dot__py="import yaml\n",
    )
    package = packed(made, "alpha:Counts")
    assert others(package) == ["alpha/__init__.py", "alpha/tool.py"]
    assert package.needed == ["msgspec", "pyarrow"]


def test_an_installed_package_that_a_step_names_is_packed_unless_it_is_native(user):
    made = user(
        **{"site-packages__in__alpha__dot__py": MONITOR, "site-packages__in__beta__in____init____dot__py": MONITOR}
    )
    (made / "site-packages" / "beta" / "_fast.so").write_bytes(b"")
    package = packed(made / "site-packages", "alpha:Counts", "beta:Counts")
    assert others(package) == ["alpha.py"]
    assert package.needed == ["beta", "msgspec", "pyarrow"]


def test_caches_hidden_files_and_other_files_are_left_out(user):
    made = user(
        alpha__in____init____dot__py=MONITOR,
        alpha__in____pycache____in__x__dot__pyc="",
        alpha__in____dot__hidden__in__y__dot__py="",
        alpha__in__data__dot__csv="",
    )
    assert others(packed(made, "alpha:Counts")) == ["alpha/__init__.py"]


def test_a_module_that_cannot_be_imported_is_told_as_at_a_start(user):
    made = user(alpha__dot__py="import no_such_module\n")
    with pytest.raises(ConfigError, match="E1501 alpha:Counts: cannot import"):
        packed(made, "alpha:Counts")


def test_the_command_writes_the_file_and_tells_what_is_needed(tmp_path):
    (tmp_path / "alpha.py").write_text(MONITOR)
    (tmp_path / "p.yaml").write_text(
        "name: p\nconnections: {f: {type: file, path: .}}\n"
        'receivers: [{id: in, connection: f, destination: "queue:in", reliability: BEST_EFFORT}]\n'
        'pipelines: [{name: p, from: [in], steps: [{monitor: {class: "alpha:Counts", key: key}}]}]\n'
    )
    done = run("package", "p.yaml", "-o", "app.zip", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("app.zip: ")
    assert first.endswith(" modules of alpha, correlator")
    assert second == f"The workers need Python {sys.version_info[0]}.{sys.version_info[1]} with msgspec, pyarrow"
    assert "alpha.py" in zipfile.ZipFile(tmp_path / "app.zip").namelist()
    refused = run("package", "p.yaml", "-o", "app.whl", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.split(" ")[0]) == (2, "E2032")
    refused = run("package", "p.yaml", "-o", "missing/app.zip", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.split(" ")[0]) == (2, "E2032")
