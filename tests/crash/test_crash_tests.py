"""Crash tests as users meet them: `@crash_test`, the options and fixtures of pytest, `correlator crashtest`.

Each test is a project in a directory of its own, and commands in processes of their own.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from correlator.cli.main import execute
from correlator.testing.crashtest import replay, report
from correlator.testing.crashtest.campaign import repeated
from tests.cli.commands import run, write
from tests.crash.projects import (
    ENGINE,
    FORGETFUL,
    INSTALLED,
    TEST,
    TOTALS,
    project,
    run_pytest,
    screen,
    searched,
    simulated,
)
from tests.docs.test_pages import ROOT

EXAMPLE = ROOT / "config" / "crash-tests"
MOST_LINES = 25


def reproduced(place: Path, lines: list[str], root: Path, **environment: str):
    """The command that a failure shows, in the directory where the test was called."""
    shown = shlex.split(lines[1].partition("reproduce: ")[2])
    assert shown[0] == "pytest"
    return run_pytest(place, *shown[1:], root=root, **environment)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A project whose monitor forgets, after a test of it has failed; and its configuration, where `MONITOR` may be
    the mended one. Another test is in the file as well."""
    engine = ENGINE.replace("app:Totals", "${MONITOR:app:Totals}")
    code = FORGETFUL + TOTALS.replace("class Totals(Monitor", "class Mended(Monitor")
    other = TEST.split("\n\n\n")[1].replace("test_orders", "test_others")
    place = project(tmp_path_factory.mktemp("found"), code, engine, test_orders=TEST + other)
    result = run_pytest(place, "-k", "test_orders[", "--crash-report=report.json")
    return Found(place, engine, screen(result.stdout))


class Found(NamedTuple):
    """A failure that was found in a project.

    Attributes:
        place: the directory of the project, which no test changes.
        engine: the configuration.
        lines: what the failure shows.
    """

    place: Path
    engine: str
    lines: list[str]

    def copy(self, to: Path) -> None:
        shutil.copytree(self.place, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


# --- the decorator ---


def test_u8_state_without_annotation_is_found_in_seconds_and_again_by_the_command_that_is_shown(tmp_path):
    project(tmp_path, FORGETFUL, test_orders=TEST)
    result = run_pytest(tmp_path)
    lines = screen(result.stdout)
    assert result.returncode == 1
    assert len(lines) <= MOST_LINES
    assert re.match(r"test violated \(what the test asserts\): assert \[1, 2, 3.*At index \d+ diff: 1 != ", lines[0])
    assert re.match(r"  faults: #1 kill at \S+ \(passing \d+\)$", lines[2])
    assert any("DIES at" in line for line in lines)
    assert any("recovered checkpoint" in line for line in lines)
    assert int(re.search(r": (\d+) runs", lines[-1])[1]) < 50
    again = reproduced(tmp_path, lines, tmp_path)
    assert again.returncode == 1
    assert screen(again.stdout)[:-1] == lines[:-1]


def test_u8_a_failure_says_what_a_handler_raised_whose_messages_became_dead_letters(tmp_path):
    code = TOTALS.replace("self.total += 1", "self.total += order.prise")
    engine = ENGINE.replace('Totals"', 'Totals", on_error: dead_letter')
    project(tmp_path, code, engine, test_orders=TEST)
    lines = screen(run_pytest(tmp_path).stdout)
    assert len(lines) <= MOST_LINES
    (told,) = [line for line in lines if line.startswith("  first dead letter: ")]
    assert "AttributeError: 'Order' object has no attribute 'prise'" in told
    assert any("dead letters" in line for line in lines)


def test_u8_the_command_that_is_shown_is_for_the_directory_where_one_is(tmp_path):
    project(tmp_path, FORGETFUL, test_orders=TEST)
    (tmp_path / "elsewhere").mkdir()
    result = run_pytest(tmp_path / "elsewhere", "../test_orders.py", root=tmp_path)
    lines = screen(result.stdout)
    assert "reproduce: pytest '../test_orders.py::test_orders[sim]' --crash-replay=../.crash/" in lines[1]
    assert screen(reproduced(tmp_path / "elsewhere", lines, tmp_path).stdout)[:3] == lines[:3]


def test_u8_t62_replay_files_are_private_and_a_directory_that_cannot_be_written_hides_no_failure(found, tmp_path):
    (kept,) = (found.place / ".crash").iterdir()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    project(tmp_path, FORGETFUL, test_orders=TEST)
    (tmp_path / ".crash").write_text("not a directory")
    lines = screen(run_pytest(tmp_path).stdout)
    assert "reproduce: E2424 " in lines[1]


def test_u8_a_right_monitor_passes_and_the_summary_says_what_was_tried(tmp_path):
    project(tmp_path, test_orders=TEST)
    result = run_pytest(tmp_path, "--crash-budget=2s")
    assert result.returncode == 0, result.stdout
    found = re.search(
        r"^test_orders.py::test_orders\[sim\]: level sim: (\d+) runs \((\d+) without a fault\), "
        r"(\d+) crashes, (\d+) of (\d+) single faults, ",
        result.stdout,
        re.MULTILINE,
    )
    runs, without, crashes, tried, singles = map(int, found.groups())
    assert runs > tried > 0
    assert without >= 1
    assert crashes >= tried
    assert singles > 100


def test_u8_a_replay_passes_when_the_bug_is_gone_and_warns_when_the_file_has_changed(found, tmp_path):
    found.copy(tmp_path)
    mended = reproduced(tmp_path, found.lines, tmp_path, MONITOR="app:Mended")
    assert (mended.returncode, "Warning" in mended.stdout) == (0, False), mended.stdout
    write(tmp_path / "engine.yaml", [found.engine, "# changed"])
    changed = reproduced(tmp_path, found.lines, tmp_path)
    text = "recorded with another content of .*engine.yaml: the faults may strike at other places"
    assert re.search(rf"CrashReplayWarning: {text}", changed.stdout)


def test_u8_a_replay_for_another_test_warns(found, tmp_path):
    found.copy(tmp_path)
    file = found.lines[1].partition("--crash-replay=")[2]
    result = run_pytest(tmp_path, f"--crash-replay={file}", "-k", "test_others")
    assert "recorded by test_orders.py::test_orders[sim], this is test_orders.py::test_others[sim]" in result.stdout


WRONG = """
import pytest
from correlator.testing import crash_test


@crash_test(config="engine.yaml")
def test_destination(world):
    world.publish("queue:nowhere", [])


@crash_test(config="engine.yaml")
def test_sender(world):
    world.sent("nowhere")


@crash_test(config="engine.yaml")
def test_message(world):
    world.publish("queue:orders", [object()])


@crash_test(config="engine.yaml", levels=["simm"])
def test_level(world):
    pass


@crash_test(config="engine.yaml", budget="1 week")
def test_budget(world):
    pass


@crash_test(config="nowhere.yaml")
def test_file(world):
    pass


@crash_test(config="engine.yaml")
def test_monitor(world):
    world.state("Nowhere")


@crash_test(config="unimportable.yaml", levels=["kill9"])
def test_import(world):
    pass
"""


def test_u8_what_is_not_there_is_told_by_its_code_without_a_traceback(tmp_path):
    project(tmp_path, test_wrong=WRONG)
    (tmp_path / "unimportable.yaml").write_text(ENGINE.replace("app:Totals", "app:Total"))
    (tmp_path / "unimportable.yaml").chmod(0o600)
    result = run_pytest(tmp_path)
    told = dict(re.findall(r"^_+ test_(\w+)\[\w+\] _+\n(E\d{4}) ", result.stdout, re.MULTILINE))
    assert told == {
        "destination": "E2420",
        "sender": "E2420",
        "message": "E2421",
        "level": "E2425",
        "budget": "E2426",
        "file": "E1001",
        "monitor": "E2420",
        "import": "E1501",
    }
    assert "exception" not in result.stdout
    assert "has no 'Total'. Did you mean 'Totals'?" in result.stdout
    assert "8 failed" in result.stdout


@pytest.mark.skipif(not INSTALLED, reason="the plugin is loaded by its entry point")
def test_u8_without_the_plugin_the_test_says_so(tmp_path):
    project(tmp_path, test_orders=TEST)
    result = run_pytest(tmp_path, "-p", "no:correlator")
    assert "E2438 pytest: the plugin of crash tests is not loaded" in result.stdout


@pytest.mark.parametrize(
    ("option", "code"),
    [("--crash-level=simm", "E2425"), ("--crash-budget=x", "E2426"), ("--crash-replay=engine.yaml", "E2423")],
)
def test_u8_options_that_cannot_be_end_the_session(tmp_path, option, code):
    project(tmp_path, test_orders=TEST)
    result = run_pytest(tmp_path, option)
    assert (result.returncode, result.stderr.startswith(f"ERROR: {code} ")) == (4, True), result.stderr
    assert "Traceback" not in result.stderr


TOGETHER = """
import pytest
from correlator.testing import crash_test


@pytest.fixture
def made(tmp_path):
    made = tmp_path / "made"
    made.touch()  # once for the test, not for each run
    return made


@pytest.mark.parametrize("count", [1, 3])
@crash_test(config="engine.yaml", budget="1s")
def test_function(request, count, made, world, tmp_path, left_out=7):
    assert made == tmp_path / "made"
    assert request.node.callspec.params["count"] == count
    assert left_out == 7
    assert world.level == "sim"
    world.publish("queue:orders", [{"id": number} for number in range(count)])
    world.run_until_quiet()
    world.check()
    assert len(world.sent("bills")) == count


class TestClass:
    wanted = 2

    @crash_test(config="engine.yaml", budget="1s")
    def test_method(self, world, made):
        world.publish("queue:orders", [{"id": number} for number in range(self.wanted)])
        world.run_until_quiet()
        with pytest.raises(IndexError):
            world.sent("bills")[self.wanted]

    @crash_test(config="engine.yaml", budget="1s")
    def test_raises_nothing(self, world):
        with pytest.raises(IndexError):
            world.sent("bills")

    @crash_test(config="engine.yaml", budget="1s")
    def test_skipped(self, world):
        pytest.skip("not today")
"""


def test_u8_other_fixtures_parameters_methods_and_outcomes_of_pytest(tmp_path):
    project(tmp_path, test_together=TOGETHER)
    result = run_pytest(tmp_path, "-rA")
    assert "3 passed, 1 skipped" in result.stdout, result.stdout
    assert "1 failed" in result.stdout
    lines = screen(result.stdout)
    assert lines[0].startswith("test violated (what the test asserts): DID NOT RAISE")
    assert lines[2] == "  it fails without any fault"


MISTAKES = """
import pytest

from correlator.testing import crash_test

test = crash_test(config="engine.yaml", budget="1s")
ORDERS = [{"id": number} for number in range(20)]


@test
async def test_asynchronous(world):
    assert False


@test
def test_generator(world):
    yield
    assert False


@test
def test_without_a_world():
    assert False


@crash_test(config="engine.yaml", levels="sim")
def test_level_as_text(world):
    assert False


@crash_test(config="engine.yaml", levels=[])
def test_no_level(world):
    assert False


@crash_test(config="engine.yaml", budget=5)
def test_budget_as_number(world):
    assert False


@test
def test_empty(world):
    pass


@test
def test_skipped_under_faults(world):
    world.publish("queue:orders", ORDERS)
    world.run_until_quiet()
    if world.sent("bills").values("total") != list(range(1, 21)):
        pytest.skip("not today")


@test
def test_skipped_from_the_start(world):
    pytest.skip("not here")
"""


def test_u8_what_cannot_find_anything_is_refused(tmp_path):
    project(tmp_path, code=FORGETFUL, test_mistakes=MISTAKES)
    result = run_pytest(tmp_path, "-p", "no:randomly")
    told = [line for line in result.stdout.splitlines() if re.match(r"E\d{4} |test violated", line)]
    assert [line.partition(":")[0] for line in told] == [
        "E2436 crash test test_asynchronous",
        "E2436 crash test test_generator",
        "E2436 crash test test_without_a_world",
        "E2425 crash test test_level_as_text",
        "E2425 crash test test_no_level",
        "E2426 budget",
        "E2437 crash test test_empty[sim]",
        "test violated (what the test asserts)",
    ]
    assert "pytest.skip was called, but not in the run without faults: not today" in told[-1]
    assert "8 failed, 1 skipped" in result.stdout


FIXTURE = """
from correlator.testing.schedule import Fault


def test_one_world(correlator_world):
    world = correlator_world("engine.yaml")
    world.publish("queue:orders", [{"id": 1}])
    world.run_until_quiet()
    world.check()
    assert world.state("Totals") == [{"total": 1}]


def test_these_faults(correlator_world):
    quiet = correlator_world("engine.yaml")
    killed = correlator_world("engine.yaml", faults=[Fault("kill", 40), Fault("kill", 80)], seed=3)
    for world in (quiet, killed):
        world.publish("queue:orders", [{"id": number} for number in range(10)])
        world.run_until_quiet()
        world.check()
    assert killed.sent("bills") == quiet.sent("bills")
    assert (quiet.simulated.crashes, killed.simulated.crashes) == (0, 2)
"""


def test_u8_worlds_without_a_decorator(tmp_path):
    project(tmp_path, test_fixture=FIXTURE)
    result = run_pytest(tmp_path)
    assert (result.returncode, "2 passed" in result.stdout) == (0, True), result.stdout


def test_u8_levels_points_seeds_and_reports(tmp_path):
    project(tmp_path, test_orders=TEST.replace('budget="300s"', 'budget="1s", levels=["sim", "other"]'))
    result = run_pytest(tmp_path, "--crash-level=sim", "--crash-seed=7", "--crash-points", "--crash-report=report.json")
    assert (result.returncode, "1 passed, 1 deselected" in result.stdout) == (0, True), result.stdout
    assert re.search(r"^ +\d+ ck\.tx\.commit\.before$", result.stdout, re.MULTILINE)
    (test, figures), *others = json.loads((tmp_path / "report.json").read_text()).items()
    assert (test, others) == ("test_orders.py::test_orders[sim]", [])
    assert (tmp_path / "report.json").stat().st_mode & 0o777 == 0o600
    assert figures["level"] == "sim"
    assert figures["violations"] == 0
    assert figures["faults"]["kill"] >= figures["singles_tried"] > 0
    assert figures["runs"] > figures["without_fault"] > 0
    assert sum(figures["points"].values()) >= figures["crashes"] > 0
    assert sum(figures["passed"].values()) == figures["singles"]


def test_u8_a_report_tells_what_was_found_and_where_it_cannot_be_written_that_is_said(found, tmp_path):
    (figures,) = json.loads((found.place / "report.json").read_text()).values()
    assert figures["violations"] == 1
    assert figures["violated"].startswith("test violated (what the test asserts)")
    assert [kind for kind, _ in figures["faults_needed"]] == ["kill"]
    project(tmp_path, FORGETFUL, test_orders=TEST)
    result = run_pytest(tmp_path, "--crash-report=nowhere/report.json")
    assert "E2424 'nowhere/report.json': cannot be written" in result.stdout


def test_u8_the_plugin_costs_a_start_of_pytest_nothing():
    """Everybody who has this package installed loads it at every start."""
    script = "import sys, correlator.testing.plugin; print(*(name for name in sys.modules if 'correlator' in name))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["correlator", "correlator.testing", "correlator.testing.plugin"]


TABLE_OF_A_MODULE = """
PRICES = {}


class Totals(Monitor, persistent=True):
    total: int = 0

    def onload(self):
        PRICES["each"] = 1

    @on(Order)
    def order(self, order):
        self.total += PRICES["each"]
        self.send(Bill(id=order.id, total=self.total), to="bills")
"""


def orders(world):
    """The body of `TEST`."""
    world.publish("queue:orders", [{"id": n} for n in range(20)])
    world.run_until_quiet()
    world.check()
    assert world.sent("bills").values("total") == list(range(1, 21))


def test_u8_what_a_process_holds_and_the_next_one_does_not_is_found_and_found_again(tmp_path):
    with simulated(tmp_path, TABLE_OF_A_MODULE) as level:
        result = searched(level, orders)
        kept = replay.write(tmp_path, tmp_path / "engine.yaml", "test", level.name, result.shrunk)
        again = repeated(level, orders, replay.read(kept).plan)
    lines, others = (report.failure(one, "").splitlines() for one in (result, again))
    assert lines[0].startswith("G7 violated")
    assert any("KeyError: 'each'" in line for line in lines)
    assert others[:-1] == lines[:-1]


@pytest.mark.kill9
def test_u8_what_a_process_holds_and_the_next_one_does_not_is_found_in_real_processes(tmp_path):
    test = TEST.replace('budget="300s"', 'budget="300s", levels=["sim", "kill9"]')
    project(tmp_path, TABLE_OF_A_MODULE, test_orders=test)
    real = run_pytest(tmp_path, "--crash-level=kill9", TMPDIR=str(tmp_path))  # where it keeps what failed
    assert real.returncode == 1, real.stdout
    lines = screen(real.stdout)
    assert lines[0].startswith("G7 violated")
    assert any("KeyError: 'each'" in line for line in lines)


# --- the example ---


@pytest.mark.parametrize(("monitor", "status"), [("Totals", 0), ("BrokenTotals", 1)])
def test_u8_the_example_project(tmp_path, monitor, status):
    place = shutil.copytree(EXAMPLE, tmp_path / "example")
    result = run_pytest(place, "--crash-budget=3s", CORRELATOR_MONITOR=f"orders:{monitor}")
    assert result.returncode == status, result.stdout
    if status:
        assert float(re.search(r"([\d.]+) s$", screen(result.stdout)[-1])[1]) < 10


# --- the command line ---


@pytest.fixture
def place(tmp_path):
    """A right engine, and files of messages for it."""
    write(tmp_path / "orders.jsonl", ['{"id": 1}', "", '{"id": 2}'])
    return project(tmp_path)


MESSAGES = ("--messages", "queue:orders=orders.jsonl")


def test_u8_the_command_finds_a_guarantee_that_is_broken_and_finds_it_again(place):
    project(place, TOTALS.replace("+= 1", "+= 1 + self.zero") + "    def onload(self):\n        self.zero = 0\n")
    result = run("crashtest", "engine.yaml", *MESSAGES, "--budget", "300s", "--report", "report.json", cwd=place)
    lines = screen(result.stdout)
    assert (result.returncode, result.stderr) == (1, "")
    assert lines[0].startswith("G7 violated")
    assert "has no attribute 'zero'" in lines[0]
    assert len(lines) <= MOST_LINES
    (figures,) = json.loads((place / "report.json").read_text())
    assert figures["violated"] == lines[0]
    shown = shlex.split(lines[1].partition("reproduce: ")[2])
    assert shown[:5] == ["correlator", "crashtest", "engine.yaml", *MESSAGES]
    again = run(*shown[1:], cwd=place)
    assert (again.returncode, again.stderr) == (1, "")
    assert screen(again.stdout)[:-1] == lines[:-1]
    other = run(*shown[1:3], *shown[5:], cwd=place)
    assert "warning: recorded by engine.yaml --messages queue:orders=orders.jsonl, this is engine.yaml" in other.stderr


def test_u8_the_command_says_what_it_tried(place):
    result = run("crashtest", "engine.yaml", *MESSAGES, "--budget", "1s", "--seed", "5", cwd=place)
    assert result.stdout.startswith("no violation. level sim: ")
    assert (result.returncode, result.stderr) == (0, "")
    left = {one.name for one in place.iterdir()} - {"__pycache__"}
    assert left == {"app.py", "engine.yaml", "orders.jsonl"}


def test_u8_without_messages_little_can_go_wrong(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert execute(["crashtest", "engine.yaml", "--budget", "1s"]) == 0
    assert capsys.readouterr().err.startswith("warning: nothing was published")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), "E2428", "FILE is missing"),
        (("nowhere.yaml",), "E1001", "no such file"),
        (("engine.yaml", "--messages", "queue:nowhere=orders.jsonl"), "E2420", "Receivers read: queue:orders"),
        (("engine.yaml", "--replay", "orders.jsonl"), "E2423", "is not a replay file"),
        (("engine.yaml", *MESSAGES, "--budget", "1s", "--report", "no/r.json"), "E2424", "cannot be written"),
        (("engine.yaml", "--level", "sin"), "E2425", "Did you mean 'sim'?"),
        (("engine.yaml", "--budget", "1d"), "E2426", "Examples: 30s"),
        (("engine.yaml", "--messages", "orders.jsonl"), "E2427", "DESTINATION=FILE"),
        (("engine.yaml", "--messages", "queue:orders=nowhere"), "E2427", "No such file"),
    ],
)
def test_u8_what_the_command_refuses(place, monkeypatch, capsys, arguments, code, text):
    monkeypatch.chdir(place)
    assert execute(["crashtest", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"{code} ")
    assert text in shown.err
    assert ("Traceback" in shown.err, shown.out == "") == (False, code != "E2424")
