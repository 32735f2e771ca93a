"""The embedded broker as a message service: clients, and sessions whose sources and sinks share a link."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from connectors.embedded import clients, destinations, removal, starting, transactions, whole
from connectors.embedded.access import Access
from connectors.embedded.browsing import browse
from connectors.embedded.composing import Composer
from connectors.embedded.content import read_message
from connectors.embedded.limits import NoRoom
from connectors.embedded.link import DatabaseLink
from connectors.embedded.rooms import Rooms, room_of
from connectors.embedded.sending import Terms
from connectors.embedded.sink import EmbeddedSink
from connectors.embedded.source import LOOK_S, EmbeddedSource
from connectors.embedded.sql import Sql
from connectors.embedded.storing import NewMessage
from connectors.embedded.subscribing import Wanted
from connectors.embedded.transactions import PreparedSend
from correlator.connector import Features, Subscriber, Work
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Message, Outgoing
from correlator.options import check_destination, check_options
from correlator.selector import Selector
from correlator.settings import ReceiverSettings, SenderSettings

_log = logging.getLogger("connectors.embedded")
_LONGEST_LOOK_S = 0.05
_LOOK_UP_S = 5.0
_TRANSACTION_ID = Sql("SELECT 0", "SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)")
_OUTCOME = Sql("SELECT 1", "SELECT pg_xact_status(CAST(CAST(:id AS text) AS xid8))")
T = TypeVar("T")


class EmbeddedClient:
    """A connection of a program. Threads may share it.

    Args:
        where: name of the connection in messages.
        store: the broker's database.
        client_id: its client id; `None` if it has none.
        features: the features of the connection.
        ack_timeout_s: how long its sessions wait for room in a full destination; 0 for no limit.
        auto_create: whether the use of a destination that does not exist makes it.
    """

    def __init__(
        self,
        where: str,
        store: str,
        client_id: str | None,
        features: Features,
        ack_timeout_s: float = 0.0,
        *,
        auto_create: bool = True,
    ) -> None:
        self.where = where
        self.store = store
        self.client_id = client_id
        self.features = features
        self.ack_timeout_s = ack_timeout_s
        self.auto_create = auto_create
        self._access = Access(store, shared=True)
        self._turn = threading.RLock()
        self._link: DatabaseLink | None = None
        self._id = 0
        if client_id is not None:
            try:
                self.registered()
            except BaseException:
                self._access.close()
                raise

    def registered(self) -> int:
        """Return the id of the client's row; register the client if that was not needed before.

        Raises `ConnectionLost`, and `UsageError` as `MessageService.attach`. If all links were lost, including those of
        the sessions, the client registers again, and its temporary destinations have ended.
        """
        with self._turn:
            if self._is_registered():
                return self._id
            self._link = link = self._access.connect(self.where)
            with self._access.transaction(self.where, link) as connection:
                destinations.lock_registry(connection)
                starting.reap(connection, link)
                if not clients.is_there(connection, self._id):  # otherwise a session has kept it
                    self._id = clients.register(connection, self.client_id, link)
                link.live(clients.name_of(self._id), together=True)
            return self._id

    def _is_registered(self) -> bool:
        """Return whether the link holds the registration. An administrator may have ended its session."""
        if self._link is not None and self._access.uses(self._link):
            with suppress(ConnectionLost), self._access.reading(self.where, self._link) as connection:
                return clients.is_there(connection, self._id)
        return False

    def session(self) -> "EmbeddedSession":
        """Make the part of a session, without connecting."""
        return EmbeddedSession(self)

    def create_temporary(self, kind: str) -> str:
        """Make a temporary destination; see `ServiceClient`."""
        with self._turn:
            client = self.registered()
            with self._access.transaction(self.where, self._link) as connection:
                destinations.lock_registry(connection)
                return clients.make_temporary(connection, client, kind)

    def delete_temporary(self, destination: str) -> None:
        """Delete a temporary destination of this client; see `ServiceClient`."""
        with self._turn:
            client = self.registered()
            assert self._link is not None
            with self._access.transaction(self.where, self._link) as connection:
                destinations.lock_registry(connection)
                there = destinations.find(connection, destination)
                if there is not None and there.client == client:
                    removal.delete_unused(connection, there, destination, self._link)

    def close(self) -> None:
        """End the registration, with the temporary destinations."""
        with self._turn:
            link = self._link
            if link is not None and not link.maker.is_another_process and self._access.uses(link):
                with suppress(ConnectionLost):
                    with self._access.transaction(self.where, link) as connection:
                        destinations.lock_registry(connection)
                        clients.remove(connection, self._id)
                    link.die(clients.name_of(self._id))
            self._link, self._id = None, 0
            self._access.close()


class EmbeddedSession:
    """The sources and sinks of a session, which share a link. One thread uses it, and perhaps a second
    one that sends.
    """

    def __init__(self, client: EmbeddedClient) -> None:
        self.features = client.features
        self._client = client
        self._where = client.where
        self._access = Access(client.store, shared=True, client=client.registered, auto_create=client.auto_create)
        self._sources: WeakSet[EmbeddedSource] = WeakSet()
        self._composer = Composer(client.where, lasting=True, passing=True)
        self._rooms = Rooms(self._access, client.ack_timeout_s)
        self._woken = threading.Event()

    def source(self, receiver: ReceiverSettings) -> EmbeddedSource:
        """Make a consumer of a queue, or of a topic's shared durable subscription that belongs to no client id."""
        source = make_source(self._access, receiver, suspects_alone=True)
        self._sources.add(source)
        return source

    def subscriber(self, receiver: ReceiverSettings, subscriber: Subscriber) -> EmbeddedSource:
        """Make a consumer of a topic; see `ServiceSession.subscriber`."""
        where = f"receivers.{receiver.id}"
        check_options(where, receiver.options, ())
        check_destination(where, receiver.destination)
        Selector.optional(receiver.selector, f"{where}.selector")
        wanted = Wanted(
            # A subscription without a name has only its own consumer: it needs a unique name.
            name=subscriber.name or f"~{uuid.uuid4().hex}",
            client_id=self._client.client_id or "",
            durable=int(subscriber.durable),
            shared=int(subscriber.shared),
            selector=receiver.selector or None,
            keeps_selector=False,
            suspects_alone=True,
        )
        source = EmbeddedSource(where, self._access, receiver, wanted, None)
        self._sources.add(source)
        return source

    def sink(self, sender: SenderSettings) -> EmbeddedSink:
        """Make a producer that shares the link of this session; does not connect.

        Raises `ConfigError` if the destination or an option of the sender is wrong.
        """
        return make_sink(self._access, sender, ack_timeout_s=self._client.ack_timeout_s)

    def settle(self, work: Work) -> None:
        """Acknowledge and send in one transaction; see `ServiceSession`.

        Waits for room if a destination that lets senders wait is full.
        """
        entries = [(out, self._composer.compose(out)) for out in work.sends]
        destinations_of_sends = {out.destination for out in work.sends}
        settled = self._settled(work)
        lazy = not settled and not any(entry.persistent for _, entry in entries)

        def do(connection: Connection, link: DatabaseLink) -> Terms:
            # Acknowledge first, so that these messages make room for those that are sent.
            for source, _, numbers in settled:
                source.acknowledge_in(connection, numbers)
            return self._send(connection, link, entries, lazy=lazy)

        try:
            terms = self._rooms.transact(destinations_of_sends, lambda: self._commit(do, synced=not lazy))
        except NoRoom as full:
            raise self._no_room(full, entries) from full
        terms.tell_stored()
        for source, tokens, numbers in settled:
            source.tell_removed(numbers)
            source.let_go(tokens)
        self._access.ring(destinations_of_sends.union(*(source.rooms for source, _, _ in settled)))

    def _commit(self, do: Callable[[Connection, DatabaseLink], T], *, synced: bool = True) -> T:
        """Run a transaction. If the answer to its commit is lost, look up its outcome before raising."""
        link = self._access.connect(self._where)
        done: list[tuple[int, T]] = []

        def run(connection: Connection) -> None:
            transaction_id = int(_TRANSACTION_ID.one(connection))
            done.append((transaction_id, do(connection, link)))

        try:
            self._access.write(self._where, link, run, synced=synced)
        except ConnectionLost as error:
            if not done or not self._has_committed(done[0][0], error):
                raise
        return done[0][1]

    def _no_room(self, full: NoRoom, entries: Sequence[tuple[Outgoing, NewMessage]]) -> SendRejected:
        return whole.no_room(full, entries, self._rooms.refusal(full.name), self._composer)

    def _settled(self, work: Work) -> "_Settled":
        """Return the sources with their tokens and numbers. Raises `ConnectionLost` if the link of one is gone."""
        settled = []
        for source, tokens in work.acknowledged:
            assert isinstance(source, EmbeddedSource)
            settled.append((source, tokens, source.numbers(tokens)))
        # Sorted, so that two sessions do not wait for the content of each other's messages.
        return sorted(settled, key=lambda one: one[0].place)

    def _send(
        self,
        connection: Connection,
        link: DatabaseLink,
        entries: Sequence[tuple[Outgoing, NewMessage]],
        *,
        lazy: bool,
    ) -> Terms:
        terms = Terms(link, self._rooms.nearly_full, lazy, whole=True, makes=self._access.auto_create)
        whole.store_all(connection, entries, terms, self._composer)
        return terms

    def _has_committed(self, transaction_id: int, error: ConnectionLost) -> bool:
        """Look up the outcome of a commit whose answer was lost. Raises `ConnectionLost` E7518 if that fails."""
        if self._access.is_sqlite:
            return False  # SQLite sends no answer that could be lost
        deadline = time.monotonic() + _LOOK_UP_S
        while time.monotonic() < deadline:
            try:
                link = self._access.connect(self._where)
                with self._access.reading(self._where, link) as connection:
                    outcome = _OUTCOME.one(connection, id=transaction_id)
            except (ConnectionLost, SQLAlchemyError):
                outcome = None
            if outcome in ("committed", "aborted"):
                return bool(outcome == "committed")
            threading.Event().wait(_LONGEST_LOOK_S)
        raise ConnectionLost(
            "E7518", self._where, "the answer to a commit was lost, and so it may have happened or not"
        ) from error

    def prepare(self, name: str, work: Work) -> None:
        """Store the work under a name; see `ServiceSession`."""
        entries = [(out, self._composer.compose(out)) for out in work.sends]
        settled = self._settled(work)

        def do(connection: Connection, link: DatabaseLink) -> None:
            for out, _ in entries:
                if clients.has_ended(connection, out.destination, link):
                    raise self._composer.gone(out)
            sends = [PreparedSend(out.destination, entry.message_id, entry.content) for out, entry in entries]
            tx = transactions.prepare(connection, name, sends)
            for source, _, numbers in settled:
                source.prepare_in(connection, numbers, tx)

        self._commit(do)
        for source, tokens, _ in settled:
            source.let_go(tokens)

    def resolve(self, name: str, *, commit: bool) -> None:
        """Carry out a prepared transaction, or undo it; see `ServiceSession`.

        Raises `SendRejected` if a destination is full; the transaction then stays prepared. A message to a temporary
        destination that has ended since then is dropped: nobody could get it.
        """
        link = self._access.connect(self._where)
        with self._access.reading(self._where, link) as connection:
            sends_to = transactions.sends_to(connection, name)
        ended: list[PreparedSend] = []
        entries: list[tuple[Outgoing, NewMessage]] = []
        changed: set[str] = set()

        def do(connection: Connection, link: DatabaseLink) -> Terms:
            changed.update(transactions.acknowledged_from(connection, name))
            sends, since_s = transactions.resolve(connection, name, commit=commit)
            names = {send.destination for send in sends}
            gone = {name for name in names if clients.has_ended(connection, name, link)}
            ended[:] = [send for send in sends if send.destination in gone]
            entries[:] = [self._again(send, since_s) for send in sends if send.destination not in gone]
            return self._send(connection, link, entries, lazy=False)

        try:
            terms = self._rooms.transact(sends_to, lambda: self._commit(do))
        except NoRoom as full:
            raise self._no_room(full, entries) from full
        terms.tell_stored()
        if ended:
            _log.warning("%d messages of transaction %s go to destinations that have ended", len(ended), name)
        self._access.ring({*sends_to, *changed, *map(room_of, changed)})

    def _again(self, send: PreparedSend, since_s: float) -> tuple[Outgoing, NewMessage]:
        out = Outgoing(0, "", send.destination, read_message(send.content), send.message_id)
        return out, self._composer.compose(out, since_s)

    def look(self) -> int:
        """Return how often the bells of this session and its sources have rung, as the argument of `wait`."""
        return self._access.bells.rung(*self._heard())

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait as `ServiceSession.wait`. Also returns when a source has to look for messages by itself."""
        if not self._woken.is_set():
            asked = [source for source in self._sources if source.found_nothing]
            look_s = min((source.looks_in_s() for source in asked), default=LOOK_S)
            self._access.bells.wait_for_any(self._heard(), seen, min(timeout_s, look_s))
            for source in asked:
                source.found_nothing = False
        self._woken.clear()

    def wake(self) -> None:
        """End the present and the next `wait`. Any thread may call it; see `ServiceSession.wake`."""
        self._woken.set()
        self._access.bells.ring_here((self._access.bell,))

    def _heard(self) -> set[str]:
        return {self._access.bell, *(source.destination for source in self._sources)}

    def refuse_to_wait(self) -> None:
        """Let no call of this session wait for room in a full destination; see `ServiceSession.refuse_to_wait`.

        Any thread may call it.
        """
        self._access.refuse_to_wait()

    def allow_to_wait(self) -> None:
        """Let calls of this session wait for room again. Any thread may call it; see `ServiceSession.allow_to_wait`."""
        self._access.allow_to_wait()

    def browse(self, destination: str, limit: int, _options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return copies of the oldest messages of a queue, over the link of this session; changes nothing.

        Raises as `connector.Browsable.browse`. There are no options.
        """
        link = self._access.connect(self._where)
        return browse(lambda: self._access.reading(self._where, link), destination, limit)

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete the subscription that belongs to the client id, if there is one; see
        `correlator.connector.Unsubscribable`.
        """
        removal.delete_subscription(self._where, self._access, topic, subscription, self._client.client_id or "")

    def close(self) -> None:
        """Close the link, and with it all sources and sinks of this session. Never raises; may be called again."""
        self._access.close()


_Settled = Sequence[tuple[EmbeddedSource, Sequence[Any], Sequence[int]]]
"""Sources with the tokens and numbers of the messages that they settle."""


def make_source(access: Access, receiver: ReceiverSettings, *, suspects_alone: bool = False) -> EmbeddedSource:
    """Make a consumer of a queue, or of a receiver's durable subscription. Raises `ConfigError`."""
    where = f"receivers.{receiver.id}"
    check_options(where, receiver.options, ())
    kind = check_destination(where, receiver.destination).kind
    selector = Selector.optional(receiver.selector, f"{where}.selector") if kind == "queue" else None
    name = receiver.subscription if kind == "topic" else ""
    return EmbeddedSource(where, access, receiver, Wanted(name, suspects_alone=suspects_alone), selector)


def make_sink(access: Access, sender: SenderSettings, *, ack_timeout_s: float | None = None) -> EmbeddedSink:
    """Make a producer; see `EmbeddedSink`. Raises `ConfigError`.

    Args:
        access: access to the broker.
        sender: settings of the sender.
        ack_timeout_s: how long the producer of a session waits for room; `None` for the sender of an engine, which
            stores every message durably, even if the message is marked as not persistent.
    """
    where = f"senders.{sender.id}"
    check_options(where, sender.options, ())
    if sender.destination is not None:
        check_destination(where, sender.destination)
    lasting = sender.reliability != "BEST_EFFORT"
    composer = Composer(where, lasting=lasting, passing=ack_timeout_s is not None)
    destination = None if ack_timeout_s is None else sender.destination  # engines have no clients
    return EmbeddedSink(where, access, composer, ack_timeout_s, destination)
