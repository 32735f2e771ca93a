"""The main job, killed with -9 at random moments and started again: its outputs are those that plain Python computes."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection
from correlator.settings import ConnectionSettings
from tests.docs.test_transcripts import blocks, environment, run_transcripts
from tests.pipeline.test_flights import reference, sample

ROOT = Path(__file__).parents[2]
KILLS = 4
"""The first one before anything is written, one more at each fifth of the output but the last."""
BATCH_S = 0.5
"""About what the engine takes for a batch."""
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


def finish(directory: Path) -> None:
    """Run to the end."""
    process = begin(directory)
    assert process.wait(timeout=300) == 0, (directory / "run.log").read_text()


def kill_at(directory: Path, size: int, later: float) -> bool:
    """Run until the file of delayed flights has so many bytes, and some seconds longer, then kill; tells whether it did.

    So every life takes in something, and dies at another place of its batch.
    """
    process = begin(directory)
    delayed = directory / "config/data/delayed.jsonl"
    while process.poll() is None and (not delayed.exists() or delayed.stat().st_size < size):
        ends_within(process, 0.05)
    if ends_within(process, later):
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def alerts(directory: Path) -> list[bytes]:
    """The bodies of all alerts in the broker."""
    settings = ConnectionSettings(type="embedded", options={"store": f"sqlite:///{directory}/correlator-broker.db"})
    connection = EmbeddedConnection("local", settings)
    bodies = [message.body for message in connection.browse("queue:alerts", 100_000)]
    connection.close()
    return bodies


def by_carrier(bodies: list[bytes]) -> dict[str, list[bytes]]:
    """The alerts in order, by airline."""
    alerts_of: dict[str, list[bytes]] = {}
    for body in bodies:
        alerts_of.setdefault(json.loads(body)["carrier"], []).append(body)
    return alerts_of


@pytest.mark.kill9
@pytest.mark.spark
def test_u9_flights_killed_again_and_again_give_the_outputs_that_plain_python_computes(tmp_path):
    """Rules U9, A1.6: given the main job, when it is killed again and again, nothing is lost, doubled or reordered."""
    killed = place(tmp_path / "killed")
    expected_delayed, expected_alerts, _ = reference(list(dict.fromkeys(sample())))
    delayed = "".join(f"{line}\n" for line in expected_delayed).encode()
    assert delayed.count(b"\n") > 1000
    randomness = random.Random(2013)
    for kill in range(KILLS):
        assert kill_at(killed, kill * len(delayed) // (KILLS + 1), randomness.uniform(0, BATCH_S)), f"kill {kill}"
    finish(killed)

    assert (killed / "config/data/delayed.jsonl").read_bytes() == delayed
    assert by_carrier(alerts(killed)) == by_carrier([body.encode() for body in expected_alerts]) != {}
    the_page_draws_its_pictures_of(killed)


def the_page_draws_its_pictures_of(directory: Path) -> None:
    """The commands of docs/flights.md that follow a run: the pictures of the page are those of this output."""
    (directory / "docs").symlink_to(ROOT / "docs")
    variables = {**environment(), "PYTHONPATH": str(ROOT)}
    assert run_transcripts(blocks("flights.md"), directory, variables) > 0
    drawn = {path.name: path.read_bytes() for path in (directory / "pictures").iterdir()}
    assert drawn == {path.name: path.read_bytes() for path in (ROOT / "docs/images").glob("flights-*.svg")} != {}
