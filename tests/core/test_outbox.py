"""The sends of one sender: contiguous numbers, release after commit, order, settling, flush (docs/rules.md, A2 and A5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.core.commit import OutboundSegment, SenderCut
from correlator.core.outbox import FlushRequest, Outbox
from correlator.events import DeadLetter, Headers, Message
from correlator.reliability import SENDING, Reliability

SOURCE = "host:1:2:S01"


def an_outbox(reliability: Reliability = Reliability.EXACTLY_ONCE) -> Outbox:
    return Outbox("out", reliability, SOURCE, "queue:out", "uniqueMessageId", "messageSourceId")


def sends(*bodies: str) -> list[Message]:
    return [Message(body.encode()) for body in bodies]


def checkpoint(outbox: Outbox, *bodies: str) -> SenderCut:
    """Cut, commit, release."""
    cut, segments, _ = outbox.cut(sends(*bodies))
    for segment in segments:
        outbox.release(segment)
    outbox.forget_settled(cut)
    return cut


def bodies(outbox: Outbox, most: int = 100) -> list[str]:
    return [one.message.body.decode() for one in outbox.take(most)]


def refused(sequence: int) -> tuple[int, DeadLetter]:
    return sequence, DeadLetter(kind="send", origin="out", reason="E8102 refused", message=Message(b""))


# --- reliable ---


def test_a2_1_what_is_cut_leaves_only_after_its_release():
    outbox = an_outbox()
    _, (segment,), _ = outbox.cut(sends("a", "b"))
    assert outbox.take(10) == []
    outbox.release(segment)
    assert bodies(outbox) == ["a", "b"]


def test_a2_6_no_row_grows_beyond_what_a_database_takes(monkeypatch):
    """Given many bytes in one checkpoint, when they are cut, then into several segments whose numbers go on."""
    monkeypatch.setattr("correlator.core.pieces.MOST_BYTES", 10)
    outbox = an_outbox()
    staged = [*sends("12345", "67890", "1", "a message that is larger alone", "2"), Message(b"", {"p": "12345678"})]
    cut, segments, _ = outbox.cut(staged)
    assert [(one.first, len(one.messages)) for one in segments] == [(1, 2), (3, 1), (4, 1), (5, 2)]
    assert [message for one in segments for message in one.messages] == staged
    assert cut.next_sequence == 7


def test_a2_6_properties_count_among_the_bytes_of_a_row(monkeypatch):
    monkeypatch.setattr("correlator.core.pieces.MOST_BYTES", 10)
    _, segments, _ = an_outbox().cut([Message(b"", {"p": "123456789"}), Message(b"", {"p": "123456789"})])
    assert [len(one.messages) for one in segments] == [1, 1]


def test_a6_5_what_a_message_says_itself_goes_before_what_its_sender_says():
    outbox = Outbox("out", Reliability.EXACTLY_ONCE, SOURCE, "queue:out", "id", "source", time_to_live_ms=1000)
    own = [Headers(time_to_live_ms=5), Headers(persistent=False), Headers(time_to_live_ms=0, persistent=True), None]
    _, (segment,), _ = outbox.cut([Message(b"", headers=headers) for headers in own])
    outbox.release(segment)
    headers = [one.message.headers for one in outbox.take(10)]
    assert [one.time_to_live_ms for one in headers] == [5, 1000, 0, 1000]
    assert [one.persistent for one in headers] == [True, False, True, True]


def test_a2_6_numbers_are_contiguous_over_checkpoints_and_in_the_unique_id():
    outbox = an_outbox()
    checkpoint(outbox, "a", "b")
    checkpoint(outbox)
    checkpoint(outbox, "c")
    taken = outbox.take(10)
    assert [one.sequence for one in taken] == [1, 2, 3]
    assert [one.message.properties["uniqueMessageId"] for one in taken] == [f"{n}:{SOURCE}" for n in (1, 2, 3)]
    assert {one.message.properties["messageSourceId"] for one in taken} == {SOURCE}


@pytest.mark.parametrize("reliability", SENDING)
def test_z9_only_at_least_once_stamps_no_id(reliability):
    outbox = an_outbox(reliability)
    if outbox.stored:
        checkpoint(outbox, "a")
    else:
        outbox.enqueue(Message(b"a"))
    stamped = "uniqueMessageId" in outbox.take(1)[0].message.properties
    assert stamped == (reliability is not Reliability.AT_LEAST_ONCE)


def test_a_stamped_message_keeps_everything_else():
    outbox = an_outbox()
    message = Message(b"x", {"a": 1}, "group", None, Headers(priority=7))
    outbox.release(outbox.cut([message])[1][0])
    sent = outbox.take(1)[0].message
    assert (sent.body, sent.key, sent.headers, sent.properties["a"]) == (
        b"x",
        "group",
        Headers(priority=7, persistent=True),
        1,
    )
    assert message.properties == {"a": 1}


def test_a_message_may_name_another_destination():
    outbox = an_outbox()
    outbox.release(outbox.cut([Message(b"a"), Message(b"b", destination="queue:other")])[1][0])
    assert [one.destination for one in outbox.take(2)] == ["queue:out", "queue:other"]


def test_what_was_taken_stays_next_until_it_is_settled():
    outbox = an_outbox()
    checkpoint(outbox, "a", "b")
    assert bodies(outbox) == bodies(outbox) == ["a", "b"]
    outbox.settle(outbox.take(1), [])
    assert bodies(outbox) == ["b"]


def test_take_and_settle_cross_segments():
    outbox = an_outbox()
    for pair in ("ab", "cd", "ef"):
        checkpoint(outbox, *pair)
    batch = outbox.take(3)
    assert [one.sequence for one in batch] == [1, 2, 3]
    outbox.settle(batch, [])
    assert bodies(outbox, 2) == ["d", "e"]
    outbox.settle(outbox.take(2), [])
    assert bodies(outbox) == ["f"]


def test_a2_8_progress_is_what_the_next_checkpoint_deletes():
    outbox = an_outbox()
    assert checkpoint(outbox, "a", "b", "c") == SenderCut("out", SOURCE, 4, 0)
    outbox.settle(outbox.take(2), [])
    assert checkpoint(outbox) == SenderCut("out", SOURCE, 4, 2)


def test_a2_17_outstanding_counts_what_the_broker_has_not_confirmed():
    outbox = an_outbox()
    checkpoint(outbox, *"abcde")
    assert outbox.outstanding == 5
    outbox.settle(outbox.take(2), [])
    assert outbox.outstanding == 3


def test_a_restored_outbox_goes_on_where_the_checkpoint_was():
    outbox = an_outbox()
    segments = [OutboundSegment("out", 1, sends("a", "b")), OutboundSegment("out", 3, sends("c", "d"))]
    outbox.restore(SenderCut("out", "old:S01", 5, 3), segments)
    assert [(one.sequence, one.message.body) for one in outbox.take(9)] == [(4, b"d")]
    assert outbox.take(1)[0].source == "old:S01"
    assert checkpoint(outbox, "e").next_sequence == 6


def test_a2_11_a_dead_letter_is_stored_once_by_the_checkpoint_that_settles_it():
    outbox = an_outbox()
    checkpoint(outbox, "a", "b")
    outbox.settle(outbox.take(2), [refused(2)])
    cut, _, letters = outbox.cut([])
    assert len(letters) == 1
    outbox.forget_settled(cut)
    assert outbox.cut([])[2] == []


def test_a_dead_letter_of_a_checkpoint_that_failed_is_not_forgotten():
    outbox = an_outbox()
    checkpoint(outbox, "a")
    outbox.settle(outbox.take(1), [refused(1)])
    outbox.cut([])
    assert len(outbox.cut([])[2]) == 1


# --- BEST_EFFORT ---


def test_a2_13_best_effort_sends_need_no_checkpoint():
    outbox = an_outbox(Reliability.BEST_EFFORT)
    outbox.enqueue(Message(b"a"))
    batch = outbox.take(5)
    assert [one.message.properties["uniqueMessageId"] for one in batch] == [f"1:{SOURCE}"]
    outbox.settle(batch, [])
    outbox.enqueue(Message(b"b"))
    assert outbox.take(5)[0].sequence == 2
    assert outbox.cut([])[1] == []


def test_a5_3_flushes_are_answered_in_order_behind_the_sends_before_them():
    outbox = an_outbox(Reliability.BEST_EFFORT)
    for item in (Message(b"a"), FlushRequest(1, "main"), FlushRequest(2, "main"), Message(b"b"), FlushRequest(3, "x")):
        outbox.enqueue(item)
    assert outbox.take_flush() is None
    assert bodies(outbox) == ["a"]
    outbox.settle(outbox.take(9), [])
    assert [outbox.take_flush().request_id, outbox.take_flush().request_id] == [1, 2]
    assert outbox.take_flush() is None
    outbox.settle(outbox.take(9), [])
    assert outbox.take_flush() == FlushRequest(3, "x")


def test_a5_9_a_flush_with_nothing_before_it_is_answered_at_once():
    outbox = an_outbox(Reliability.BEST_EFFORT)
    outbox.enqueue(FlushRequest(1, "main"))
    assert outbox.take_flush() == FlushRequest(1, "main")


# --- whatever the order of things ---


@given(
    st.lists(st.one_of(st.tuples(st.just("send"), st.integers(0, 4)), st.tuples(st.just("settle"), st.integers(1, 5))))
)
def test_every_number_is_sent_in_order_and_none_is_used_twice(steps):
    outbox = an_outbox()
    accepted: list[int] = []
    made = 0
    for what, count in steps:
        if what == "send":
            checkpoint(outbox, *[str(made + n) for n in range(1, count + 1)])
            made += count
            continue
        batch = outbox.take(count)
        assert [one.message.body for one in batch] == [str(one.sequence).encode() for one in batch]
        if batch:
            outbox.settle(batch, [])
            accepted += [one.sequence for one in batch]
        assert outbox.outstanding == made - len(accepted)
    while batch := outbox.take(3):
        outbox.settle(batch, [])
        accepted += [one.sequence for one in batch]
    assert accepted == list(range(1, made + 1))
