"""The shares of a pipeline: the engines of a process share one Spark session, and each keeps its own windows."""

import json
import signal
from pathlib import Path

import pytest

from tests.cli.commands import run, start, wait_for, write

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

FILE = """
name: totals
store: ${STORE}
shares: {count: 2, lease: 5s}
connections: {broker: {type: embedded, store: "sqlite:///broker.db"}}
receivers:
  - {id: sales, connection: broker, destination: "queue:sales-${share}", reliability: EXACTLY_ONCE}
senders:
  - {id: out, connection: broker, destination: "queue:out", reliability: EXACTLY_ONCE}
pipelines:
  - name: sums
    from: [sales]
    steps:
      - decode: {format: json, schema: "shop STRING, amount INT"}
      - where: "amount > 1"
      - select: {shop: shop, amount: amount, share: "${share}"}
      - route: out
"""


def test_a_member_runs_the_shares_of_a_pipeline(
    postgres_server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE", postgres_server.fresh_database())
    write(tmp_path / "totals.yaml", [FILE])
    for share in (0, 1):
        write(tmp_path / "sales.jsonl", [f'{{"shop": "s{share}", "amount": {amount}}}' for amount in (1, 2, 3)])
        run("publish", "totals.yaml", "broker", f"queue:sales-{share}", "sales.jsonl", cwd=tmp_path)
    process = start("run", "totals.yaml", cwd=tmp_path)
    try:
        wait_for(process, "share taken")
        while len(sent := browsed(tmp_path)) < 4:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 143, err
    rows = sorted((row["share"], row["shop"], row["amount"]) for row in sent)
    assert rows == [(0, "s0", 2), (0, "s0", 3), (1, "s1", 2), (1, "s1", 3)]
    assert run("plan", "totals.yaml", "--share", "1", cwd=tmp_path).returncode == 0


def browsed(place: Path) -> list[dict]:
    result = run("browse", "totals.yaml", "broker", "queue:out", "--json", cwd=place)
    return [json.loads(one["body"]) for one in json.loads(result.stdout)] if result.returncode == 0 else []
