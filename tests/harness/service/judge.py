"""Compares the journal of a run with the broker's promises."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.harness.service import topology
from tests.harness.service.journal import Answered, Asked, Born, Copy, Ended, Event, Got, Restarted, Sending

BY_ITSELF = ("AUTO", "DUPS_OK")
MOST_LAZY = 10
SLACK_NS = 2_000_000
"""Tolerance in nanoseconds: the times of the broker are whole milliseconds."""
LATEST_NS = 2_000_000_000
"""Nanoseconds within which a process may note a message after it has expired: the process may have to wait for a CPU."""
_ALLOWED = {"E8108", "E7514", "E7515", "E7520", "E7570"}
"""Codes with which a call may fail: no room, no place, a client id in use, an ended transaction, a full target."""


class Breach(NamedTuple):
    """A promise of the broker that a run has violated, and the proof."""

    id: str
    what: str

    def __str__(self) -> str:
        return f"{self.id}: {self.what}"


@dataclass(slots=True)
class Call:
    """A call with its answer, if there was one."""

    asked: Asked
    answer: Answered | None = None

    @property
    def succeeded(self) -> bool:
        """Return whether the call has returned without an error."""
        return self.answer is not None and not self.answer.code

    @property
    def failed(self) -> bool:
        """Return whether the call has failed with an error."""
        return self.answer is not None and bool(self.answer.code)


@dataclass(slots=True)
class Sent:
    """A message, and the call that stores it; for a message of a transaction, this is the call that ends it."""

    sending: Sending
    call: Call
    stored: bool | None
    """Whether the message was stored; `None` if that is unknown."""
    at: int
    """Time at which the last call began that may have stored the message."""


@dataclass(slots=True)
class Facts:
    """The events of a journal, sorted by subject."""

    calls: dict[tuple[int, int], Call] = field(default_factory=dict)
    gots: dict[Copy, list[Got]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[Copy, list[Got]] = field(default_factory=lambda: defaultdict(list))
    settles: dict[Copy, list[Call]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[str, Sent] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    returns: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: set[int] = field(default_factory=set)
    roles: dict[int, str] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)
    listened: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    resolves: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    drain: int = 0
    last_drain: list[Got] = field(default_factory=list)

    def named(self, call: str) -> list[Call]:
        """Return all calls of a kind, in their order."""
        return [one for one in self.calls.values() if one.asked.call == call]

    def observed(self, copy: Copy) -> bool:
        """Return whether any process has seen the message in this place."""
        return bool(self.gots.get(copy) or self.dead.get(copy))

    def copies(self, one: Sending) -> list[Copy]:
        """Return the places in which a message certainly arrives."""
        return [(_unified(place), one.name) for place in topology.places(one.destination, is_even=one.is_even)]


def violations(events: Sequence[Event]) -> Iterator[Breach]:
    """Yield all violations of a complete run, whose last process has emptied the broker."""
    facts = sorted_out(events)
    yield from _answers(facts)
    for copy, gots in facts.gots.items():
        yield from _handed(facts, copy, gots)
    for one in facts.sent.values():
        yield from _sent(facts, one)
    for copy, deaths in facts.dead.items():
        yield from _dead(facts, copy, deaths)
    for call in facts.named("commit"):
        yield from _commit(facts, call)
    for call in facts.named("prepare"):
        yield from _prepared(facts, call)
    yield from _lazy(facts)
    yield from _active(facts)
    yield from _order(facts)
    yield from _ids(facts)


def sorted_out(events: Sequence[Event]) -> Facts:
    """Return the facts of a journal."""
    facts = Facts()
    for event in events:
        if isinstance(event, Restarted):
            facts.restarts.append(event.at)
            continue
        facts.last[event.life] = event.at
        if isinstance(event, Born):
            facts.roles[event.life] = event.role
            if event.role == "drain":
                facts.drain = event.life
        elif isinstance(event, Ended):
            facts.ended.add(event.life)
        elif isinstance(event, Asked):
            _ask(facts, event)
        elif isinstance(event, Answered):
            facts.calls[event.life, event.op].answer = event
        elif event.place == topology.DEAD:
            facts.dead[_unified(event.origin), event.name].append(event)
        else:
            facts.gots[_unified(event.place), event.name].append(event)
            if event.life == facts.drain:
                facts.last_drain.append(event)
            if event.mode == "LISTENER":
                facts.listened[event.life].append(event.at)
    for call in facts.calls.values():
        _note_sends(facts, call)
    return facts


def _ask(facts: Facts, asked: Asked) -> None:
    call = facts.calls[asked.life, asked.op] = Call(asked)
    if asked.call == "return":
        facts.returns[asked.life].append(asked.at)
    elif asked.call == "resolve":
        facts.resolves[asked.name].append(call)
    for place, name in asked.settles:
        facts.settles[_unified(place), name].append(call)


def _note_sends(facts: Facts, call: Call) -> None:
    """Note the outcome of the messages that a call sends."""
    for one in call.asked.sends:
        stored: bool | None = True if call.succeeded else False if call.failed else None
        at = call.asked.at
        if call.asked.call == "prepare" and not call.failed:
            resolves = [one for one in facts.resolves[call.asked.name] if not one.failed]
            if not call.asked.commits:
                stored = False
            elif stored:
                stored = any(one.succeeded for one in resolves) or None
            at = max([at, *(one.asked.at for one in resolves)])
        if stored and not one.persistent and call.asked.call == "send" and call.asked.life not in facts.ended:
            stored = None  # the session may still have had it when the process died
        facts.sent[one.name] = Sent(one, call, stored, at)


def _unified(place: str) -> str:
    """Return the place of a message; two places between which messages are moved count as one."""
    return topology.DEPOT if place == topology.ARCHIVE else place


# --- each call ---


def _answers(facts: Facts) -> Iterator[Breach]:
    for call in facts.calls.values():
        if call.asked.call == "stuck":
            yield Breach("STUCK", f"{call.asked.name} has messages that no consumer gets")
        if call.answer is not None and call.answer.code and call.answer.code not in _ALLOWED:
            yield Breach("FAILED", f"{call.asked.call} of life {call.asked.life} failed: {call.answer.code}")
    if facts.drain not in facts.ended:
        yield Breach("STUCK", "the broker could not be emptied")


# --- each delivered message ---


def _handed(facts: Facts, copy: Copy, gots: list[Got]) -> Iterator[Breach]:
    sent = facts.sent.get(copy[1])
    for at, got in enumerate(gots):
        if sent is not None:
            yield from _timely(facts, sent, got)
        if at:
            yield from _again(facts, copy, gots[at - 1], got)
            before = [one for one in gots[:at] if one.place == got.place]
            if before and not got.redelivered:
                yield Breach("FLAG", f"{copy} came again to life {got.life} without the flag")
            if got.count < 1 + len(before):
                yield Breach("COUNT", f"{copy} came for the {len(before) + 1}th time with count {got.count}")
    if copy[0] != topology.DEAD and sent is None:
        yield Breach("GHOST", f"nobody has sent {copy}")


def _again(facts: Facts, copy: Copy, first: Got, then: Got) -> Iterator[Breach]:
    """Check that a message, which a process had got before, was allowed to be redelivered."""
    held = f"{copy}, which life {first.life} had got in mode {first.mode},"
    for call in facts.settles.get(copy, ()):
        if call.asked.life != first.life or not first.at < call.asked.at < then.at or call.failed:
            continue
        if call.asked.call == "prepare":
            if call.succeeded and not any(
                not one.asked.commits and one.asked.at < then.at and not one.failed
                for one in facts.resolves[call.asked.name]
            ):
                yield Breach("AGAIN", f"{held} came again though {call.asked.name} was prepared with it")
            if call.succeeded:
                return
        elif call.succeeded:
            yield Breach("AGAIN", f"{held} came again to life {then.life} after its acknowledgement")
    if first.mode == "AUTO":
        receive = facts.calls.get((first.life, first.op))
        if receive is not None and receive.succeeded:
            yield Breach("AGAIN", f"{held} came again to life {then.life} after receive had returned")
    if first.mode == "LISTENER" and _listened_on(facts, first, then):
        yield Breach("AGAIN", f"{held} came again to life {then.life} after its listener had got the next one")
    returned = any(first.at < at < then.at for at in facts.returns.get(first.life, ()))
    lives_on = facts.last[first.life] > then.at
    if lives_on and not returned and not _took_back(facts, copy, first, then):
        yield Breach("SHARED", f"{held} came to life {then.life} while that held it")


def _listened_on(facts: Facts, first: Got, then: Got) -> bool:
    """Return whether a listener got another message after this one, and so had handled this one without an error."""
    until = next((at for at in facts.listened[first.life] if first.at < at < then.at), None)
    return until is not None and not any(first.at < at < until for at in facts.returns[first.life])


def _took_back(facts: Facts, copy: Copy, first: Got, then: Got) -> bool:
    """Return whether a failed transaction gave the message back."""
    return any(call.failed and first.at < call.asked.at < then.at for call in facts.settles.get(copy, ()))


def _timely(facts: Facts, sent: Sent, got: Got) -> Iterator[Breach]:
    one, asked = sent.sending, sent.call.asked
    what = f"{one.name} of {one.destination}"
    if got.at < asked.at:
        yield Breach("GHOST", f"{what} came before it was sent")
    if sent.stored is False:
        yield Breach("GHOST", f"{what} came to life {got.life}, and its {asked.call} had failed or was rolled back")
    if one.delay_ms and got.at < asked.at + one.delay_ms * 1_000_000 - SLACK_NS:
        yield Breach("EARLY", f"{what} came before its delay was over")
    if asked.call == "prepare" and got.at < min((c.asked.at for c in facts.resolves[asked.name]), default=got.at + 1):
        yield Breach("PREPARED", f"{what} came before {asked.name} was resolved")
    answer = sent.call.answer
    if answer is None:
        return
    if one.lives_ms and got.at > answer.at + one.lives_ms * 1_000_000 + LATEST_NS:
        yield Breach("LATE", f"{what} came {(got.at - answer.at) // 1_000_000} ms after it was sent")
    if not one.persistent and any(answer.at < at < got.at for at in facts.restarts):
        yield Breach("PASSING", f"{what} is not persistent and has survived a start of the broker")


# --- each message that was sent ---


def _sent(facts: Facts, sent: Sent) -> Iterator[Breach]:
    one = sent.sending
    if sent.stored is False:
        for copy in facts.copies(one):
            if facts.dead.get(copy):
                yield Breach("GHOST", f"{copy} is dead, and was never stored")
    if not sent.stored or one.destination not in (*topology.QUEUES, topology.NEWS):
        return
    if not one.persistent and (any(at > sent.at for at in facts.restarts) or one.destination in topology.LIMITED):
        return
    for copy in facts.copies(one):
        if not _is_somewhere(facts, copy, sent):
            yield Breach("LOST", f"{copy} was sent by life {sent.call.asked.life}, and is nowhere")


def _is_somewhere(facts: Facts, copy: Copy, sent: Sent) -> bool:
    purges = (one for one in facts.named("purge") if one.asked.name == copy[0])
    if facts.dead.get(copy) or any(one.answer is None or one.answer.at > sent.at for one in purges):
        return True
    if any(got.life == facts.drain or _settles_itself(facts, got) for got in facts.gots.get(copy, ())):
        return True
    return any(
        not call.failed and (call.asked.call != "prepare" or call.asked.commits) for call in facts.settles.get(copy, ())
    )


def _settles_itself(facts: Facts, got: Got) -> bool:
    """Return whether the session may have acknowledged a message: its listener handled it without an error."""
    if got.mode != "LISTENER":
        return got.mode in BY_ITSELF
    until = next((at for at in facts.listened[got.life] if at > got.at), facts.last[got.life] + 1)
    return not any(got.at < at < until for at in facts.returns[got.life])


# --- each dead message ---


def _dead(facts: Facts, copy: Copy, deaths: list[Got]) -> Iterator[Breach]:
    sent = facts.sent.get(copy[1])
    if len(deaths) > 1:
        yield Breach("DEAD", f"{copy} died {len(deaths)} times")
    got = deaths[0]
    if any(one.life == facts.drain for one in facts.gots.get(copy, ())):
        yield Breach("DEAD", f"{copy} is dead, and was still there")
    if any(call.succeeded and call.asked.commits for call in facts.settles.get(copy, ())):
        yield Breach("DEAD", f"{copy} is dead, and was acknowledged")
    expected = {
        "EXPIRED": sent is not None and sent.sending.lives_ms > 0,
        "UNDELIVERABLE": copy[0] == topology.PLAIN and got.dead_count >= topology.MOST_DELIVERIES,
        "OLDEST": topology.EVICTING.get(copy[0]) == "OLDEST",
        "LOW_PRIORITY": topology.EVICTING.get(copy[0]) == "LOW_PRIORITY",
    }
    if not expected.get(got.reason, False):
        yield Breach("DEAD", f"{copy} is dead for the reason {got.reason!r} after {got.dead_count} deliveries")


# --- each transaction ---


def _commit(facts: Facts, call: Call) -> Iterator[Breach]:
    if call.answer is None:
        yield from _whole(facts, call, call.asked.at)


def _whole(facts: Facts, call: Call, since: int) -> Iterator[Breach]:
    """Check that a transaction without an answer happened completely or not at all."""
    what = f"the {call.asked.call} of life {call.asked.life}"
    seen = {copy: facts.observed(copy) for one in call.asked.sends for copy in facts.copies(one)}
    if len(set(seen.values())) > 1:
        yield Breach("ATOMIC", f"{what} stored a part of what it sends: {seen}")
    again = {copy: any(got.at > since for got in facts.gots.get(copy, ())) for copy in _settled(call)}
    if not all(seen.values()) or not seen:
        again = again if seen else {}
        if lost := [copy for copy, came in again.items() if not came and not facts.dead.get(copy)]:
            yield Breach("ATOMIC", f"{what} sent nothing, and acknowledged {lost}")
    elif repeated := [copy for copy, came in again.items() if came]:
        yield Breach("ATOMIC", f"{what} sent, and did not acknowledge {repeated}")


def _settled(call: Call) -> list[Copy]:
    return [(_unified(place), name) for place, name in call.asked.settles]


def _prepared(facts: Facts, call: Call) -> Iterator[Breach]:
    name = call.asked.name
    resolves = facts.resolves[name]
    succeeded = [one for one in resolves if one.succeeded]
    if call.succeeded and not succeeded:
        yield Breach("PREPARED", f"{name} was prepared, and is not there any more")
    if call.failed:
        return
    if not succeeded:
        for one in call.asked.sends:
            if facts.observed(facts.copies(one)[0]):
                yield Breach("PREPARED", f"{one.name} came, and nobody has resolved {name}")
    elif call.asked.commits:
        yield from _whole_prepared(facts, call)
    elif lost := [copy for copy in _settled(call) if not any(got.at > call.asked.at for got in facts.gots[copy])]:
        yield Breach("PREPARED", f"{name} was rolled back, and {lost} did not come again")


def _whole_prepared(facts: Facts, call: Call) -> Iterator[Breach]:
    if missing := [one.name for one in call.asked.sends if not facts.observed(facts.copies(one)[0])]:
        yield Breach("PREPARED", f"{call.asked.name} was committed, and {missing} did not come")
    if repeated := [copy for copy in _settled(call) if any(got.at > call.asked.at for got in facts.gots[copy])]:
        yield Breach("PREPARED", f"{call.asked.name} was committed, and {repeated} came again")


# --- each process ---


def _lazy(facts: Facts) -> Iterator[Breach]:
    """Check that in mode DUPS_OK at most ten messages of a process are redelivered."""
    repeated: dict[int, int] = defaultdict(int)
    for gots in facts.gots.values():
        for at, got in enumerate(gots[:-1]):
            returned = any(at > got.at for at in facts.returns.get(got.life, ()))
            if got.mode == "DUPS_OK" and gots[at + 1].life != got.life and not returned:
                repeated[got.life] += 1
    for life, count in repeated.items():
        if count > MOST_LAZY:
            yield Breach("LAZY", f"{count} messages of life {life} in mode DUPS_OK came again")


def _active(facts: Facts) -> Iterator[Breach]:
    """Check that a backup got nothing while an earlier consumer lived."""
    opened = {
        call.asked.life: call for call in facts.named("open") if call.asked.name == topology.ORDERED and call.succeeded
    }
    closed = {call.asked.life: call.asked.at for call in facts.named("return") if call.asked.name == "close"}
    for life, call in opened.items():
        gots = [
            got for gots in facts.gots.values() for got in gots if (got.place, got.life) == (topology.ORDERED, life)
        ]
        for other, before in opened.items():
            if before.answer is None or before.answer.at > call.asked.at:
                continue
            until = min(facts.last[other], closed.get(other, facts.last[other]))
            if any(got.at < until for got in gots):
                yield Breach("BACKUP", f"life {life} got messages while life {other} was the active consumer")


def _order(facts: Facts) -> Iterator[Breach]:
    firsts = sorted((gots[0] for gots in facts.gots.values()), key=lambda got: got.at)
    yield from _ascending(facts, [got for got in firsts if got.place == topology.ORDERED], "the ordered queue")
    by_place: dict[str, list[Got]] = defaultdict(list)
    for got in facts.last_drain:
        by_place[got.place].append(got)
    for place, gots in by_place.items():
        if place != topology.PREPARED_OUT:
            yield from _ascending(facts, gots, place)
        yield from _by_priority(facts, place, gots)


def _ascending(facts: Facts, gots: list[Got], where: str) -> Iterator[Breach]:
    """Check that messages of one process with one priority are delivered in the order in which it sent them."""
    last: dict[tuple[int, int, str], int] = {}
    for got in gots:
        sent = facts.sent.get(got.name)
        if sent is None or sent.sending.delay_ms:
            continue
        life, number = map(int, got.name.split("."))
        key = life, sent.sending.priority, sent.call.asked.call
        if number < last.get(key, 0):
            yield Breach("ORDER", f"{got.name} of {where} came after {life}.{last[key]}")
        last[key] = number


def _by_priority(facts: Facts, place: str, gots: list[Got]) -> Iterator[Breach]:
    least = 9
    for got in gots:
        sent = facts.sent.get(got.name)
        if sent is None or sent.sending.delay_ms:
            continue
        if sent.sending.priority > least:
            yield Breach("ORDER", f"{got.name} of {place} came after a message of a lower priority")
        least = min(least, sent.sending.priority)


def _ids(facts: Facts) -> Iterator[Breach]:
    """Check that each message has an id of its own, and that `send` returned this id."""
    names: dict[str, str] = {}
    told = {
        call.asked.sends[0].name: call.answer.ids[0]
        for call in facts.named("send")
        if call.answer is not None and call.answer.ids
    }
    for gots in facts.gots.values():
        for got in gots:
            if names.setdefault(got.message_id, got.name) != got.name:
                yield Breach("IDS", f"{got.name} and {names[got.message_id]} have one id")
            if told.get(got.name, got.message_id) != got.message_id:
                yield Breach("IDS", f"{got.name} came with another id than send returned")
