"""What a path from a receiver to a sender promises, in the words of docs/guarantees.md: the weakest link decides.

Every part of a path is a *link* with a grade and a reason. A path promises as much as its weakest link. If several
links are equally weak, the result names the link that messages pass first.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from correlator.connector import Features
from correlator.reliability import RECEIVING, SENDING, Reliability


class Grade(IntEnum):
    """What a crash can do to messages, in order from the worst."""

    MAY_LOSE = 0
    MAY_REPEAT = 1
    REPEATS_WITH_ID = 2
    ONCE = 3


SENTENCES = {
    Grade.MAY_LOSE: "A crash may lose messages.",
    Grade.MAY_REPEAT: "Nothing is lost; after a crash a message may have its effect more than once.",
    Grade.REPEATS_WITH_ID: (
        "Nothing is lost; after a crash a message may arrive again, with the same id and the same bytes: "
        "its consumers must deduplicate by the id."
    ),
    Grade.ONCE: "Nothing is lost, and every message has its effect once, within the windows of duplicate detection.",
}
WITHOUT_SENDER = {
    **SENTENCES,
    Grade.ONCE: "Nothing is lost, and every message changes state once, within the windows of duplicate detection.",
}
OF_DEAD_LETTERS = {
    Grade.MAY_LOSE: "A crash may lose dead letters that were sent.",
    Grade.MAY_REPEAT: "No dead letter of the store is lost; after a crash one may be sent more than once.",
    Grade.REPEATS_WITH_ID: (
        "No dead letter of the store is lost; after a crash one may arrive again, with the same id and the same bytes: "
        "its consumers must deduplicate by the id."
    ),
    Grade.ONCE: "No dead letter of the store is lost, and each arrives once.",
}


class PathEnd(NamedTuple):
    """A receiver or a sender: its id, its mode, the name of its connection, and what its broker can do.

    `calls` names the function that a sender calls with each message; "" for none. `notes` are other facts that its user
    should know, such as exceptions from the guarantees of a receiver.
    """

    id: str
    reliability: Reliability
    connection: str
    features: Features
    calls: str = ""
    notes: Sequence[str] = ()


class PathMiddle(NamedTuple):
    """The context or pipeline between receiver and sender.

    `transient` has the names of its monitors whose state no checkpoint holds.
    """

    name: str
    transient: Sequence[str] = ()


class PathLink(NamedTuple):
    """A part of a path: its grade, and why the grade is not better."""

    part: str
    grade: Grade
    why: str


class Guarantee(NamedTuple):
    """The promise of a path.

    Attributes:
        grade: the grade of the weakest link.
        sentence: the promise.
        weakest: the weakest link.
        notes: other facts that the user of the path should know.
    """

    grade: Grade
    sentence: str
    weakest: PathLink
    notes: Sequence[str]


def guarantee(receiver: PathEnd, middle: PathMiddle, sender: PathEnd | None) -> Guarantee:
    """The promise of one path; `sender` is `None` if the path sends nothing."""
    links = [*_receiving(receiver), *_acknowledging(receiver, sender)]
    if sender is not None:
        links += _sending(sender, flushed=RECEIVING[receiver.reliability].acknowledged_by_application)
    weakest = min(links, key=lambda link: link.grade)
    sentences = SENTENCES if sender else WITHOUT_SENDER
    return Guarantee(weakest.grade, sentences[weakest.grade], weakest, _notes(receiver, middle, sender))


def described(receiver: PathEnd, middle: PathMiddle, sender: PathEnd | None) -> dict[str, object]:
    """A path and its promise as values that JSON has."""
    path = {"receiver": receiver.id, "through": middle.name, "sender": sender.id if sender else None}
    return {**path, **_described(guarantee(receiver, middle, sender), needs(receiver, sender))}


def guarantee_of_letters(sender: PathEnd) -> Guarantee:
    """The promise for the dead letters of the store, which this sender sends (docs/dead-letters.md)."""
    weakest = min(_sending(sender, flushed=False), key=lambda link: link.grade)
    notes = [*sender.notes, f"Dead letters about sends of '{sender.id}' stay in the store"]
    if sender.calls:
        notes.append(_note_on_calls(sender))
    return Guarantee(weakest.grade, OF_DEAD_LETTERS[weakest.grade], weakest, notes)


def described_letters(sender: PathEnd) -> dict[str, object]:
    """The path of the dead letters and its promise as values that JSON has."""
    return {"sender": sender.id, **_described(guarantee_of_letters(sender), needs_of_letters(sender))}


def _described(promise: Guarantee, needed: list[str]) -> dict[str, object]:
    return {
        "grade": promise.grade.name,
        "guarantee": promise.sentence,
        "weakest": promise.weakest.part,
        "why": promise.weakest.why,
        "needs": needed,
        "notes": list(promise.notes),
    }


def _receiving(receiver: PathEnd) -> list[PathLink]:
    part, features = f"receiver '{receiver.id}'", receiver.features
    links = [PathLink(part, *_RECEIVES[receiver.reliability])]
    if receiver.reliability is Reliability.BEST_EFFORT:
        return links
    if not features.durable:
        why = "its broker loses its messages when it restarts"
        links.append(PathLink(f"connection '{receiver.connection}'", Grade.MAY_LOSE, why))
    if not features.redelivers and not features.answers:
        why = "its broker does not redeliver unacknowledged messages"
        links.append(PathLink(f"connection '{receiver.connection}'", Grade.MAY_LOSE, why))
    return links


_RECEIVES = {
    Reliability.BEST_EFFORT: (Grade.MAY_LOSE, "BEST_EFFORT acknowledges before anything is stored"),
    Reliability.AT_LEAST_ONCE: (Grade.MAY_REPEAT, "AT_LEAST_ONCE does not recognise a repeat"),
    Reliability.EXACTLY_ONCE: (Grade.ONCE, "EXACTLY_ONCE recognises a repeat while its id is in a window"),
    Reliability.APP_CONTROLLED: (Grade.MAY_REPEAT, "APP_CONTROLLED: the broker redelivers an unacknowledged batch"),
}


def _acknowledging(receiver: PathEnd, sender: PathEnd | None) -> list[PathLink]:
    """An application that acknowledges messages itself cannot know whether the checkpoint with a reliable send is
    durable.
    """
    by_application = RECEIVING[receiver.reliability].acknowledged_by_application
    if by_application and sender is not None and SENDING[sender.reliability].stored:
        why = "the application may acknowledge before the checkpoint that holds the send"
        return [PathLink(f"receiver '{receiver.id}'", Grade.MAY_LOSE, why)]
    return []


def _sending(sender: PathEnd, *, flushed: bool) -> list[PathLink]:
    links = [_sender_link(f"sender '{sender.id}'", sender, flushed=flushed)]
    if SENDING[sender.reliability].stored and not sender.features.durable:
        why = "its broker loses confirmed messages when it restarts"
        links.append(PathLink(f"connection '{sender.connection}'", Grade.MAY_LOSE, why))
    return links


def _sender_link(part: str, sender: PathEnd, *, flushed: bool) -> PathLink:
    if sender.reliability is Reliability.BEST_EFFORT:
        if flushed:
            return PathLink(
                part, Grade.MAY_REPEAT, "BEST_EFFORT, where the application acknowledges after request_flush()"
            )
        return PathLink(part, Grade.MAY_LOSE, "BEST_EFFORT keeps a send in memory only")
    if sender.reliability is Reliability.AT_LEAST_ONCE:
        return PathLink(part, Grade.MAY_REPEAT, "AT_LEAST_ONCE sends unconfirmed messages again, without an id")
    if sender.features.deduplicates_sends:
        return PathLink(part, Grade.ONCE, "EXACTLY_ONCE, and its broker stores a repeat once")
    return PathLink(part, Grade.REPEATS_WITH_ID, "EXACTLY_ONCE, but its broker stores a repeat as another message")


def _notes(receiver: PathEnd, middle: PathMiddle, sender: PathEnd | None) -> list[str]:
    notes = list(receiver.notes)
    if middle.transient:
        names = ", ".join(middle.transient)
        notes.append(f"State of {names} is not part of checkpoints: it begins anew after a restart")
    if RECEIVING[receiver.reliability].deduplicated and not receiver.features.acknowledges_surely:
        notes.append(
            f"Connection '{receiver.connection}' does not confirm acknowledgements: the engine keeps the ids of the "
            "last batches, of at least two, whatever the windows say"
        )
    if sender is not None and SENDING[sender.reliability].stored:
        notes.append(f"Sends of '{sender.id}' leave after the checkpoint that holds their cause")
    if sender is not None and sender.calls:
        notes.append(_note_on_calls(sender))
    return notes


def _note_on_calls(sender: PathEnd) -> str:
    if sender.reliability is Reliability.BEST_EFFORT:
        return f"A crash may lose calls of {sender.calls} by '{sender.id}', and a call that has failed is repeated"
    return f"After a crash '{sender.id}' may call {sender.calls} again with the same message, and with the same key"


def needs(receiver: PathEnd, sender: PathEnd | None) -> list[str]:
    """Return the requirements without which a path does not keep its promise, a phrase for each."""
    needed = []
    stored = RECEIVING[receiver.reliability].stored or (sender is not None and SENDING[sender.reliability].stored)
    if stored:
        needed.append("a store")
    if RECEIVING[receiver.reliability].deduplicated:
        needed.append("a unique id in every message (unique_message_id)")
        needed.append("windows that hold all messages that may be redelivered (duplicate_detection)")
    if receiver.features.answers and receiver.reliability is not Reliability.BEST_EFFORT:
        needed.append("clients that repeat each request until it is answered")
    if RECEIVING[receiver.reliability].acknowledged_by_application:
        needed.append("an application that calls acknowledge_and_resume()")
    return [*needed, *(_of_consumers(sender) if sender is not None else ())]


def needs_of_letters(sender: PathEnd) -> list[str]:
    """Return the requirements without which dead letters are not sent as promised; see `needs`."""
    return ["a store", *_of_consumers(sender)]


def _of_consumers(sender: PathEnd) -> list[str]:
    return ["consumers that drop repeats by the id"] if _asks_receivers(sender) else []


def _asks_receivers(sender: PathEnd) -> bool:
    return sender.reliability is Reliability.EXACTLY_ONCE and not sender.features.deduplicates_sends
