"""Poison messages: portions of a queue, and how accused ones are divided, taken alone and condemned."""

import zlib

from correlator.core.commit import Suspect
from correlator.core.messages import encode_event
from correlator.core.poison import Watchlist, dead_letter, up_to
from correlator.core.queue import InputQueue, Run
from correlator.events import Message, event


@event
class Note:
    text: str


def queue_of(*runs: Run) -> InputQueue:
    queue = InputQueue()
    for run in runs:
        queue.deliver(run)
    return queue


def received(first: int, count: int, receiver: str = "in") -> Run:
    messages = [Message(b"%d" % number) for number in range(first, first + count)]
    return Run(receiver, first, messages, messages, stored=True)


def inside(text: str) -> Run:
    return Run("", 0, (), (Note(text=text),), stored=True)


def digest(text: str) -> int:
    name, content = encode_event(Note(text=text))
    return zlib.crc32(content, zlib.crc32(name.encode()))


def suspect(first: int, last: int, deaths: int = 0, receiver: str = "in", context: str = "main") -> Suspect:
    return Suspect(context, receiver, first, last, deaths)


def watchlist(*found: Suspect, halving: bool = False) -> Watchlist:
    return Watchlist("main", found, encode_event, halving=halving)


def handled_in(watch: Watchlist, queue: InputQueue, most: int = 1000) -> list[tuple[int, int, int]]:
    """Work through a queue; returns (first, last, deaths) of the notes before each portion."""
    portions = []
    while (portion := watch.portion(queue, most)).size:
        portions += [(one.first, one.last, one.deaths) for one in portion.suspects]
        left = portion.size
        while left:
            run = queue.head()
            done = min(left, len(run) - run.position)
            queue.advance(run, run.position + done)
            left -= done
    return portions


def test_t26_what_waits_is_noted_as_stretches():
    portion = watchlist().portion(queue_of(received(1, 3), received(4, 2), received(1, 2, "other")), 1000)
    assert portion.suspects == [suspect(1, 5), suspect(1, 2, receiver="other")]
    assert (portion.size, portion.accused, portion.condemned) == (7, False, False)


def test_t26_a_portion_is_bounded():
    assert handled_in(watchlist(), queue_of(received(1, 5)), most=2) == [(1, 2, 0), (3, 4, 0), (5, 5, 0)]


def test_what_is_a_dead_letter_already_is_no_suspect_and_takes_its_place():
    """Given messages that no longer map, when portions are noted, then without them, whether they were noted or not."""
    run = received(1, 6)
    run.events = [None if number in (1, 3, 4) else one for number, one in enumerate(run.events, 1)]
    portion = watchlist().portion(queue_of(run), 5)
    assert (portion.size, portion.suspects) == (5, [suspect(2, 2), suspect(5, 5)])
    found = suspect(1, 5, deaths=1)
    assert handled_in(watchlist(found), queue_of(run)) == [(2, 2, 1), (5, 5, 1), (6, 6, 0)]


def test_suspects_are_what_is_reached():
    noted = [suspect(1, 5), suspect(6, 8, deaths=1), suspect(1, 2, receiver="other")]
    assert up_to(noted, {"in": 6}) == [suspect(1, 5), suspect(6, 6, deaths=1)]


def test_t26_nothing_waits():
    assert watchlist().portion(queue_of(), 1000).size == 0


def test_t26_what_is_accused_is_handled_one_by_one_and_nothing_beside_it():
    found = suspect(3, 5, deaths=1)
    queue = queue_of(received(1, 7))
    assert handled_in(watchlist(found), queue) == [(1, 2, 0), (3, 3, 1), (4, 4, 1), (5, 5, 1), (6, 7, 0)]


def test_t26_a_single_message_is_condemned_when_it_is_found_twice():
    for deaths, condemned in ((1, False), (2, True), (3, True)):
        portion = watchlist(suspect(1, 1, deaths)).portion(queue_of(received(1, 3)), 1000)
        assert (portion.size, portion.accused, portion.condemned) == (1, True, condemned)


def test_t26_a_stretch_is_never_condemned():
    assert not watchlist(suspect(1, 2, deaths=9)).portion(queue_of(received(1, 3)), 1000).condemned


def test_t26_another_context_or_receiver_is_not_accused():
    found = [suspect(1, 3, 1, context="audit"), suspect(1, 3, 1, receiver="other")]
    assert not watchlist(*found).portion(queue_of(received(1, 3)), 1000).accused


def test_t26_a_pipeline_halves_what_is_accused_until_one_message_is_left():
    """Each death leaves half as many, whichever half the message is in."""
    for poison in range(1, 21):
        found, deaths = [suspect(1, 20, 1)], 1
        while not (found[0].first == found[0].last and deaths >= 2):
            queue = queue_of(received(1, 20))
            portions = handled_in(watchlist(*found, halving=True), queue)
            first, last, _ = next(one for one in portions if one[0] <= poison <= one[1])
            deaths += 1
            found = [suspect(first, last, deaths)]
        assert found[0].first == poison
        assert deaths <= 6


def test_t26_an_accused_stretch_that_lies_in_two_runs_is_taken_run_by_run():
    queue = queue_of(received(1, 3), received(4, 3))
    assert handled_in(watchlist(suspect(2, 5, 1), halving=True), queue) == [(1, 1, 0), (2, 3, 1), (4, 5, 1), (6, 6, 0)]


def test_t26_an_event_from_inside_is_known_by_its_content():
    portion = watchlist().portion(queue_of(inside("a"), inside("b")), 1000)
    assert portion.suspects == [
        suspect(digest("a"), digest("a"), receiver=""),
        suspect(digest("b"), digest("b"), receiver=""),
    ]
    found = suspect(digest("b"), digest("b"), 2, receiver="")
    watch, queue = watchlist(found), queue_of(inside("a"), inside("b"))
    assert not watch.portion(queue, 1000).condemned
    queue.advance(queue.head(), 1)
    assert watch.portion(queue, 1000).condemned


def test_t26_the_dead_letter_names_the_message():
    letter = dead_letter(suspect(7, 7, 2), Message(b"x"), 1.5)
    assert (letter.kind, letter.origin, letter.receiver, letter.number, letter.time) == ("poison", "main", "in", 7, 1.5)
    assert letter.reason.startswith(
        "E5502 context main: the process died 3 times while it handled message 7 of receiver 'in'."
    )
    assert (dead_letter(suspect(9, 9, 2, receiver=""), Message(b"x"), 0.0).number) == 0
