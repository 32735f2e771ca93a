"""The cut: what one checkpoint holds, when there is none to take, and what it releases (rules A2.1, A3.4)."""

from correlator.core.checkpoint import Checkpoint
from correlator.core.commit import ContextCut, StateEntry
from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue, Run
from correlator.core.staging import Staging
from correlator.events import DeadLetter, Message
from correlator.reliability import Reliability

LETTER = DeadLetter(kind="handler", origin="M", reason="E5500 …", message=Message(b""))


class Parked:
    """A context as the checkpointer sees it."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.queue = InputQueue()
        self.state: list[StateEntry] = []
        self.staging = Staging()
        self.timer = False

    def awaits_time(self) -> bool:
        return self.timer

    def cut(self) -> ContextCut:
        entered, waiting = self.queue.cut(lambda one: ("", one))
        return ContextCut(self.name, entered, waiting)

    def take_state(self) -> list[StateEntry]:
        taken, self.state = self.state, []
        return taken


def an_outbox(name: str = "out", reliability: Reliability = Reliability.EXACTLY_ONCE) -> Outbox:
    return Outbox(name, reliability, f"{name}:S01", f"queue:{name}", "id", "source")


def a_checkpoint() -> Checkpoint:
    """After the first one, which is always taken."""
    checkpoint = Checkpoint(0, b"")
    checkpoint.cut([Parked()], [], {}, 0.0)
    return checkpoint


def test_without_anything_new_there_is_no_checkpoint():
    checkpoint = a_checkpoint()
    assert checkpoint.cut([Parked()], [], {}, 1.0) is None
    assert checkpoint.number == 1


def test_engine_time_is_stored_for_its_own_sake_while_something_waits_for_it():
    """Given nothing new, when 10 s of engine time are not stored, then a checkpoint if a timer waits, and else none."""
    checkpoint, context = Checkpoint(3, b"", (), 100.0), Parked()
    assert checkpoint.cut([context], [], {}, 100.0) is not None
    assert [checkpoint.cut([context], [], {}, now) for now in (109.9, 110.0, 500.0)] == [None] * 3
    context.timer = True
    cut = checkpoint.cut([context], [], {}, 500.0)
    assert cut is not None
    assert cut.commit.engine_time == 500.0
    assert checkpoint.cut([context], [], {}, 509.9) is None
    assert checkpoint.cut([context], [], {}, 510.0) is not None


def test_g3_numbers_grow_by_one_and_digests_differ():
    checkpoint = a_checkpoint()
    seen = {checkpoint.digest}
    for number in range(2, 6):
        context = Parked()
        context.state = [StateEntry("monitor:M", b"0", b"same")]
        cut = checkpoint.cut([context], [], {}, 0.0)
        assert cut.commit.number == number
        seen.add(cut.commit.digest)
    assert len(seen) == 5


def test_t47_equal_histories_have_equal_digests():
    digests = []
    for value in (b"a", b"a", b"b"):
        context = Parked()
        context.state = [StateEntry("monitor:M", b"0", value)]
        digests.append(Checkpoint(7, b"before").cut([context], [], {}, 0.0).commit.digest)
    assert digests[0] == digests[1] != digests[2]


def test_each_kind_of_news_is_worth_a_checkpoint():
    def with_state(context):
        context.state = [StateEntry("monitor:M", b"0", b"1")]

    def with_send(context):
        context.staging.sends["out"].append(Message(b"x"))

    def with_letter(context):
        context.staging.add_dead_letter(LETTER)

    def with_message(context):
        context.queue.deliver(Run("r", 1, [Message(b"x")], [Message(b"x")], stored=True))

    for news in (with_state, with_send, with_letter, with_message):
        checkpoint, context, outbox = Checkpoint(0, b""), Parked(), an_outbox()
        checkpoint.cut([context], [outbox], {}, 0.0)
        assert checkpoint.cut([context], [outbox], {}, 0.0) is None
        news(context)
        assert checkpoint.cut([context], [outbox], {}, 0.0) is not None


def test_settled_sends_are_worth_a_checkpoint():
    checkpoint, context, outbox = Checkpoint(0, b""), Parked(), an_outbox()
    context.staging.sends["out"].append(Message(b"x"))
    checkpoint.cut([context], [outbox], {}, 0.0).release()
    outbox.settle(outbox.take(1), [])
    cut = checkpoint.cut([context], [outbox], {}, 0.0)
    assert [sender.confirmed_through for sender in cut.commit.senders] == [1]


def test_a2_1_sends_of_all_contexts_are_numbered_and_leave_with_the_release():
    first, second, outbox = Parked("a"), Parked("b"), an_outbox()
    first.staging.sends["out"].extend([Message(b"1"), Message(b"2")])
    second.staging.sends["out"].append(Message(b"3"))
    cut = Checkpoint(0, b"").cut([first, second], [outbox], {}, 0.0)
    assert [(one.first, len(one.messages)) for one in cut.commit.outbound] == [(1, 3)]
    assert outbox.take(9) == []
    cut.release()
    assert [one.sequence for one in outbox.take(9)] == [1, 2, 3]


def test_best_effort_senders_are_not_in_the_checkpoint_but_their_dead_letters_are():
    outbox = an_outbox("quick", Reliability.BEST_EFFORT)
    outbox.enqueue(Message(b"x"))
    outbox.settle(outbox.take(1), [(1, LETTER)])
    cut = Checkpoint(0, b"").cut([Parked()], [outbox], {}, 0.0)
    assert (cut.commit.senders, cut.commit.outbound, cut.commit.dead_letters) == ([], [], [LETTER])
    cut.release()
    assert outbox.cut([])[2] == []


def test_a3_4_what_every_context_has_handled_is_consumed():
    contexts = [Parked("a"), Parked("b")]
    messages = [Message(b"1"), Message(b"2")]
    for context in contexts:
        context.queue.deliver(Run("r", 1, messages, messages, stored=True))
    contexts[0].queue.advance(contexts[0].queue.head(), 2)
    contexts[1].queue.advance(contexts[1].queue.head(), 1)
    assert Checkpoint(0, b"").cut(contexts, [], {"r": ["a", "b"]}, 0.0).commit.consumed == {"r": 1}
