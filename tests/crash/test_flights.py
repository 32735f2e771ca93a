"""The main job, killed with -9 at random moments and started again: its outputs are those of an undisturbed run."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection
from correlator.settings import ConnectionSettings

ROOT = Path(__file__).parents[2]
KILLS = 10
COMMAND = [str(Path(sys.executable).with_name("correlator")), "run", "config/flights.yaml"]


def place(directory: Path) -> Path:
    """A directory of its own with the example in it."""
    directory.mkdir()
    ignored = shutil.ignore_patterns(".positions", "delayed.jsonl", "flights-all.csv", "*.db*")
    shutil.copytree(ROOT / "config", directory / "config", ignore=ignored)
    return directory


def begin(directory: Path) -> subprocess.Popen[bytes]:
    """The command, in a session of its own, so that its JVM dies with it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (directory / "run.log").open("ab") as log:
        return subprocess.Popen(COMMAND, cwd=directory, stdout=log, stderr=log, env=environment, start_new_session=True)


def finish(directory: Path) -> float:
    """Run to the end; returns the seconds it took."""
    began = time.monotonic()
    process = begin(directory)
    assert process.wait(timeout=300) == 0, (directory / "run.log").read_text()
    return time.monotonic() - began


def kill_after(directory: Path, seconds: float) -> bool:
    """Run for so long, then kill; says whether it was killed before its end."""
    process = begin(directory)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def alerts(directory: Path) -> dict[str, list[bytes]]:
    """The bodies of all alerts in order, by airline."""
    settings = ConnectionSettings(type="embedded", options={"store": f"sqlite:///{directory}/correlator-broker.db"})
    connection = EmbeddedConnection("local", settings)
    by_carrier: dict[str, list[bytes]] = {}
    for message in connection.browse("queue:alerts", 100_000):
        by_carrier.setdefault(json.loads(message.body)["carrier"], []).append(message.body)
    connection.close()
    return by_carrier


@pytest.mark.kill9
@pytest.mark.spark
def test_u9_flights_killed_ten_times_give_the_outputs_of_an_undisturbed_run(tmp_path):
    """FEATURES U9, A1.6: given the main job, when it is killed ten times, then nothing is lost, doubled or reordered."""
    calm, killed = place(tmp_path / "calm"), place(tmp_path / "killed")
    length = finish(calm)
    randomness = random.Random(2013)
    kills = 0
    for _ in range(KILLS):
        kills += kill_after(killed, randomness.uniform(0.1, 0.6) * length)
    finish(killed)

    delayed = (calm / "config/data/delayed.jsonl").read_bytes()
    assert delayed.count(b"\n") > 1000
    assert (killed / "config/data/delayed.jsonl").read_bytes() == delayed
    assert alerts(killed) == alerts(calm) != {}
    assert kills >= KILLS // 2
