"""The driver of the comparison with other programs, with few kills, and its judge.

How it could be wrong: an error is not counted, or one that is none is; a kill meets no work; a program that never runs
is waited for without end; the figures of a plain loop, which counts twice what it has not acknowledged, are clean.
"""

import os
import sys
import time
from dataclasses import replace

import pytest

from tests.peers import runs
from tests.peers.judge import Result, Verdict, judge
from tests.peers.peers import PEERS, celery_message, celery_result, result_of
from tests.peers.runs import COLUMNS, Killed, Life, Row, campaign, table
from tests.peers.sites import Order, Servers, plain
from tests.rabbit_server import RabbitServer

ORDERS = ["ada", "bob", "ada", "ada"]
RESULTS = [Result(0, "ada", 1), Result(1, "bob", 1), Result(2, "ada", 2), Result(3, "ada", 3)]
STATE = {"ada": 3, "bob": 1}
CLEAN = Verdict(lost=0, doubled=0, contradicted=0, wrong=0, unordered=0)


@pytest.fixture
def servers(rabbit: RabbitServer):
    """The server of the session, in place of one of the campaign's own."""
    with Servers() as servers:
        vars(servers)["rabbit"] = rabbit
        yield servers


# --- the judge ---


@pytest.mark.parametrize(
    ("results", "state", "found"),
    [
        (RESULTS, STATE, {}),
        ([RESULTS[1], RESULTS[0], *RESULTS[2:]], STATE, {}),
        (RESULTS[:3], STATE, {"lost": 1}),
        ([], {}, {"lost": 4, "wrong": 4}),
        ([*RESULTS, RESULTS[3]], STATE, {"doubled": 1}),
        ([*RESULTS, RESULTS[0]], STATE, {"doubled": 1}),
        ([*RESULTS, Result(3, "ada", 4)], {"ada": 4, "bob": 1}, {"doubled": 1, "contradicted": 1, "wrong": 1}),
        ([*RESULTS, *[Result(3, "ada", 4)] * 2], STATE, {"doubled": 2, "contradicted": 1}),
        (RESULTS, {"ada": 2, "bob": 2}, {"wrong": 2}),
        (RESULTS, {"ada": 3}, {"wrong": 1}),
        (RESULTS, {**STATE, "nobody": 1}, {"wrong": 1}),
        ([RESULTS[2], RESULTS[1], RESULTS[0], RESULTS[3]], STATE, {"unordered": 1}),
        ([RESULTS[3], RESULTS[2], RESULTS[0], RESULTS[1]], STATE, {"unordered": 2}),
        ([RESULTS[2], RESULTS[2], *RESULTS], STATE, {"doubled": 2, "unordered": 1}),
        ([one._replace(count=None) for one in RESULTS], None, {"wrong": None}),
    ],
)
def test_what_is_counted(results, state, found):
    assert judge(ORDERS, results, state) == CLEAN._replace(**found)


@pytest.mark.parametrize("result", [Result(4, "ada", 1), Result(-1, "ada", 1), Result(1, "ada", 1)])
def test_a_result_of_no_order_is_an_error_of_the_driver(result):
    with pytest.raises(ValueError, match="belongs to none of the 4 orders"):
        judge(ORDERS, [result], STATE)


def test_results_are_read_as_programs_write_them():
    assert result_of(b'{"order": 3, "customer": "ada", "count": 7}') == Result(3, "ada", 7)
    assert result_of(plain(Order(3, "ada")).body) == Result(3, "ada", None)
    assert celery_result(b'[[3, "ada", 7], {}, {}]') == Result(3, "ada", 7)
    assert celery_message(Order(3, "ada")).body == b'[[3,"ada"],{},{}]'


# --- rows ---


def test_only_correlator_has_promises_to_break_here_and_repeats_of_a_result_break_none():
    broken = Row("correlator", Killed.PROCESS, doubled=9)
    assert broken.violations == []
    assert replace(broken, lost=2, wrong=1).violations == [
        "kills of the process, lost: 2",
        "kills of the process, wrong: 1",
    ]
    assert replace(broken, peer="pika", lost=2).violations == []


def test_a_row_whose_kills_met_no_work_proves_nothing():
    rows = [Row("pika", Killed.BROKER, kills=4, loaded=loaded) for loaded in (1, 2)]
    rows.append(replace(rows[0], doubled=1))
    assert runs.Result(1, rows).blind == ["pika: 1 of 4 kills of the broker came while an order had no result"]


def test_the_verdicts_of_several_runs_are_added_and_a_program_without_a_state_has_none():
    row = Row("shovel", Killed.BROKER)
    row.add(CLEAN._replace(lost=1, wrong=None))
    row.add(CLEAN._replace(lost=2, wrong=None))
    assert (row.lost, row.wrong) == (3, None)
    heading, line = table([row])
    assert len(heading) == len(line)
    assert [line.split()[-len(COLUMNS) :][COLUMNS.index(name)] for name in ("killed", "lost", "wrong")] == [
        "broker",
        "3",
        "-",
    ]


def test_a_program_whose_package_is_missing_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(PEERS, "pika", PEERS["pika"]._replace(packages=["pika", "no-such-package"]))
    with Servers() as servers:
        result = campaign(servers, tmp_path, ["pika"], kills=1, broker_kills=1, seed=1)
    assert (result.rows, result.left_out) == ([], {"pika": "no-such-package"})
    assert "pika did not run: the package no-such-package is missing" in result.lines()


# --- the driver ---


@pytest.mark.rabbitmq
@pytest.mark.kill9
def test_correlator_and_the_plain_loop_under_kills(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "LONGEST_DELAY_S", 0.0)
    monkeypatch.setattr(runs, "QUIET_S", 0.5)
    result = campaign(servers, tmp_path, ["correlator", "pika"], kills=4, broker_kills=0, seed=1)
    assert (result.violations, result.blind, result.left_out) == ([], [], {})
    ours, loop = result.rows
    assert (ours.kills, ours.loaded, ours.lost, ours.wrong) == (4, 4, 0, 0)
    assert (loop.kills, loop.loaded, loop.lost) == (4, 4, 0)
    assert all(row.results - row.doubled == row.orders > 0 for row in (ours, loop))
    assert list(tmp_path.iterdir()) == []
    assert set(result.versions) >= {"RabbitMQ", "pika", "correlator"}


@pytest.mark.rabbitmq
@pytest.mark.kill9
def test_what_a_loop_does_again_is_counted(servers, tmp_path, monkeypatch):
    """A loop that dies between the commit of a count and its result, at one order of 150."""
    dying = (
        "import os\nfrom tests.peers import job, pika_loop\n"
        "add, place = job.Counts.add, job.Job.here().directory\n"
        "def dies(self, order, customer):\n"
        "    number = add(self, order, customer)\n"
        "    if order % 150 == 149 and not os.path.exists(mark := f'{place}/{order}'):\n"
        "        open(mark, 'w').close()\n        os._exit(1)\n"
        "    return number\n"
        "job.Counts.add = dies\npika_loop.main()"
    )
    monkeypatch.setitem(PEERS, "pika", PEERS["pika"]._replace(words=["-c", dying]))
    monkeypatch.setattr(runs, "RESTART_S", 0.0)
    monkeypatch.setattr(runs, "QUIET_S", 0.5)
    row = Row("pika", Killed.PROCESS)
    runs.one_run(servers, tmp_path / "run", row, 1, seed="1")
    assert row.restarts > 0
    assert row.restarts <= row.wrong <= row.restarts + row.kills
    assert row.lost == 0


@pytest.mark.rabbitmq
def test_a_program_that_does_not_run_ends_its_row(servers, tmp_path, monkeypatch):
    monkeypatch.setitem(PEERS, "pika", PEERS["pika"]._replace(words=["-c", "raise SystemExit('it cannot')"]))
    monkeypatch.setattr(runs, "RESTART_S", 0.0)
    row = Row("pika", Killed.PROCESS)
    runs.one_run(servers, tmp_path / "run", row, 1, seed="1")
    assert "it cannot" in row.trouble
    assert row.restarts == runs.MOST_RESTARTS + 1
    assert (tmp_path / "run" / "log").exists()


def test_a_life_that_has_ended_leaves_no_children(tmp_path):
    held = tmp_path / "held"
    os.mkfifo(held)
    script = f"import subprocess; subprocess.Popen(['sleep', '60'], stdout=open({str(held)!r}, 'wb'))"
    life = Life([sys.executable, "-c", script], runs.Job("", "", "", str(tmp_path), "no"), tmp_path / "log")
    with held.open("rb") as end:
        assert life.ends_within(60)
        begin = time.monotonic()
        life.kill()
        assert end.read() == b""  # nobody holds the other end
    assert time.monotonic() - begin < 60
