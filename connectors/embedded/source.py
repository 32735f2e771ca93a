"""The source of the embedded broker: one consumer on one queue or subscription."""

import math
import time
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from connectors.embedded import (
    claiming,
    consumers,
    dead,
    destinations,
    expiring,
    pausing,
    settling,
    starting,
    subscribing,
    tally,
)
from connectors.embedded.access import Access
from connectors.embedded.claiming import EXPIRED, Bounds, Claimed, Holder, Ready
from connectors.embedded.consumers import Consumer
from connectors.embedded.content import Stored, decode, is_as_stored
from connectors.embedded.dead import Circumstances, Death, Ending
from connectors.embedded.destinations import DEAD_MESSAGES, Destination
from connectors.embedded.link import DatabaseLink
from connectors.embedded.rooms import room_of
from connectors.embedded.scan import Scan
from connectors.embedded.sql import HELD
from connectors.embedded.subscribing import Wanted
from correlator import tracing
from correlator.connector import NOTHING, Backlog, Chunk, FlowTerms, Held
from correlator.errors import ConnectionLost
from correlator.events import UNREADABLE, Message
from correlator.selector import Selector
from correlator.settings import ReceiverSettings
from correlator.tracing import DeliveryEvent

_REAP_S = 5.0
"""Seconds after which a waiting consumer looks again for messages of dead consumers."""
LONGEST_OVERRUN_S = 0.1
"""Seconds for which a receive continues after its timeout if it has found only messages that end, such
as expired ones.
"""
LOOK_S = 1.0
"""Seconds after which a waiting consumer looks without a wake-up: it may be lost, and a dying consumer wakes nobody."""


class EmbeddedSource:
    """Claims ready messages in order. Acknowledging deletes them; giving them back makes them ready again.

    Senders wake the source (see `waking`), and it also looks for messages once a second. After a consumer has died,
    each message that it held is returned in a chunk of its own if suspects are claimed alone (see `claiming`).

    Args:
        where: name of the receiver in messages.
        access: access to the broker.
        receiver: settings of the receiver.
        wanted: the subscription.
        selector: selects messages of a queue.
    """

    def __init__(
        self, where: str, access: Access, receiver: ReceiverSettings, wanted: Wanted, selector: Selector | None
    ) -> None:
        self._where = where
        self._access = access
        self._receiver = receiver
        self._wanted = wanted
        self._link: DatabaseLink | None = None
        self._holder = Holder(0, 0, 0, is_queue=True)
        self._held: Held[int] = Held()
        self._traced: dict[int, str] = {}
        """The message ids of held messages that are traced, by number."""
        self._selector = selector
        self._scan: Scan | None = None
        self._cancelled = False
        self._is_active = False
        self._rung = -1
        self._next_look = 0.0
        self._next_check = 0.0
        self._next_reap = time.monotonic() + _REAP_S
        self._is_unasked = False
        """Whether the source looks only because time has passed, and will probably find nothing."""
        self.found_nothing = False

    @property
    def destination(self) -> str:
        """The destination that the source consumes from, `queue:NAME` or `topic:NAME`."""
        return self._receiver.destination

    @property
    def flow(self) -> FlowTerms:
        """How far the consumer may fetch ahead, by the properties that the destination had at the last `connect`."""
        return self._holder.flow

    @property
    def rooms(self) -> set[str]:
        """The bells to ring after messages have left, since senders may wait for room."""
        return {room_of(self.destination)} if self._holder.lets_wait else set()

    def connect(self) -> None:
        """Register as a consumer, and remove consumers whose process is gone: their messages are redelivered.

        Raises `ConnectionLost`, and `UsageError` as `ServiceSession.subscriber`.
        """
        self.close()
        self._scan = Scan(self._is_wanted) if self._selector is not None else None
        self._cancelled = False
        self._is_active = False
        link = self._access.connect(self._where)
        try:
            wanted = self._wanted._replace(client=self._access.client(), makes=self._access.auto_create)
            with self._access.transaction(self._where, link) as connection:
                self._holder = subscribing.subscribe(connection, self._receiver.destination, wanted, link)
                link.live(str(self._holder.consumer))
        except BaseException:
            self._access.leave()
            raise
        self._link = link
        self._next_look = 0.0
        self._access.ring((self.destination,))  # messages of dead consumers may be meant for another one

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Claim the first messages that nobody holds; see `connector.Source`."""
        if self._link is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        limit = 0 if self._cancelled else min(max_messages, self._receiver.max_batch_size - len(self._held))
        deadline = time.monotonic() + timeout_s
        self.found_nothing = False
        while True:
            chunk = self._claim(limit, deadline) if limit > 0 and self._may_find() else None
            if chunk is not None:
                return chunk
            now = time.monotonic()
            if now >= deadline:
                self.found_nothing = limit > 0
                return NOTHING
            if limit > 0:
                self._access.bells.wait(self.destination, self._rung, min(deadline, self._next_look) - now)
            else:
                self._access.bells.wait(self.destination, self._access.bells.rung(self.destination), deadline - now)

    def backlog(self) -> Backlog | None:
        """Return the number of messages of a queue that this consumer does not hold; topics do not
        count per subscription.
        """
        if not self._holder.is_queue:
            return None
        with self._access.reading(self._where, self._open_link()) as connection:
            return Backlog(messages=max(0, tally.total(connection, self._holder.destination) - len(self._held)))

    def looks_in_s(self) -> float:
        """Return the seconds until a look is worth its cost even without a ring, at most a second."""
        return min(max(0.0, self._next_look - time.monotonic()), LOOK_S)

    def _may_find(self) -> bool:
        """Return whether a look is worth its cost: a bell has rung since the last vain look, or the
        time for a look has come.
        """
        rung = self._access.bells.rung(self.destination)
        if rung == self._rung and time.monotonic() < self._next_look:
            return False
        self._is_unasked = rung == self._rung and self._next_look > 0.0
        self._rung = rung
        return True

    def acknowledge(self, tokens: Sequence[int]) -> None:
        """Delete these messages in one transaction. A token from before a reconnect acknowledges nothing."""
        numbers = self._held.release(tokens)
        link = self._open_link()
        if self._holder.is_queue and not self._access.is_sqlite:
            self._access.alone(self._where, link, lambda connection: self._acknowledge_alone(connection, numbers))
        else:
            self._access.write(self._where, link, lambda connection: self.acknowledge_in(connection, numbers))
        self.tell_removed(numbers)
        self._access.ring(self.rooms)

    @property
    def place(self) -> tuple[int, int]:
        """The order in which transactions settle: by destination and subscription."""
        return self._holder.destination, self._holder.subscription

    def acknowledge_in(self, connection: Connection, numbers: Sequence[int]) -> None:
        """Delete these messages in a transaction. Raises `ConnectionLost` E7021 if another consumer got one of them."""
        if not settling.acknowledge(connection, self._holder, numbers):
            raise self._overtaken()

    def _acknowledge_alone(self, connection: Connection, numbers: Sequence[int]) -> None:
        if not settling.acknowledge_alone(connection, self._holder, numbers):
            raise self._overtaken()

    def prepare_in(self, connection: Connection, numbers: Sequence[int], tx: int) -> None:
        """Assign these messages to a prepared transaction. Raises as `acknowledge_in`."""
        if not settling.prepare(connection, self._holder, numbers, tx):
            raise self._overtaken()

    def _overtaken(self) -> ConnectionLost:
        what = "messages that were to be acknowledged had been given to another consumer"
        return ConnectionLost("E7021", self._where, what)

    def numbers(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the numbers of the messages of these tokens; the messages stay held.

        Raises `ConnectionLost` if the link is lost, and with it all held messages, or if one message is not held.
        """
        if self._open_link() is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        if not self._held.has_all(tokens):
            raise self._overtaken()
        return self._held.of(tokens)

    def let_go(self, tokens: Sequence[int]) -> None:
        """Forget messages that a transaction has settled."""
        self._untraced(self._held.release(tokens))

    def tell_removed(self, numbers: Sequence[int]) -> None:
        """Log, after the commit, which traced messages have left the queue or subscription."""
        if self._traced:
            for message_id in self._untraced(numbers):
                tracing.log(DeliveryEvent.REMOVED, message_id, self.destination)

    def _untraced(self, numbers: Sequence[int]) -> list[str]:
        """Stop tracing these messages; return the ids of the messages that were traced."""
        return [self._traced.pop(number) for number in numbers if number in self._traced]

    def reject(self, tokens: Sequence[int]) -> None:
        """Make these messages ready again, in their place. Raises `ConnectionLost`."""
        self._give_back(tokens, settling.reject)

    def release(self, tokens: Sequence[int]) -> None:
        """Make these messages, which the program has not seen, ready again, in their place. Raises `ConnectionLost`."""
        self._give_back(tokens, settling.release)

    def _give_back(self, tokens: Sequence[int], how: Callable[[Connection, Holder, Sequence[int]], None]) -> None:
        released = self._held.release(tokens)
        self._untraced(released)
        with self._access.transaction(self._where, self._open_link()) as connection:
            how(connection, self._holder, released)
        self._access.ring((self.destination,))

    def cancel(self) -> None:
        """Take no more messages; another consumer may have the place of this one."""
        with self._access.transaction(self._where, self._open_link()) as connection:
            consumers.cancel(connection, self._holder.consumer)
        self._cancelled = True

    def close(self) -> None:
        """Remove this consumer; the messages that it holds become ready again."""
        link = self._link
        if link is None or link.maker.is_another_process:
            return
        try:
            with self._access.transaction(self._where, link) as connection:
                destinations.lock_registry(connection)
                consumers.close(connection, self._holder.subscription, self._holder.consumer)
        except ConnectionLost:
            pass  # others notice that the link is gone
        else:
            link.die(str(self._holder.consumer))
            self._access.ring((self.destination,))
        self._forget_link()
        self._access.leave()

    def _open_link(self) -> DatabaseLink | None:
        """Return the link with which this consumer registered; `None` if it is lost, and with it all held messages."""
        if self._link is not None and not self._access.uses(self._link):
            self._forget_link()
        return self._link

    def _forget_link(self) -> None:
        self._link = None
        self._held.clear()
        self._traced.clear()

    def _claim(self, limit: int, deadline: float) -> Chunk | None:
        """Return a chunk of messages, or `None` if none is ready or the time is over. Expired and
        poison messages end here.
        """
        begin = time.monotonic()
        if self._finds_nothing_at_a_glance(begin):
            return None
        if begin >= self._next_check:
            self._strike_off_the_dead(begin)
        bounds = Bounds(limit, self._receiver.max_batch_bytes)
        while claimed := self._claim_some(bounds):
            fresh: Sequence[Claimed] = [one for one in claimed if not one.ends]
            messages: Sequence[Message] = [decode(one.stored) for one in fresh]
            if self._wanted.suspects_alone:  # engines make their own dead letters
                fresh, messages = self._readable(fresh, messages)
            if len(fresh) < len(claimed):
                self._access.ring({DEAD_MESSAGES, *self.rooms})
            if fresh:
                tokens = self._held.hold([one.stored.number for one in fresh])
                if tracing.is_on():
                    self._tell_routed(fresh, messages)
                self._next_look = 0.0
                return Chunk(messages, tokens, clock_ms=fresh[-1].at)
            if time.monotonic() >= max(deadline, begin + LONGEST_OVERRUN_S):
                self._next_look = 0.0
                return None
        self._plan_next_look(begin)
        return None

    def _finds_nothing_at_a_glance(self, now: float) -> bool:
        """Return whether one statement is enough to see that there is nothing to do, and plan the next look.

        Many consumers wait most of the time, and each of them looks once a second.
        """
        if not self._is_unasked or self._access.is_sqlite or self._scan is not None or now >= self._next_reap:
            return False
        with self._access.reading(self._where, self._open_link()) as connection:
            nothing_for_s = claiming.glance(connection, self._holder)
        self._next_look = time.monotonic() + min(LOOK_S, nothing_for_s)
        return nothing_for_s > 0.0

    def _tell_routed(self, claimed: Sequence[Claimed], messages: Sequence[Message]) -> None:
        """Log which traced messages this consumer has claimed."""
        for one, message in zip(claimed, messages, strict=True):
            if tracing.is_marked(message):
                self._traced[one.stored.number] = one.stored.message_id
                consumer = self._holder.consumer
                tracing.log(DeliveryEvent.ROUTED, one.stored.message_id, self.destination, consumer=consumer)

    def _plan_next_look(self, begin: float) -> None:
        """Decide when to look again, unless a bell rings, after a look that began at `begin` and found nothing."""
        if self._scan is not None and self._scan.behind:
            self._next_look = 0.0
            return
        with self._access.reading(self._where, self._open_link()) as connection:
            elapsed_ms = math.ceil((time.monotonic() - begin) * 1000) + 1
            due_in_s = claiming.due_in_s(connection, self._holder.subscription, elapsed_ms)
        self._next_look = time.monotonic() + min(LOOK_S, due_in_s)

    def _readable(
        self, claimed: Sequence[Claimed], messages: Sequence[Message]
    ) -> tuple[Sequence[Claimed], Sequence[Message]]:
        """Return the messages whose content could be decoded; the other messages become dead."""
        unread = [at for at, one in enumerate(claimed) if is_as_stored(messages[at], one.stored)]
        if not unread:
            return claimed, messages
        with self._access.transaction(self._where, self._open_link()) as connection:
            for at in unread:
                error = str(messages[at].properties[UNREADABLE])
                why = Ending(dead.ERROR, "it could not be read", error)
                self._end(connection, destinations.find(connection, self.destination), why, [claimed[at]])
        read = [at for at in range(len(claimed)) if at not in unread]
        return [claimed[at] for at in read], [messages[at] for at in read]

    def _is_backup(self) -> bool:
        """Return whether this consumer has to wait until another one has ended."""
        if self._holder.max_active > 0 and not self._is_active:
            with self._access.reading(self._where, self._open_link()) as connection:
                place = self._holder.subscription, self._holder.consumer
                self._is_active = consumers.is_active(connection, *place, self._holder.max_active)
            return not self._is_active
        return False

    def _claim_some(self, bounds: Bounds) -> Sequence[Claimed]:
        if self._is_backup():
            return ()
        if self._scan is None and not self._access.is_sqlite:
            return self._claim_at_once(bounds)
        link, alone = self._open_link(), self._wanted.suspects_alone
        # Another consumer may take the seen messages first: then there may be more after them.
        while chosen := claiming.within(self._look(link, bounds), bounds, suspects_alone=alone):
            suspects = alone and bool(chosen[0].suspect)
            with self._access.transaction(self._where, link, synced=suspects) as connection:
                numbers = [one.number for one in chosen]
                claimed = claiming.claim_chosen(connection, self._holder, numbers, suspects=suspects)
                claimed = self._end_dead(connection, claimed)
            if claimed:
                return claimed
        return ()

    def _look(self, link: DatabaseLink | None, bounds: Bounds) -> Sequence[Ready]:
        """Return the first ready messages. Without any, SQLite's write lock need not be taken."""
        with self._access.reading(self._where, link) as connection:
            if self._scan is not None:
                if pausing.stops_consumers(connection, self._holder.destination):
                    return ()
                return self._scan.choose(connection, self._holder.subscription, bounds)
            return claiming.look(connection, self._holder, bounds.messages)

    def _claim_at_once(self, bounds: Bounds) -> Sequence[Claimed]:
        """Claim without a look before: on a server a look costs as much as a claim.

        A claim is a transaction of its own. If this process dies before it has ended the expired and poison messages,
        these are ready again like all others that it held.
        """
        link, holder = self._open_link(), self._holder

        def claim(*, suspects: bool) -> Sequence[Claimed]:
            return self._access.alone(
                self._where,
                link,
                lambda connection: claiming.claim_alone(connection, holder, bounds, suspects=suspects),
            )

        claimed = claim(suspects=False)
        if not claimed and self._wanted.suspects_alone and self._look(link, Bounds(1, 0)):
            claimed = claim(suspects=True)
        if not any(map(_may_be_dead, claimed)):
            return claimed
        with self._access.transaction(self._where, link) as connection:
            return self._end_dead(connection, claimed)

    def _end_dead(self, connection: Connection, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """End claimed messages that have expired or were delivered too often; return all, with `ends` set."""
        if not any(map(_may_be_dead, claimed)):
            return claimed
        there = destinations.find(connection, self.destination)
        most = there.max_num_deliveries if there is not None else -1
        marked = [
            one._replace(ends=dead.UNDELIVERABLE) if not one.ends and 0 < most < one.stored.deliveries else one
            for one in claimed
        ]
        for why in (Ending(EXPIRED, expiring.COMMENT), Ending(dead.UNDELIVERABLE, f"max_num_deliveries is {most}")):
            self._end(connection, there, why, [one for one in marked if one.ends == why.reason])
        return marked

    def _end(self, connection: Connection, there: Destination | None, why: Ending, claimed: Sequence[Claimed]) -> None:
        """End claimed messages that the program does not get."""
        if there is not None:
            name = self._wanted.name if not there.is_queue else ""
            deaths = [Death(one.stored.number, one.rank, one.stored.deliveries - 1, name) for one in claimed]
            dead.bury(connection, Circumstances(there.name, there.use_dmq, why), deaths)
        settling.leave(connection, self._holder, [one.stored.number for one in claimed], HELD)

    def _is_wanted(self, stored: Stored) -> bool:
        assert self._selector is not None
        return self._selector.matches(decode(stored))

    def _strike_off_the_dead(self, now: float) -> None:
        """Look for consumers whose process is gone: their messages become ready again."""
        link = self._open_link()
        with self._access.reading(self._where, link) as connection:
            dead = self._dead(connection, link)
            reaps = now >= self._next_reap and link is not None and starting.finds_dead(connection, link)
        if dead or reaps:
            with self._access.transaction(self._where, link) as connection:
                assert link is not None
                if reaps:
                    destinations.lock_registry(connection)
                    starting.reap(connection, link)
                for consumer in dead:
                    consumers.strike_off(connection, self._holder.subscription, consumer, link.boot)
            self._access.ring((self.destination,))
        self._next_check = now + LOOK_S
        if now >= self._next_reap:
            self._next_reap = now + _REAP_S

    def _dead(self, connection: Connection, link: DatabaseLink | None) -> Sequence[Consumer]:
        others = consumers.of_subscription(connection, self._holder.subscription)
        return [other for other in others if link and other.id != self._holder.consumer and link.is_dead(str(other.id))]


def _may_be_dead(claimed: Claimed) -> bool:
    return bool(claimed.ends) or claimed.stored.deliveries > 1
