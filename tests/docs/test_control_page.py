"""The commands of the page on control, against a running engine: they print what the page shows."""

import json
import re
import signal

import pytest

from tests.cli.commands import assert_fails, run, start, write
from tests.docs.test_transcripts import blocks, commands, pattern
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the files of the page, whose engine runs."""
    directory = tmp_path_factory.mktemp("control")
    for _, text in blocks("control.md"):
        if named := re.match(r"# (?:FILE )?(\S+\.\w+)\n", text):
            write(directory / named[1], text.splitlines())
    with start("run", "shop.yaml", "--log-level", "ERROR", cwd=directory) as process:
        wait_until(lambda: run("status", "shop.yaml", cwd=directory).stdout.startswith("shop: running, ready\n"))
        yield directory
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert not (directory / "shop.db.control").exists()


def test_the_commands_print_what_the_page_shows(place):
    (transcript,) = [text for language, text in blocks("control.md") if language == "console"]
    for command, lines in commands(transcript):
        result = run(*command.split()[1:], cwd=place)
        assert re.fullmatch(pattern(lines), result.stdout), f"{command}: {result.stdout}{result.stderr}"
        assert result.returncode == 0
    paused = re.compile(r"^receiver orders\tPAUSED\t.*\tpaused$", re.MULTILINE)
    wait_until(lambda: paused.search(run("status", "shop.yaml", cwd=place).stdout))
    assert json.loads(run("receiver", "shop.yaml", "orders", "resume", "--json", cwd=place).stdout)["paused"] is False
    told = run("events", "shop.yaml", cwd=place).stdout
    assert re.search(r"^\S+Z paused receiver=orders$", told, re.MULTILINE)
    each = [json.loads(line) for line in run("events", "shop.yaml", "--json", cwd=place).stdout.splitlines()]
    assert {"phase", "status", "paused", "resumed"} <= {one["event"] for one in each}


def test_settings_are_those_of_the_start_with_defaults_and_as_json(place):
    (place / "shop.yaml").write_text((place / "shop.yaml").read_text() + "\nmax_queued: 5\n")
    chosen = run("settings", "shop.yaml", cwd=place).stdout
    assert "max_queued" not in chosen
    assert "engine\tmax_queued\t20000\tdefault\n" in run("settings", "shop.yaml", "--defaults", cwd=place).stdout
    told = json.loads(run("settings", "shop.yaml", "--json", cwd=place).stdout)
    assert set(told) == {"versions", "log_level", "settings"}
    expected = {"part": "sender bills", "name": "reliability", "value": "EXACTLY_ONCE", "source": "shop.yaml:9"}
    assert expected in told["settings"]


def test_what_a_command_cannot_do(place):
    assert_fails(run("sender", "shop.yaml", "orders", "pause", cwd=place), "E8307", 2, "is a receiver")
    assert_fails(run("receiver", "shop.yaml", "x", "pause", cwd=place), "E8307", 2, "There are: bills, orders")
    assert_fails(run("receiver", "shop.yaml", "orders", "stop", cwd=place), "E2004", 2)
    assert_fails(run("receiver", "shop.yaml", "orders", "pause", "--share", "1", cwd=place), "E2060", 2)
    assert_fails(run("loglevel", "shop.yaml", "INFO", "--logger", "no.such", cwd=place), "E2048", 2, "no.such")
    write(place / "other.yaml", ["name: other", "store: sqlite:///other.db"])
    assert_fails(run("checkpoint", "other.yaml", cwd=place), "E7050", 4, "it does not run", "correlator run")
