"""The HTTP server of an engine: what it shows, to whom, and that it never disturbs the engine (docs/http.md)."""

import json
import os
import re
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from correlator import Engine
from correlator.errors import ConfigError
from correlator.runtime.http import metrics, server
from correlator.runtime.status import DURATIONS_S, CheckpointCounters, LatencyCounters
from correlator.serving import HttpServer
from correlator.settings import EngineSettings, HttpSettings
from tests.runtime.flows import Forwards, Hears
from tests.runtime.serving import TOKEN, Client, samples_of, served
from tests.runtime.test_status import a_status
from tests.runtime.world import AT_LEAST_ONCE, BEST_EFFORT, message, receiver, sender
from tests.waiting import wait_until

# --- what it shows ---


def test_ping_answers_and_ready_follows_the_connections_of_reliable_parts():
    with served(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT)) as (_, broker, client):
        broker.down = True
        wait_until(lambda: client.json("/status")["connections"]["memory"]["status"] == "ERROR")
        assert client.ask("/ready")[0] == 200
        assert client.json("/ready") == {"ready": True, "reasons": [], "paused": []}


def test_o2_ready_names_the_part_and_its_error(tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    with served(receiver("in", AT_LEAST_ONCE), sender("out", BEST_EFFORT), store=store) as (_, broker, client):
        wait_until(lambda: client.ask("/ready")[0] == 200)
        broker.down = True
        wait_until(lambda: client.ask("/ready")[0] == 503)
        (reason,) = client.json("/ready")["reasons"]
        assert reason.startswith("receiver in: ERROR: E7001 ")
        assert client.ask("/ping")[:2] == (200, "ok\n")
        shown = client.json("/status")["receivers"]["in"]
        broker.down = False
        wait_until(lambda: client.ask("/ready")[0] == 200)
        after = client.json("/status")["receivers"]["in"]
        assert (after["status"], after["error"]) == ("OK", "")
        assert after["last_error"] == shown["error"] != ""
        assert after["since"] >= shown["since"] == after["last_error_at"] > 0


def test_the_status_counts_what_goes_through():
    with served(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Hears]) as (engine, broker, client):
        broker.publish("queue:in", [message("a"), message("b")])
        wait_until(lambda: client.json("/status")["receivers"]["in"]["received"] == 2)

        def same():
            """What the server shows, as soon as nothing changes between the two looks."""
            shown = client.json("/status")
            moving = {name: shown[name] for name in ("resident_bytes", "time", "engine_time")}
            there = json.loads(json.dumps(engine.status().to_dict())) | moving
            return shown if shown == there else None

        shown = wait_until(same)
        assert (shown["name"], shown["phase"]) == ("shop", "running")
        assert shown["senders"]["out"]["reliability"] == "BEST_EFFORT"
        samples = client.samples()
        assert samples["correlator_receiver_messages_total", "in"] == 2
        assert samples["correlator_received_messages_total",] == 2
        assert samples["correlator_sender_outstanding_messages", "out"] == 0
        assert samples["correlator_connection_up", "memory"] == 1
        assert samples["correlator_ready",] == 1


def test_metrics_of_a_removed_part_go_and_the_sums_stay():
    with served(monitors=[Hears]) as (engine, broker, client):
        engine.add_receiver(receiver("in", BEST_EFFORT))
        broker.publish("queue:in", [message("a")])
        wait_until(lambda: client.samples()["correlator_received_messages_total",] == 1)
        assert client.samples()["correlator_receiver_messages_total", "in"] == 1
        engine.remove("in")
        wait_until(lambda: not [name for name in client.samples() if name[1:] == ("in",)])
        assert client.samples()["correlator_received_messages_total",] == 1


def test_many_parts_are_added_up(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_PARTS", 2)
    with served(*(receiver(f"in{n}", BEST_EFFORT) for n in range(5))) as (engine, broker, client):
        for _ in range(3):
            broker.publish("queue:in4", [message("a")])
        wait_until(lambda: client.samples()["correlator_received_messages_total",] == 3)
        named = {name[1] for name in client.samples() if name[0] == "correlator_receiver_messages_total"}
        assert named == {"in0", "in1", "_other"}
        assert client.samples()["correlator_receiver_messages_total", "_other"] == 3
        assert client.samples()["correlator_receiver_up", "_other"] == 1
        engine.pause("in3")
        assert client.samples()["correlator_receiver_paused", "_other"] == 1
        broker.down = True
        wait_until(lambda: client.samples()["correlator_receiver_up", "_other"] == 0)


def test_the_sums_of_many_parts_never_fall(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_PARTS", 2)

    def others() -> float:
        return client.samples()["correlator_receiver_messages_total", "_other"]

    def publish(destination: str, count: int, so_far: int) -> None:
        broker.publish(destination, [message("a")] * count)
        wait_until(lambda: client.samples()["correlator_received_messages_total",] == so_far)

    with served(*(receiver(f"in{n}", BEST_EFFORT) for n in range(3)), monitors=[Hears]) as (engine, broker, client):
        engine.add_receiver(receiver("in9", BEST_EFFORT))
        publish("queue:in9", 3, 3)
        publish("queue:in1", 4, 7)
        assert others() == 3
        engine.remove("in9")
        wait_until(lambda: engine.removed("in9"))
        assert others() == 3
        engine.add_receiver(receiver("in00", BEST_EFFORT))  # the receiver in1 has no sample of its own any more
        assert others() == 3
        publish("queue:in1", 2, 9)
        assert others() == 5
        engine.remove("in00")
        wait_until(lambda: engine.removed("in00"))
        engine.add_receiver(receiver("in9", BEST_EFFORT))  # another part with the name of the first one
        publish("queue:in9", 1, 10)
        assert others() == 6


def test_the_sums_of_histograms_never_fall(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_PARTS", 1)
    sums = metrics.Others()

    def counts(**latencies: Sequence[float]) -> list[float]:
        told = {name: latency(durations) for name, durations in latencies.items()}
        status = a_status(1.0, receivers={}, senders={}, connections={}, latencies=told)
        found = samples_of(metrics.exposition(status, sums)[0].decode())
        bucket = "correlator_sender_latency_seconds_bucket"
        return [found.get((bucket, limit, "_other"), -1) for limit in ("0.001", "10", "+Inf")]

    assert counts(a=(0.0,)) == [-1, -1, -1]
    assert counts(a=(0.0,), b=(0.0, 5.0), c=(1000.0,)) == [1, 2, 3]
    assert counts(a=(0.0,), c=(1000.0,)) == [1, 2, 3]
    assert counts(a=(0.0,), b=(5.0, 5.0)) == [1, 4, 5]
    assert counts(a=(0.0,)) == [1, 4, 5]


def latency(durations):
    within = {text: sum(one <= limit for one in durations) for text, limit in DURATIONS_S.items()}
    return LatencyCounters(len(durations), sum(durations), within)


def test_metrics_follow_the_conventions_of_prometheus():
    parts = receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT)
    with served(*parts, monitors=[Hears]) as (_, _, client):
        text = client.ask("/metrics")[1]
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        assert re.fullmatch(r"correlator_[a-z_]+", family.name)
        assert not re.search(r"_(milliseconds|ms|mb|kb|minutes|percent)(_|$)", family.name)
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert set(sample.labels) <= {
                "receiver",
                "sender",
                "context",
                "pipeline",
                "connection",
                "engine",
                "version",
                "le",
            }


def test_the_age_of_what_waits_is_that_of_the_oldest_message(tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    parts = receiver("in", AT_LEAST_ONCE), sender("out", AT_LEAST_ONCE)
    with served(*parts, monitors=[Forwards], store=store) as (engine, broker, client):
        started = client.samples()["correlator_start_timestamp_seconds",]
        assert 0 < started == client.json("/status")["started"]
        assert client.samples()["correlator_store_up",] == 1
        engine.pause("out")
        broker.publish("queue:in", [message("a")])
        wait_until(lambda: client.samples()["correlator_sender_oldest_waiting_seconds", "out"] > 0)
        assert client.json("/status")["senders"]["out"]["oldest_s"] > 0
        assert client.samples()["correlator_context_oldest_waiting_seconds", "main"] == 0
        engine.resume("out")
        wait_until(lambda: client.samples()["correlator_sender_oldest_waiting_seconds", "out"] == 0)


def test_a_receiver_that_waits_for_room_is_shown_and_a_paused_one_is_not_waiting(tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    parts = receiver("in", AT_LEAST_ONCE), sender("out", AT_LEAST_ONCE, max_outstanding=1)
    with served(*parts, monitors=[Forwards], store=store) as (engine, broker, client):
        engine.pause("out")
        broker.publish("queue:in", [message("a")])
        wait_until(lambda: client.samples()["correlator_receiver_waiting", "in"] == 1)
        sender_shown = client.json("/status")["senders"]["out"]
        assert (sender_shown["outstanding"], sender_shown["max_outstanding"]) == (1, 1)
        engine.resume("out")
        wait_until(lambda: client.samples()["correlator_receiver_waiting", "in"] == 0)
        engine.pause("in")
        wait_until(lambda: client.json("/status")["receivers"]["in"]["waits_for"] == "pause")
        assert client.samples()["correlator_receiver_waiting", "in"] == 0


def test_checkpoints_are_counted_by_their_durations():
    counters = CheckpointCounters()
    for duration in (0.0005, 0.003, 0.003, 7.0, 100.0):
        counters.note(duration)
    text = metrics.exposition(
        a_status(1.0, receivers={}, senders={}, connections={}, checkpoints=counters, store_fails=True),
        metrics.Others(),
    )[0].decode()
    samples = samples_of(text)
    bucket = "correlator_checkpoint_duration_seconds_bucket"
    found = [samples[bucket, limit] for limit in ("0.001", "0.0025", "0.005", "5", "10", "30", "+Inf")]
    assert found == [1, 1, 3, 3, 4, 4, 5]
    assert samples["correlator_checkpoint_duration_seconds_sum",] == pytest.approx(107.0065)
    assert samples["correlator_store_up",] == 0


# --- to whom ---


@pytest.mark.parametrize(
    "host", ["example.com", "127.0.0.1.example.com:80", "10.0.0.1", "", "[::2]", "localhost:x", "a b"]
)
def test_o8_a_page_of_the_web_that_makes_its_name_mean_this_machine_reads_nothing(host):
    with served() as (_, _, client):
        for path in ("/ping", "/status", "/metrics", "/other"):
            assert client.ask(path, Host=host)[0] in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "127.8.0.1:80", "[::1]", "[::1]:8080"])
def test_names_of_this_machine_are_served(host):
    with served() as (_, _, client):
        assert client.ask("/status", Host=host)[0] == 200


def test_two_hosts_are_refused():
    with served() as (_, _, client):
        answer = client.raw(b"GET /status HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n\r\n")
        assert answer.split()[1] in (b"400", b"421")


def test_a_token_opens_what_is_not_for_probes():
    with served(token=TOKEN) as (_, _, client):
        for path in ("/status", "/metrics"):
            assert client.ask(path)[0] == 401
            assert client.ask(path)[2]["WWW-Authenticate"] == "Bearer"
            for wrong in (
                "",
                "Bearer",
                f"Bearer {TOKEN[1:]}",
                f"Bearer {TOKEN}x",
                f"bearer {TOKEN}",
                f"Basic {TOKEN}",
                "Bearer ü",
            ):
                assert client.ask(path, Authorization=wrong.encode("latin-1"))[0] in (401, 429)
            assert client.ask(path, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert client.ask("/ping", Host="pod.example.com")[0] == 200
        assert client.json("/ready") == {"ready": True}
        assert client.json("/ready", Authorization=f"Bearer {TOKEN}") == {"ready": True, "reasons": [], "paused": []}
        assert TOKEN not in repr(HttpSettings(port=0, token=TOKEN))


def test_o8_nothing_but_these_routes():
    with served() as (_, _, client):
        assert client.ask("/stauts")[:2] == (404, "there is no such route. Did you mean /status?\n")
        assert (
            client.ask("/x")[1]
            == "there is no such route. There are /ping, /ready, /status, /metrics, /events, /paths, /checkpoints, /settings, /letters, /letter, /state, /control\n"
        )
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            status, _, headers = client.ask("/status", method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert client.ask("/status", "HEAD")[:2] == (200, "")
        assert client.ask("/" + "x" * 3000)[0] == 414
        headers = client.ask("/status")[2]
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
        assert "Server" not in headers
        long = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 600_000 + b"\r\n\r\n"
        assert b" 200 " not in client.raw(long)
        assert client.ask("/ping")[0] == 200


@given(sent=st.binary(max_size=300))
def test_o8_whatever_is_sent_the_server_goes_on(shared_client, sent):
    shared_client.raw(sent)
    assert shared_client.ask("/ping")[:2] == (200, "ok\n")


@pytest.fixture(scope="module")
def shared_client():
    with served() as (_, _, client):
        yield client


def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged():
    server = HttpServer("test", "127.0.0.1", 0)
    try:
        with socket.create_connection(server.address):
            accepted, _ = server._socket.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        server.stop()


# --- it never disturbs the engine ---


def test_a_port_that_is_taken_is_refused_before_anything_is_opened(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = EngineSettings(name="x", store=f"sqlite:///{tmp_path}/store.db", http=HttpSettings(port=port))
        with pytest.raises(
            ConfigError, match=rf"E1604 http: cannot listen at 127\.0\.0\.1 port {port}: Address already"
        ):
            Engine(settings).start()
    assert list(tmp_path.iterdir()) == []
    with Engine(settings) as engine:
        assert Client(engine.http_address).ask("/ping")[0] == 200


def serving():
    return {thread for thread in threading.enumerate() if thread.name == "http"}


def test_the_server_ends_with_the_engine_also_after_a_failed_start(tmp_path):
    before = serving()
    with served() as (_, _, client):
        assert serving() != before
    with pytest.raises(ConnectionRefusedError):
        client.ask("/ping")
    (tmp_path / "store.db").write_bytes(b"no store" * 200)
    engine = Engine(EngineSettings(name="x", store=f"sqlite:///{tmp_path}/store.db", http=HttpSettings(port=0)))
    with pytest.raises(Exception, match="E3"):
        engine.start()
    with pytest.raises(OSError):  # whichever it is
        Client(engine.http_address).ask("/ping")
    assert serving() == before


def test_an_engine_stops_although_clients_hold_connections_open():
    before = serving()
    with served() as (_, _, client):
        held = [socket.create_connection((client.host, client.port)) for _ in range(5)]
        held[0].sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n")
    assert serving() == before
    for one in held:
        one.close()


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(server, "_PACKAGES", ("uvicorn", "no_such_package"))
    with pytest.raises(ConfigError, match=r"E1603 http: needs the packages no_such_package.*pip install"):
        Engine(EngineSettings(name="x", http=HttpSettings(port=0))).start()


@pytest.mark.parametrize(
    ("http", "code"),
    [
        (HttpSettings(port=1, host="0.0.0.0"), "E1601"),
        (HttpSettings(port=1, host="::"), "E1601"),
        (HttpSettings(port=1, host="shop.example.com"), "E1601"),
        (HttpSettings(port=1, token="t" * 31 + " "), "E1602"),
        (HttpSettings(port=1, token="ü" * 32), "E1602"),
        (HttpSettings(port=1, token="t" * 31 + "\n"), "E1602"),
    ],
)
def test_settings_that_cannot_be_meant(http, code):
    with pytest.raises(ConfigError) as refused:
        Engine(EngineSettings(name="x", http=http))
    assert [problem.code for problem in refused.value.problems] == [code]


def test_a_host_that_no_name_server_could_be_asked_for_is_refused():
    http = HttpSettings(port=0, host="x" * 64, token=TOKEN)
    with pytest.raises(ConfigError, match="E1604 http: cannot listen at x+… port 0: "):
        Engine(EngineSettings(name="x", http=http)).start()


def test_a_forked_child_does_not_hold_the_port():
    """Otherwise the port would stay taken as long as the child lives. Other programs may take a port that is free."""
    with served() as (_, _, client):
        listening = f"socket:[{_inode_of_listener(client.port)}]"
        assert listening in _open_files(os.getpid())
        (told, tell), (read, write) = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            os.write(tell, b"x")  # what a fork does in the child is done
            os.read(read, 1)
            os._exit(0)
        try:
            os.read(told, 1)
            assert listening not in _open_files(child)
        finally:
            os.write(write, b"x")
            os.waitpid(child, 0)
            for one in (told, tell, read, write):
                os.close(one)


def _inode_of_listener(port):
    """The number under which the system knows the socket that listens at a port (`/proc/net/tcp`)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next(row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A")


def _open_files(process):
    return {str(one.readlink()) for one in Path(f"/proc/{process}/fd").iterdir() if one.is_symlink()}
