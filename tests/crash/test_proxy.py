"""The fault proxy, between two sockets that the test itself reads and writes: byte for byte."""

import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from correlator.errors import UsageError
from correlator.testing.network import (
    ANY,
    POSTGRES_COMMIT,
    AtByte,
    AtRequest,
    CutConnection,
    Delay,
    Direction,
    FaultProxy,
    NetworkFault,
    Stall,
    Swallow,
    lost_reply,
    lost_request,
)

PATIENCE_S = 120.0
REQUEST, REPLY = Direction.REQUEST, Direction.REPLY
COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
DONE = b"C\x00\x00\x00\x0bCOMMIT\x00Z\x00\x00\x00\x05I"
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def upstream() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


@pytest.fixture
def proxy(upstream: socket.socket) -> Iterator[FaultProxy]:
    with FaultProxy(upstream.getsockname()[1]) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: FaultProxy, upstream: socket.socket) -> Iterator[Callable[[], Ends]]:
    """Makes a connection through the proxy: the client's end and the server's."""
    made: list[socket.socket] = []

    def make() -> Ends:
        made.append(socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S))
        made.append(upstream.accept()[0])
        made[-1].settimeout(PATIENCE_S)
        return made[-2], made[-1]

    yield make
    for end in made:
        end.close()


def read(end: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer when the stream ends."""
    data = b""
    while len(data) < size and (more := _received(end, size - len(data))):
        data += more
    return data


def rest(end: socket.socket) -> bytes:
    """Everything until the end of the stream."""
    return read(end, 1 << 30)


def _received(end: socket.socket, size: int) -> bytes:
    try:
        return end.recv(min(size, 65536))
    except ConnectionError:
        return b""


def silent(end: socket.socket) -> bool:
    """Whether nothing has come, not even the end."""
    return not select.select([end], [], [], 0)[0]


def settle(proxy: FaultProxy) -> None:
    """Let the proxy see and pass on all that was sent before."""
    for _ in range(10):
        proxy.accept()


def way(direction: Direction, ends: Ends) -> Ends:
    """The two ends as source and target."""
    client, server = ends
    return (client, server) if direction is REQUEST else (server, client)


def test_without_faults_all_passes_both_ways(proxy, connect):
    client, server = connect()
    client.sendall(b"hello")
    assert read(server, 5) == b"hello"
    client.shutdown(socket.SHUT_WR)
    assert rest(server) == b"", "the end of a stream passes too"
    server.sendall(b"answer")
    server.close()
    assert rest(client) == b"answer"
    assert proxy.wait_for(lambda: proxy.open_connections == 0, PATIENCE_S)
    assert (proxy.connections, proxy.passed(REQUEST), proxy.passed(REPLY)) == (1, 5, 6)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("after", [0, 1, 5, 10])
def test_a_cut_after_a_byte(proxy, connect, direction, after):
    cut = proxy.inject(NetworkFault(AtByte(direction=direction, after=after), CutConnection()))
    source, target = way(direction, connect())
    source.sendall(b"0123456789")
    assert rest(target) == b"0123456789"[:after]
    assert rest(source) == b""
    assert cut.wait(PATIENCE_S)
    assert (cut.fired, proxy.passed(direction)) == (1, after)


def test_a_cut_comes_when_its_last_byte_has_passed_not_when_more_comes(proxy, connect):
    client, server = connect()
    proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=3, connection=1), CutConnection()))
    client.sendall(b"abc")
    assert rest(server) == b"abc"
    assert rest(client) == b""


def test_a_cut_far_in_a_large_stream_is_exact(proxy, connect):
    proxy.inject(NetworkFault(AtByte(direction=REPLY, after=1_000_003), CutConnection()))
    client, server = connect()
    content = bytes(range(251)) * 10_000
    with pytest.raises(OSError), server:
        while True:
            server.sendall(content)
    assert rest(client) == content[:1_000_003]


def test_the_connection_of_a_fault(proxy, connect):
    second = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=1, connection=2), CutConnection()))
    every = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=3), CutConnection()))
    for sent, got in ((b"abc", b"abc"), (b"abc", b"a"), (b"abc", b"abc")):
        client, server = connect()
        client.sendall(sent)
        assert rest(server) == got
    assert (second.fired, every.fired) == (1, 2)


def test_an_injection_reaches_a_living_connection_ahead_of_its_bytes_only(proxy, connect):
    client, server = connect()
    client.sendall(b"abcd")
    assert read(server, 4) == b"abcd"
    with pytest.raises(UsageError, match=r"E2411 fault, after: byte 3 of connection 1 has passed already. 4 or more."):
        proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=3, connection=1), CutConnection()))
    passed = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=3), CutConnection()))
    proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=6, connection=1), CutConnection()))
    client.sendall(b"efgh")
    assert rest(server) == b"ef"
    assert passed.fired == 0


def test_faults_at_several_bytes_act_in_their_order(proxy, connect):
    last = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=8), CutConnection()))
    first = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=3), Stall()))
    client, server = connect()
    client.sendall(b"0123456789")
    assert read(server, 3) == b"012"
    assert first.wait(PATIENCE_S)
    assert last.fired == 0
    first.withdraw()
    assert rest(server) == b"34567"


@pytest.mark.parametrize("direction", Direction)
def test_swallowed_bytes_are_lost_and_nobody_is_told(proxy, connect, direction):
    swallowed = proxy.inject(NetworkFault(AtByte(direction=direction, after=2), Swallow()))
    source, target = way(direction, connect())
    source.sendall(b"abcd")
    assert read(target, 2) == b"ab"
    assert swallowed.wait(PATIENCE_S)
    source.sendall(b"efgh")
    source.shutdown(socket.SHUT_WR)
    target.sendall(b"still here")
    assert read(source, 10) == b"still here", "the other way is open"
    settle(proxy)
    assert silent(target)
    assert (proxy.passed(direction), proxy.open_connections) == (2, 1)


def test_stalled_bytes_wait_until_the_fault_is_withdrawn(proxy, connect):
    stall = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=2), Stall()))
    client, server = connect()
    client.sendall(b"abcd")
    assert read(server, 2) == b"ab"
    assert stall.wait(PATIENCE_S)
    server.sendall(b"reply")
    assert read(client, 5) == b"reply"
    settle(proxy)
    assert silent(server)
    stall.withdraw()
    assert read(server, 2) == b"cd"
    client.sendall(b"ef")
    assert read(server, 2) == b"ef"


def test_a_stall_may_end_by_itself(proxy, connect):
    proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=2), Stall(seconds=0.05)))
    client, server = connect()
    began = time.monotonic()
    client.sendall(b"abcd")
    assert read(server, 4) == b"abcd"
    assert time.monotonic() - began >= 0.05


def test_a_stalled_connection_can_be_cut(proxy, connect):
    stall = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=2), Stall()))
    client, server = connect()
    client.sendall(b"abcd")
    assert stall.wait(PATIENCE_S)
    assert proxy.cut() == 1
    assert rest(server) == b"ab"


def test_delayed_pieces_wait_each(proxy, connect):
    delay = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=2), Delay(seconds=0.05)))
    client, server = connect()
    began = time.monotonic()
    for sent in (b"abcd", b"ef"):
        client.sendall(sent)
        assert read(server, len(sent)) == sent
    assert time.monotonic() - began >= 0.1
    delay.withdraw()
    client.sendall(b"gh")
    assert read(server, 2) == b"gh"
    assert delay.fired == 1


@pytest.mark.parametrize("after", range(len(COMMIT)))
def test_a_lost_request(proxy, connect, after):
    lost = proxy.inject(lost_request(POSTGRES_COMMIT, after=after))
    client, server = connect()
    client.sendall(b"Q\x00\x00\x00\x0aBEGIN\x00")
    assert read(server, 11) == b"Q\x00\x00\x00\x0aBEGIN\x00"
    client.sendall(COMMIT)
    assert rest(server) == COMMIT[:after]
    assert rest(client) == b""
    assert lost.fired == 1


@pytest.mark.parametrize("after", range(len(DONE) + 1))
def test_a_lost_reply(proxy, connect, after):
    client, server = connect()
    server.sendall(b"earlier")
    assert read(client, 7) == b"earlier"
    proxy.inject(lost_reply(POSTGRES_COMMIT, after=after))
    client.sendall(COMMIT)
    assert read(server, len(COMMIT)) == COMMIT
    assert proxy.open_connections == 1, "the upstream has not begun to answer"
    server.sendall(DONE)
    assert rest(client) == DONE[:after]
    assert rest(server) == b""


def test_a_reply_is_counted_from_its_own_beginning(proxy, connect):
    proxy.inject(lost_reply(POSTGRES_COMMIT, after=3))
    client, server = connect()
    client.sendall(b"before it" + COMMIT)
    assert read(server, 9 + len(COMMIT)) == b"before it" + COMMIT
    server.sendall(DONE)
    assert rest(client) == DONE[:3]


def test_the_nth_request_over_all_connections(proxy, connect):
    lost = proxy.inject(lost_request(POSTGRES_COMMIT, hit=4))
    one, two = connect(), connect()
    for client, server in (one, two):
        client.sendall(COMMIT)
        assert read(server, len(COMMIT)) == COMMIT
    client, server = one
    client.sendall(b"x" + COMMIT + b"y" + COMMIT + COMMIT)
    assert rest(server) == b"x" + COMMIT + b"y"
    assert lost.fired == 1
    client, server = two
    client.sendall(COMMIT)
    assert read(server, len(COMMIT)) == COMMIT, "a fault of a request acts once"


def test_a_request_in_two_pieces_is_one(proxy, connect):
    lost = proxy.inject(lost_request(POSTGRES_COMMIT, hit=2, after=9))
    client, server = connect()
    for piece in (b"a" * 100 + COMMIT[:7], COMMIT[7:] + b"z" + COMMIT[:5]):
        client.sendall(piece)
        assert read(server, len(piece)) == piece
    assert lost.fired == 0
    client.sendall(COMMIT[5:])
    assert rest(server) == COMMIT[5:9], "what had passed earlier counts"
    assert lost.fired == 1


def test_any_request_is_a_piece(proxy, connect):
    third = proxy.inject(lost_request(ANY, hit=3))
    client, server = connect()
    for sent in (b"one\n", b"two\n"):
        client.sendall(sent)
        assert read(server, 4) == sent
    client.sendall(b"three\n")
    assert rest(server) == b""
    assert third.fired == 1


def test_a_matcher_of_ones_own(proxy, connect):
    place = AtRequest(matcher=re.compile(rb"PUBLISH \d+"), direction=REQUEST, after=9)
    proxy.inject(NetworkFault(place, CutConnection()))
    client, server = connect()
    client.sendall(b"CONNECT\nPUBLISH 17\n")
    assert rest(server) == b"CONNECT\nPUBLISH 1"


def test_an_upstream_that_is_not_told_keeps_its_session(proxy, connect):
    orphan = proxy.inject(NetworkFault(AtRequest(direction=REQUEST, after=2), CutConnection(upstream=False)))
    client, server = connect()
    client.sendall(b"abcd")
    assert rest(client) == b""
    assert read(server, 2) == b"ab"
    assert orphan.wait(PATIENCE_S)
    server.sendall(b"nobody hears this")
    settle(proxy)
    assert silent(server)
    assert proxy.open_connections == 1
    proxy.heal()
    assert rest(server) == b""
    assert proxy.open_connections == 0


def test_an_upstream_that_ends_such_a_session(proxy, connect):
    proxy.inject(NetworkFault(AtRequest(direction=REQUEST), CutConnection(upstream=False)))
    client, server = connect()
    client.sendall(b"abcd")
    assert rest(client) == b""
    server.close()
    assert proxy.wait_for(lambda: proxy.open_connections == 0, PATIENCE_S)


def test_refused_connections(proxy, connect):
    client, server = connect()
    proxy.refuse()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)
    client.sendall(b"lives")
    assert read(server, 5) == b"lives"
    proxy.accept()
    proxy.accept()
    client, server = connect()
    client.sendall(b"again")
    assert read(server, 5) == b"again"
    assert proxy.connections == 2


def test_an_upstream_that_does_not_listen(proxy, upstream):
    upstream.close()
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S) as client:
        assert rest(client) == b""
    assert proxy.wait_for(lambda: proxy.open_connections == 0, PATIENCE_S)


def test_cut_ends_everything_now(proxy, connect):
    ends = [connect() for _ in range(3)]
    for client, server in ends:
        client.sendall(b"abc")
        assert read(server, 3) == b"abc"
    assert proxy.cut() == 3
    for client, server in ends:
        assert (rest(client), rest(server)) == (b"", b"")
    assert proxy.cut() == 0


def test_a_peer_that_resets_resets_the_other_end(proxy, connect):
    client, server = connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    client.close()
    assert rest(server) == b""
    assert proxy.wait_for(lambda: proxy.open_connections == 0, PATIENCE_S)


def test_healing_withdraws_every_fault_and_ends_what_lost_bytes(proxy, connect):
    proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=1, connection=1), Swallow()))
    stall = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=1, connection=2), Stall()))
    waiting = proxy.inject(NetworkFault(AtRequest(matcher=re.compile(rb"later")), CutConnection()))
    (lossy, lossy_server), (client, server) = connect(), connect()
    for each in (lossy, client):
        each.sendall(b"ab")
    assert stall.wait(PATIENCE_S)
    proxy.refuse()
    proxy.heal()
    assert rest(lossy_server) == b"a"
    assert read(server, 2) == b"ab"
    client.sendall(b"later")
    assert read(server, 5) == b"later"
    server.sendall(b"reply")
    assert read(client, 5) == b"reply"
    assert waiting.fired == 0
    connect()


def test_a_withdrawn_fault_does_not_act(proxy, connect):
    at_byte = proxy.inject(NetworkFault(AtByte(direction=REQUEST, after=1), CutConnection()))
    at_request = proxy.inject(lost_reply(ANY))
    client, server = connect()
    at_byte.withdraw()
    at_request.withdraw()
    client.sendall(b"abc")
    assert read(server, 3) == b"abc"
    server.sendall(b"def")
    assert read(client, 3) == b"def"
    assert not at_byte.wait(0)


def test_waiting_for_counts(proxy, connect):
    client, _ = connect()
    client.sendall(b"abc")
    assert proxy.wait_for(lambda: proxy.passed(REQUEST) == 3, PATIENCE_S)
    assert not proxy.wait_for(lambda: proxy.passed(REQUEST) == 4, 0)


def test_closing_ends_all(upstream):
    threads = threading.active_count()
    proxy = FaultProxy(upstream.getsockname()[1])
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S) as client:
        server, _ = upstream.accept()
        injection = proxy.inject(lost_reply(ANY))
        proxy.close()
        proxy.close()
        assert rest(client) == b""
        server.close()
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)
    for use in (proxy.cut, proxy.refuse, proxy.accept, proxy.heal, injection.withdraw):
        with pytest.raises(UsageError, match=r"E2412 proxy of port \d+: is closed. Make another one."):
            use()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AtByte(direction=REPLY, after=-1), "E2411 fault, after: -1 cannot be. 0 or more."),
        (lambda: AtByte(direction=REPLY, connection=0), "E2411 fault, connection: 0 .*1 or more"),
        (lambda: AtRequest(after=-1), "E2411 fault, after: -1"),
        (lambda: AtRequest(hit=0), "E2411 fault, hit: 0"),
        (lambda: Delay(seconds=-0.1), "E2411 fault, seconds: -0.1"),
        (lambda: Stall(seconds=-1.0), "E2411 fault, seconds: -1.0"),
    ],
)
def test_places_that_cannot_be(make, text):
    with pytest.raises(UsageError, match=text):
        make()
