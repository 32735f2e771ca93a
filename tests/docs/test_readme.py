"""The examples of the library in the README work unchanged."""

import json
import signal
import subprocess
import sys

from tests.cli.commands import run
from tests.docs.test_pages import ROOT, blocks

PATIENCE_S = 60.0
MOST_LOOKS = 30


def test_u7_the_example_of_the_library(tmp_path):
    texts = dict(blocks(ROOT / "README.md"))
    (tmp_path / "risk.py").write_text(texts["python"])
    (tmp_path / "risk.yaml").write_text(texts["yaml"])
    (tmp_path / "trades.jsonl").write_text('{"account": "A1", "quantity": 2000000}\n')
    engine = subprocess.Popen([sys.executable, "risk.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        alerts = first_alerts(tmp_path)
        engine.send_signal(signal.SIGTERM)
        _, errors = engine.communicate(timeout=PATIENCE_S)
    finally:
        engine.kill()
    assert [json.loads(alert["body"]) for alert in alerts] == [{"account": "A1", "position": 2000000}]
    assert (engine.returncode, errors) == (0, "")


def first_alerts(place):
    """What a reader of the README sees; each look is a command of its own, which takes its time."""
    for _ in range(MOST_LOOKS):
        result = run("browse", "risk.yaml", "local", "queue:alerts", "--json", cwd=place)
        if alerts := json.loads(result.stdout or "[]"):
            return alerts
    raise AssertionError(result.stderr)
