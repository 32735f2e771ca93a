"""The operations of an administrator on the embedded broker; see `correlator.connector.Administration`.

Large changes are made in slices. Each slice is a transaction, so that others can write between two slices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches

import msgspec
from sqlalchemy import Connection

from connectors.embedded import (
    administration,
    dead,
    destinations,
    orphans,
    pausing,
    producers,
    property_texts,
    removal,
    statistics,
)
from connectors.embedded.access import Access
from connectors.embedded.claiming import Holder
from connectors.embedded.content import encode
from connectors.embedded.destinations import RESERVED, Destination, Subscription
from connectors.embedded.link import DatabaseLink, is_alive
from connectors.embedded.moving import LAST, LEFT, STILL_FREE, Mover, Route, Target, take
from connectors.embedded.rooms import room_of
from connectors.embedded.sql import Sql
from correlator.connector import (
    DEAD_MESSAGES,
    ConsumerState,
    DestinationState,
    Place,
    ServiceClient,
    SubscriptionState,
    Taken,
    TransactionState,
)
from correlator.errors import SendRejected, UsageError, quoted
from correlator.events import Message
from correlator.options import parse_destination
from correlator.selector import Selector

Looking = Callable[[], AbstractContextManager[Connection]]
_FORBIDDEN = " *>"
_CREATED = Sql("UPDATE broker_destination SET auto_created = 0 WHERE id = :destination")
_NAMES = Sql("SELECT name FROM broker_destination")
_WAITING = Sql("SELECT count(*) FROM broker_delivery WHERE subscription = :subscription")
_MESSAGES = Sql("SELECT coalesce(sum(messages), 0) FROM broker_tally WHERE destination = :destination")
_PREPARED_SENDS = Sql(
    "SELECT 1 FROM broker_tx_send s JOIN broker_tx t ON t.id = s.tx"
    " WHERE s.destination = :name AND t.state = 'PREPARED' LIMIT 1"
)
_DROP_SUBSCRIPTION = Sql("DELETE FROM broker_subscription WHERE id = :subscription")
_FREE = Sql(
    "SELECT number FROM broker_delivery WHERE subscription = :subscription AND consumer = 0"
    " AND number > :above AND number <= :last ORDER BY number LIMIT :limit"
)


class EmbeddedAdministration:
    """The administration of one broker.

    Args:
        where: name of the connection in messages.
        store: the broker's database.
        looking: opens the database for reading; a context manager.
        attach: makes a client that does not wait for room.
    """

    def __init__(self, where: str, store: str, looking: Looking, attach: Callable[[], ServiceClient]) -> None:
        self._where = where
        self._store = store
        self._looking = looking
        self._attach = attach

    # --- showing ---

    def destinations(self) -> Sequence[DestinationState]:
        """The state of all destinations, sorted by name; see `Administration.destinations`."""
        with self._looking() as connection:
            return statistics.destinations(connection, self._alive)

    def consumers(self, destination: str | None) -> Sequence[ConsumerState]:
        """The consumers of a destination, or of all; see `Administration.consumers`.

        Raises `UsageError` E7564 if there is no such destination.
        """
        with self._looking() as connection:
            if destination is not None:
                _existing(connection, destination)
            found = statistics.consumers(connection, self._alive)
        return [one for one in found if destination in (None, one.destination)]

    def subscriptions(self, topic: str | None) -> Sequence[SubscriptionState]:
        """The subscriptions of a topic, or of all; see `Administration.subscriptions`.

        Raises `UsageError` E7564 if there is no such topic.
        """
        with self._looking() as connection:
            if topic is not None:
                _existing(connection, topic)
            found = statistics.subscriptions(connection, self._alive)
        return [one for one in found if topic in (None, one.topic)]

    def transactions(self) -> Sequence[TransactionState]:
        """The prepared transactions, then those that ended within a day; see `Administration.transactions`."""
        with self._looking() as connection:
            return statistics.transactions(connection)

    def _alive(self, connection: Connection, name: str) -> bool:
        return is_alive(self._store, connection, name)

    # --- making and changing ---

    def create(self, destination: str, given: Mapping[str, str]) -> None:
        """Make a destination; see `Administration.create`. Makes the broker if it does not exist yet."""
        _check_name(destination)
        administration.create(self._where, Access(self._store), destination, property_texts.read(given))

    def update(self, destination: str, given: Mapping[str, str]) -> None:
        """Change properties of a destination; see `Administration.update`.

        Raises `UsageError` E7564 if there is no such destination, E7566 if it is temporary, E7523 if a property or its
        value is not allowed, E7525 if the change needs a destination without consumers.
        """
        with self._changing() as (access, link):
            with access.reading(self._where, link) as connection:
                there = _existing(connection, destination)
                _refuse_temporary(destination, there)
            administration.update(self._where, Access(self._store), destination, property_texts.read(given))
            with access.transaction(self._where, link) as connection:
                _CREATED.run(connection, destination=there.id)

    def subscribe(self, place: Place, *, shared: bool, selector: str | None) -> None:
        """Make a durable subscription; see `Administration.subscribe`. Makes the topic if it does not exist yet."""
        topic = place.destination
        _check_name(topic)
        _refuse_queue(topic)
        _check_subscription(place, shared=shared)
        Selector.optional(selector, "--selector")
        with self._opened() as (access, link), access.transaction(self._where, link) as connection:
            destinations.lock_registry(connection)
            there = destinations.find(connection, topic) or destinations.make(connection, topic, {}, auto_created=False)
            wanted = Subscription(0, place.client_id, place.subscription, 1, int(shared), selector, 0)
            elsewhere = destinations.elsewhere(connection, wanted, there.id) if place.client_id else None
            if _named(there, place) or elsewhere is not None:
                what = f"the subscription {quoted(place.subscription)} exists already"
                raise UsageError("E7563", topic if elsewhere is None else elsewhere[1], what)
            destinations.make_subscription(connection, there.id, wanted)

    def pause(self, destination: str, paused: str | None) -> None:
        """Pause the producers, the consumers or both of a destination, or resume them; see `Administration.pause`.

        Raises `UsageError` E7564 if there is no such destination, E7566 if it is temporary or the dead message queue.
        """
        if destination == DEAD_MESSAGES:
            raise UsageError("E7566", destination, "the queue of dead messages cannot be paused")
        with self._changing() as (access, link):
            with access.transaction(self._where, link) as connection:
                there = _existing(connection, destination)
                _refuse_temporary(destination, there)
                pausing.pause(connection, destination, there.id, paused)
            access.ring((destination, room_of(destination)))

    def resolve(self, name: str, *, commit: bool) -> None:
        """Carry out a prepared transaction, or undo it; see `Administration.resolve`.

        Raises `UsageError` E7570 if the broker refuses one of its messages: the transaction stays prepared.
        """
        with self._looking():
            pass
        client = self._attach()
        session = client.session()
        try:
            session.resolve(name, commit=commit)
        except SendRejected as error:
            raise UsageError("E7570", f"transaction {quoted(name)}", f"it stays prepared: {error}") from error
        finally:
            session.close()
            client.close()

    # --- removing and moving ---

    def delete(self, place: Place, *, force: bool) -> int:
        """Delete a destination or subscription, and then its messages in slices; see `Administration.delete`."""
        name = place.destination
        if name == DEAD_MESSAGES:
            raise UsageError("E7566", name, "the queue of dead messages is always there", "", "To empty it: dmq purge")
        with self._changing() as (access, link):
            with access.transaction(self._where, link) as connection:
                destinations.lock_registry(connection)
                there = _existing(connection, name)
                _refuse_temporary(name, there)
                destinations.lock_against_sends(connection, name)
                deleted = self._delete(connection, there, place, link, force=force)
            self._sweep(access, link)
        return deleted

    @staticmethod
    def _delete(connection: Connection, there: Destination, place: Place, link: DatabaseLink, *, force: bool) -> int:
        named = _chosen(there, place)
        for one in named:
            removal.refuse_users(connection, place.destination, one.id, link)
        if place.subscription:
            messages = int(_WAITING.one(connection, subscription=named[0].id))
        else:
            producers.refuse_any(connection, there, link)
            if _PREPARED_SENDS.rows(connection, name=place.destination):
                what = "a prepared transaction will send messages to it"
                raise UsageError("E7513", place.destination, what, "", "End that transaction first")
            messages = int(_MESSAGES.one(connection, destination=there.id))
        if messages and not force:
            what = f"{messages} messages would be lost"
            raise UsageError("E7565", place.destination, what, "", "If you mean it: --force")
        for one in named:
            _DROP_SUBSCRIPTION.run(connection, subscription=one.id)
        if not place.subscription:
            destinations.delete(connection, there.id)
        return messages

    def purge(self, place: Place) -> Taken:
        """Remove the messages of a queue, or of one or all subscriptions of a topic; see `Administration.purge`.

        Raises `UsageError` E7564 if there is no such destination, E7512 if there is no such subscription, E7567 for a
        subscription of a queue.
        """
        with self._changing() as (access, link):
            with access.reading(self._where, link) as connection:
                there = _existing(connection, place.destination)
                chosen = _chosen(there, place)
            is_queue = place.destination.startswith("queue:")
            taken = [self._purge(access, link, Holder(there.id, one.id, 0, is_queue)) for one in chosen]
            access.ring((room_of(place.destination),))
        return Taken(sum(one.done for one in taken), sum(one.left for one in taken))

    def _purge(self, access: Access, link: DatabaseLink, holder: Holder) -> Taken:
        place = {"subscription": holder.subscription}
        with access.reading(self._where, link) as connection:
            last = int(LAST.one(connection, **place))
        above = done = 0
        while True:
            with access.transaction(self._where, link) as connection:
                rows = _FREE.rows(connection, **place, above=above, last=last, limit=orphans.SLICE)
                numbers = [row[0] for row in rows]
                if not numbers:
                    return Taken(done, int(LEFT.one(connection, **place, last=last)))
                free = STILL_FREE.rows(connection, **place, numbers=numbers)
                take(connection, holder, free)
            done += len(free)
            above = numbers[-1]

    def move(self, source: str, target: str, selector: str | None, limit: int | None) -> Taken:
        """Move messages of a queue to another destination, in slices; see `Administration.move`.

        Raises `UsageError` E7569 if source and target are the same, E7566 if the target is temporary or the dead
        message queue, E7564 if one of the two does not exist, E7567 if the source is a topic, E7570 if the broker
        refuses a message.
        """
        if source == target:
            raise UsageError("E7569", source, "a queue cannot be moved to itself")
        if target == DEAD_MESSAGES:
            raise UsageError("E7566", target, "only the broker sends messages to this queue")
        route = Route(Target(target))

        def there(connection: Connection) -> None:
            _refuse_temporary(target, _existing(connection, target))

        return self._move(source, selector, limit, lambda _: route, there)

    def retry(self, selector: str | None, limit: int | None) -> Taken:
        """Send dead messages back to where they came from; see `Administration.retry`. A message
        without its origin stays.
        """
        return self._move(DEAD_MESSAGES, selector, limit, _way_back, lambda _: None)

    def _move(
        self,
        source: str,
        selector: str | None,
        limit: int | None,
        route: Callable[[Message], Route | None],
        check: Callable[[Connection], None],
    ) -> Taken:
        if not source.startswith("queue:"):
            raise UsageError("E7567", source, "only the messages of a queue can be moved")
        chosen = Selector.optional(selector, "--selector")
        with self._changing() as (access, link):
            with access.reading(self._where, link) as connection:
                there = _existing(connection, source)
                (own,) = there.subscriptions
                check(connection)
            mover = Mover(access, self._where, link, chosen, route)
            try:
                return mover.move(Holder(there.id, own.id, 0, is_queue=True), limit)
            except SendRejected as error:
                what = f"{error.where} does not take the next message: {error.what}"
                raise UsageError("E7570", source, f"{what}; {mover.done} messages were moved before") from error
            finally:
                access.ring((room_of(source),))

    # --- access to the broker ---

    @contextmanager
    def _changing(self) -> Iterator[tuple[Access, DatabaseLink]]:
        """Open an existing broker. Raises `ConnectionLost` E7003 if there is none, since a name may be misspelt."""
        with self._looking():
            pass
        with self._opened() as opened:
            yield opened

    @contextmanager
    def _opened(self) -> Iterator[tuple[Access, DatabaseLink]]:
        access = Access(self._store)
        try:
            yield access, access.connect(self._where)
        finally:
            access.close()

    def _sweep(self, access: Access, link: DatabaseLink) -> None:
        more = True
        while more:
            with access.transaction(self._where, link) as connection:
                more = orphans.sweep(connection)


def _way_back(message: Message) -> Route | None:
    """Return the destination from which a dead message came, and the content that it had there."""
    destination = message.properties.get(f"{dead.PREFIX}destination")
    if not isinstance(destination, str) or parse_destination(destination) is None or destination == DEAD_MESSAGES:
        return None
    subscription = message.properties.get(f"{dead.PREFIX}subscription")
    own = {name: value for name, value in message.properties.items() if not name.startswith(dead.PREFIX)}
    content = encode(msgspec.structs.replace(message, properties=own))
    return Route(Target(destination, subscription if isinstance(subscription, str) else ""), content)


def _check_name(destination: str) -> None:
    parsed = parse_destination(destination)
    if destination == DEAD_MESSAGES:
        raise UsageError("E7566", destination, "the queue of dead messages is always there")
    if parsed is None or parsed.name.startswith(RESERVED) or any(c in parsed.name for c in _FORBIDDEN):
        raise UsageError(
            "E7562",
            quoted(destination),
            "no destination can be created with this name",
            f"queue:NAME or topic:NAME; a name does not begin with '{RESERVED}' and has no spaces, '*' and '>'",
        )


def _check_subscription(place: Place, *, shared: bool) -> None:
    for name in (place.subscription, *([place.client_id] if place.client_id else [])):
        if parse_destination(f"topic:{name}") is None:
            raise UsageError("E7562", quoted(name), "is not a name", "1 to 500 characters without control characters")
    if not shared and not place.client_id:
        what = "a subscription that is not shared belongs to a client id"
        raise UsageError("E7567", place.destination, what, "", "Name it with --client-id")


def _existing(connection: Connection, name: str) -> Destination:
    there = destinations.find(connection, name)
    if there is None:
        near = get_close_matches(name, [row[0] for row in _NAMES.rows(connection)], n=1, cutoff=0.8)
        hint = f"Did you mean '{near[0]}'?" if near else "Destinations: broker list"
        raise UsageError("E7564", quoted(name), "the broker has no such destination", hint)
    return there


def _refuse_temporary(name: str, there: Destination) -> None:
    if there.client is not None:
        what = "it is temporary: it belongs to a connection and ends with it"
        raise UsageError("E7566", name, what)


def _refuse_queue(name: str) -> None:
    if name.startswith("queue:"):
        raise UsageError("E7567", name, "a queue has no subscriptions")


def _named(there: Destination, place: Place) -> list[Subscription]:
    wanted = place.client_id, place.subscription
    return [one for one in there.subscriptions if (one.client_id, one.name) == wanted]


def _chosen(there: Destination, place: Place) -> Sequence[Subscription]:
    """Return the subscriptions that a place names. Raises `UsageError` E7512 if there is none of this name."""
    if not place.subscription:
        return there.subscriptions
    _refuse_queue(place.destination)
    found = _named(there, place)
    if not found:
        owner = f" of client id {quoted(place.client_id)}" if place.client_id else ""
        raise UsageError("E7512", place.destination, f"it has no subscription {quoted(place.subscription)}{owner}")
    return found
