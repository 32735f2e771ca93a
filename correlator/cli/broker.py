"""`correlator broker`: administers the destinations, subscriptions, messages and transactions of a message service.

A command names the service by a configuration file and a connection, or an embedded broker by the address of its
database.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from correlator.cli import browse
from correlator.cli.failures import telling
from correlator.cli.loading import connection_of, importable, load_engine
from correlator.cli.output import shown, write_json, write_line, write_table
from correlator.configuration.connectors import connector
from correlator.connector import (
    DEAD_MESSAGES,
    Administered,
    Administration,
    Browsable,
    Connection,
    DestinationState,
    Place,
    Taken,
)
from correlator.errors import UsageError
from correlator.settings import ConnectionSettings

EMBEDDED = "embedded"
"""The type of the connections that `--store` stands for."""
DESTINATIONS = ("destination", "ready", "held", "delayed", "in_tx", "bytes", "oldest_ms", "consumers", "paused")
CONSUMERS = ("destination", "subscription", "consumer", "role", "pid", "host", "held", "oldest_ms")
SUBSCRIPTIONS = ("topic", "subscription", "client_id", "kind", "ready", "held", "delayed", "in_tx", "consumers")
DEAD = ("message_id", "reason", "destination", "subscription", "died_at", "deliveries", "body")
OF_DEATH = "correlator_dmq_"

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The database of an embedded broker, instead of FILE and CONNECTION: sqlite:///PATH or postgresql://….",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Delete it even if messages would be lost.")]
Subscription = Annotated[
    str, typer.Option("--subscription", metavar="NAME", help="A subscription of the topic.", show_default=False)
]
ClientId = Annotated[
    str,
    typer.Option(
        "--client-id", metavar="ID", help="The client id to which the subscription belongs.", show_default=False
    ),
]
SelectorText = Annotated[
    str | None,
    typer.Option("--selector", metavar="SELECTOR", help="Only messages that match this condition.", show_default=False),
]
Limit = Annotated[
    int | None, typer.Option(metavar="NUMBER", min=1, help="At most this many messages.", show_default=False)
]


class Paused(StrEnum):
    """The programs that `correlator broker pause` lets wait: the producers of a destination, its consumers, or both
    (`ALL`).
    """

    PRODUCERS = "PRODUCERS"
    CONSUMERS = "CONSUMERS"
    ALL = "ALL"


def _words(metavar: str, text: str) -> Any:
    """The argument with all words of a command."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


Broker = Annotated[list[str] | None, _words("[FILE CONNECTION]", "Configuration file, and name of a connection in it.")]
OneDestination = Annotated[
    list[str] | None, _words("[FILE CONNECTION] DESTINATION", "queue:NAME or topic:NAME, after FILE and CONNECTION.")
]
PerhapsDestination = Annotated[
    list[str] | None,
    _words("[FILE CONNECTION] [DESTINATION]", "queue:NAME or topic:NAME; without it, all destinations."),
]
Properties = Annotated[
    list[str] | None,
    _words("[FILE CONNECTION] DESTINATION [NAME=VALUE…]", "The destination, and properties such as max_num_msgs=1000."),
]


def add_to(app: typer.Typer) -> None:
    """Register `correlator broker` and its subcommands with `app`, the Typer application of all commands."""
    group = typer.Typer(
        help="Administer a broker: its destinations, consumers, subscriptions, messages and transactions.",
        rich_markup_mode=None,
    )
    group.command("list")(list_destinations)
    group.command("show")(show)
    group.command("create")(create)
    group.command("update")(update)
    group.command("delete")(delete)
    group.command("purge")(purge)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("browse")(browse_queue)
    group.command("move")(move)
    group.command("consumers")(consumers)
    group.command("subscriptions")(subscriptions)
    transactions = typer.Typer(help="List and end prepared transactions.", rich_markup_mode=None)
    transactions.command("list")(list_transactions)
    transactions.command("commit")(commit)
    transactions.command("rollback")(rollback)
    group.add_typer(transactions, name="tx")
    dead = typer.Typer(help="List dead messages, move them back, or remove them.", rich_markup_mode=None)
    dead.command("list")(list_dead)
    dead.command("retry")(retry)
    dead.command("purge")(purge_dead)
    group.add_typer(dead, name="dmq")
    app.add_typer(group, name="broker")


def list_destinations(words: Broker = None, store: Store = None, json: Json = False) -> None:
    """List the destinations and their contents. Changes nothing."""
    with _opened("list", words, store) as broker:
        states = broker.administration.destinations()
        if json:
            write_json([_state(one) for one in states])
        else:
            write_table("Destinations", DESTINATIONS, [[getattr(one, name) for name in DESTINATIONS] for one in states])


def show(words: OneDestination = None, store: Store = None, json: Json = False) -> None:
    """Show a destination with its properties. Changes nothing."""
    with _opened("show", words, store, "DESTINATION") as broker:
        _show(broker.administration, broker.destination(0), as_json=json)


def create(
    words: Properties = None,
    subscription: Subscription = "",
    client_id: ClientId = "",
    unshared: Annotated[bool, typer.Option("--unshared", help="One consumer at a time; needs --client-id.")] = False,
    selector: SelectorText = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Create a destination with properties, or with --subscription a durable subscription of a topic."""
    with _opened("create", words, store, "DESTINATION", more="NAME=VALUE") as broker:
        destination = broker.destination(0)
        if subscription:
            if len(broker.words) > 1:
                raise _wrong_words("create", "a subscription has no properties")
            place = Place(destination, subscription, client_id)
            broker.administration.subscribe(place, shared=not unshared, selector=selector)
        else:
            broker.administration.create(destination, _pairs("create", broker.words[1:]))
        _show(broker.administration, destination, as_json=json)


def update(words: Properties = None, store: Store = None, json: Json = False) -> None:
    """Change properties of a destination; the value 'default' restores the default."""
    with _opened("update", words, store, "DESTINATION", "NAME=VALUE", more="NAME=VALUE") as broker:
        destination = broker.destination(0)
        broker.administration.update(destination, _pairs("update", broker.words[1:]))
        _show(broker.administration, destination, as_json=json)


def delete(
    words: OneDestination = None,
    subscription: Subscription = "",
    client_id: ClientId = "",
    force: Force = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Delete a destination, or with --subscription a subscription of a topic.

    The command refuses this while a consumer or a prepared transaction uses it.
    """
    with _opened("delete", words, store, "DESTINATION") as broker:
        place = Place(broker.destination(0), subscription, client_id)
        messages = broker.administration.delete(place, force=force)
        _tell({**_place(place), "messages": messages}, f"deleted, with {messages} messages", as_json=json)


def purge(
    words: OneDestination = None,
    subscription: Subscription = "",
    client_id: ClientId = "",
    store: Store = None,
    json: Json = False,
) -> None:
    """Remove the messages of a destination, or with --subscription the messages of a subscription.

    Messages that consumers or prepared transactions hold stay.
    """
    with _opened("purge", words, store, "DESTINATION") as broker:
        _purge(broker.administration, Place(broker.destination(0), subscription, client_id), as_json=json)


def pause(
    words: Annotated[
        list[str] | None,
        _words("[FILE CONNECTION] DESTINATION [PRODUCERS|CONSUMERS|ALL]", "The destination, and who pauses: ALL."),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Pause the producers or consumers of a destination until 'resume'.

    The pause outlasts the end of all processes.
    """
    with _opened("pause", words, store, "DESTINATION", most=2) as broker:
        wanted = broker.words[1] if len(broker.words) > 1 else Paused.ALL
        if wanted not in list(Paused):
            raise _wrong_words("pause", f"unknown {wanted!r}; known: {', '.join(Paused)}")
        _pause(broker, str(wanted), as_json=json)


def resume(words: OneDestination = None, store: Store = None, json: Json = False) -> None:
    """End the pause of a destination."""
    with _opened("resume", words, store, "DESTINATION") as broker:
        _pause(broker, None, as_json=json)


def browse_queue(
    words: OneDestination = None,
    limit: browse.MostShown = 20,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show the oldest messages of a queue, and leave them in it, like 'correlator browse'."""
    with _opened("browse", words, store, "DESTINATION") as broker:
        browse.show(_browsable(broker), broker.destination(0), limit, {}, as_json=json)


def move(
    words: Annotated[
        list[str] | None, _words("[FILE CONNECTION] SOURCE TARGET", "The queue, and the destination to move to.")
    ] = None,
    selector: SelectorText = None,
    limit: Limit = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Move messages of a queue to another destination, oldest first. They keep id, time and priority.

    Messages that consumers or prepared transactions hold stay.
    """
    with _opened("move", words, store, "SOURCE", "TARGET") as broker:
        source, target = broker.destination(0), broker.destination(1)
        taken = broker.administration.move(source, target, selector, limit)
        _tell_taken({"source": source, "target": target}, "moved", taken, as_json=json)


def consumers(words: PerhapsDestination = None, store: Store = None, json: Json = False) -> None:
    """List the consumers with their processes and the messages that they hold. Changes nothing."""
    with _opened("consumers", words, store, most=1) as broker:
        states = broker.administration.consumers(broker.destination(0) if broker.words else None)
        if json:
            write_json([one._asdict() for one in states])
        else:
            write_table("Consumers", CONSUMERS, [[getattr(one, name) for name in CONSUMERS] for one in states])


def subscriptions(words: PerhapsDestination = None, store: Store = None, json: Json = False) -> None:
    """List the subscriptions of topics and their contents. Changes nothing."""
    with _opened("subscriptions", words, store, most=1) as broker:
        states = broker.administration.subscriptions(broker.destination(0) if broker.words else None)
        if json:
            write_json([one._asdict() for one in states])
            return
        rows = []
        for one in states:
            kind = f"{'shared' if one.shared else 'unshared'}{' durable' if one.durable else ''}"
            rows.append([kind if name == "kind" else getattr(one, name) for name in SUBSCRIPTIONS])
        write_table("Subscriptions", SUBSCRIPTIONS, rows)


def list_transactions(words: Broker = None, store: Store = None, json: Json = False) -> None:
    """List the prepared transactions, and the transactions that ended within a day. Changes nothing."""
    with _opened("tx list", words, store) as broker:
        states = broker.administration.transactions()
        columns = ("name", "state", "age_ms", "acknowledged", "sends")
        write_table("Transactions", columns, states, as_json=json)


OneTransaction = Annotated[list[str] | None, _words("[FILE CONNECTION] NAME", "The name of the transaction.")]


def commit(words: OneTransaction = None, store: Store = None, json: Json = False) -> None:
    """Carry out a prepared transaction."""
    _resolve("tx commit", words, store, as_json=json, commits=True)


def rollback(words: OneTransaction = None, store: Store = None, json: Json = False) -> None:
    """Undo a prepared transaction: the broker redelivers the messages that it has acknowledged."""
    _resolve("tx rollback", words, store, as_json=json, commits=False)


def list_dead(
    words: Broker = None,
    limit: browse.MostShown = 20,
    store: Store = None,
    json: Json = False,
) -> None:
    """List the oldest dead messages, with their origin and the reason. Changes nothing."""
    with _opened("dmq list", words, store) as broker:
        rows = []
        for one in _browsable(broker).browse(DEAD_MESSAGES, limit, {}):
            told = {
                name.removeprefix(OF_DEATH): value
                for name, value in one.properties.items()
                if name.startswith(OF_DEATH)
            }
            body = shown(one.body)
            rows.append(
                (
                    one.headers.message_id if one.headers else None,
                    told.get("undelivered_reason"),
                    told.get("destination"),
                    told.get("subscription"),
                    told.get("undelivered_timestamp_ms"),
                    told.get("delivery_count"),
                    body if json else body[:40],
                )
            )
        write_table("Dead messages", DEAD, rows, as_json=json)


def retry(
    words: Broker = None,
    selector: SelectorText = None,
    limit: Limit = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Move dead messages back to the destination from which they came, oldest first."""
    with _opened("dmq retry", words, store) as broker:
        _tell_taken({}, "moved", broker.administration.retry(selector, limit), as_json=json)


def purge_dead(words: Broker = None, store: Store = None, json: Json = False) -> None:
    """Remove the dead messages for ever."""
    with _opened("dmq purge", words, store) as broker:
        _purge(broker.administration, Place(DEAD_MESSAGES), as_json=json)


class Opened(NamedTuple):
    """The broker that a command line names, and its other words.

    Attributes:
        places: the logical destinations of the file.
    """

    connection: Connection
    administration: Administration
    words: Sequence[str]
    places: Mapping[str, str]

    def destination(self, at: int) -> str:
        """The destination that a word names."""
        return self.places.get(self.words[at], self.words[at])


@contextmanager
def _opened(
    command: str, words: Sequence[str] | None, store: str | None, *names: str, most: int = 0, more: str = ""
) -> Iterator[Opened]:
    """Make the connection, without opening it, and report errors of the block.

    Args:
        command: name of the command, for messages.
        words: all words of the command line.
        store: the database of an embedded broker, if the words do not begin with a file and a connection.
        names: names of the words that must follow.
        most: how many words may follow; at least as many as there are names.
        more: name of the words that may follow without limit; "" for none.
    """
    given = list(words or ())
    needed = names if store is not None else ("FILE", "CONNECTION", *names)
    if len(given) < len(needed):
        instead = "" if store is not None else "FILE and CONNECTION, or else --store"
        raise UsageError("E2005", f"correlator broker {command}", f"missing {needed[len(given)]}", instead)
    if not more and len(given) > len(needed) + max(0, most - len(names)):
        raise _wrong_words(command, f"got unexpected extra argument {given[-1]!r}")
    if store is not None:
        made = connector(EMBEDDED, "--store")("broker", ConnectionSettings(type=EMBEDDED, options={"store": store}))
        yield Opened(made, _administration(made, EMBEDDED), given, {})
        return
    with importable(Path(given[0])):
        loaded = load_engine(Path(given[0]))
    with telling(loaded.secrets.redact):
        made = connection_of(given[1], loaded.settings)
        kind = loaded.settings.connections[given[1]].type
        yield Opened(made, _administration(made, kind), given[2:], loaded.settings.destinations)


def _administration(connection: Connection, kind: str) -> Administration:
    if not isinstance(connection, Administered):
        what = f"the broker of a connection of type '{kind}' is not administered here"
        raise UsageError("E7568", "correlator broker", what, "", "Use the tools of that broker")
    return connection.administration()


def _browsable(broker: Opened) -> Browsable:
    if not isinstance(broker.connection, Browsable):
        raise UsageError("E7568", "correlator broker", "this broker cannot show messages")
    return broker.connection


def _wrong_words(command: str, what: str) -> UsageError:
    return UsageError("E2007", f"correlator broker {command}", what, "", f"See: correlator broker {command} --help")


def _pairs(command: str, words: Sequence[str]) -> dict[str, str]:
    """The properties that the words set. Raises `UsageError` E2007, E2006 for a name that is given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise _wrong_words(command, f"{word!r} is not NAME=VALUE")
        if name in found:
            raise UsageError("E2006", f"correlator broker {command}", f"property {name!r} is given twice")
        found[name] = value
    return found


def _state(state: DestinationState) -> dict[str, object]:
    return {**state._asdict(), "properties": dict(state.properties)}


def _show(administration: Administration, destination: str, *, as_json: bool) -> None:
    administration.consumers(destination)  # refuses a destination that does not exist, with a similar name
    (state,) = (one for one in administration.destinations() if one.destination == destination)
    if as_json:
        write_json(_state(state))
        return
    for name, value in {**_state(state), **state.properties}.items():
        if name != "properties":
            write_line(f"{name}: {_word(value)}")


def _word(value: object) -> str:
    """A value in the form in which an administrator would write it."""
    return str(value).lower() if isinstance(value, bool) else shown(value)


def _place(place: Place) -> dict[str, object]:
    return {
        "destination": place.destination,
        "subscription": place.subscription or None,
        "client_id": place.client_id or None,
    }


def _purge(administration: Administration, place: Place, *, as_json: bool) -> None:
    _tell_taken(_place(place), "purged", administration.purge(place), as_json=as_json)


def _pause(broker: Opened, paused: str | None, *, as_json: bool) -> None:
    destination = broker.destination(0)
    broker.administration.pause(destination, paused)
    _tell({"destination": destination, "paused": paused}, f"paused: {paused or 'nobody'}", as_json=as_json)


def _resolve(command: str, words: Sequence[str] | None, store: str | None, *, as_json: bool, commits: bool) -> None:
    with _opened(command, words, store, "NAME") as broker:
        name = broker.words[0]
        broker.administration.resolve(name, commit=commits)
        state = "COMMITTED" if commits else "ROLLEDBACK"
        _tell({"name": name, "state": state}, state, as_json=as_json)


def _tell_taken(about: Mapping[str, object], done: str, taken: Taken, *, as_json: bool) -> None:
    result = {**about, done: taken.done, "left": taken.left}
    text = f"{taken.done} {done}, {taken.left} left that consumers or transactions hold"
    if done == "moved":
        result["skipped"] = taken.skipped
        text += f", {taken.skipped} skipped"
    _tell(result, text, as_json=as_json)


def _tell(result: Mapping[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        write_json(result)
    else:
        write_line(text)
