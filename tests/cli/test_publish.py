"""`correlator publish`: lines become messages, each confirmed or named."""

import json
import subprocess

import pytest

from correlator.cli import main
from correlator.cli.publish import CountingPublisher
from correlator.errors import ConnectionLost, UsageError
from correlator.settings import SenderSettings
from correlator.testing.memory import Faults, MemoryBroker
from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import trade


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def bodies(capsys, queue="queue:in"):
    capsys.readouterr()
    assert main.execute(["browse", "endless.yaml", "broker", queue, "--json"]) == 0
    return [row["body"] for row in json.loads(capsys.readouterr().out)]


def test_u6_the_lines_of_a_file_become_messages(here, capsys):
    write(here / "lines.jsonl", [trade(1), "", trade(2)])
    assert main.execute(["publish", "endless.yaml", "broker", "queue:in", "lines.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("2 published\n", "")
    assert bodies(capsys) == [trade(1), trade(2)]


def test_standard_input_is_the_default(here, capsys):
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        cat.stdin.write(b"one\n\ntwo\xff\n")
        cat.stdin.close()
        result = run("publish", "endless.yaml", "broker", "queue:in", "--text", cwd=here, stdin=cat.stdout)
    assert (result.returncode, result.stdout) == (0, "3 published\n")
    assert bodies(capsys) == ["one", "", "two\\xff"]


def test_a_line_that_cannot_be_a_message_is_named_and_all_others_are_published(here, capsys, monkeypatch):
    monkeypatch.setattr("correlator.cli.publish.LONGEST_LINE", 200)
    write(here / "lines.jsonl", [trade(1), "no json", f'"{"x" * 700}"', trade(2)])
    assert main.execute(["publish", "endless.yaml", "broker", "queue:in", "lines.jsonl"]) == 2
    out, err = capsys.readouterr()
    assert out == "2 published\n"
    assert err.startswith("E2029 'queue:in': 2 lines are not published. They are:\nE2028 line 2: is not JSON")
    assert "\nE2028 line 3: is longer than 200 bytes." in err
    assert bodies(capsys) == [trade(1), trade(2)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_named(here, encoding, capsys):
    """It is invisible in an editor, and the reader of JSON does not say that it is the reason."""
    (here / "lines.jsonl").write_text(f"{trade(1)}\n", encoding)
    assert main.execute(["publish", "endless.yaml", "broker", "queue:in", "lines.jsonl"]) == 2
    told = "E2028 line 1: begins with a byte order mark. UTF-8 without a byte order mark. Save the file without it."
    assert told in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "code", "status", "text"),
    [
        (["endless.yaml", "broke", "queue:in", "lines.jsonl"], "E2012", 2, "Did you mean 'broker'?"),
        (["endless.yaml", "broker", "in", "lines.jsonl"], "E1215", 2, "queue:NAME"),
        (["endless.yaml", "files", "queue:in.csv", "lines.jsonl"], "E1216", 2, "in.csv"),
        (["endless.yaml", "broker", "queue:in", "none.jsonl"], "E2028", 2, "No such file"),
        (["endless.yaml", "broker", "queue:in", "."], "E2028", 2, "'.'"),
        (["stuck.yaml", "broker", "queue:in", "lines.jsonl"], "E7003", 4, "nowhere"),
        (["endless.yaml", "broker"], "E2005", 2, "DESTINATION"),
    ],
)
def test_what_cannot_be_published(arguments, code, status, text, here):
    write(here / "lines.jsonl", [trade(1)])
    assert_fails(run("publish", *arguments, cwd=here), code, status, text)


class Refuses(Faults):
    """A broker that refuses the body `b`, and is gone when it sees `gone`."""

    def refused(self, sender, batch):
        return {at: "too bad" for at, one in enumerate(batch) if one.message.body == b"b"}

    def before_accept(self, sender, batch):
        if any(one.message.body == b"gone" for one in batch):
            raise ConnectionLost("E7001", "memory", "gone")


@pytest.fixture
def publisher():
    broker = MemoryBroker()
    broker.faults = Refuses()
    sink = broker.connection().sink(SenderSettings(id="publish", connection="memory", destination="queue:q"))
    made = CountingPublisher(sink, "queue:q")
    made.broker = broker
    yield made
    made.close()


def test_refused_lines_are_named_and_the_others_published(publisher):
    publisher.publish(iter(enumerate([b"a", b"b", b"c"], 1)))
    assert publisher.confirmed == 2
    assert [one.body for one in publisher.broker.received("queue:q")] == [b"a", b"c"]
    with pytest.raises(UsageError, match=r"E2029 'queue:q': 1 lines are not published(.|\n)*line 2: E8102"):
        publisher.raise_refused()


def test_a_lost_connection_names_the_lines_in_doubt(publisher, monkeypatch):
    monkeypatch.setattr("correlator.cli.publish.BATCH", 2)
    with pytest.raises(ConnectionLost, match="Lines 3 to 4 may have arrived"):
        publisher.publish(iter(enumerate([b"a", b"c", b"gone", b"d"], 1)))
    assert publisher.confirmed == 2
