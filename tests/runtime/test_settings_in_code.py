"""Settings that code makes pass the rules of a file; parts that code adds, and the store keeps, pass them at each start."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from correlator import Engine, Message, Monitor
from correlator.connector import Advice
from correlator.core.batch_context import Effects
from correlator.core.commit import Endpoint, StateEntry, StateSegment
from correlator.errors import ConfigError, Fenced, RecoveryRefused, UsageError
from correlator.reliability import Reliability
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    DuplicateDetectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.storage import codec, inspect
from correlator.storage.forget import forget, holds
from correlator.testing.memory import MemoryBroker, MemoryConnection
from tests.runtime.flows import Hears
from tests.waiting import wait_until

EXACT = Reliability.EXACTLY_ONCE
RECEIVER = ReceiverSettings(id="orders", connection="memory", destination="queue:orders")
SENDER = SenderSettings(id="bills", connection="memory", destination="queue:bills")
WRONG_RECEIVERS: list[tuple[dict[str, Any], str]] = [
    ({"max_batch_size": 0}, "E1022 .*max_batch_size: '0' is out of range, must be a whole number 1..1000000"),
    ({"max_batch_size": 1.5}, "E1022 .*max_batch_size: '1.5' is of type float, must be a whole number"),
    ({"max_batch_size": True}, "E1022 .*max_batch_size: 'True' is of type bool, must be a whole number"),
    ({"id": ""}, "E1210 .*id: is empty"),
    ({"id": "a\nb"}, "E1210 .*contains control characters"),
    ({"id": "\ud800"}, "E1210 .*contains control characters"),
    ({"id": "x" * 201}, "E1210 .*longer than 200"),
    (
        {"reliability": "EXACTLY_ONCE"},
        "E1203 .*'EXACTLY_ONCE' is of type str, must be of type Reliability. Use Reliability.EXACTLY_ONCE",
    ),
    ({"reliability": "ONCE"}, "E1203 .*'ONCE' is not a reliability mode. Use BEST_EFFORT"),
    ({"on_mapping_error": "explode"}, "E1022 .*'explode' is not one of the possible values. Use dead_letter"),
    ({"destination": "orders"}, "E1215 .*'orders' is not a destination"),
    ({"destination": "queue:a\nb"}, "E1215 .*is not a destination"),
    ({"connection": "nowhere"}, "E1211 .*'nowhere' is not defined"),
    ({"selector": "price >"}, "E6003"),
    ({"event": "risk.Trade"}, "E1501 .*is not an import path"),
    ({"max_batch_bytes": -1}, "E1026 .*'-1' is out of range, must be a size of at least 0 bytes"),
    ({"max_extra_mapping_threads": 65}, "E1022 .*must be a whole number 0..64"),
    ({"dup_detection_domain_id": "a\0b"}, "E1210 .*contains control characters"),
    ({"flow_control": "yes"}, "E1022 .*'yes' is of type str, must be true or false"),
    ({"mapping": {"price": 5}}, "E1022 .*mapping.price: '5' is of type int, must be text"),
    ({"options": {"x": object()}}, "E1022 .*options: cannot be stored"),
    ({"reliability": Reliability.EXACTLY_ONCE}, "E1205 .*needs a persistent engine"),
]
WRONG_SENDERS: list[tuple[dict[str, Any], str]] = [
    ({"time_to_live": -4}, "E1025 .*time_to_live: '-4' is out of range, must be a duration of at least 0.001 seconds"),
    ({"time_to_live": float("inf")}, "E1025 .*is out of range"),
    ({"time_to_live": float("nan")}, "E1025 .*is out of range"),
    ({"max_outstanding": 0}, "E1022 .*is out of range"),
    ({"unique_message_id_property": None}, "E1022 .*must be text"),
    ({"unique_message_id_property": "\udc00"}, "E1022 .*surrogate"),
    (
        {"unique_message_id_property": ""},
        "E1022 .*unique_message_id_property: is empty, must be the name of a property",
    ),
    ({"message_source_id_property": ""}, "E1022 .*message_source_id_property: is empty"),
    ({"unique_message_id_property": "messageSourceId"}, "E1022 .*: 'messageSourceId' carries the source id, too"),
    ({"reliability": Reliability.APP_CONTROLLED}, "E1204"),
]


def settings(**more: Any) -> EngineSettings:
    return EngineSettings(name="test", **more)


def engine(of: EngineSettings, **more: Any) -> Engine:
    return Engine(of, connections={"memory": MemoryBroker().connection()}, **more)


@pytest.mark.parametrize(("change", "refusal"), WRONG_RECEIVERS)
def test_a_receiver_from_code_is_refused_in_the_words_of_a_file(change: dict[str, Any], refusal: str) -> None:
    wrong = replace(RECEIVER, **change)
    with pytest.raises(ConfigError, match=refusal) as refused:
        engine(settings(receivers=(wrong,)))
    assert refused.value.where.startswith("receivers[0].")
    running = engine(settings())
    with running, pytest.raises(ConfigError, match=refusal):
        running.add_receiver(wrong)
    assert running.registry == {}


@pytest.mark.parametrize(("change", "refusal"), WRONG_SENDERS)
def test_a_sender_from_code_is_refused_in_the_words_of_a_file(change: dict[str, Any], refusal: str) -> None:
    wrong = replace(SENDER, **change)
    with pytest.raises(ConfigError, match=refusal):
        engine(settings(senders=(wrong,)))
    running = engine(settings())
    with running, pytest.raises(ConfigError, match=refusal):
        running.add_sender(wrong)
    assert running.registry == {}


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"name": " "}, "E1210 name: is empty"),
        ({"receivers": (RECEIVER, replace(RECEIVER, destination="queue:b"))}, "E1210 receivers.*used at receivers"),
        ({"receivers": (RECEIVER,), "senders": (replace(SENDER, id="orders"),)}, r"E1210 senders\[0\].id"),
        ({"receivers": RECEIVER}, "E1022 receivers: .* must be a list"),
        ({"receivers": (SENDER,)}, r"E1022 receivers\[0\]: .* must be ReceiverSettings"),
        ({"checkpoint": CheckpointSettings(interval=0)}, "E1025 checkpoint.interval"),
        ({"stop_timeout": -1.0}, "E1025 stop_timeout"),
        ({"store": "sqlite:///:memory:"}, "E1301 store"),
        ({"connections": {"a": ConnectionSettings(type="smoke")}}, "E1212 connections.a.type"),
        ({"destinations": {"in": "nowhere"}}, "E1215 destinations.in"),
        ({"monitors": (MonitorSettings(type="a:B", on_error="hope"),)}, "E1022 .*on_error"),  # type: ignore[arg-type]
    ],
)
def test_an_engine_from_code_is_refused_in_the_words_of_a_file(wrong: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        engine(replace(settings(), **wrong))


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        engine(settings(receivers=(replace(RECEIVER, id="", max_batch_size=0),)))
    assert [problem.code for problem in refused.value.problems] == ["E1210", "E1022"]


NO_WINDOWS = DuplicateDetectionSettings(per_source_window_size=0, expiry_time=0.0)


def test_windows_that_detect_nothing_are_refused_with_a_receiver_that_code_adds(url: str) -> None:
    exact = replace(RECEIVER, reliability=EXACT)
    running = engine(persistent(url, duplicate_detection=NO_WINDOWS))
    with running, pytest.raises(ConfigError, match="E1402 duplicate_detection: both duplicate windows are 0"):
        running.add_receiver(exact)
    keep(url)
    with pytest.raises(RecoveryRefused, match="E4305 receiver 'orders': was added by code .*E1402"):
        engine(persistent(url, duplicate_detection=NO_WINDOWS)).start()


def test_a_window_smaller_than_a_batch_is_warned_of_when_code_adds_the_receiver(url: str, logs: list[Any]) -> None:
    with engine(persistent(url)) as running:
        running.add_receiver(replace(RECEIVER, reliability=EXACT, max_batch_size=5000))
    assert [one for one in logs if one["event"].startswith("W1401 duplicate_detection.per_source_window_size")]


# --- a monitor by its class ---


def test_a_monitor_is_named_by_its_class() -> None:
    assert MonitorSettings(type=Hears) == MonitorSettings(type="tests.runtime.flows:Hears")
    with engine(settings(monitors=(MonitorSettings(type=Hears),))) as running:
        (thread,) = running.parts.monitor_threads()
        assert [type(monitor) for monitor in thread.context.monitors.instances] == [Hears]


def test_a_class_that_no_name_leads_to_is_refused() -> None:
    class Hidden(Monitor):
        pass

    with pytest.raises(ConfigError, match=r"E1501 monitors\[0\].type: .* is not an import path"):
        engine(settings(monitors=(MonitorSettings(type=Hidden),)))


# --- what the store has kept ---


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def persistent(url: str, **more: Any) -> EngineSettings:
    return settings(store=url, monitors=(MonitorSettings(type=Hears),), **more)


def keep(url: str) -> None:
    """A life that adds a receiver and a sender, and leaves."""
    with engine(persistent(url)) as running:
        running.add_receiver(replace(RECEIVER, reliability=EXACT))
        running.add_sender(replace(SENDER, reliability=EXACT))


def change(url: str, part: str, **values: Any) -> None:
    """Settings as an earlier version may have stored them."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        ((content,),) = connection.execute("SELECT content FROM endpoint WHERE id = ?", (part,))
        endpoint = msgspec.msgpack.decode(content, type=Endpoint)
        stored = msgspec.json.encode({**msgspec.json.decode(endpoint.settings), **values})
        row = codec.content_of(msgspec.structs.replace(endpoint, settings=stored))
        connection.execute("UPDATE endpoint SET content = ?, crc = ? WHERE id = ?", (*row.values(), part))
    connection.close()


@pytest.mark.parametrize(
    ("part", "values", "why"),
    [
        ("orders", {"max_batch_size": 0}, "max_batch_size"),
        ("orders", {"reliability": "TWICE"}, "TWICE"),
        ("orders", {"destination": "orders"}, "E1215"),
        ("orders", {"connection": "gone"}, "E1211 .*'gone' is not defined"),
        ("orders", {"event": "nowhere:Trade"}, "E1501"),
        ("bills", {"time_to_live": -4}, "time_to_live"),
        ("bills", {"connection": "gone"}, "E1211 .*'gone' is not defined"),
    ],
)
def test_what_is_stored_and_not_valid_any_more_is_refused_by_name_until_it_is_removed(
    url: str, part: str, values: dict[str, Any], why: str
) -> None:
    keep(url)
    change(url, part, **values)
    before = inspect.instance(url)
    with pytest.raises(RecoveryRefused, match=rf"E4305 \w+ '{part}': was added by code .*{why}") as refused:
        engine(persistent(url)).start()
    assert f"correlator db forget STORE {part}" in str(refused.value)
    assert inspect.instance(url) == before
    forget(url, part)
    with engine(persistent(url)) as running:
        assert set(running.registry) == {"orders", "bills"} - {part}
        assert running.add_sender(replace(SENDER, id=part)).settings.id == part


def test_all_that_is_not_valid_any_more_is_named_at_once(url: str) -> None:
    keep(url)
    change(url, "orders", max_batch_size=0)
    change(url, "bills", max_tries=0)
    with pytest.raises(RecoveryRefused, match=r"(?s)'bills'.*forget STORE bills.*'orders'.*forget STORE orders"):
        engine(persistent(url)).start()


def test_what_a_forgotten_part_held_goes_with_it(url: str) -> None:
    """Its messages, its place at the last checkpoint, its ids: the next one of its name begins anew."""
    keep(url)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        segment = codec.content_of({"sender": "bills", "first": 1, "messages": [Message(b"1"), Message(b"2")]})
        connection.execute("INSERT INTO outbox VALUES ('bills', 1, 2, ?, ?)", tuple(segment.values()))
        entries = [StateEntry(owner, b"orders", b"not decided yet") for owner in ("unhandled", "unmapped")]
        state = codec.content_of(StateSegment(99, entries))
        connection.execute("INSERT INTO state_log VALUES (99, 2, ?, ?)", tuple(state.values()))
    connection.close()
    assert [(one.table, one.rows, one.messages) for one in holds(url, "bills")] == [
        ("endpoint", 1, None),
        ("outbox", 1, 2),
    ]
    forget(url, "bills")
    forget(url, "orders")
    assert [cut.entered for cut in inspect.contexts(url)] in ([{}], [])
    assert not any(inspect.state(url).get(owner) for owner in ("unhandled", "unmapped"))
    with pytest.raises(UsageError, match="E8302 'bills': no such receiver or sender. Added by code: none"):
        forget(url, "bills")


def test_only_what_code_added_can_be_forgotten_and_no_engine_may_run(url: str) -> None:
    with engine(persistent(url, senders=(SENDER,))) as running:
        running.add_receiver(RECEIVER)
        with pytest.raises(Fenced, match="E3201"):
            forget(url, "orders")
        with pytest.raises(UsageError, match="E8301 sender 'bills': stands in the configuration"):
            holds(url, "bills")


# --- removed at an unusual moment ---


class Removes(Monitor):
    """Calls what a test has left here."""

    action: Callable[[], None]

    def onload(self) -> None:
        type(self).action()


@pytest.mark.parametrize("store", [True, False])
def test_a_part_can_be_removed_while_monitors_are_loaded(url: str, store: bool) -> None:
    of = settings(store=url if store else None, monitors=(MonitorSettings(type=Removes),))
    made = engine(of)

    def add_and_remove() -> None:
        made.add_receiver(RECEIVER)
        made.add_sender(SENDER)
        made.remove("orders")
        made.remove("bills")

    Removes.action = staticmethod(add_and_remove)  # type: ignore[method-assign]
    with made:
        wait_until(lambda: made.removed("orders") and made.removed("bills"))
        assert made.registry == {}


class Forwards:
    """A processor that sends all it is given to 'bills'."""

    name = "forwards"
    receivers = ("in",)
    senders: tuple[str, ...] = ("bills",)
    steps = ()
    max_rows = 10
    max_bytes = 1000
    planned_s = 0.0

    def open(self) -> None: ...
    def close(self) -> None: ...

    def process(self, batch: Any, state: Any, engine_time: float) -> Effects:
        return Effects(sends=[("bills", delivered.message) for delivered in batch])

    def conclude(self, state: Any, engine_time: float) -> Effects:
        return Effects()


def test_a_sender_that_a_processor_uses_is_not_removed(url: str) -> None:
    made = Engine(persistent(url), connections={"memory": MemoryBroker().connection()}, processors=[Forwards()])
    with made as running:
        running.add_sender(replace(SENDER, reliability=EXACT))
        with pytest.raises(UsageError, match="E8306 sender 'bills': pipeline 'forwards' sends to it"):
            running.remove("bills")
        assert "bills" in running.senders


def test_a_receiver_that_a_processor_takes_from_is_not_removed(url: str) -> None:
    made = Engine(persistent(url), connections={"memory": MemoryBroker().connection()}, processors=[Forwards()])
    with made as running:
        running.add_receiver(replace(RECEIVER, id="in"))
        running.add_receiver(replace(RECEIVER, id="other", destination="queue:others"))
        with pytest.raises(UsageError, match="E8306 receiver 'in': pipeline 'forwards' takes from it"):
            running.remove("in")
        assert "in" in running.receivers
        running.remove("other")


QUESTIONABLE = replace(RECEIVER, reliability=EXACT, max_batch_size=5000)
LATE = replace(
    RECEIVER,
    id="late",
    destination="topic:late",
    reliability=Reliability.AT_LEAST_ONCE,
    options={"initial_position": "latest"},
)


@pytest.mark.parametrize("settings", ["engine.yaml", None, RECEIVER, {"password": "hunter2"}])
def test_an_engine_of_other_things_than_settings_is_refused(settings: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^E1022 Engine: is of type .*, must be EngineSettings\. For a file: Engine\.from_yaml"
    ):
        Engine(settings)


@pytest.mark.parametrize("part", [None, "in", {"id": "in"}])
def test_a_part_of_other_things_than_settings_is_refused(url: str, part: Any) -> None:
    with engine(persistent(url)) as running:
        with pytest.raises(ConfigError, match="E1022 add_receiver: .* must be ReceiverSettings"):
            running.add_receiver(part)
        with pytest.raises(ConfigError, match="E1022 add_sender: .* must be SenderSettings"):
            running.add_sender(part)
        with pytest.raises(ConfigError, match="E1022 add_sender: is of type ReceiverSettings"):
            running.add_sender(RECEIVER)  # type: ignore[arg-type]


class Careful(MemoryConnection):
    """It has something to say about options."""

    redelivery_options = ()

    @staticmethod
    def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterator[Advice]:
        for option in endpoint.options:
            yield Advice("W1227", option, f"{endpoint.reliability} loses something")


def test_what_is_probably_not_meant_is_logged_by_the_start_once(url: str, logs: list[Any]) -> None:
    def warnings() -> list[str]:
        return [line["event"] for line in logs if line["event"].startswith("W1")]

    connections = {"memory": Careful(MemoryBroker(), "memory")}
    made = Engine(persistent(url, receivers=(QUESTIONABLE,)), connections=connections)
    assert warnings() == []
    with made as running:
        (one,) = warnings()
        assert one.startswith(
            "W1401 duplicate_detection.per_source_window_size: 2000 is smaller than max_batch_size (5000)"
        )
        running.add_receiver(LATE)
        running.add_receiver(LATE)
        _, late = warnings()
        assert late.startswith("W1227 receiver 'late'.options.initial_position: AT_LEAST_ONCE loses")


def test_what_a_file_is_warned_of_is_logged_by_the_start_once(tmp_path: Path, logs: list[Any]) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(
        "name: e\nconnections: {local: {type: pulsar, token: x}}\n"
        "receivers: [{id: r, connection: local, destination: 'topic:t', reliability: AT_LEAST_ONCE,"
        f" options: {{initial_position: latest}}}}]\nstore: sqlite:///{tmp_path / 'e.db'}\n"
    )
    file.chmod(0o600)
    made = Engine.from_yaml(file, connections={"local": MemoryBroker().connection()})
    assert [line for line in logs if line["event"].startswith("W")] == []
    with made:
        told = [line["event"] for line in logs if line["event"].startswith("W")]
    assert [(one[:5], f"{file}:" in one) for one in told[:2]] == [("W9001", True), ("W1227", True)]
    assert sum("W1227" in one for one in told) == 1


def test_a_processor_does_not_send_to_a_sender_that_is_being_removed(url: str) -> None:
    """The engine stops before anything of the batch has taken place; the next life has the sender, and sends."""
    broker = MemoryBroker()
    of = settings(store=url, receivers=(replace(RECEIVER, id="in", reliability=EXACT, destination="queue:in"),))

    def life() -> Engine:
        return Engine(of, connections={"memory": broker.connection()}, processors=[Forwards()])

    with pytest.raises(UsageError, match="E8002 pipeline forwards: sender 'bills' is being removed"), life() as first:
        first.add_sender(replace(SENDER, reliability=EXACT))
        first.parts.close_to_sends("bills")
        broker.publish("queue:in", [Message(b"one", {"uniqueMessageId": "1"})])
        wait_until(lambda: first.failure is not None)
        first.raise_failure()
    with life() as second:
        wait_until(lambda: len(broker.received("queue:bills")) == 1)
        assert second.failure is None
