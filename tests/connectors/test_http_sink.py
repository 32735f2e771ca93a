"""The sink of the connector `http`: what an answer means, what is sent again, and in which order (docs/web.md)."""

import random
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing

import pytest

from connectors.http import HttpConnection, lane
from connectors.http import sink as sinks
from connectors.http.answers import Verdict, verdict, wait_s
from correlator.errors import ConfigError, ConnectionLost
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import outgoing
from tests.connectors.web import FINE, certified, serving

EXACTLY_ONCE, AT_LEAST_ONCE = "EXACTLY_ONCE", "AT_LEAST_ONCE"
TO = "queue:orders/new"


@pytest.fixture
def service():
    with serving() as made:
        yield made


def sink_of(url, reliability=EXACTLY_ONCE, options=None, **more):
    """A sink, which is not connected."""
    connection = HttpConnection("web", ConnectionSettings(type="http", options={"url": url, **more}))
    return connection.sink(
        SenderSettings(id="calls", connection="web", destination=TO, reliability=reliability, options=options or {})
    )


def connected(url, reliability=EXACTLY_ONCE, options=None, **more):
    sink = sink_of(url, reliability, options, **more)
    sink.connect()
    return closing(sink)


def batch(*bodies, first=1):
    return outgoing(
        TO, [body if isinstance(body, Message) else Message(body.encode()) for body in bodies], "life", first
    )


# --- what is sent ---


def test_a_message_is_a_request(service):
    options = {"token": "secret-token", "headers": ["X-Event"], "content_type": "text/plain"}
    with connected(f"{service.url}/v1/", options=options) as sink:
        assert sink.send(batch(Message(b"body", {"x-event": "order", "other": "o"}))) == [None]
    (call,) = service.calls
    assert (call.path, call.body, call.key) == ("/v1/orders/new", b"body", "1:life")
    given = {name.lower(): value for name, value in call.headers.items()}
    assert given.pop("host").startswith("localhost:")
    assert given == {
        "authorization": "Bearer secret-token",
        "accept-encoding": "identity",
        "content-length": "4",
        "content-type": "text/plain",
        "idempotency-key": "1:life",
        "x-event": "order",
    }


@pytest.mark.parametrize("named", ["X-Event", "x-event"])
@pytest.mark.parametrize(
    ("properties", "sent"),
    [
        ({"X-Event": "order"}, "order"),
        ({"x-event": "order"}, "order"),
        ({"x-event": "order", "X-EVENT": "other"}, "order"),
        ({"x_event": "order"}, None),
    ],
)
def test_a_property_is_sent_as_a_header_whatever_the_case_of_its_name(service, named, properties, sent):
    with connected(service.url, options={"headers": [named]}) as sink:
        assert sink.send(batch(Message(b"body", properties))) == [None]
    (call,) = service.calls
    assert call.headers.get("x-event") == sent


def test_at_least_once_has_no_key_and_neither_has_a_session(service):
    with connected(service.url, AT_LEAST_ONCE) as sink:
        sink.send(batch("a"))
    with connected(service.url) as sink:
        sink.send(outgoing(TO, [b"b"]))
    assert [call.key for call in service.calls] == [None, None]


def test_a_source_that_is_not_ascii_makes_a_key_that_a_header_can_hold(service):
    with connected(service.url) as sink:
        sink.send([Outgoing(7, "büro, a", TO, Message(b""))])
    assert service.calls[0].key == "7:b%C3%BCro%2C%20a"


@pytest.mark.parametrize(
    ("message", "destination", "said"),
    [
        (Message(b"", {"x-event": "two\nlines"}), TO, "E8110 senders.calls message 2: property 'x-event'"),
        (Message(b"", {"x-event": 7}), TO, "E8110"),
        (Message(b"", {"x-event": "ü"}), TO, "E8110"),
        (Message(b"", headers=Headers(delivery_delay_ms=5)), TO, "E8110"),
        (Message(b""), "queue:../admin", "E8104 senders.calls message 2: 'queue:../admin' is not a path."),
        (Message(b""), "topic:a", "E8104"),
        (Message(b""), "nonsense", "E8104"),
    ],
)
def test_what_cannot_be_a_request_is_refused_alone(service, message, destination, said):
    with connected(service.url, options={"headers": ["x-event"]}) as sink:
        first, _, last = batch("a", "b", "c")
        results = sink.send([first, Outgoing(2, "life", destination, message), last])
    assert (results[0], results[2]) == (None, None)
    assert str(results[1]).startswith(said)
    assert [call.body for call in service.calls] == [b"a", b"c"]


# --- what an answer means ---

MEANINGS = {
    Verdict.CONFIRMED: (200, 201, 202, 204, 299),
    Verdict.BUSY: (429, 503),
    Verdict.AGAIN: (102, 103, 408, 409, 425, 500, 501, 502, 504, 507, 599),
    Verdict.HOLD: (401, 403, 407),
    Verdict.REFUSED: (300, 301, 302, 304, 307, 308, 400, 404, 405, 406, 410, 411, 413, 415, 422, 451),
}


@pytest.mark.parametrize(("meaning", "statuses"), MEANINGS.items())
def test_h9_statuses(meaning, statuses):
    assert {verdict(status, has_key=True) for status in statuses} == {meaning}


def test_h9_a_conflict_without_a_key_is_a_refusal():
    assert verdict(409, has_key=False) is Verdict.REFUSED


NOON = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("-1", 0),
        ("1.5", 0),
        ("7200", 3600),
        ("1000000000", 3600),
        ("9" * 5000, 3600),
        ("٣", 0),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("Tue, 14 Nov 2099 22:13:00 GMT", 3600),
        ("Tue, 14 Nov 2023 22:13:30 -0000", 10),
        ("tomorrow", 0),
        ("Tue, 99 Nov 2023 99:13:00 GMT", 0),
    ],
)
def test_h9_retry_after(text, seconds):
    assert wait_s(text, NOON) == seconds


def test_a_refusal_tells_the_beginning_of_the_answer(service):
    service.behaviour = lambda _: (422, {}, b"no such customer\n" + b"x" * 10_000)
    with connected(service.url) as sink:
        (refusal,) = sink.send(batch("a"))
    assert str(refusal).startswith("E8102 senders.calls message 1: localhost:")
    assert "answers 422 Unprocessable Entity: no such customer\\nxxx" in refusal.what
    assert 4000 < len(refusal.what) < 4300


def test_too_large_is_a_refusal_of_the_size(service):
    service.behaviour = lambda _: (413, {}, b"")
    with connected(service.url) as sink:
        assert sink.send(batch("a"))[0].code == "E8106"


def test_h11_a_redirect_is_not_followed(service):
    service.behaviour = lambda _: (302, {"Location": f"{service.url}/login"}, b"")
    with connected(service.url) as sink:
        assert sink.send(batch("a"))[0].code == "E8102"
    assert len(service.calls) == 1


def test_h11_a_token_that_the_service_repeats_is_not_told(service):
    with connected(service.url, options={"token": "hush-hush"}) as sink:
        assert "hush-hush" not in repr(sink._calling)
        service.behaviour = lambda call: (400, {}, call.headers["Authorization"].encode())
        assert sink.send(batch("a"))[0].what.endswith("400 Bad Request: Bearer ***")
        service.behaviour = lambda call: (403, {}, call.headers["Authorization"].encode())
        with pytest.raises(ConnectionLost) as raised:
            sink.send(batch("a"))
    assert str(raised.value).startswith("E7002 senders.calls: localhost:")
    assert "hush-hush" not in str(raised.value)


def test_h9_retry_after_holds_the_whole_service(service):
    replies = iter([(503, {"Retry-After": "100"}, b""), FINE, FINE])
    service.behaviour = lambda _: next(replies)
    connection = HttpConnection("web", ConnectionSettings(type="http", options={"url": service.url}))
    sink, other = (
        connection.sink(SenderSettings(id=name, connection="web", destination=TO)) for name in ("calls", "o")
    )
    with closing(sink), closing(other):
        sink.connect()
        other.connect()
        with pytest.raises(ConnectionLost, match="E7026 senders.calls: localhost:.* answers message 1 with 503"):
            sink.send(batch("a", "b"))
        with pytest.raises(ConnectionLost, match="E7026 senders.calls: .* wants no request for another [0-9]+ s"):
            sink.connect()
        with pytest.raises(ConnectionLost, match="E7026 senders.o: .* wants no request for another [0-9]+ s"):
            other.send(batch("c"))
        assert 90 < connection._service.busy_until - time.monotonic() <= 100
        connection._service.busy_until -= 101
        sink.connect()
        assert sink.send(batch("a", "b")) == [None, None]
    assert [call.key for call in service.calls] == ["1:life", "1:life", "2:life"]


# --- what may have come through ---


@pytest.mark.parametrize("way", ["closed", "half", "half a body", "silent", "drip"])
def test_h8_whatever_happens_to_the_answer_the_repeat_has_the_same_key(service, monkeypatch, way):
    monkeypatch.setattr(sinks, "_LOOK_S", 0.05)
    ways = iter([FINE, way])
    service.behaviour = lambda _: next(ways, FINE)
    with connected(service.url, options={"timeout": "300ms"}) as sink:
        with pytest.raises(ConnectionLost, match="E7001 senders.calls: localhost:.* has not answered"):
            sink.send(batch("a", "b", "c"))
        sink.connect()
        assert sink.send(batch("a", "b", "c", "d")) == [None] * 4
    assert [(call.key, call.body) for call in service.calls] == [
        ("1:life", b"a"),
        ("2:life", b"b"),
        ("2:life", b"b"),
        ("3:life", b"c"),
        ("4:life", b"d"),
    ]


def test_a_service_that_is_not_there():
    with serving() as gone:
        url = gone.url
    with pytest.raises(ConnectionLost, match=r"E7001 senders.calls: cannot connect to localhost:\d+ "):
        sink_of(url).connect()


def test_an_answer_that_has_come_is_kept_when_a_batch_fails(service):
    """Otherwise one message that fails for long would repeat all others of its batch."""
    replies = {b"bad": 500}
    service.behaviour = lambda call: (replies.get(call.body, 400 if call.body == b"wrong" else 200), {}, b"")
    part = batch("good", "wrong", "bad", "late")
    with connected(service.url) as sink:
        for _ in range(3):
            with pytest.raises(ConnectionLost, match="E7025 senders.calls: .* answers message 3 with 500"):
                sink.send(part)
            sink.connect()
        replies.clear()
        assert [result and result.code for result in sink.send(part)] == [None, "E8102", None, None]
        assert not sink._answered
    assert Counter(call.body for call in service.calls) == {b"good": 1, b"wrong": 1, b"bad": 4, b"late": 1}


def test_messages_of_a_session_are_never_taken_for_one_another(service):
    service.behaviour = lambda call: (500 if call.body == b"bad" else 200, {}, b"")
    with connected(service.url) as sink:
        with pytest.raises(ConnectionLost):
            sink.send(outgoing(TO, [b"a", b"bad"]))
        sink.connect()
        sink.send(outgoing(TO, [b"b"]))
    assert [call.body for call in service.calls] == [b"a", b"bad", b"b"]


@pytest.mark.parametrize(
    "answer", [FINE, (200, {"Connection": "close"}, b"x" * 1000), (204, {}, b""), (200, {}, b"x" * 200_000)]
)
def test_h11_answers_of_every_kind_leave_a_lane_that_works(service, answer):
    service.behaviour = lambda _: answer
    with connected(service.url) as sink:
        assert sink.send(batch("a", "b", "c")) == [None] * 3
    assert len(service.stored) == 3


def test_a_connection_that_the_service_has_closed_meanwhile_is_no_error(service, monkeypatch):
    monkeypatch.setattr(lane, "_FRESH_S", 0.0)
    closed = threading.Semaphore(0)
    shut = service.shutdown_request
    monkeypatch.setattr(service, "shutdown_request", lambda request: (shut(request), closed.release()))
    service.behaviour = lambda _: (200, {"Connection": "keep-alive"}, b"")
    with connected(service.url) as sink:
        sink.send(batch("a"))
        for connection in [sink._lanes[0]._connection]:
            connection.sock.shutdown(1)
        assert closed.acquire(timeout=60)
        assert sink.send(batch("b", first=2)) == [None]
    assert [call.body for call in service.calls] == [b"a", b"b"]


# --- order ---


def test_h10_messages_with_a_key_keep_their_order_in_many_lanes(service):
    chance = random.Random(5)
    service.behaviour = lambda _: chance.choice([FINE] * 12 + [(500, {}, b""), "closed", (503, {}, b"")])
    messages = [Message(b"%d" % number, {}, f"key {number % 13}") for number in range(200)]
    with connected(service.url, options={"concurrency": 8}) as sink:
        for first in range(0, 200, 50):
            part = outgoing(TO, messages[first : first + 50], "life", first + 1)
            while True:
                try:
                    assert sink.send(part) == [None] * 50
                    break
                except ConnectionLost:
                    sink.connect()
    seen = defaultdict(list)
    for call in service.stored:
        number = int(call.body)
        assert call.key == f"{number + 1}:life"
        if number not in seen[number % 13]:
            seen[number % 13].append(number)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert sum(map(len, seen.values())) == 200


def test_lanes_work_at_the_same_time(service):
    together = threading.Barrier(4, timeout=60)
    service.behaviour = lambda _: (together.wait(), FINE)[1]
    with connected(service.url, options={"concurrency": 4}) as sink:
        assert sink.send(batch(*"abcd")) == [None] * 4


# --- TLS ---


def test_h11_tls(tmp_path, monkeypatch):
    monkeypatch.setattr(lane, "_FRESH_S", 0.0)
    context, certificate = certified(tmp_path)
    with serving(tls=context) as service:
        with pytest.raises(ConnectionLost, match="E7016 senders.calls: no TLS with localhost:"):
            sink_of(service.url).connect()
        with connected(service.url, ca_file=str(certificate)) as sink:
            assert sink.send(batch("a")) == [None]
            assert sink.send(batch("b", first=2)) == [None]
        with pytest.raises(ConnectionLost, match="E7016"):
            sink_of(service.url.replace("localhost", "127.0.0.1"), ca_file=str(certificate)).connect()
    assert len(service.stored) == 2


# --- options ---


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        "https://",
        "https://user:hush@example.com",
        "https://a/?x=1",
        "https://a/#f",
        "https://a b",
        "https://a:b",
        "https://a:0",
        "https://ü",
    ],
)
def test_addresses_that_are_refused(url):
    with pytest.raises(ConfigError) as raised:
        HttpConnection("c", ConnectionSettings(type="http", options={"url": url}))
    assert raised.value.code in ("E1214", "E1022")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": ""}, "E1022 senders.s.token: is too short."),
        ({"token": ["a", "b"]}, "E1022 senders.s.token: is a list; a sender has one token."),
        ({"timeout": "1h"}, "E1022 senders.s.timeout: '1h' is not allowed. From 100ms to 600s."),
        ({"concurrency": 65}, "E1022 senders.s.concurrency: '65' is not allowed. A whole number from 1 to 64."),
        ({"content_type": "a\nb"}, "E1022 senders.s.content_type"),
        ({"secret": "x"}, "E1020 senders.s.secret: unknown key."),
    ],
)
def test_options_of_a_sender(options, said):
    connection = HttpConnection("c", ConnectionSettings(type="http", options={"url": "https://example.com"}))
    with pytest.raises(ConfigError) as raised:
        connection.sink(SenderSettings(id="s", connection="c", destination=TO, options=options))
    assert str(raised.value).startswith(said)


def test_a_connection_without_a_url_has_no_senders():
    connection = HttpConnection("c", ConnectionSettings(type="http", options={"port": 0}))
    with pytest.raises(ConfigError, match="E1216 senders.s.destination: sends to no service"):
        connection.sink(SenderSettings(id="s", connection="c", destination=TO))


def test_certificates_without_tls_are_a_mistake():
    options = {"url": "http://example.com", "ca_file": "ca.pem"}
    with pytest.raises(ConfigError, match="E1022 connections.c.ca_file: is of no use without TLS"):
        HttpConnection("c", ConnectionSettings(type="http", options=options))


def test_doctor_tells_of_a_service_that_cannot_be_reached(service):
    sender = SenderSettings(id="s", connection="c", destination=TO)
    receiver = ReceiverSettings(id="r", connection="c", destination=TO)

    def examine(url, senders):
        return HttpConnection("c", ConnectionSettings(type="http", options={"url": url})).examine([receiver], senders)

    assert examine(service.url, [sender]) == []
    assert examine("http://127.0.0.1:1", []) == []
    (found,) = examine("http://127.0.0.1:1", [sender])
    assert str(found).startswith("E7001 connections.c: cannot connect to 127.0.0.1:1 ")
