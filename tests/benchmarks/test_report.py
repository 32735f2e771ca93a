"""The report reads each ratio where its benchmark prints it, and says when there is none."""

import importlib
import sys

from tests.benchmarks import __main__ as report
from tests.benchmarks.__main__ import BENCHMARKS, Ratio, ratios


def test_ratios_are_read_from_what_benchmarks_print():
    assert ratios("engine", "round 1: raw 9/s  engine 8/s  ratio 0.88\nmedian ratio 0.51 (0.47 to 0.58)\n") == [
        Ratio("engine", "rate of an EXACTLY_ONCE engine", 0.51, 0.47, 0.58)
    ]
    printed = (
        "publish, batches of 500    bare 9/s 5.0 us  ours 9/s 5.0 us  rate 1.20  cost 0.80\n"
        "publish, batches of 500    median of ratios: rate 1.10 (0.97 to 1.18), cost 0.79 (0.71 to 0.99), wanted: rate 0.80\n"
        "publish, batches of 5000   median of ratios: rate 0.98 (0.79 to 1.08), cost 0.85 (0.79 to 0.91), wanted: rate 0.80\n"
    )
    assert ratios("rabbitmq", printed) == [
        Ratio("rabbitmq", "RabbitMQ: rate of publishing with confirms, batches of 500", 1.1, 0.97, 1.18),
        Ratio("rabbitmq", "RabbitMQ: rate of publishing with confirms, batches of 5,000", 0.98, 0.79, 1.08),
    ]
    medians = "medians: rate 0.990, CPU time of a message 1.010\n"
    assert [row.median for row in ratios("http", medians)] == [0.99, 1.01]


def test_every_benchmark_can_be_run_by_its_name():
    for one in BENCHMARKS.values():
        assert callable(importlib.import_module(one.words[0]).main)


def test_a_benchmark_without_a_ratio_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(report, "machine", lambda: "a machine")
    monkeypatch.setattr(report, "printed_by", lambda words: "no figures\n")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "report", "--only", "engine"])
    assert report.main() == 1
    assert "engine: no ratio was printed" in capsys.readouterr().out
