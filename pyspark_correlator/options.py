"""The options of the format `correlator`: what they may be, and their checked values."""

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.embedded.batches import check_producer
from correlator.errors import UsageError
from correlator.options import check_destination, check_options, choice_option, text_option, whole_option
from correlator.storage.database import location, parse

WHERE = "correlator"
"""The place that errors name: the format."""
TABLES = ("state", "receive_log", "outbox", "dead_letters")
STREAMED = "dead_letters"
"""The only table whose rows stay until somebody removes them, in the order of their numbers."""
_COMMON = ("store", "password", "table", "partitions")
_OF_BATCHES = (*_COMMON, "push_filters")
_OF_STREAMS = (*_COMMON, "max_rows_per_trigger", "missing_up_to")
_OF_SINKS = ("store", "password", "name", "to", "takeover", "checkpointlocation")
_MOST_PARTITIONS = 10_000
_MOST = 2**63 - 1

Options = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read.

    Attributes:
        store: address of the store of an engine.
        where: the same for messages, without a password.
        table: one of `TABLES`.
        partitions: in how many parts it is read.
        pushes: whether Spark offers filters.
        most_rows: of a stream: how many rows a batch may have; 0 for any number.
        missing_up_to: of a stream: the number up to which dead letters may be missing.
    """

    store: str
    where: str
    table: str
    partitions: int = 1
    pushes: bool = False
    most_rows: int = 0
    missing_up_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Where rows are written.

    Attributes:
        store: address of the database of an embedded broker.
        name: name of the producer.
        to: destination of the rows that name none; "" if each must name one.
        takeover: id of the query that this one may replace; "" for none.
    """

    store: str
    name: str
    to: str = ""
    takeover: str = ""


def reading(options: Options) -> Reading:
    """The options of a batch or a stream, as far as both have them.

    Raises:
        ConfigError: E1020, E1021, E1022, E1301, an option is wrong.
        UsageError: E2201, the password is at a wrong place.
    """
    check_options(WHERE, options, {*_OF_BATCHES, *_OF_STREAMS})
    store = _address(options)
    return Reading(
        store=store,
        where=location(store),
        table=choice_option(WHERE, options, "table", TABLES),
        partitions=whole_option(WHERE, options, "partitions", 1, _MOST_PARTITIONS),
    )


def batch(options: Options) -> Reading:
    """The options of a batch. Raises as `reading`."""
    check_options(WHERE, options, _OF_BATCHES)
    common = reading(options)
    pushes = choice_option(WHERE, options, "push_filters", ("true", "false"), "false") == "true"
    return Reading(
        store=common.store, where=common.where, table=common.table, partitions=common.partitions, pushes=pushes
    )


def stream(options: Options) -> Reading:
    """The options of a stream. Raises as `reading`, and `UsageError` E2203 for a table that cannot be read again."""
    check_options(WHERE, options, _OF_STREAMS)
    common = reading(options)
    if common.table != STREAMED:
        raise UsageError(
            "E2203",
            f"{WHERE}.table",
            f"{common.table} cannot be read as a stream: its engine deletes or replaces rows at each checkpoint, and a"
            " stream must find them again after a failure",
            f"Only {STREAMED} can",
            "Let a sender of the engine write the messages into a lake, and read its table as a stream",
        )
    return Reading(
        store=common.store,
        where=common.where,
        table=common.table,
        partitions=common.partitions,
        most_rows=whole_option(WHERE, options, "max_rows_per_trigger", 0, _MOST, least=0),
        missing_up_to=whole_option(WHERE, options, "missing_up_to", 0, _MOST, least=0),
    )


def writing(options: Options) -> Writing:
    """The options of a sink.

    Raises:
        ConfigError: E1020, E1021, E1022, E1215, E1301, an option is wrong.
        UsageError: E2201, the password is at a wrong place; E2207, the name is not allowed.
    """
    check_options(WHERE, options, _OF_SINKS)
    name = text_option(WHERE, options, "name")
    check_producer(f"{WHERE}.name", name)
    to = options.get("to", "")
    if to:
        check_destination(f"{WHERE}.to", to)
    return Writing(store=_address(options), name=name, to=to, takeover=options.get("takeover", ""))


def _address(options: Options) -> str:
    """The address of the database, with the password and an absolute path: a worker may have another directory."""
    store = text_option(WHERE, options, "store")
    parsed = parse(store)
    password = options.get("password")
    if parsed.password is not None or "password" in parsed.query:
        what = "the address has a password, and Spark shows this option in its plans"
        todo = "Use the option 'password', which Spark hides, or PGPASSWORD or the file of passwords of PostgreSQL"
        raise UsageError("E2201", f"{WHERE}.store", what, "postgresql://user@host/database", todo)
    if parsed.get_backend_name() == "sqlite":
        if password is not None:
            raise UsageError("E2201", f"{WHERE}.password", "a SQLite file has no password")
        parsed = parsed.set(database=location(store))
    elif password is not None:
        parsed = parsed.set(password=password)
    return parsed.render_as_string(hide_password=False)
