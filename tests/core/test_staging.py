"""What a context stages for the next checkpoint."""

from correlator.core.staging import Staging
from correlator.events import DeadLetter, Message

ONE, OTHER = Message(b"1"), Message(b"2")
LETTER = DeadLetter(kind="handler", origin="M", reason="E5500 …", message=ONE)


def test_sends_are_counted_and_taken_by_sender_in_their_order():
    staging = Staging()
    for message in (ONE, OTHER):
        staging.sends["out"].append(message)
    staging.sends["far"].append(ONE)
    assert [staging.count(sender) for sender in ("out", "far", "none")] == [2, 1, 0]
    assert staging.take_sends() == {"out": [ONE, OTHER], "far": [ONE]}
    assert (staging.take_sends(), staging.count("out")) == ({}, 0)


def test_what_is_staged_after_a_cut_is_in_the_next_one_only():
    staging = Staging()
    staging.sends["out"].append(ONE)
    taken = staging.take_sends()
    staging.sends["out"].append(OTHER)
    assert (taken, staging.take_sends()) == ({"out": [ONE]}, {"out": [OTHER]})


def test_a_dead_letter_is_taken_once():
    staging = Staging()
    staging.add_dead_letter(LETTER)
    assert (staging.take_dead_letters(), staging.take_dead_letters()) == ([LETTER], [])


def test_the_message_of_a_letter_that_comes_back_is_a_send_like_others_and_its_number_is_taken_once():
    staging = Staging()
    staging.sends["out"].append(ONE)
    staging.bring_back("out", OTHER, 7)
    assert (staging.take_sends(), staging.take_returned()) == ({"out": [ONE, OTHER]}, [7])
    assert (staging.take_sends(), staging.take_returned()) == ({}, [])
