"""The source of the connector `http`: what is answered when, what is refused, and what is bounded (docs/web.md)."""

import json
import select
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.http import HttpConnection, endpoint, protocol, server, signatures
from connectors.http.endpoint import Endpoint, Request
from correlator.connector import Listening, TellsBacklog, TellsSenders
from correlator.errors import ConfigError, ConnectionLost
from correlator.events import Message
from correlator.runtime.reporter import resident_bytes
from correlator.settings import ConnectionSettings, ReceiverSettings
from tests.connectors.web import PATIENCE_S, TOKEN, Web, lines, post, raw
from tests.waiting import wait_until

EXACTLY_ONCE = "EXACTLY_ONCE"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = signatures.key_of(SECRET)
LINES = {"Content_Type": "application/x-ndjson; charset=utf-8"}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine the thread of a test may stand still for longer than a store may."""
    monkeypatch.setattr(endpoint, "STANDSTILL_S", PATIENCE_S)


@pytest.fixture
def web():
    with closing(Web()) as made:
        yield made


def take(source, wanted=1):
    """The next chunk, which must have so many messages."""
    chunk = source.receive(1000, PATIENCE_S)
    assert len(chunk.messages) == wanted
    return chunk


def nothing_waits(source):
    return not source.receive(1000, 0.0).messages


# --- the answer comes when the message is stored ---


def test_h1_the_answer_comes_after_the_acknowledgement(web):
    source = web.source()
    client = web.posting(b"body", "order 7")
    chunk = take(source)
    (message,) = chunk.messages
    assert (message.body, message.key, message.headers.message_id) == (b"body", None, "order 7")
    assert message.properties == {"uniqueMessageId": "order 7", "messageSourceId": "orders"}
    assert not client.is_answered
    source.acknowledge(chunk.tokens)
    assert client.got()[:2] == (202, '{"id":"order 7"}')


def test_the_acknowledgement_of_one_message_answers_no_other(web):
    source = web.source()
    clients = {}
    for key in "abc":
        clients[key] = web.posting(b"", key)
        chunk = take(source)
        clients[key].token = chunk.tokens[0]
    source.acknowledge([clients["b"].token])
    assert clients["b"].got().status == 202
    assert not clients["a"].is_answered
    source.acknowledge([clients["b"].token, 12345])
    source.acknowledge([clients["c"].token, clients["a"].token])
    assert [clients[key].got().status for key in "ac"] == [202, 202]


@pytest.mark.parametrize("end", ["reject", "close", "connect"])
def test_h4_what_is_not_stored_is_never_answered_202(web, monkeypatch, end):
    monkeypatch.setattr(endpoint, "ANSWER_S", 10 * PATIENCE_S)
    source = web.source()
    held = web.posting(b"", "held")
    chunk = take(source)
    if end == "reject":
        source.reject(chunk.tokens)
    else:
        getattr(source, end)()
    got = held.got()
    assert (got.status, got.headers.get("retry-after")) == (503, "5")
    if end == "connect":
        source.acknowledge(chunk.tokens)
        assert nothing_waits(source)
    if end == "close":
        assert web.post().status == 503


def test_what_waits_when_the_source_closes_gets_503(web):
    source = web.source()
    client = web.posting()
    wait_until(lambda: source.backlog() == (1, 2))
    source.close()
    assert client.got().status == 503


def test_a_path_whose_receiver_is_not_connected_yet_gets_503_and_another_one_404(web):
    web.connection.source(ReceiverSettings(id="r", connection="web", destination="queue:orders"))
    web.connection.listen()
    assert web.post().status == 503
    assert web.post(path="/other").status == 404
    assert isinstance(web.connection, Listening)
    assert isinstance(web.source("third"), TellsBacklog | TellsSenders)


def test_what_takes_too_long_gets_503_and_is_given_up(web, monkeypatch):
    monkeypatch.setattr(endpoint, "ANSWER_S", 0.05)
    source = web.source()
    assert web.post(key="waits").status == 503
    assert nothing_waits(source)


def test_what_is_held_too_long_gets_503_and_is_not_taken_twice(web, monkeypatch):
    monkeypatch.setattr(endpoint, "ANSWER_S", 0.5)
    source = web.source()
    client = web.posting(b"", "is held")
    take(source)
    assert client.got().status == 503
    assert web.post(b"other", "is held").status == 422
    assert web.post(b"", "is held").status == 503
    assert nothing_waits(source)


@pytest.mark.parametrize("mode", ["AT_LEAST_ONCE", EXACTLY_ONCE])
def test_h4_a_store_that_stands_still_is_told_and_the_repeat_gets_the_outcome(web, monkeypatch, mode):
    monkeypatch.setattr(endpoint, "ANSWER_S", 10 * PATIENCE_S)
    source = web.source(reliability=mode, max_batch_interval_ms=0)
    first = web.posting(b"one", "k")
    chunk = take(source)
    assert not first.is_answered
    monkeypatch.setattr(endpoint, "STANDSTILL_S", 0.05)
    for _ in range(2):
        got = web.post(b"one", "k")
        assert (got.status, got.headers["retry-after"]) == (503, "5")
    monkeypatch.setattr(endpoint, "STANDSTILL_S", PATIENCE_S)
    again = web.posting(b"one", "k")
    (held,) = set(source._endpoint._held)
    wait_until(lambda: len(held.answer._callbacks) == 3)  # of both clients, and of the application
    assert nothing_waits(source)
    source.acknowledge(chunk.tokens)
    assert again.got()[:2] == first.got()[:2] == (202, '{"id":"k"}')


class Waiting:
    """An endpoint with a clock that a test sets, whose receiver takes each request by itself."""

    def __init__(self, mode=EXACTLY_ONCE, **settings):
        self.now_s = 1000.0
        receiver = ReceiverSettings(id="r", connection="web", destination="queue:r", reliability=mode, **settings)
        self.endpoint = Endpoint(receiver, lambda: self.now_s)
        self.endpoint.open()

    def store(self, lasts_s):
        """Let the receiver take a request, and store it within so many seconds."""
        self.endpoint.put(Request("k", b"", [Message(b"", {})], Never()))
        _, tokens = self.endpoint.take(1, 0.0)
        self.now_s += lasts_s
        self.endpoint.acknowledge(tokens)

    def waits_s(self, for_s=0.0):
        """For how long a client goes on to wait, if its request arrived so many seconds before."""
        return self.endpoint.gives_up_at(self.now_s - for_s) - self.now_s


class Never:
    """The answer of a request without a client."""

    def get_loop(self):
        return self

    def call_soon_threadsafe(self, *_):
        """Tell nobody."""


@pytest.fixture
def standstill(patient, monkeypatch):
    """How long a store may stand still, as in production."""
    monkeypatch.undo()
    return endpoint.STANDSTILL_S


def test_h4_a_client_waits_for_a_second_without_progress(standstill):
    waiting = Waiting(max_batch_interval_ms=0)
    assert standstill == waiting.waits_s() == 1.0
    waiting.now_s += 0.75
    assert waiting.waits_s(0.75) == 0.25
    assert Waiting(max_batch_interval_ms=2000).waits_s() == 3.0


def test_h4_each_progress_lets_a_client_wait_on_up_to_ten_seconds(standstill):
    waiting = Waiting(max_batch_interval_ms=0)
    for _ in range(12):
        waiting.store(0.5)
    assert [waiting.waits_s(for_s) for for_s in (0, 6, 9.75, 10)] == [1, 1, 0.25, 0]
    waiting.endpoint.put(Request("k", b"", [Message(b"", {})], Never()))
    waiting.now_s += 0.75
    assert waiting.waits_s(0.75) == 0.25
    _, tokens = waiting.endpoint.take(1, 0.0)
    assert waiting.waits_s(0.75) == 1.0
    waiting.now_s += 0.75
    waiting.endpoint.acknowledge([*tokens, 12345])
    waiting.endpoint.acknowledge(tokens)
    assert waiting.waits_s(6) == 1.5


def test_h4_a_slow_store_may_take_twice_as_long_as_before(standstill):
    waiting = Waiting(max_batch_interval_ms=0)
    waiting.store(3.0)
    assert (waiting.waits_s(), waiting.waits_s(for_s=9)) == (6.0, 1.0)
    waiting.store(0.125)
    assert waiting.waits_s() == 1.0
    waiting.store(60.0)
    assert waiting.waits_s() == 10.0


@pytest.mark.parametrize("mode", ["BEST_EFFORT", "APP_CONTROLLED"])
def test_h4_an_application_may_hold_messages_for_ten_seconds(standstill, mode):
    waiting = Waiting(mode)
    waiting.now_s += 5
    assert waiting.waits_s(5) == 5.0


# --- keys ---


def test_h2_a_repeat_waits_for_the_first_request_and_another_body_is_refused(web):
    source = web.source()
    first = web.posting(b"one", "k")
    chunk = take(source)
    (held,) = set(source._endpoint._held)
    wait_until(lambda: len(held.answer._callbacks) == 2)
    second = web.posting(b"one", "k")
    wait_until(lambda: len(held.answer._callbacks) == 3)
    assert web.post(b"other", "k").status == 422
    assert nothing_waits(source)
    source.acknowledge(chunk.tokens)
    assert first.got()[:2] == second.got()[:2] == (202, '{"id":"k"}')
    third = web.posting(b"other", "k")
    assert take(source).messages[0].body == b"other"
    assert not third.is_answered


def test_the_same_key_at_another_path_is_another_request(web):
    one, other = web.source("one"), web.source("other")
    clients = [web.posting(name.encode(), "k", f"/{name}") for name in ("one", "other")]
    for source in (one, other):
        source.acknowledge(take(source).tokens)
    assert [client.got().status for client in clients] == [202, 202]


def test_h2_exactly_once_needs_a_key(web):
    source = web.source(reliability=EXACTLY_ONCE)
    assert web.post(key=None).status == 400
    assert web.post(key="x" * 256).status == 400
    assert web.post(key="").status == 400
    assert web.post(key="grün".encode()).status == 400
    two = b"POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 0\r\n\r\n"
    assert raw(web.address, two).split()[1] == b"400"
    assert nothing_waits(source)
    client = web.posting(key="x" * 255)
    source.acknowledge(take(source).tokens)
    assert client.got().status == 202


def test_other_modes_and_other_templates_need_no_key(web):
    for name, settings in {
        "a": {"reliability": "AT_LEAST_ONCE"},
        "b": {"reliability": EXACTLY_ONCE, "unique_message_id": "${body.number}"},
    }.items():
        source = web.source(name, **settings)
        client = web.posting(key=None, path=f"/{name}")
        chunk = take(source)
        assert chunk.messages[0].properties == {}
        source.acknowledge(chunk.tokens)
        assert json.loads(client.got().text)["id"] == chunk.messages[0].headers.message_id


def test_dropped_conflicts_are_answered_422(web):
    source = web.source()
    clients = [web.posting(b"", key) for key in ("a", "b")]
    tokens = [token for _ in clients for token in source.receive(1, PATIENCE_S).tokens]
    source.dropped(["b"])
    source.acknowledge(tokens)
    assert sorted(client.got().status for client in clients) == [202, 422]


# --- lines ---


def test_h6_the_lines_of_a_body_are_messages_of_one_chunk(web):
    source = web.source(max_batch_size=4)
    alone = web.posting(b"alone", "a")
    first = source.receive(4, PATIENCE_S)
    client = web.posting(lines("1", "2", "3", "4"), "b", **LINES)
    assert not source.receive(3, 0.05).messages
    source.acknowledge(first.tokens)
    chunk = take(source, 4)
    assert [message.body for message in chunk.messages] == [b'"1"', b'"2"', b'"3"', b'"4"']
    assert [message.properties["uniqueMessageId"] for message in chunk.messages] == ["b/1", "b/2", "b/3", "b/4"]
    for token in chunk.tokens[:3]:
        source.acknowledge([token])
    assert not client.is_answered
    source.acknowledge(chunk.tokens[3:])
    assert (alone.got().status, client.got()[:2]) == (202, (202, '{"id":"b"}'))


def test_a_chunk_has_whole_bodies_with_lines_only(web):
    source = web.source(max_batch_size=4)
    clients = []
    for key in "ab":
        clients.append(web.posting(lines("1", "2", "3"), key, **LINES))
        wait_until(lambda: source.backlog().messages == 3 * len(clients))
    for client in clients:
        source.acknowledge(take(source, 3).tokens)
        assert client.got().status == 202


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (lines(*"123456") + b"{no json\n" + lines("8"), 400, "line 7 is not JSON"),
        (b'"a"\n\n"b"\n', 400, "line 2 is not JSON"),
        (b"", 400, "line 1 is not JSON"),
        (b'"\xff"\n', 400, "line 1 is not JSON"),
        (b"[" * 100_000, 400, "line 1 is not JSON"),
        (lines(*"123456789"), 413, "at most 8 lines"),
        (lines("x" * 200_000), 413, "line 1 has more than 100000 bytes"),
    ],
)
def test_h6_nothing_is_stored_of_a_body_with_a_bad_line(web, body, status, said):
    source = web.source(max_batch_size=8, max_message_bytes=100_000)
    got = web.post(body, **LINES)
    assert (got.status, said in got.text) == (status, True), got.text
    assert nothing_waits(source)


def test_a_body_with_lines_is_given_back_as_a_whole(web):
    source = web.source()
    client = web.posting(lines("1", "2"), **LINES)
    chunk = take(source, 2)
    source.acknowledge(chunk.tokens[:1])
    source.reject(chunk.tokens[1:])
    assert client.got().status == 503


# --- bounds ---


def head(length, more=""):
    return f"POST /orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def test_h3_a_full_queue_answers_before_the_body_is_read(web):
    source = web.source(max_batch_size=1)
    for key in "ab":
        web.posting(key=key)
    wait_until(lambda: source.backlog().messages == 2)
    with socket.create_connection(web.address, timeout=PATIENCE_S) as client:
        client.sendall(head(3))
        answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in answer


def test_h3_a_body_that_is_too_large_is_refused_by_its_length(web):
    web.source(max_message_bytes=1000, max_batch_bytes=2000)
    with socket.create_connection(web.address, timeout=PATIENCE_S) as client:
        client.sendall(head(1001))
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection(web.address, timeout=PATIENCE_S) as client:
        client.sendall(head(10**18))
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert web.post(iter([b"x" * 600] * 2)).status == 413
    assert web.post(b"x" * 2001, **LINES).status == 413


def test_h3_bytes_of_many_bodies_are_bounded(web):
    source = web.source(max_message_bytes=1000, max_batch_bytes=1000)
    clients = [web.posting(b"x" * 900, key) for key in "ab"]
    wait_until(lambda: source.backlog() == (2, 1800))
    assert web.post(b"x" * 900, "c").status == 503
    source.close()
    assert [client.got().status for client in clients] == [503, 503]
    assert source._endpoint._bytes == source._endpoint._count == 0


@pytest.mark.parametrize("sent", [b"", b"POST /ord", head(10), head(10) + b"123"])
def test_h3_a_slow_client_is_cut_off(web, monkeypatch, sent):
    monkeypatch.setattr(protocol, "REQUEST_S", 0.05)
    source = web.source()
    with socket.create_connection(web.address, timeout=PATIENCE_S) as client:
        client.sendall(sent)
        assert client.recv(1000) == b""
    assert nothing_waits(source)
    wait_until(lambda: source._endpoint._bytes == 0)


def test_h3_slow_clients_do_not_keep_a_good_one_waiting(web):
    """Each round every slow client sends one byte, of its head or of its body, and a good client sends a request."""
    source = web.source()
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(web.address, timeout=PATIENCE_S)) for _ in range(200)]
        for number, client in enumerate(slow):
            client.sendall(head(1000) if number % 2 else b"POST /ord")
        for round_ in range(5):
            for client in slow:
                client.sendall(b"x")
            good = web.posting(key=str(round_))
            source.acknowledge(take(source).tokens)
            assert good.got().status == 202
        wait_until(lambda: source._endpoint._bytes == 100 * 5)
        assert not select.select(slow, [], [], 0)[0]  # they hold their connections, and have got nothing


@pytest.mark.parametrize("said", ["Content-Length: 1000000000", "Transfer-Encoding: chunked"])
def test_h3_a_body_of_a_gigabyte_takes_no_memory(web, said):
    """The client sends on whatever the answer is, as long as the server lets it."""
    source = web.source(max_message_bytes=1_000_000)
    piece = bytes(4_000_000)
    framed = piece if "Length" in said else b"%x\r\n%b\r\n" % (len(piece), piece)
    before, largest = resident_bytes(), 0
    with socket.create_connection(web.address, timeout=PATIENCE_S) as client:
        client.sendall(f"POST /orders HTTP/1.1\r\nHost: localhost\r\n{said}\r\n\r\n".encode())
        with suppress(ConnectionError):
            for _ in range(250):
                client.sendall(framed)
                largest = max(largest, resident_bytes())
        with suppress(ConnectionError):
            assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert largest - before < 50_000_000
    assert nothing_waits(source)
    wait_until(lambda: source._endpoint._bytes == 0)
    good = web.posting()
    source.acknowledge(take(source).tokens)
    assert good.got().status == 202


def test_a_slow_answer_is_not_cut_off(web, monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_S", 0.5)
    source = web.source()
    client = web.posting()
    chunk = take(source)
    threading.Event().wait(0.7)
    source.acknowledge(chunk.tokens)
    assert client.got().status == 202


def test_h3_far_too_many_connections_are_closed(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 2)
    with closing(Web()) as web:
        web.source()
        opened = [socket.create_connection(web.address, timeout=PATIENCE_S) for _ in range(5)]
        with suppress(ConnectionResetError):
            assert opened[-1].recv(1) == b""
        for one in opened:
            one.close()


def test_a_client_that_goes_leaves_nothing(web):
    source = web.source()
    with socket.create_connection(web.address, timeout=PATIENCE_S) as client:
        client.sendall(head(10) + b"123")
        wait_until(lambda: source._endpoint._bytes)
    wait_until(lambda: not source._endpoint._bytes)
    assert nothing_waits(source)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 405),
        ("HEAD", {}, 405),
        ("POST", {"Content-Encoding": "gzip"}, 415),
        ("POST", {"Content-Encoding": "identity, br"}, 415),
        ("POST", {"Host": "example.com"}, 421),
        ("POST", {"Origin": "https://example.com"}, 403),
    ],
)
def test_what_is_refused(web, method, headers, status):
    source = web.source()
    assert post(web.address, "/orders", b"", headers, method).status == status
    assert nothing_waits(source)


@pytest.fixture(scope="module")
def shared_web():
    with closing(Web()) as made:
        made.source("bytes")
        yield made


@given(sent=st.binary(max_size=300))
def test_whatever_is_sent_the_server_goes_on(shared_web, sent):
    raw(shared_web.address, sent)
    assert shared_web.post(path="/other").status == 404


# --- who may send ---


def test_one_of_the_tokens_is_needed(web):
    source = web.source(options={"token": [TOKEN, "u" * 32]})
    for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"bearer {TOKEN}", f"Basic {TOKEN}", "Bearer ü".encode("latin-1")):
        got = web.post(Authorization=wrong)
        assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer")
    assert web.post().status == 401
    for token in (TOKEN, "u" * 32):
        client = web.posting(Authorization=f"Bearer {token}", Host="example.com", Origin="https://example.com")
        source.acknowledge(take(source).tokens)
        assert client.got().status == 202


def test_h5_the_vector_of_the_standard():
    given_ = b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    made = KEY, b"msg_p5jXN8AQM9LWM0D4loKWxJek", b"1614265330", b'{"test": 2432232314}'
    assert signatures.signed(*made) == given_
    assert signatures.is_signed([b"x" * 24, KEY], *made[1:], b"v1a,x v1,bm9wZQ== " + given_)
    assert not signatures.is_signed([KEY], *made[1:], b"v1,bm9wZQ== " * 32 + given_)


def test_h5_the_time_of_a_comparison_tells_nothing(monkeypatch):
    """A signature counts only if the function says so whose time does not depend on where two texts differ."""
    monkeypatch.setattr(signatures.hmac, "compare_digest", lambda *_: False)
    assert not signatures.is_signed([KEY], b"id", b"1", b"{}", signatures.signed(KEY, b"id", b"1", b"{}"))


def signed(body=b"{}", id_="msg_1", timestamp=None, key=KEY, **changed):
    at = str(int(time.time()) if timestamp is None else timestamp)
    made = signatures.signed(key, id_.encode(), at.encode(), body)
    return {"webhook_id": id_, "webhook_timestamp": at, "webhook_signature": made, **changed}


def test_h5_a_signed_request_has_the_id_of_the_webhook(web):
    other = "whsec_" + "Zm9vYmFy" * 4
    source = web.source(reliability=EXACTLY_ONCE, options={"secret": [other, SECRET]})
    for key in (KEY, signatures.key_of(other)):
        client = web.posting(b"{}", "unsigned key", **signed(key=key), Host="example.com")
        chunk = take(source)
        assert chunk.messages[0].properties["uniqueMessageId"] == "msg_1"
        source.acknowledge(chunk.tokens)
        assert client.got()[:2] == (202, '{"id":"msg_1"}')


BAD = {
    "no comma": lambda: signed(webhook_signature="abc"),
    "empty": lambda: signed(webhook_signature=""),
    "not ASCII": lambda: signed(webhook_signature="v1,ü".encode()),
    "no text": lambda: signed(webhook_signature=b"v1,\xff\xfe"),
    "another version": lambda: signed(webhook_signature=b"v2" + signed()["webhook_signature"][2:]),
    "1,000 signatures": lambda: signed(webhook_signature=b"v1,bm9wZQ== " * 1000),
    "no time": lambda: signed(timestamp="abc"),
    "half a second": lambda: signed(timestamp=f"{int(time.time())}.5"),
    "negative": lambda: signed(timestamp=f"-{int(time.time())}"),
    "digits without end": lambda: signed(timestamp="9" * 500),
    "Arabic digits": lambda: signed(webhook_timestamp="١٢٣".encode()),
    "6 minutes ago": lambda: signed(timestamp=int(time.time()) - 400),
    "in 6 minutes": lambda: signed(timestamp=int(time.time()) + 400),
    "another body": lambda: signed(body=b"[]"),
    "another id": lambda: signed(webhook_id="msg_2"),
    "another secret": lambda: signed(key=b"x" * 24),
    "no id": lambda: {name: value for name, value in signed().items() if name != "webhook_id"},
    "no signature": lambda: {name: value for name, value in signed().items() if name != "webhook_signature"},
    "long id": lambda: signed(id_="x" * 256),
}


@pytest.mark.parametrize("headers_of_now", BAD.values(), ids=BAD)
def test_h5_a_request_without_a_good_signature_is_refused(shared_secret, headers_of_now):
    headers = headers_of_now()
    web, source = shared_secret
    assert web.post(b"{}", **headers).status == 401
    assert nothing_waits(source)


@pytest.fixture(scope="module")
def shared_secret():
    with closing(Web()) as made:
        yield made, made.source(options={"secret": SECRET})


def test_five_minutes_in_both_directions():
    assert [signatures.is_timely(b"1000", now) for now in (699, 700, 1000, 1300, 1301)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_headers_become_properties(web):
    source = web.source(options={"headers": ["X-GitHub-Event", "x-many", "x-none"]})
    web.posting(X_GitHub_Event="push", X_Many="1", Cookie="c", X_Other="o")
    assert take(source).messages[0].properties == {
        "x-github-event": "push",
        "x-many": "1",
        "uniqueMessageId": "k",
        "messageSourceId": "orders",
    }


# --- connections ---


def test_a_path_has_one_receiver(web):
    source = web.source()
    other = web.connection.source(ReceiverSettings(id="other", connection="web", destination="queue:orders"))
    with pytest.raises(ConnectionLost, match="E7009 receivers.other: another receiver takes the requests of /orders"):
        other.connect()
    source.close()
    other.connect()
    with pytest.raises(ConnectionLost, match="E7003"):
        source.receive(1, 0.0)
    other.close()


def test_a_port_that_is_taken(web):
    web.source()
    other = HttpConnection("other", ConnectionSettings(type="http", options={"port": web.address[1]}))
    with pytest.raises(ConfigError, match="E1604 connections.other.port: cannot listen at 127.0.0.1 port"):
        other.listen()
    source = other.source(ReceiverSettings(id="r", connection="other", destination="queue:a"))
    with pytest.raises(ConnectionLost, match="E7001 receivers.r: cannot listen"):
        source.connect()
    other.close()


def test_the_end_of_the_server_is_a_lost_connection_and_the_next_connect_starts_another_one(web):
    source = web.source()
    web.connection._server._server.stop()
    with pytest.raises(ConnectionLost, match="E7001"):
        source.receive(1, 0.0)
    source.connect()
    client = web.posting()
    source.acknowledge(take(source).tokens)
    assert client.got().status == 202


# --- options ---


def refused(call):
    with pytest.raises(ConfigError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": 80, "host": "x" * 64}, "E1022 connections.c.host: is not the name or address of a machine."),
        ({"url": "http://a..b/"}, "E1214 connections.c.url: is not the address of a service."),
        ({"port": 80_000}, "E1022 connections.c.port: '80000' is not allowed. A whole number from 0 to 65535."),
        (
            {"host": "127.0.0.1"},
            "E1021 connections.c: 'port' is missing. 'host' is an address at which a port is open.",
        ),
        ({"prot": 80}, "E1020 connections.c.prot: unknown key. Known: ca_file, deduplication, host, port, url."),
        (
            {"port": 80, "deduplication": True},
            "E1021 connections.c: 'url' is missing. deduplication is about the service of senders.",
        ),
    ],
)
def test_options_of_the_connection(options, said):
    told = refused(lambda: HttpConnection("c", ConnectionSettings(type="http", options=options)))
    assert told.startswith(said)


@pytest.mark.parametrize(
    ("destination", "options", "said"),
    [
        ("topic:a", {}, "E1216 receivers.r.destination: 'topic:a' is not a path."),
        ("queue:/a", {}, "E1216 receivers.r.destination"),
        ("queue:a/../b", {}, "E1216 receivers.r.destination"),
        ("queue:a//b", {}, "E1216 receivers.r.destination"),
        ("queue:a", {"tokne": "x"}, "E1020 receivers.r.tokne"),
        ("queue:a", {"token": "short"}, "E1022 receivers.r.token: is too short. At least 32 characters."),
        ("queue:a", {"token": "with blank" * 5}, "E1602 receivers.r.token"),
        ("queue:a", {"token": []}, "E1022 receivers.r.token: is an empty list."),
        ("queue:a", {"token": 7}, "E1022 receivers.r.token: is neither a text nor a list of texts."),
        ("queue:a", {"secret": "whsec_abc"}, "E1022 receivers.r.secret: is not the secret of a webhook."),
        ("queue:a", {"headers": ["Authorization"]}, "E1022 receivers.r.headers: 'authorization' is not a header"),
        ("queue:a", {"headers": "x y"}, "E1022 receivers.r.headers: 'x y' is not a header"),
    ],
)
def test_options_of_a_receiver(destination, options, said):
    connection = HttpConnection("c", ConnectionSettings(type="http", options={"port": 8080}))
    receiver = ReceiverSettings(id="r", connection="c", destination=destination, options=options)
    told = refused(lambda: connection.source(receiver))
    assert told.startswith(said), told
    assert "with blank" not in told


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", ""])
def test_other_machines_need_a_token_or_a_secret(host):
    def source(options):
        connection = HttpConnection("c", ConnectionSettings(type="http", options={"port": 8080, "host": host}))
        return connection.source(ReceiverSettings(id="r", connection="c", destination="queue:a", options=options))

    assert refused(lambda: source({})).startswith("E1601 receivers.r" if host else "E1022 connections.c.host")
    if host:
        source({"token": TOKEN})
        source({"secret": SECRET})


def test_a_connection_without_a_port_has_no_receivers():
    connection = HttpConnection("c", ConnectionSettings(type="http", options={"url": "https://example.com"}))
    told = refused(lambda: connection.source(ReceiverSettings(id="r", connection="c", destination="queue:a")))
    assert told.startswith("E1216 receivers.r.destination: receives at no port")


def test_secrets_are_in_no_text_of_an_object():
    connection = HttpConnection("c", ConnectionSettings(type="http", options={"port": 0}))
    settings = ReceiverSettings(
        id="r", connection="c", destination="queue:a", options={"token": TOKEN, "secret": SECRET}
    )
    assert TOKEN not in repr(connection.source(settings)._rules)
    assert "keys" not in repr(connection.source(settings)._rules)
