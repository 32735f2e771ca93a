"""The message service under kills and losses of power: quick forms of `python -m tests.harness.service`."""

import subprocess
import sys

import msgspec
import pytest

from tests.harness.processes import environment
from tests.harness.service import __main__, mutants
from tests.harness.service.journal import Answered, Asked, Born, Ended, Got, Restarted, Sending
from tests.harness.service.judge import violations
from tests.harness.service.power import PowerFigures

QUICKLY_FOUND = (
    "started_while_another_lives",
    "prepared_sends_visible",
    "content_goes_with_the_first_reference",
    "message_ids_counted_in_memory",
    "limit_checked_before_the_transaction",
    "settled_without_sync",
)
"""Deliberate bugs that a few runs find, or a few hundred images."""


def service(tmp_path, *arguments):
    """The figures of a campaign, which must end with status 0."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.harness.service", *arguments, "--report", str(report)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return msgspec.json.decode(report.read_bytes())


@pytest.mark.campaign
@pytest.mark.kill9
def test_no_kill_breaks_a_promise(tmp_path):
    figures = service(tmp_path, "--kills", "60", "--seed", "1")
    assert figures["kills"] >= 60
    assert figures["violations"] == 0
    assert set(figures["by_kind"]) == {"call", "restart", "statement", "time"}
    assert figures["again"] > 12
    assert figures["prepared"] > 6


@pytest.mark.campaign
@pytest.mark.kill9
@pytest.mark.postgres
def test_no_kill_breaks_a_promise_on_a_server(tmp_path):
    figures = service(tmp_path, "--kills", "15", "--seed", "7", "--store", "postgres")
    assert figures["kills"] >= 15
    assert figures["violations"] == 0


@pytest.mark.campaign
@pytest.mark.kill9
def test_no_loss_of_power_breaks_a_promise(tmp_path):
    figures = service(tmp_path, "--power", "700", "--seed", "3")
    assert figures["images"] == 700
    assert figures["bad"] == 0
    assert figures["restarts"] >= 14
    assert all(figures["kinds"][kind] > 100 for kind in ("lost", "torn", "absent"))
    assert figures["no_effect"] < figures["images"] / 2


@pytest.mark.campaign
@pytest.mark.kill9
def test_deliberate_bugs_are_found(tmp_path):
    figures = service(tmp_path, "--mutants", *QUICKLY_FOUND)
    assert [fate["name"] for fate in figures["fates"]] == list(QUICKLY_FOUND)
    assert figures["survived"] == 0


def test_what_has_no_place_has_a_reason():
    assert all(len(reason) > 100 for reason in mutants.NONE.values())
    assert len(mutants.CATALOGUE) + len(mutants.NONE) == 41


def test_the_command_ends_with_status_1_when_an_image_is_bad(tmp_path, capsys):
    told = PowerFigures(images=5, bad=1, told=["seed 1: LOST"])
    assert __main__._report_power(told, tmp_path / "report.json") == 1
    assert "seed 1: LOST" in capsys.readouterr().out
    assert __main__._report_power(PowerFigures(images=5), None) == 0


# --- the judge ---

QUEUE = "queue:plain"
M = Sending("1.1", QUEUE)
PASSING = Sending("1.1", QUEUE, persistent=False)
DRAINED = [Born(900, 9, "drain"), Ended(999, 9)]


def sent(at=10, *, code="", one=M, life=1):
    return [Asked(at, life, at, "send", [one]), Answered(at + 1, life, at, code, ["ID:a"] if not code else [])]


def got(at, life=2, mode="CLIENT", *, place=QUEUE, name="1.1", again=False, count=1, **more):
    return Got(at, life, at, mode, place, name, f"ID:{name}", again, count, **more)


def settled(at, call="acknowledge", code=None, *, life=2, sends=(), name="", commits=True):
    asked = Asked(at, life, at, call, list(sends), [(QUEUE, "1.1")], name, commits)
    return [asked] if code is None else [asked, Answered(at + 1, life, at, code)]


def out(*more):
    return [*DRAINED[:1], *more, *DRAINED[1:]]


OTHER = Sending("2.1", "queue:out")
HISTORIES = {
    "nothing": ([*sent(), *out(got(950, 9))], set()),
    "acknowledged": ([*sent(), got(20), *settled(30, code=""), *out()], set()),
    "lost": ([*sent(), *out()], {"LOST"}),
    "not persistent, and killed": ([*sent(one=PASSING), *out()], set()),
    "not persistent, and closed": ([*sent(one=PASSING), Ended(20, 1), *out()], {"LOST"}),
    "again": ([*sent(), got(20), *settled(30, code=""), *out(got(950, 9, again=True, count=2))], {"AGAIN"}),
    "in mode AUTO": (
        [*sent(), Asked(20, 2, 20, "receive", name=QUEUE), got(20, mode="AUTO"), Answered(21, 2, 20), *out()],
        set(),
    ),
    "in mode AUTO again": (
        [
            *sent(),
            Asked(20, 2, 20, "receive", name=QUEUE),
            got(20, mode="AUTO"),
            Answered(21, 2, 20),
            *out(got(950, 9, again=True, count=2)),
        ],
        {"AGAIN"},
    ),
    "not marked": ([*sent(), got(20), *out(got(950, 9, count=2))], {"FLAG"}),
    "not counted": ([*sent(), got(20), *out(got(950, 9, again=True))], {"COUNT"}),
    "held by two": (
        [*sent(), got(20), got(30, 3, again=True, count=2), Ended(40, 2), *out(got(950, 9, again=True, count=3))],
        {"SHARED"},
    ),
    "refused": ([*sent(code="E8108"), *out()], set()),
    "refused and there": ([*sent(code="E8108"), *out(got(950, 9))], {"GHOST"}),
    "not persistent, after a start": (
        [*sent(one=Sending("1.1", QUEUE, persistent=False)), Restarted(500), *out(got(950, 9))],
        {"PASSING"},
    ),
    "a whole transaction": (
        [*sent(), got(20), *settled(30, "commit", sends=[OTHER]), *out(got(950, 9, place="queue:out", name="2.1"))],
        set(),
    ),
    "sent and not acknowledged": (
        [
            *sent(),
            got(20),
            *settled(30, "commit", sends=[OTHER]),
            *out(got(950, 9, again=True, count=2), got(951, 9, place="queue:out", name="2.1")),
        ],
        {"ATOMIC"},
    ),
    "acknowledged and not sent": ([*sent(), got(20), *settled(30, "commit", sends=[OTHER]), *out()], {"ATOMIC"}),
    "prepared and forgotten": (
        [*sent(), got(20), *settled(30, "prepare", "", sends=[OTHER], name="t"), *out()],
        {"PREPARED"},
    ),
    "dead twice": (
        [
            *sent(one=Sending("1.1", QUEUE, lives_ms=5)),
            *out(*(got(at, 9, place="queue:mq.sys.dmq", reason="EXPIRED", origin=QUEUE) for at in (950, 951))),
        ],
        {"DEAD"},
    ),
    "a listener that went on": (
        [
            *sent(),
            *sent(12, one=Sending("1.2", QUEUE)),
            got(20, mode="LISTENER"),
            got(21, mode="LISTENER", name="1.2"),
            *out(got(950, 9, again=True, count=2)),
        ],
        {"AGAIN"},
    ),
    "a listener that failed": (
        [*sent(), got(20, mode="LISTENER"), Asked(21, 2, 1, "return"), Answered(22, 2, 1), *out()],
        {"LOST"},
    ),
    "a backup that does not wait": (
        [
            *sent(one=Sending("1.1", "queue:ordered")),
            *(
                event
                for life in (2, 3)
                for event in (Asked(20 + life, life, 1, "open", name="queue:ordered"), Answered(20 + life, life, 1))
            ),
            got(30, 3, place="queue:ordered"),
            Ended(40, 2),
            *out(got(950, 9, place="queue:ordered", again=True, count=2)),
        ],
        {"BACKUP"},
    ),
    "stuck": ([*sent(), *DRAINED[:1]], {"LOST", "STUCK"}),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_the_judge_knows(name):
    events, expected = HISTORIES[name]
    assert {one.id for one in violations(events)} - {"IDS"} == expected


def test_the_judge_compares_ids():
    events = [
        *sent(),
        *sent(12, one=Sending("1.2", QUEUE)),
        *out(got(950, 9), Got(951, 9, 1, "CLIENT", QUEUE, "1.2", "ID:1.1", False, 1)),
    ]
    assert "IDS" in {one.id for one in violations(events)}
