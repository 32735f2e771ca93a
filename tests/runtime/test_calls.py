"""Senders that call a function with each message (docs/calls.md)."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from correlator import CallAgain, Engine, Message, Reliability
from correlator.cli.explain import paths_of
from correlator.configuration import InvalidConfiguration, read_text
from correlator.core.guarantee import guarantee
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Outgoing, event
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.calling import CallingSink, function_of
from correlator.settings import BridgeSettings, CallSettings
from correlator.testing.crashtest.configured import uncalled
from tests.cli.commands import run
from tests.runtime.world import AT_LEAST_ONCE, EXACTLY_ONCE, message, receiver, sender

PATIENCE_S = 30.0
HERE = "tests.runtime.test_calls"
ROOT = Path(__file__).parents[2]
FILE = f"""\
name: shop
store: sqlite:///shop.db
connections: {{local: {{type: embedded}}}}
receivers: [{{id: in, connection: local, destination: "queue:in", reliability: EXACTLY_ONCE}}]
bridges: [{{name: b, from: [in], to: [out]}}]
senders:
  - id: out
    connection: local
    destination: queue:out
    reliability: EXACTLY_ONCE
    call:
      function: {HERE}:FUNCTION
"""


@event
class Charged:
    order: str


class Service:
    """What the functions below call: knows each call, and fails for a body as often as a test has asked for."""

    def __init__(self):
        self.calls = []
        self.failures = Counter()
        self.error = ValueError("declined")
        self.gate = None
        self.pool = None
        self.loops = []
        self.changed = threading.Condition()

    def call(self, message, key):
        with self.changed:
            self.calls.append((message.body.decode(), key))
            self.changed.notify_all()
            if self.failures[self.calls[-1][0]] > 0:
                self.failures[self.calls[-1][0]] -= 1
                raise self.error
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        return message.body.decode()

    def wait_for_calls(self, number):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.calls) >= number, PATIENCE_S)

    @property
    def bodies(self):
        return [body for body, _ in self.calls]


SERVICE = Service()


@pytest.fixture(autouse=True)
def service():
    SERVICE.__init__()
    return SERVICE


def charge(message, key):
    return Charged(order=SERVICE.call(message, key))


def tell(message, key):
    SERVICE.call(message, key)


async def charge_later(message, key):
    await asyncio.sleep(0)
    return Charged(order=SERVICE.call(message, key))


async def uses_a_pool(message, key):
    SERVICE.loops.append(asyncio.get_running_loop())
    if SERVICE.pool is None:
        SERVICE.pool = asyncio.get_running_loop().create_future()
        SERVICE.pool.set_result(None)
    await asyncio.wait_for(asyncio.shield(SERVICE.pool), 5)
    return Charged(order=SERVICE.call(message, key))


async def never(message, key):
    SERVICE.call(message, key)
    await asyncio.Event().wait()


def wrapped(message, key):
    return charge_later(message, key)


def answer(message, _key):
    return Message(b"answer", {"by": "service", "tone": "kind"}, "own", "queue:elsewhere", Headers(priority=7))


def foreign(message, _key):
    return Message(message.body, {"uniqueMessageId": "of another", "traceparent": "own"}, None, "replies")


def of_one(message):
    return message


def yields(message, key):
    yield message, key


NO_FUNCTION = "text"


class Sent:
    """A sink that keeps what it gets; raises or refuses what a test has asked for."""

    def __init__(self):
        self.batches = []
        self.lost = 0
        self.refused = {}
        self.connects = 0

    def connect(self):
        self.connects += 1

    def send(self, batch):
        if self.lost:
            self.lost -= 1
            raise ConnectionLost("E7003", "here", "gone")
        self.batches.append(list(batch))
        return [self.refused.get(one.sequence) for one in batch]

    def close(self):
        pass

    @property
    def sent(self):
        return [one for batch in self.batches for one in batch]


def outgoing(*bodies, key=None, **properties):
    return [
        Outgoing(
            number, "me", "queue:out", Message(body.encode(), {"uniqueMessageId": f"{number}:me"} | properties, key)
        )
        for number, body in enumerate(bodies, 1)
    ]


@pytest.fixture
def calling(request):
    opened = []

    def make(function=charge, **more):
        call = CallSettings(function=f"{HERE}:{function.__name__}", **more.pop("call", {}))
        settings = sender("out", call=call, **more)
        one = CallingSink(settings, function_of(call, "senders.out.call"), Sent())
        opened.append(one)
        one.connect()
        return one

    yield make
    for one in opened:
        one.close()


def results(sink, batch):
    """Send a batch as a sender does, until it is settled; returns the codes of refusals, and how often it was lost."""
    codes = set()
    for lost in range(10):
        try:
            assert codes <= {"E7057", "E7003"}
            return [None if one is None else one.code for one in sink.send(batch)], lost
        except ConnectionLost as error:
            codes.add(error.code)
            sink.connect()
    raise AssertionError("never settled")


# What is sent


@pytest.mark.parametrize("function", [charge, charge_later])
def test_what_the_function_returns_is_sent_with_the_ids_the_trace_and_the_key_of_the_message(calling, function):
    sink = calling(function)
    trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    assert sink.send(outgoing("a", "b", key="ada", other="kept back", **trace)) == [None, None]
    assert [(one.sequence, one.destination, one.message.body) for one in sink._sink.sent] == [
        (1, "queue:out", b'{"order":"a"}'),
        (2, "queue:out", b'{"order":"b"}'),
    ]
    assert sink._sink.sent[1].message.properties == {"uniqueMessageId": "2:me", **trace}
    assert {one.message.key for one in sink._sink.sent} == {"ada"}
    assert SERVICE.calls == [("a", "1:me"), ("b", "2:me")]


def test_a_message_that_the_function_returns_may_have_a_key_headers_and_a_destination_of_its_own(calling):
    sink = calling(answer)
    sink.send(outgoing("a", key="ada"))
    [sent] = sink._sink.sent
    assert (sent.destination, sent.message.key, sent.message.headers) == ("queue:elsewhere", "own", Headers(priority=7))
    assert sent.message.properties == {"uniqueMessageId": "1:me", "by": "service", "tone": "kind"}


@pytest.mark.parametrize(("mode", "id_sent"), [(EXACTLY_ONCE, "1:me"), (AT_LEAST_ONCE, "of another")])
def test_the_ids_of_the_sender_replace_those_that_the_result_has(calling, mode, id_sent):
    """Given results with one foreign id, when a receiver drops duplicates, then it would drop all but the first."""
    sink = calling(foreign, reliability=mode)
    sink.send(outgoing("a"))
    [sent] = sink._sink.sent
    assert sent.message.properties == {"uniqueMessageId": id_sent, "traceparent": "own"}


def test_a_function_that_returns_nothing_sends_nothing(calling):
    sink = calling(tell)
    assert sink.send(outgoing("a", "b")) == [None, None]
    assert sorted(SERVICE.bodies) == ["a", "b"]
    assert sink._sink.batches == []


def test_a_refusal_of_the_broker_is_that_of_the_message(calling):
    sink = calling()
    refused = sink._sink.refused[2] = SendRejected("E8106", "out", "too large")
    assert sink.send(outgoing("a", "b", "c")) == [None, refused, None]


# Order


def test_messages_with_one_key_are_called_in_order_and_others_at_the_same_time(calling):
    SERVICE.gate = threading.Event()
    sink = calling(call={"concurrency": 4})
    batch = [
        Outgoing(number, "me", "queue:out", Message(str(number).encode(), {}, key))
        for number, key in enumerate("aabb", 1)
    ]
    thread = threading.Thread(target=sink.send, args=(batch,))
    thread.start()
    SERVICE.wait_for_calls(2)
    assert sorted(SERVICE.bodies) == ["1", "3"]
    SERVICE.gate.set()
    thread.join()
    assert [one for one in SERVICE.bodies if one in "12"] == ["1", "2"]
    assert [one for one in SERVICE.bodies if one in "34"] == ["3", "4"]
    assert [one.sequence for one in sink._sink.sent] == [1, 2, 3, 4]


def test_a_later_message_with_the_key_of_a_failed_one_waits_for_it(calling):
    SERVICE.failures["a"] = 1
    sink = calling()
    assert results(sink, outgoing("a", "b", key="ada")) == ([None, None], 1)
    assert SERVICE.bodies == ["a", "a", "b"]


# Failures


def test_calls_that_have_succeeded_are_not_repeated_when_others_fail(calling):
    SERVICE.failures.update(b=2)
    sink = calling(max_tries=3)
    assert results(sink, outgoing("a", "b", "c")) == ([None, None, None], 2)
    assert Counter(SERVICE.bodies) == {"a": 1, "b": 3, "c": 1}
    assert [one.sequence for one in sink._sink.sent] == [1, 2, 3]
    assert len(sink._sink.batches) == 1
    assert sink._outcomes == sink._failures == {}


def test_a_lost_connection_repeats_no_call(calling):
    sink = calling()
    sink._sink.lost = 2
    assert results(sink, outgoing("a")) == ([None], 2)
    assert SERVICE.bodies == ["a"]


def test_a_message_is_given_up_after_max_tries_and_the_others_are_sent(calling):
    SERVICE.failures.update(b=5)
    sink = calling(max_tries=2)
    assert results(sink, outgoing("a", "b")) == ([None, "E8112"], 1)
    assert [one.sequence for one in sink._sink.sent] == [1]
    SERVICE.failures.update(b=5)
    [refused] = calling(max_tries=1).send(outgoing("b"))
    assert str(refused) == (
        "E8112 senders.out message 1: tests.runtime.test_calls:charge failed 1 times: ValueError: declined."
    )


def test_call_again_does_not_count_as_a_try(calling):
    SERVICE.failures.update(a=5)
    SERVICE.error = CallAgain("the bank is closed")
    sink = calling(max_tries=1)
    with pytest.raises(
        ConnectionLost, match="E7057 senders.out: .* wants message 1 again: CallAgain: the bank is closed"
    ):
        sink.send(outgoing("a"))
    sink.connect()
    assert results(sink, outgoing("a")) == ([None], 4)


def test_what_a_decorator_has_made_a_coroutine_is_a_failure_and_told(calling):
    [refused] = calling(wrapped, max_tries=1).send(outgoing("a"))
    assert "UsageError: E4117" in str(refused)


@pytest.mark.parametrize("function", [charge, charge_later])
def test_an_exit_of_the_function_ends_the_engine(calling, function):
    SERVICE.failures["a"] = 1
    SERVICE.error = SystemExit("enough")
    sink = calling(function)
    raised = []

    def send():
        try:
            sink.send(outgoing("a"))
        except SystemExit as error:
            raised.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert [str(error) for error in raised] == ["enough"]


def test_a_call_that_never_returns_keeps_no_process_from_ending(tmp_path):
    """The thread of the sender waits for it; a stop of the engine abandons that thread."""
    program = f"""
import threading
from {HERE} import Sent, outgoing
from correlator.runtime.calling import CallingSink
from correlator.settings import CallSettings
from tests.runtime.world import sender

def hangs(message, key):
    began.set()
    threading.Event().wait()

began = threading.Event()
sink = CallingSink(sender("out", call=CallSettings(function="m:hangs")), hangs, Sent())
sink.connect()
threading.Thread(target=sink.send, args=(outgoing("a"),), daemon=True).start()
assert began.wait({PATIENCE_S})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S, cwd=ROOT)


def test_what_cannot_be_a_message_is_a_failure(calling, monkeypatch):
    monkeypatch.setattr(SERVICE, "call", lambda *_: Message("text"))
    monkeypatch.setitem(globals(), "Charged", lambda order: order)
    [refused] = calling(max_tries=1).send(outgoing("a"))
    assert refused.code == "E8112"
    assert "E5201" in str(refused)


def test_a_coroutine_that_takes_too_long_is_cancelled_and_fails(calling):
    sink = calling(never, max_tries=1, call={"timeout": 0.01})
    [refused] = sink.send(outgoing("a"))
    assert str(refused).endswith("failed 1 times: TimeoutError.")


def test_without_a_connection_nothing_is_called(calling):
    sink = calling()
    sink.close()
    with pytest.raises(ConnectionLost, match="E7003"):
        sink.send(outgoing("a"))
    assert SERVICE.calls == []


def test_a_pool_that_belongs_to_the_event_loop_lasts_over_failures(calling):
    """A future stands for a pool of connections: another loop could not wait for it."""
    SERVICE.failures.update(a=2, b=1)
    SERVICE.error = CallAgain("closed")
    sink = calling(uses_a_pool)
    sink._sink.lost = 1
    assert results(sink, outgoing("a", "b")) == ([None, None], 3)
    assert len({id(loop) for loop in SERVICE.loops}) == 1


def test_failing_calls_do_not_cost_the_connection_to_the_broker(calling):
    SERVICE.failures.update(a=2)
    sink = calling()
    assert results(sink, outgoing("a")) == ([None], 2)
    assert sink._sink.connects == 1
    sink._sink.lost = 1
    assert results(sink, outgoing("b")) == ([None], 1)
    assert sink._sink.connects == 2


# In an engine


def calls(function, **more):
    return sender("out", call=CallSettings(function=f"{HERE}:{function.__name__}"), retry_interval=0.001, **more)


BRIDGE = (BridgeSettings(name="b", from_=("in",), to=("out",)),)


def test_an_engine_calls_once_for_each_message_and_keeps_what_it_gives_up(world):
    SERVICE.failures.update(b=9)
    with world.engine(receiver(), calls(charge), bridges=BRIDGE) as engine:
        world.publish(message("a"), message("b"), message("c"))
        world.wait(lambda: engine.status().totals()["sent"] == 2)
        world.wait(lambda: engine.status().totals()["dead letters"] == 1)
        assert engine.senders["out"].counters.retries == 0
    assert world.sent() == ['{"order":"a"}', '{"order":"c"}']
    assert [one.partition(":")[0] for one in world.dead_letters()] == ["E8112 senders.out message 2"]
    assert Counter(SERVICE.bodies) == {"a": 1, "b": 3, "c": 1}


def test_a_result_may_name_a_logical_destination(world):
    with world.engine(receiver(), calls(foreign), bridges=BRIDGE, destinations={"replies": "queue:answers"}):
        world.publish(message("a"))
        world.wait_for("a", at="queue:answers")


def test_after_a_crash_the_function_is_called_again_with_the_same_key(world):
    """The first engine dies when the result is at the broker, and before the outbox knows that."""
    world.fail_at("tx.publish.after", RuntimeError("dies"))
    engine = world.engine(receiver(), calls(charge), bridges=BRIDGE)
    engine.start()
    world.publish(message("a"))
    world.wait(lambda: engine.failure)
    world.crash(engine)
    with world.engine(receiver(), calls(charge), bridges=BRIDGE):
        world.publish(message("b"))
        world.wait(lambda: '{"order":"b"}' in world.sent())
    assert [one for one, _ in SERVICE.calls] == ["a", "a", "b"]
    assert len(set(SERVICE.calls)) == 2
    assert len(set(world.ids())) == 2


def test_messages_that_wait_are_sent_as_the_next_start_says(world):
    SERVICE.failures.update(a=99)
    SERVICE.error = CallAgain("closed")
    with world.engine(receiver(), calls(charge), bridges=BRIDGE, stop_timeout=0.01):
        world.publish(message("a"))
        SERVICE.wait_for_calls(1)
    with world.engine(receiver(), sender("out"), bridges=BRIDGE):
        world.wait_for("a")


# Mistakes


@pytest.mark.parametrize(
    ("function", "code", "what"),
    [
        ("nowhere", "E1501", "has no 'nowhere'"),
        ("NO_FUNCTION", "E1531", "is no function"),
        ("of_one", "E1531", "cannot be called: too many positional arguments"),
        ("yields", "E4117", "a generator"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_is_opened(world, function, code, what):
    call = CallSettings(function=f"{HERE}:{function}")
    with pytest.raises((ConfigError, UsageError), match=rf"^{code} senders\.out\.call\.function.*{what}"):
        world.engine(receiver(), sender("out", call=call), bridges=BRIDGE).start()


def test_only_a_coroutine_may_have_a_time_out():
    with pytest.raises(ConfigError, match=r"^E1531 senders\.out\.call\.timeout: .* is a plain function"):
        function_of(CallSettings(function=f"{HERE}:charge", timeout=1.0), "senders.out.call")


@pytest.mark.parametrize(
    "connection",
    [
        "{type: sql, database: 'sqlite:///rows.db'}",
        "{type: lake, path: lake, format: parquet}",
        "{type: objects, path: objects}",
    ],
)
def test_no_call_where_a_missing_number_counts_as_a_lost_message(connection, tmp_path, monkeypatch):
    written = FILE.replace("FUNCTION", "charge").replace(
        "connection: local\n    destination: queue:out", "connection: rows\n    destination: queue:out"
    )
    written = written.replace("connections: {", f"connections: {{rows: {connection}, ")
    (tmp_path / "shop.yaml").write_text(written)
    done = run("lint", "shop.yaml", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert "E1532 shop.yaml:" in done.stderr + done.stdout
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"E1532 senders\.out\.call: a call may lead to no message"):
        Engine.from_yaml("shop.yaml").start()


@pytest.mark.parametrize("text", ["concurrency: 0", "concurrency: 257", "timeout: 0s"])
def test_settings_out_of_their_range_are_refused(text):
    written = FILE.replace("FUNCTION", "charge") + f"      {text}\n"
    with pytest.raises(InvalidConfiguration, match="E102[25]"):
        read_text(written, PipelineFile, environment={})


# What is told


def test_the_promise_of_a_path_names_the_function():
    file = read_text(FILE.replace("FUNCTION", "charge"), PipelineFile, environment={}).settings
    [path] = paths_of(file, ())
    promise = guarantee(path.receiver, path.middle, path.sender)
    assert promise.grade.name == "ONCE"
    assert promise.notes[-1] == (
        f"After a crash 'out' may call {HERE}:charge again with the same message, and with the same key"
    )


def test_crash_tests_call_nothing():
    file = read_text(FILE.replace("FUNCTION", "charge"), PipelineFile, environment={}).settings
    [one] = uncalled(file).senders
    assert (one.call, one.destination, one.reliability) == (None, "queue:calls-of-out", Reliability.EXACTLY_ONCE)
