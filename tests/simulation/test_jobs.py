"""Campaigns in several processes: together they run the seeds that one would."""

import sys
from collections import Counter

import msgspec
import pytest

from tests.harness.kill9 import __main__ as kill9
from tests.harness.kill9.campaign import KillFigures
from tests.harness.simulation import __main__ as simulation
from tests.harness.simulation.figures import CampaignReport


def report_of(monkeypatch, command, path, *options):
    """Exit status, and the report as JSON."""
    monkeypatch.setattr(sys, "argv", ["python -m …", *options, "--report", str(path)])
    return command.main(), path.read_bytes()


def test_the_simulation_shares_its_seeds(monkeypatch, tmp_path):
    whole, *halves = (
        msgspec.json.decode(
            report_of(monkeypatch, simulation, tmp_path / "report.json", *options)[1], type=CampaignReport
        )
        for options in (
            ("--crashes", "60", "--seed", "5", "--jobs", "2"),
            ("--crashes", "30", "--seed", "5", "--step", "2"),
            ("--crashes", "30", "--seed", "6", "--step", "2"),
        )
    )
    assert whole.first_seed == 5
    assert (whole.runs, whole.crashes) == tuple(
        sum(getattr(one, name) for one in halves) for name in ("runs", "crashes")
    )
    assert whole.killed_at == dict(Counter(halves[0].killed_at) + Counter(halves[1].killed_at))


@pytest.mark.kill9
def test_real_kills_share_their_seeds(monkeypatch, tmp_path, capfd):
    status, report = report_of(monkeypatch, kill9, tmp_path / "report.json", "--kills", "4", "--jobs", "2")
    told = capfd.readouterr().out.splitlines()
    figures = msgspec.json.decode(report)
    assert status == 0
    assert figures["kills"] == sum(figures["by_kind"].values()) >= 4
    assert figures["runs"] >= 2
    assert len(told) == 3
    assert told[-1].startswith(f"together: {figures['runs']} runs")


def test_figures_add_up():
    one, other = (
        KillFigures(runs=n, kills=n, deaths=n, by_kind=Counter(point=n), violations=n, seconds=n, cpu_seconds=n)
        for n in (2, 3)
    )
    one.merge(other)
    assert (one.runs, one.kills, one.deaths, one.violations, one.cpu_seconds) == (5, 5, 5, 5, 5)
    assert one.by_kind == {"point": 5}
    assert one.seconds == 3


def test_pairs_are_not_shared(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit) as raised:
        report_of(monkeypatch, kill9, tmp_path / "r.json", "--pairs", "BEST_EFFORT", "--jobs", "2")
    assert raised.value.code == 2
    assert "--pairs is one process" in capsys.readouterr().err
