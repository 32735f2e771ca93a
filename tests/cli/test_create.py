"""`correlator create`: the project that it makes runs, passes its own test, and is what systemd and containers expect."""

import ast
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from correlator.cli.create import LONGEST_NAME, ProjectTemplate, files_of
from tests.cli.commands import assert_fails, run, start
from tests.crash.projects import run_pytest

PATIENCE_S = 120


@pytest.fixture(params=list(ProjectTemplate))
def project(request, tmp_path):
    """A project of each template."""
    made = run("create", "web-shop", "--template", request.param, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    return tmp_path / "web-shop"


class Listens:
    """What systemd hears of a service."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(PATIENCE_S)
        self.heard = []

    def wait_for(self, *wanted):
        missing = set(wanted)
        while missing:
            lines = self.socket.recv(4096).decode().split("\n")
            self.heard += lines
            missing -= {one for one in missing if any(line.startswith(one) for line in lines)}


def test_a_project_passes_its_test_runs_and_tells_systemd(tmp_path):
    assert run("create", "shop", cwd=tmp_path).stdout.startswith(
        "shop: .dockerignore, .gitignore, Dockerfile, README.md"
    )
    place = tmp_path / "shop"
    tested = run_pytest(place, "--crash-budget=2s")
    assert (tested.returncode, tested.stderr) == (0, ""), tested.stdout
    assert "1 passed" in tested.stdout
    published = run("publish", "shop.yaml", "local", "queue:orders", "orders.jsonl", cwd=place)
    assert published.returncode == 0, published.stderr
    systemd = Listens(tmp_path / "notify")
    variables = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "600000"}  # looks every 0.2 s
    with start("run", "shop.yaml", "--log-json", cwd=place, env=variables) as engine:
        systemd.wait_for("READY=1")
        assert systemd.heard == ["READY=1"]
        systemd.wait_for("WATCHDOG=1", "STATUS=ready; received 3, sent 3, dead letters 0")
        engine.send_signal(signal.SIGTERM)
        systemd.wait_for("STOPPING=1")
        assert systemd.heard[-1] == "STOPPING=1"
        engine.communicate(timeout=PATIENCE_S)
    systemd.socket.close()
    assert engine.returncode == 128 + signal.SIGTERM
    bills = json.loads(run("browse", "shop.yaml", "local", "queue:bills", "--json", cwd=place).stdout)
    assert [json.loads(bill["body"])["total"] for bill in bills] == [500, 700, 750]


def test_a_project_of_each_template_is_without_a_warning(project):
    linted = run("lint", "web-shop.yaml", cwd=project)
    assert (linted.returncode, linted.stderr) == (0, "")
    assert {line[0] for line in linted.stdout.splitlines()} == {"I"}, linted.stdout
    texts = {path.name: path.read_text() for path in project.iterdir()}
    assert not [name for name, text in texts.items() if re.search(r"@\w+@", name + text)]
    for name, text in texts.items():
        if name.endswith(".py"):
            ast.parse(text)
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--isolated", "--no-cache", "--line-length=120"]
    checked = subprocess.run([*ruff, "--select=E,F,I", project], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_files_of_a_project_name_one_another(project):
    names = {path.name for path in project.iterdir()}
    readme = (project / "README.md").read_text()
    assert {"web-shop.yaml", "web-shop.service", "orders.jsonl", "test_crashes.py"} <= names
    assert set(re.findall(r"`?(\b[\w-]+\.(?:yaml|py|service|jsonl))\b", readme)) <= names
    assert set(re.search(r"COPY (web-shop.*) /app/", (project / "Dockerfile").read_text())[1].split()) <= names
    service = yaml.safe_load((project / "compose.yaml").read_text())["services"]["web-shop"]
    assert service["restart"] == "unless-stopped"  # Docker does not promise a start after a reboot for on-failure
    assert service["healthcheck"]["test"] == ["CMD", "correlator", "status", "/app/web-shop.yaml"]
    ignored = (project / ".dockerignore").read_text().split()
    assert ignored[0] == "*"


def test_o16_systemd_accepts_the_unit(project):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    unit = project / "web-shop.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.MULTILINE))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "web-shop" in line]) == (0, [])


def test_the_unit_waits_as_long_as_the_engine_does():
    unit = files_of(ProjectTemplate.EMBEDDED, "shop")["shop.service"]
    lines = {"Type=notify", "NotifyAccess=main", "WatchdogSec=2min", "TimeoutStopSec=100", "KillMode=mixed"}
    assert lines <= set(unit.split("\n"))


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine").touch()
    assert_fails(run("create", "shop", cwd=tmp_path), "E2036", 2, "is not empty")
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["mine"]
    (tmp_path / "file").touch()
    assert_fails(run("create", "file", cwd=tmp_path), "E2036", 2, "cannot be written")
    assert_fails(run("create", "no/shop", cwd=tmp_path), "E2036", 2, "No such file")
    (tmp_path / "empty").mkdir()
    assert run("create", "empty", cwd=tmp_path).returncode == 0
    (tmp_path / "here").mkdir()
    assert run("create", ".", cwd=tmp_path / "here").returncode == 0
    assert (tmp_path / "here" / "here.yaml").exists()


@pytest.mark.parametrize(
    "name", ["Shop", "1shop", "shop_", "a--b", "-x", "ü", "a b", "..", "a/..", "a\nb", "x" * (LONGEST_NAME + 1), ""]
)
def test_names_that_other_programs_would_not_take(tmp_path, name):
    (tmp_path / "Place").mkdir()  # the name of the empty path
    result = run("create", "--", name, cwd=tmp_path / "Place")
    assert_fails(result, "E2035", 2)
    assert list((tmp_path / "Place").iterdir()) == []


def test_an_unknown_template(tmp_path):
    assert_fails(run("create", "shop", "--template", "kafka", cwd=tmp_path), "E2004", 2, "embedded", "pipeline")
