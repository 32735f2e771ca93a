"""What a path from a receiver to a sender promises, as docs/guarantees.md says it: the weakest link decides.

Every part of a path is a *link* with a grade and a reason. A path promises what its weakest link does; the first of
several equally weak ones is named, in the direction of the messages.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from correlator.reliability import RECEIVING, SENDING, Reliability


class Grade(IntEnum):
    """What a crash can do, the worst first."""

    MAY_LOSE = 0
    MAY_REPEAT = 1
    REPEATS_WITH_ID = 2
    ONCE = 3


SENTENCES = {
    Grade.MAY_LOSE: "A crash may lose messages.",
    Grade.MAY_REPEAT: "Nothing is lost; after a crash a message may have its effect more than once.",
    Grade.REPEATS_WITH_ID: (
        "Nothing is lost; after a crash a message may arrive again, with the same id and the same bytes: "
        "whoever receives it must deduplicate by the id."
    ),
    Grade.ONCE: "Nothing is lost, and every message has its effect once, within the windows of duplicate detection.",
}
WITHOUT_SENDER = {
    **SENTENCES,
    Grade.ONCE: "Nothing is lost, and every message changes state once, within the windows of duplicate detection.",
}


class Broker(NamedTuple):
    """A connection: its name, and what its broker can do (`connector.Features`)."""

    name: str
    durable: bool = True
    redelivers: bool = True
    acknowledges_surely: bool = False
    deduplicates_sends: bool = False


class End(NamedTuple):
    """A receiver or a sender."""

    id: str
    reliability: Reliability
    broker: Broker


class Middle(NamedTuple):
    """What stands between: `transient` are its monitors whose state is not part of checkpoints."""

    name: str
    transient: Sequence[str] = ()


class Link(NamedTuple):
    """A part of a path: how good it is, and why not better."""

    part: str
    grade: Grade
    why: str


class Guarantee(NamedTuple):
    """What a path promises.

    Attributes:
        grade: of the weakest link.
        sentence: the promise.
        weakest: the weakest link.
        notes: what else its user should know.
    """

    grade: Grade
    sentence: str
    weakest: Link
    notes: Sequence[str]


def guarantee(receiver: End, middle: Middle, sender: End | None) -> Guarantee:
    """The promise of one path; `sender` is `None` where nothing is sent."""
    links = [*_receiving(receiver), *_acknowledging(receiver, sender), *(_sending(sender, receiver) if sender else ())]
    weakest = min(links, key=lambda link: link.grade)
    sentences = SENTENCES if sender else WITHOUT_SENDER
    return Guarantee(weakest.grade, sentences[weakest.grade], weakest, _notes(receiver, middle, sender))


def _receiving(receiver: End) -> list[Link]:
    part, broker = f"receiver '{receiver.id}'", receiver.broker
    links = [Link(part, *_RECEIVES[receiver.reliability])]
    if receiver.reliability is Reliability.BEST_EFFORT:
        return links
    if not broker.durable:
        why = "its broker forgets what it holds when it restarts"
        links.append(Link(f"connection '{broker.name}'", Grade.MAY_LOSE, why))
    if not broker.redelivers:
        why = "its broker does not give again what was not acknowledged"
        links.append(Link(f"connection '{broker.name}'", Grade.MAY_LOSE, why))
    return links


_RECEIVES = {
    Reliability.BEST_EFFORT: (Grade.MAY_LOSE, "BEST_EFFORT acknowledges before anything is stored"),
    Reliability.AT_LEAST_ONCE: (Grade.MAY_REPEAT, "AT_LEAST_ONCE does not tell a repeat from a new message"),
    Reliability.EXACTLY_ONCE: (Grade.ONCE, "EXACTLY_ONCE recognises a repeat while its id is in a window"),
    Reliability.APP_CONTROLLED: (Grade.MAY_REPEAT, "APP_CONTROLLED: the batch that was not acknowledged comes again"),
}


def _acknowledging(receiver: End, sender: End | None) -> list[Link]:
    """Who acknowledges by itself cannot know whether the checkpoint with a reliable send is durable."""
    by_application = RECEIVING[receiver.reliability].acknowledged_by_application
    if by_application and sender is not None and SENDING[sender.reliability].stored:
        why = "the application may acknowledge before the checkpoint that holds the send"
        return [Link(f"receiver '{receiver.id}'", Grade.MAY_LOSE, why)]
    return []


def _sending(sender: End, receiver: End) -> list[Link]:
    part, broker = f"sender '{sender.id}'", sender.broker
    links = [_sender_link(part, sender, flushed=RECEIVING[receiver.reliability].acknowledged_by_application)]
    if SENDING[sender.reliability].stored and not broker.durable:
        why = "its broker forgets what it has confirmed when it restarts"
        links.append(Link(f"connection '{broker.name}'", Grade.MAY_LOSE, why))
    return links


def _sender_link(part: str, sender: End, *, flushed: bool) -> Link:
    if sender.reliability is Reliability.BEST_EFFORT:
        if flushed:
            return Link(part, Grade.MAY_REPEAT, "BEST_EFFORT, where the application acknowledges after request_flush()")
        return Link(part, Grade.MAY_LOSE, "BEST_EFFORT keeps a send in memory only")
    if sender.reliability is Reliability.AT_LEAST_ONCE:
        return Link(part, Grade.MAY_REPEAT, "AT_LEAST_ONCE sends again what was not confirmed, without an id")
    if sender.broker.deduplicates_sends:
        return Link(part, Grade.ONCE, "EXACTLY_ONCE, and its broker stores a repeat once")
    return Link(part, Grade.REPEATS_WITH_ID, "EXACTLY_ONCE, but its broker stores a repeat as another message")


def _notes(receiver: End, middle: Middle, sender: End | None) -> list[str]:
    notes = []
    if middle.transient:
        names = ", ".join(middle.transient)
        notes.append(f"State of {names} is not part of checkpoints: it begins anew after a restart")
    if RECEIVING[receiver.reliability].deduplicated and not receiver.broker.acknowledges_surely:
        notes.append(
            f"Connection '{receiver.broker.name}' does not answer to acknowledgements: the ids of what it may "
            "still forget, of two batches at least, are kept whatever the windows say"
        )
    if sender is not None and SENDING[sender.reliability].stored:
        notes.append(f"Sends of '{sender.id}' leave after the checkpoint that holds their cause")
    return notes


def needs(receiver: End, sender: End | None) -> list[str]:
    """What a path needs to keep its promise."""
    needed = []
    stored = RECEIVING[receiver.reliability].stored or (sender is not None and SENDING[sender.reliability].stored)
    if stored:
        needed.append("a store")
    if RECEIVING[receiver.reliability].deduplicated:
        needed.append("a unique id in every message (unique_message_id)")
        needed.append("windows that are larger than what may come again (duplicate_detection)")
    if RECEIVING[receiver.reliability].acknowledged_by_application:
        needed.append("an application that calls acknowledge_and_resume()")
    if sender is not None and _asks_receivers(sender):
        needed.append("consumers that drop repeats by the id")
    return needed


def _asks_receivers(sender: End) -> bool:
    return sender.reliability is Reliability.EXACTLY_ONCE and not sender.broker.deduplicates_sends
