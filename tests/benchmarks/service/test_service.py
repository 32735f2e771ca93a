"""The benchmark of the message service itself: with few messages, on our own service in a file."""

import json
import os
import subprocess
import sys

import pytest

from connectors.messaging import AcknowledgeMode
from tests.benchmarks.service import modes, scale
from tests.benchmarks.service.__main__ import main
from tests.benchmarks.service.clients import Client
from tests.benchmarks.service.ours import sqlite
from tests.benchmarks.service.processor import processor_s
from tests.benchmarks.service.report import Row, Spread, Table, ratios, spread
from tests.harness.processes import ROOT

SPIN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


@pytest.fixture(scope="module")
def peer():
    one = sqlite()
    try:
        one.start()
        yield one
    finally:
        one.stop()


def test_measurements_have_a_figure_for_all_that_was_asked_for(tmp_path, capsys):
    file = tmp_path / "figures.json"
    only = "singly,batches,depth,threads,modes"
    numbers = ["--messages", "8", "--rounds", "1", "--depth", "30"]
    main(["--only", only, "--peers", "sqlite", *numbers, "--json", str(file)])
    found = json.loads(file.read_text())
    assert found["peers"]["sqlite"].startswith("correlator ")
    for name in ("singly", "batches"):
        (row,) = found[name][0]["rows"]
        assert min(row[f"{what}/s"]["median"] for what in ("send", "receive", "together")) > 0
    assert [row["name"] for row in found["depth"][0]["rows"]] == ["10 waiting", "30 waiting"]
    assert found["threads"][0]["rows"][3]["sqlite, send/s"]["median"] > 0
    by_mode = {row["name"]: row["sqlite, receive/s"] for row in found["modes"][0]["rows"]}
    assert len(by_mode) == 4 * len(AcknowledgeMode)
    assert by_mode["AUTO, 1, persistent"]["median"] > 0
    compared = {row["name"]: row["sqlite, send/s"]["median"] for row in found["modes"][0]["ratios"]}
    assert compared.keys() == by_mode.keys()
    assert compared["AUTO, 1, persistent"] == 1
    assert "batches: 80 persistent messages in batches of 100" in capsys.readouterr().out


def test_each_disturbance_is_compared_with_calm(tmp_path, capsys):
    file = tmp_path / "figures.json"
    scale.main(["--depth", "3000", "--round-ms", "100", "--seconds", "1", "--json", str(file)])
    found = json.loads(file.read_text())
    tables = [found[name][0] for name in ("expiry", "browse", "snapshot")]
    compared = {row["name"]: row["receive us"]["median"] for table in tables for row in table["ratios"]}
    assert min(compared.values()) > 0
    assert list(compared) == [
        "swept by another process : calm",
        "swept by the same process : calm",
        "browsed : calm",
        "a transaction reads : calm",
    ]
    assert found["browse"][-1]["rows"][0]["MiB"]["high"] <= 64
    (writers,) = found["writers"][0]["rows"]
    assert 0 < writers["least : greatest share"]["low"] <= 1
    assert "3,000 messages of another queue expire" in capsys.readouterr().out


def test_q20_the_page_has_a_row_for_each_cell_that_is_measured():
    page = (ROOT / "docs" / "embedded.md").read_text("utf-8")
    shown = {
        line.split(" | ")[0].removeprefix("| "): line.count(" | ")
        for line in page.splitlines()
        if "persistent |" in line
    }
    assert shown == dict.fromkeys(map(modes.name, modes.CASES), 4)
    assert "| AUTO, 1, persistent | 1 | 1 | 1 | 1 |" in page


def test_q20_the_table_of_the_page_is_made_of_the_ratios_of_a_run():
    cell = {"median": 12.345, "low": 1.0, "high": 20.0}
    assert modes.table([{"name": "a", "sqlite, send/s": cell, "sqlite, receive/s": None}]).splitlines() == [
        "| mode, batch, delivery mode | sqlite, send | sqlite, receive |",
        "|---|---|---|",
        "| a | 12 | - |",
    ]


def test_consumers_that_drain_share_the_messages_and_leave_none(peer):
    peer.produce(12, 4)
    other = peer.client()
    try:
        other.ask("drain", 5)
        begin, end, count = peer.call("drain", 1)
        assert end >= begin
        assert count + other.answer()[2] == 12
        assert peer.call("drain", 1)[2] == 0
    finally:
        other.close()


def test_each_message_has_its_delay(peer):
    delays = peer.delays(5, 4)
    assert len(delays) == 5
    assert min(delays) > 0


def test_a_client_that_ends_is_an_error():
    client = Client([sys.executable, "-c", "input(); raise SystemExit(3)"])
    try:
        with pytest.raises(RuntimeError, match="exit code"):
            client.call("produce", 1, 1)
    finally:
        client.close()


def test_an_answer_that_does_not_come_is_an_error():
    client = Client([sys.executable, "-c", "input()"])
    try:
        with pytest.raises(RuntimeError, match="exit code None"):
            client.answer(0.01)
    finally:
        client.close()


def test_processor_time_includes_descendants():
    command = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, SPIN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert processor_s(process.pid) > 0.25
        assert processor_s(process.pid) < processor_s(os.getpid())
        process.stdin.close()


def test_ratios_are_those_of_each_round():
    assert ratios([2.0, 20.0, 300.0], [1.0, 10.0, 100.0]) == Spread(2.0, 2.0, 3.0)
    assert ratios([2.0, 3.0], [1.0, 0.0]) is None


def test_a_table_says_what_was_not_measured():
    table = Table("title", ("a/s", "b/s"), [Row("one", (spread([1000.0]), None))], [Row("one : two", (None, None))])
    assert str(table).splitlines()[2].split() == ["one", "1,000", "-"]
    assert table.as_json()["rows"][0]["b/s"] is None
