"""What the detector tells of one id (rules A8.3, A8.14 to A8.17)."""

from correlator.core.dedup import EntryPlace
from tests.core.domain import Domain


def told(domain, unique_id):
    return [(one.place, one.position, one.of, one.newer) for one in domain.restored().sightings(unique_id)]


def test_an_id_that_was_never_seen():
    assert Domain().restored().sightings("a") == []


def test_a8_3_an_id_tells_its_place_in_the_window_and_how_many_move_it_out():
    domain = Domain(window=3)
    domain.receive("a", "b")
    assert told(domain, "a") == [(EntryPlace.WINDOW, 1, 2, 2)]
    assert told(domain, "b") == [(EntryPlace.WINDOW, 2, 2, 3)]
    domain.receive("c")
    assert told(domain, "a") == [(EntryPlace.WINDOW, 1, 3, 1)]
    domain.receive("d")
    assert told(domain, "a") == [(EntryPlace.TIME_QUEUE, 0, 0, 0)]


def test_a8_6_the_window_is_that_of_its_source():
    domain = Domain(window=3)
    domain.receive("a", source="one")
    domain.receive("b", "c", "d", "e", source="two")
    (one,) = domain.restored().sightings("a")
    assert (one.source, one.position, one.of) == ("one", 1, 1)


def test_a8_15_a_repeat_shows_both_of_its_places_oldest_first():
    domain = Domain(window=3)
    domain.receive("a", at=1.0)
    plan = domain.plan([("a", "s"), ("b", "s")], at=2.0)
    domain.commit(plan)
    found = domain.detector.sightings("a")
    assert [(one.time, one.place, one.batch) for one in found] == [
        (1.0, EntryPlace.TIME_QUEUE, 1),
        (2.0, EntryPlace.WINDOW, 2),
    ]


def test_an_id_that_waits_for_its_acknowledgement_is_held():
    domain = Domain(window=1, expiry=0)
    domain.receive("a", "b", confirm=False)
    assert told(domain, "a") == [(EntryPlace.HELD, 0, 0, 0)]
    assert told(domain, "b") == [(EntryPlace.WINDOW, 1, 1, 1)]


def test_a8_17_who_received_it_and_when():
    domain = Domain()
    domain.receive("x", at=5.0, receiver="other")
    domain.receive("a", at=7.5, receiver="r", source="s1")
    (one,) = domain.restored().sightings("a")
    assert (one.time, one.receiver, one.batch, one.source) == (7.5, "r", 1, "s1")
