"""The control of a running engine: pauses, drains, checkpoints, the socket and the timeline (docs/control.md)."""

import http.client
import json
import logging
import os
import resource
import socket
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator import Engine
from correlator.cli import control, main
from correlator.cli.asking import RefusedByEngine, ask
from correlator.errors import ConnectionLost, NotDone, UsageError
from correlator.runtime import logs as engine_logs
from correlator.runtime import timeline as timelines
from correlator.runtime.control import server
from correlator.runtime.control.address import LONGEST_PATH, sockets_of
from correlator.runtime.control.protocol import (
    LONGEST_REQUEST,
    Ask,
    Drain,
    Follow,
    Pause,
    Resume,
    SetLevel,
    TakeCheckpoint,
)
from correlator.runtime.http import events
from correlator.runtime.timeline import Timeline
from correlator.settings import EngineSettings, HttpSettings
from correlator.storage import inspect
from correlator.testing.clock import ManualClock
from tests.runtime.flows import Hears, Keeps
from tests.runtime.world import APP_CONTROLLED, AT_LEAST_ONCE, BEST_EFFORT, numbered, receiver, sender
from tests.waiting import answer_to, wait_until

PATIENCE_S = 60.0


def place(engine):
    return sockets_of(engine.settings)


def sends(monitor, message):
    monitor.send(message, to="out")


# --- receivers ---


def test_a_paused_receiver_takes_nothing_and_goes_on_where_it_was(any_world, script):
    with any_world.engine(receiver(), sender(), monitors=[Hears]) as engine:
        script.message = sends
        any_world.publish("a")
        any_world.wait_for("a")
        engine.pause("in")
        engine.pause("in")
        assert engine.drain("in", PATIENCE_S)
        any_world.publish("b", "c")
        shown = engine.status()
        assert (shown.paused, shown.waits["in"], shown.not_ready()) == ({"in"}, "pause", [])
        assert shown.to_dict()["receivers"]["in"]["paused"] is True
        assert (script.of("Hears"), any_world.received_rows()) == (["a"], 0)
        engine.resume("in")
        engine.resume("in")
        any_world.wait_for("a", "b", "c")
        assert not engine.status().paused


def test_a_pause_hands_on_the_batch_that_is_filling(world, script):
    filling = receiver("in", AT_LEAST_ONCE, max_batch_interval_ms=3_600_000, max_batch_size=100)
    with world.engine(filling, monitors=[Hears]) as engine:
        world.publish("a", "b")
        wait_until(lambda: len(engine.receivers["in"].intake.batch.messages) == 2)
        assert engine.drain("in", PATIENCE_S)
        assert script.of("Hears") == ["a", "b"]


def test_drained_means_handled_acknowledged_and_in_a_checkpoint(world, script, gate):
    script.message = lambda *_: gate.wait(PATIENCE_S)
    with world.engine(receiver("in", AT_LEAST_ONCE), monitors=[Hears, Keeps], interval=3600.0) as engine:
        world.publish(*numbered(5))
        wait_until(lambda: script.of("Hears"))
        assert not engine.drain("in", 0.05)
        gate.set()
        assert engine.drain("in", PATIENCE_S)
        assert (world.received_rows(), script.of("Hears")) == (0, [f"m{number}" for number in range(1, 6)])
        world.crash(engine)
    with world.engine(receiver("in", AT_LEAST_ONCE), monitors=[Hears, Keeps]) as engine:
        assert engine.drain("in", PATIENCE_S)
        assert len(script.of("Hears")) == 5  # nothing came again
        assert not engine.receivers["in"].counters.received


def test_a_suspended_batch_is_drained_when_the_application_acknowledges_it(no_store, script):
    with no_store.engine(receiver("in", APP_CONTROLLED), monitors=[Hears]) as engine:
        no_store.publish("a")
        wait_until(lambda: "suspended in" in script.of("Hears"))
        assert not engine.drain("in", 0.05)
        context = engine.contexts["main"].context.name
        engine.receivers["in"].resume(context)()
        assert engine.drain("in", PATIENCE_S)
        no_store.publish("b")
        assert engine.status().receivers["in"][0] == "receiving"
        engine.resume("in")
        wait_until(lambda: "b" in script.of("Hears"))


def test_a_receiver_that_is_resumed_while_it_drains_is_told(world, script, gate):
    script.message = lambda *_: gate.wait(PATIENCE_S)
    with world.engine(receiver(), monitors=[Hears]) as engine:
        world.publish("a")
        wait_until(lambda: script.of("Hears"))
        refused = []

        def drain():
            try:
                engine.drain("in", PATIENCE_S)
            except UsageError as error:
                refused.append(error.code)

        waiting = threading.Thread(target=drain)
        waiting.start()
        wait_until(lambda: engine.receivers["in"].paused)
        engine.resume("in")
        waiting.join(PATIENCE_S)
        gate.set()
        assert refused == ["E8308"]


def test_a_paused_receiver_connects_again(world):
    with world.engine(receiver("in", AT_LEAST_ONCE), monitors=[Hears]) as engine:
        wait_until(lambda: not engine.status().not_ready())
        world.broker.down = True
        engine.pause("in")
        engine.resume("in")
        wait_until(lambda: engine.status().not_ready())
        engine.pause("in")
        world.broker.down = False
        wait_until(lambda: not engine.status().not_ready())
        assert engine.drain("in", PATIENCE_S)


# --- senders ---


def test_a_paused_sender_keeps_its_messages_and_does_not_delay_the_stop(any_world, script):
    script.message = sends
    parts = receiver(), sender()
    with any_world.engine(*parts, monitors=[Hears], stop_timeout=3600.0) as engine:
        wait_until(lambda: not engine.status().not_ready())
        engine.pause("out")
        any_world.publish("a", "b")
        wait_until(lambda: engine.senders["out"].outbox.outstanding == 2)
        with pytest.raises(UsageError, match=r"E8308 sender out: is paused"):
            engine.drain("out", PATIENCE_S)
    assert any_world.sent() == []
    with any_world.engine(*parts, monitors=[Hears]) as engine:  # nobody has stored the pause
        any_world.wait_for("a", "b")
        assert engine.drain("out", PATIENCE_S)
        assert any_world.outbox_rows() == 0


def test_a_sender_drains_what_waits_for_a_checkpoint(world, script):
    script.message = sends
    with world.engine(receiver(), sender(), monitors=[Hears], interval=3600.0) as engine:
        world.publish("a")
        wait_until(lambda: engine.parts.staged("out"))
        assert engine.drain("out", PATIENCE_S)
        assert (world.sent(), world.outbox_rows()) == (["a"], 0)


def test_a_flush_waits_for_the_end_of_a_pause(no_store, script):
    def send_and_flush(monitor, message):
        monitor.send(message, to="out")
        monitor.request_flush("out")

    script.message = send_and_flush
    with no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Hears]) as engine:
        engine.pause("out")
        no_store.publish("a")
        wait_until(lambda: engine.senders["out"].outbox.outstanding == 2)
        assert script.of("Hears") == ["a"]
        engine.resume("out")
        assert engine.drain("out", PATIENCE_S)
        wait_until(lambda: script.of("Hears")[1:] == ["flushed 1 failed 0"])


def test_a_drain_ends_in_time_or_with_the_engine(world):
    with world.engine(receiver("in", AT_LEAST_ONCE), sender(), monitors=[Hears]) as engine:
        assert not engine.drain("in", PATIENCE_S, wanted=lambda: False)
        assert not engine.drain("in", 0.0)


# --- refusals ---


def test_what_cannot_be_controlled_is_refused(world, no_store):
    engine = world.engine(receiver(), sender(), monitors=[Hears])
    for act in (engine.pause, engine.resume, engine.drain):
        with pytest.raises(NotDone, match=r"E8309 'in': the engine is new"):
            act("in")
    with engine:
        with pytest.raises(UsageError, match=r"E8307 'x': no receiver or sender has this id\. There are: in, out\."):
            engine.pause("x")
        world.crash(engine)
        with pytest.raises(NotDone, match=r"E8309 'checkpoint': the engine is stopped"):
            engine.order_checkpoint()
    with no_store.engine() as engine, pytest.raises(UsageError, match="E2011"):
        engine.order_checkpoint()


# --- the socket ---


def test_the_socket_does_what_the_engine_does(world, script):
    script.message = sends
    with world.engine(receiver(), sender(), monitors=[Hears], interval=3600.0) as engine:
        at = place(engine)
        path = at[0]
        found = path.stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert ask(at, Ask())["phase"] == "running"
        assert ask(at, Pause("receiver", "in"))["paused"] is True
        assert ask(at, Resume("receiver", "in"))["paused"] is False
        world.publish("a")
        wait_until(lambda: script.of("Hears"))
        assert ask(at, Drain("receiver", "in", PATIENCE_S), PATIENCE_S)["paused"] is True
        assert ask(at, Drain("sender", "out", PATIENCE_S), PATIENCE_S)["outstanding"] == 0
        assert ask(at, TakeCheckpoint(PATIENCE_S), PATIENCE_S)["taken"] > 0
        for request, code in (
            (Pause("receiver", "out"), "E8307"),
            (Pause("sender", "in"), "E8307"),
            (Resume("sender", "x\n"), "E8307"),
            (Drain("receiver", "x", 0.0), "E8307"),
            (SetLevel("INFO"), "E2048"),
        ):
            with pytest.raises(RefusedByEngine) as refused:
                ask(at, request)
            assert (refused.value.code, refused.value.exit_status) == (code, 2)
    assert not path.exists()
    with pytest.raises(ConnectionLost, match=r"E7050 .*no engine answers: it does not run"):
        ask(at, Ask())


def test_what_an_answered_checkpoint_holds_survives_a_crash(world, script):
    with world.engine(receiver(), monitors=[Keeps], interval=3600.0) as engine:
        world.publish("a")
        wait_until(lambda: engine.contexts["main"].queue.backlog("in") == 0 and engine.status().received)
        before = len(list(inspect.checkpoints(world.store)))
        ask(place(engine), TakeCheckpoint(PATIENCE_S), PATIENCE_S)
        world.crash(engine)
    assert before or world.received_rows() == 0
    assert world.received_rows() == 0


def raw(engine, sent: bytes) -> bytes:
    """What comes back until the engine closes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(place(engine)[0]))
        return answer_to(sent, client)


@pytest.fixture(scope="module")
def controlled(tmp_path_factory):
    settings = EngineSettings(name="x", store=f"sqlite:///{tmp_path_factory.mktemp('x')}/x.db", status_interval=0.0)
    with Engine(settings) as engine:
        yield engine


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{}",
        b"\n",
        b"[]\n",
        b'{"command":"stop"}\n',
        b'{"command":"pause","kind":"receiver"}\n',
        b'{"command":"pause","kind":"context","part":"x"}\n',
        b'{"command":"status","more":1}\n',
        b'{"command":"drain","kind":"sender","part":"x","timeout":-1}\n',
        b'{"command":"drain","kind":"sender","part":"x","timeout":1e99}\n',
        b'{"command":"loglevel","level":"LOUD"}\n',
        b"[" * 5000 + b"\n",
        b"\xff\xfe\n",
        b"x" * (2 * LONGEST_REQUEST),
        b"x" * (2 * LONGEST_REQUEST) + b"\n",
    ],
)
def test_requests_that_cannot_be_meant(controlled, sent):
    answer = json.loads(raw(controlled, sent))
    assert answer["problem"]["code"] == "E2047"


@given(sent=st.binary(max_size=200))
def test_whatever_is_sent_the_engine_goes_on(controlled, sent):
    raw(controlled, sent)
    assert ask(place(controlled), Ask())["phase"] == "running"


def test_a_silent_client_is_sent_away_and_others_are_served(controlled, monkeypatch):
    monkeypatch.setattr(server, "READ_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(place(controlled)[0]))
        assert ask(place(controlled), Ask())["phase"] == "running"
        silent.settimeout(PATIENCE_S)
        assert b"E2047" in silent.recv(65_536)


def test_more_clients_than_the_engine_serves(controlled, monkeypatch):
    monkeypatch.setattr(server, "READ_S", 3600.0)
    held = []
    try:
        for _ in range(server.MOST_CONNECTIONS):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].connect(str(place(controlled)[0]))
        with pytest.raises(RefusedByEngine, match=r"E2049 .*too many commands"):
            ask(place(controlled), Ask())
    finally:
        for one in held:
            one.close()
    wait_until(lambda: answers(controlled))


def answers(engine):
    with suppress(RefusedByEngine, ConnectionLost):
        return ask(place(engine), Ask())
    return None


def test_a_bug_of_a_command_ends_neither_the_engine_nor_the_command(controlled, monkeypatch):
    monkeypatch.setattr(Engine, "status", lambda _: 1 / 0)
    with pytest.raises(RefusedByEngine, match=r"E2070 .*internal error ZeroDivisionError"):
        ask(place(controlled), Ask())


def test_a_socket_that_was_left_behind_is_replaced(world):
    path = sockets_of(world.engine().settings)[0]
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()  # a frozen engine whose store was taken over
        with world.engine() as engine:
            assert ask(place(engine), Ask())["phase"] == "running"


def test_a_socket_that_somebody_removes_comes_back(world, monkeypatch):
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    with world.engine() as engine:
        path = place(engine)[0]
        path.unlink()
        wait_until(lambda: answers(engine))
        path.unlink()
        path.write_text("somebody's file")
    assert path.read_text() == "somebody's file"


def test_a_socket_that_cannot_be_made_again_now_is_made_later(world, monkeypatch, logs):
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    directory = (
        Path(os.environ["XDG_RUNTIME_DIR"]) / "own"
    )  # other engines of this process have sockets in the usual one
    with world.engine(control_directory=str(directory)) as engine:
        directory.rename(directory.with_name("hidden"))
        directory.write_text("no directory")
        wait_until(lambda: [one for one in logs if one["event"].startswith("W1605")])
        directory.unlink()
        wait_until(lambda: answers(engine))
        assert len([one for one in logs if one["event"].startswith("W1605")]) == 1


def test_an_engine_in_a_process_with_many_open_files_answers(world):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    nothing = os.open(os.devnull, os.O_RDONLY)
    many = [os.dup(nothing) for _ in range(1100)]
    try:
        with world.engine() as engine:
            assert ask(place(engine), Ask())["phase"] == "running"
    finally:
        for one in (nothing, *many):
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_engines_without_a_store_do_not_displace_one_another(no_store, logs):
    with no_store.engine() as first:
        with no_store.engine():
            (line,) = [one for one in logs if one["event"].startswith("W1605")]
            assert "another engine of this name" in line["reason"]
        assert ask(place(first), Ask())["phase"] == "running"


TWIN = """
name: twin
control_directory: {directory}
connections: {{local: {{type: embedded, store: "sqlite:///{part}.db"}}}}
receivers: [{{id: {part}, connection: local, destination: "queue:q", unhandled: ignore}}]
"""


def test_engines_of_one_name_without_stores_are_told_apart_by_their_files(tmp_path, monkeypatch, capsys):
    """The second one would have no socket, and the commands for its file would ask and pause the first one."""
    monkeypatch.chdir(tmp_path)
    directory = Path(os.environ["XDG_RUNTIME_DIR"]) / "twins"
    for part in ("one", "two"):
        (tmp_path / f"{part}.yaml").write_text(TWIN.format(directory=directory, part=part))

    def receivers(file):
        assert main.execute(["status", file, "--json"]) == 0
        return list(json.loads(capsys.readouterr().out)["receivers"])

    with Engine.from_yaml("one.yaml") as first:
        assert main.execute(["status", "two.yaml"]) != 0
        assert "E7050" in capsys.readouterr().err
        with Engine.from_yaml(tmp_path / "two.yaml") as second:
            assert (receivers("one.yaml"), receivers("two.yaml")) == (["one"], ["two"])
            assert main.execute(["receiver", "two.yaml", "two", "pause"]) == 0
            assert (first.status().paused, second.status().paused) == (set(), {"two"})


def test_an_engine_without_a_store_that_code_has_made_is_found_by_its_name(tmp_path):
    directory = Path(os.environ["XDG_RUNTIME_DIR"]) / "coded"
    file = tmp_path / "one.yaml"
    file.write_text(TWIN.format(directory=directory, part="one"))
    with Engine(EngineSettings(name="twin", control_directory=str(directory))):
        assert main.execute(["status", str(file)]) == 0


def test_an_engine_without_a_socket_works(world, logs, tmp_path):
    shared = Path(os.environ["XDG_RUNTIME_DIR"]) / "shared"  # a short path
    shared.mkdir(mode=0o755)
    too_long = "d" * 150
    for directory, why in ((shared, "is open to other users"), (tmp_path / too_long, "more than 107 bytes")):
        del logs[:]
        with world.engine(control_directory=str(directory)) as engine:
            assert engine.status().phase == "running"
            (line,) = [one for one in logs if one["event"].startswith("W1605")]
            assert why in line["reason"]


def test_where_the_socket_is(tmp_path, monkeypatch):
    def of(store, **more):
        return sockets_of(EngineSettings(name="a/b", store=store, **more))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/mine")
    (tmp_path / "link").symlink_to(tmp_path)
    assert of("sqlite:///x.db") == of(f"sqlite:///{tmp_path}/x.db") == of("sqlite:///link/x.db") != of("sqlite:///y.db")
    long = of(f"sqlite:///{tmp_path}/{'d' * 150}/x.db")
    assert str(long[0]).startswith("/run/mine/correlator/a%2Fb-")
    others = [of(None), of("postgresql://u:p@h/d"), of("postgresql://u:p@h/d?options=-csearch_path%3Ds_1")]
    assert len({place[0] for place in (long, *others)}) == 4
    assert of("postgresql://u:p@h/d") == of("postgresql://other:q@h/d")
    assert of("postgresql://u:p@h/d", control_directory="/c")[0].parent == Path("/c")
    assert all(len(os.fsencode(path)) <= LONGEST_PATH for one in others for path in one)


def test_a_forked_child_does_not_hold_the_socket(world):
    with world.engine() as engine:
        at = place(engine)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.read(read, 1)
            os._exit(0)
    try:
        with pytest.raises(ConnectionLost):
            ask(at, Ask())
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_a_request_during_recovery_and_during_the_stop_is_answered(world, script):
    recovery, stopping = world.hold_at("rec.open_senders", "stop.begin")
    engine = world.engine(receiver(), sender(), monitors=[Hears])
    starting = threading.Thread(target=engine.start)
    starting.start()
    recovery.wait_reached()
    assert ask(place(engine), Ask())["phase"] == "starting"
    with pytest.raises(RefusedByEngine, match=r"E8309 'in': the engine is starting") as refused:
        ask(place(engine), Pause("receiver", "in"))
    assert refused.value.exit_status == 1
    with pytest.raises(RefusedByEngine, match="E8309"):
        ask(place(engine), TakeCheckpoint(1.0))
    recovery.open()
    starting.join(PATIENCE_S)
    ending = threading.Thread(target=engine.stop)
    ending.start()
    stopping.wait_reached()
    with pytest.raises(RefusedByEngine, match=r"E8309 'in': the engine is stopping"):
        ask(place(engine), Pause("receiver", "in"))
    stopping.open()
    ending.join(PATIENCE_S)


def test_a_drain_whose_client_hangs_up_ends(world, script, gate, monkeypatch):
    script.message = lambda *_: gate.wait(PATIENCE_S)
    with world.engine(receiver(), monitors=[Hears]) as engine:
        world.publish("a")
        wait_until(lambda: script.of("Hears"))
        request = b'{"command":"drain","kind":"receiver","part":"in","timeout":3600}\n'
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place(engine)[0]))
            client.sendall(request)
            wait_until(lambda: engine.receivers["in"].paused)
        wait_until(lambda: not [one for one in threading.enumerate() if one.name == "control-client"])
        gate.set()


# --- the log ---


def test_the_level_of_the_log_changes(world, capsys):
    log = logging.getLogger("tests.some_library")
    try:
        engine_logs.configure(level="INFO")
        with world.engine() as engine:
            at = place(engine)
            assert ask(at, SetLevel("ERROR"))["before"] == "INFO"
            engine_logs.get_logger().warning("unheard")
            assert ask(at, SetLevel("WARNING"))["before"] == "ERROR"
            engine_logs.get_logger().warning("heard")
            ask(at, SetLevel("DEBUG", "tests.some_library"))
            ask(at, SetLevel("DEBUG", "tests.some_library"))
            log.debug("of %s", "a library")
            with pytest.raises(RefusedByEngine, match=r"E2048 .*Did you mean 'tests.some_library'"):
                ask(at, SetLevel("DEBUG", "tests.some_librar"))
        shown = capsys.readouterr().err
        assert "unheard" not in shown
        assert "heard" in shown
        assert shown.count("of a library") == 1
    finally:
        log.handlers.clear()
        log.propagate = True


# --- the timeline ---


def test_the_timeline_tells_what_changed(world, script):
    script.message = sends
    with world.engine(receiver(), sender(), monitors=[Hears]) as engine:
        world.publish("a")
        world.wait_for("a")
        engine.pause("out")
        engine.resume("out")
        world.broker.down = True
        wait_until(lambda: engine.status().not_ready())
        told = ask(place(engine), Follow())["events"]
        names = [event["event"] for event in told]
        assert names[0] == "phase"
        assert {"phase", "status", "paused", "resumed", "checkpoint"} <= set(names)
        assert {"event": "paused", "sender": "out"}.items() <= told[names.index("paused")].items()
        assert [one["status"] for one in told if one.get("receiver") == "in"][:2] == ["CONNECTING", "OK"]
    assert [entry.values["phase"] for entry in engine.timeline.read(None, 1000).entries if entry.name == "phase"] == [
        "starting",
        "running",
        "stopping",
        "stopped",
    ]


def test_a_reader_that_is_too_far_behind_learns_it(monkeypatch):
    monkeypatch.setattr(timelines, "MOST_ENTRIES", 3)
    timeline = Timeline(ManualClock().wall)
    timeline.add("a", text="x" * 1000)
    first = timeline.read(None, 10)
    assert ([one.name for one in first.entries], first.missed, first.open) == (["a"], False, True)
    assert len(first.entries[0].values["text"]) == 500
    for name in "bcd":
        timeline.add(name)
    second = timeline.read(first.after, 2)
    assert ([one.name for one in second.entries], second.missed) == (["b", "c"], False)
    timeline.add("e")
    timeline.add("f")
    timeline.close()
    third = timeline.read(first.after, 10)
    assert ([one.name for one in third.entries], third.missed, third.open) == (["d", "e", "f"], True, False)
    for place in ("other.1", "", "x", f"{third.after}0", f"{first.after.partition('.')[0]}.²"):
        assert timeline.read(place, 10).missed or place.startswith(third.after)


def test_a_command_tells_in_its_own_form_that_events_are_missing(world, tmp_path, monkeypatch, capsys):
    error = {"id": "x.1", "time": 0.0, "event": "status", "sender": "out", "status": "ERROR", "error": "key=aGk="}
    monkeypatch.setattr(control, "ask", lambda *_: {"events": [error], "missed": True, "after": "x.1", "open": False})
    file = tmp_path / "world.yaml"
    file.write_text(f'name: world\nstore: "{world.store}"\n')
    assert main.execute(["events", str(file), "--json"]) == 0
    assert [json.loads(one) for one in capsys.readouterr().out.splitlines()] == [{"event": "missed"}, error]
    assert main.execute(["events", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "… some events are lost",
        "1970-01-01T00:00:00Z status sender=out status=ERROR error=key=aGk=",
    ]


class Stream:
    """Reads `/events`."""

    def __init__(self, address, **headers):
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        self._connection.request("GET", "/events", headers=headers)
        self.answer = self._connection.getresponse()

    def event(self):
        """The lines of the next event."""
        lines = {}
        while line := self.answer.readline().decode().strip():
            name, _, value = line.partition(": ")
            lines[name] = value
        return lines

    def until(self, name):
        """The first event of this name."""
        while (event := self.event()).get("event") != name:
            assert event, "the stream has ended"
        return event

    def close(self):
        """Hang up."""
        self.answer.close()
        self._connection.close()


def test_events_over_http(world, monkeypatch):
    with world.engine(receiver(), monitors=[Hears], http=HttpSettings(port=0)) as engine:
        stream = Stream(engine.http_address)
        assert (stream.answer.status, stream.answer.headers["content-type"]) == (200, "text/event-stream")
        engine.pause("in")
        told = stream.until("paused")
        assert json.loads(told["data"])["receiver"] == "in"
        stream.close()
        engine.resume("in")
        again = Stream(engine.http_address, **{"Last-Event-ID": told["id"]})
        again.event()  # the time after which a client comes back
        assert again.until("resumed")["id"].partition(".")[0] == told["id"].partition(".")[0]
        other = Stream(engine.http_address, **{"Last-Event-ID": "other.5"})
        other.event()
        assert other.event()["event"] == "missed"
        monkeypatch.setattr(events, "MOST_STREAMS", 2)
        refused = Stream(engine.http_address)
        assert refused.answer.status == 503
        refused.close()
        http_threads = {one for one in threading.enumerate() if one.name == "http"}
    assert json.loads(again.until("phase")["data"])["phase"] == "stopping"
    assert not any(thread.is_alive() for thread in http_threads)
    again.close()
    other.close()


def test_o4_a_reader_that_stops_reading_loses_its_place_to_another_one(world, monkeypatch):
    monkeypatch.setattr(events, "MOST_STREAMS", 1)
    monkeypatch.setattr(events, "SLOW_S", 0.2)
    monkeypatch.setattr(events, "LOOK_S", 0.01)
    monkeypatch.setattr(events, "_text", lambda _: b":" + b"x" * 100_000 + b"\n\n")  # soon fills what a socket holds

    def is_served():
        stream = Stream(engine.http_address)
        stream.close()
        return stream.answer.status == 200

    with world.engine(http=HttpSettings(port=0)) as engine, socket.create_connection(engine.http_address) as silent:
        silent.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert silent.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(is_served)


def test_events_need_the_token(world):
    with world.engine(http=HttpSettings(port=0, token="t" * 32)) as engine:
        refused = Stream(engine.http_address)
        assert refused.answer.status == 401
        refused.close()
