"""A pipeline whose process is killed between two of its batches: what it took comes again, and leaves once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.world import Queues, numbered

COUNT = 40
LIFE = """
import os, signal, sys
from connectors.embedded import EmbeddedConnection
from correlator import Engine
from correlator.core import faults
from correlator.settings import CheckpointSettings, ConnectionSettings, EngineSettings
from tests.runtime.test_poison import Pipeline
from tests.runtime.world import receiver, sender

store, broker, hit = sys.argv[1], sys.argv[2], int(sys.argv[3])
left = [hit]

def passed(name):
    left[0] -= name == "app.batch"
    if name == "app.batch" and not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

faults.install(passed)
connection = EmbeddedConnection("memory", ConnectionSettings(type="embedded", options={"store": broker}))
settings = EngineSettings(
    name="killed",
    store=store,
    checkpoint=CheckpointSettings(interval=0.01),
    receivers=(receiver(max_batch_size=5),),
    senders=(sender(),),
)
with Engine(settings, connections={"memory": connection}, processors=[Pipeline("none", max_rows=5)]) as engine:
    while len(connection.browse("queue:out", 1000)) < int(sys.argv[4]):
        engine.raise_failure()
        engine.checkpoint()
"""


@pytest.mark.kill9
def test_z8_a_pipeline_killed_before_any_batch_sends_each_message_once(tmp_path):
    queues = Queues(tmp_path)
    queues.publish(numbered(COUNT))

    def live(hit: int) -> int:
        order = [f"sqlite:///{tmp_path / 'engine.db'}", queues.url, str(hit), str(COUNT)]
        command = [sys.executable, "-W", "error", "-c", LIFE, *order]
        return subprocess.run(command, cwd=Path(__file__).parents[2], check=False, timeout=300).returncode

    assert [live(hit) for hit in (1, 2, 4)] == [-9, -9, -9]
    assert live(0) == 0
    assert queues.bodies() == [f"m{number}" for number in range(1, COUNT + 1)]
