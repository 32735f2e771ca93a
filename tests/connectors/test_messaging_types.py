"""Values of wrong types: every call of a session refuses them at once, with a code (docs/sessions.md)."""

import asyncio
import math

import pytest

from connectors import kinds
from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory, SendOptions
from connectors.messaging.asynchronous import AsyncConnection
from correlator.errors import ConfigError, UsageError
from correlator.events import Message
from correlator.testing.service import ServiceBroker

QUEUE = "queue:q"
TOPIC = "topic:t"


class Text(str):
    """A text of a subclass, such as a member of `StrEnum`."""

    __slots__ = ()


NO_TEXT = [{}, {"a": 1}, b"x", [], 0, 5, 1.5, math.nan, True, object(), int]
NO_NAME = [*NO_TEXT, "", "a\nb", "\ud800"]
NO_FLAG = [{}, [], b"x", 0, 1, 1.5, math.nan, "", "false", Text("true"), object(), int]
NO_WHOLE_NUMBER = [{}, {"a": 1}, [], b"x", "5", Text("5"), 1.5, math.nan, math.inf, True, object(), int]
NO_MAPPING = [None, [], [("a", 1)], "", "ab", b"x", 0, 5, math.nan, True, object(), int]
NO_OPTIONS = [None, {}, {"priority": 1}, (1, None, None, None), [], "", b"x", 5, math.nan, True, object(), SendOptions]
NO_TIME = [{}, [], b"x", "5", Text("5"), math.nan, True, object(), int]
NO_FUNCTION = [{}, [], b"x", "print", 5, math.nan, True, object()]
NO_MESSAGE = [{}, [], b"x", "ID:1", 5, math.nan, True, object(), Message]


@pytest.fixture(params=["service", "embedded"])
def connector(request):
    if request.param == "service":
        return ServiceBroker().connection, {}
    store = f"sqlite:///{request.getfixturevalue('tmp_path')}/broker.db"
    return EmbeddedConnection, {"store": store}


@pytest.fixture
def session(connector):
    with ConnectionFactory(*connector, client_id="c").create_connection() as connection:
        yield connection.create_session()


def refused(call, values, name):
    """Check that a call refuses each of the values with E7540, which names the argument."""
    for value in values:
        with pytest.raises(UsageError, match=f"^E7540 {name}: .+ is not allowed. .+"):
            call(value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("connector", [None, {}, "embedded", b"x", 5, math.nan, True]),
        ("options", NO_MAPPING),
        ("queue_browser_read_max", [None, *NO_WHOLE_NUMBER]),
        ("emulate_transactions", [None, *NO_FLAG]),
        ("client_id", NO_NAME),
        ("flow_limit", [0, -1, *NO_WHOLE_NUMBER]),
        ("prefetch", [None, *NO_FLAG]),
        ("tx_producer_max_num_msgs", [None, 0, -1, *NO_WHOLE_NUMBER]),
        ("ack_on_non_persistent", [None, *NO_FLAG]),
    ],
)
def test_a_factory_refuses_values_of_wrong_types(connector, name, values):
    def connect(value):
        settings = {"connector": connector[0], "options": connector[1], name: value}
        ConnectionFactory(**settings).create_connection().close()

    refused(connect, values, f"factory.{name}")


def test_a_connection_refuses_values_of_wrong_types(connector):
    factory = ConnectionFactory(*connector)
    refused(lambda value: factory.create_connection(client_id=value), NO_NAME, "factory.client_id")
    with factory.create_connection() as connection:
        refused(connection.create_session, [None, *NO_TEXT, "auto"], "session.mode")
        refused(connection.set_exception_listener, NO_FUNCTION, "exception listener")


CONSUMERS = [
    ("create_consumer", ()),
    ("create_durable_consumer", ("s",)),
    ("create_shared_consumer", ("s",)),
    ("create_shared_durable_consumer", ("s",)),
]


NO_ARGUMENTS = {
    "selector": NO_TEXT,
    "no_local": [None, *NO_FLAG],
    "flow_limit": [0, -1, *NO_WHOLE_NUMBER],
    "prefetch": NO_FLAG,
    "options": NO_MAPPING,
}


@pytest.mark.parametrize(
    ("create", "names", "name"),
    [
        (create, names, name)
        for create, names in CONSUMERS
        for name in NO_ARGUMENTS
        if name != "no_local" or "shared" not in create  # which have no such argument
    ],
)
def test_a_consumer_refuses_values_of_wrong_types(session, create, names, name):
    make = getattr(session, create)
    refused(lambda value: make(TOPIC, *names, **{name: value}), NO_ARGUMENTS[name], f"consumer of {TOPIC}.{name}")
    make(TOPIC, *names)


@pytest.mark.parametrize(("create", "names"), [*CONSUMERS, ("create_producer", ()), ("create_browser", ())])
def test_what_is_no_destination_is_refused(session, create, names):
    for value in [None, *NO_TEXT, "q", "queue:", "queue:a\nb"]:
        with pytest.raises(
            ConfigError, match=r"^E1215 \w+( of [^\n]+)?.destination: '.*' is not a destination"
        ) as told:
            getattr(session, create)(value, *names)
        assert told.value.where.isprintable()
    getattr(session, create)(Text(TOPIC if names else QUEUE), *names)


@pytest.mark.parametrize("destination", [QUEUE, TOPIC])
@pytest.mark.parametrize("name", NO_NAME)
def test_what_cannot_name_a_subscription_is_refused(session, destination, name):
    calls = [getattr(session, create) for create, _ in CONSUMERS[1:]]
    for create in (*calls, lambda place, name: session.create_consumer(place, subscription=name)):
        with pytest.raises(UsageError, match=f"^E7503 consumer of {destination}: .* cannot be the name of a subscr"):
            create(destination, name)
    with pytest.raises(UsageError, match=f"^E7503 unsubscribe {TOPIC}: .* cannot be the name of a subscription"):
        session.unsubscribe(TOPIC, name)


def test_a_browser_and_a_producer_refuse_values_of_wrong_types(session):
    refused(lambda value: session.create_browser(QUEUE, value), NO_TEXT, f"browser of {QUEUE}.selector")
    options = f"producer of {QUEUE}.options"
    refused(lambda value: session.create_producer(QUEUE, options=value), NO_MAPPING, options)


def test_a_send_refuses_values_of_wrong_types(session):
    producer = session.create_producer(QUEUE)
    numbers = [-1, *NO_WHOLE_NUMBER]
    given = {"priority": numbers, "time_to_live_ms": numbers, "delivery_delay_ms": numbers, "persistent": NO_FLAG}
    for name, values in given.items():
        where = f"producer of {QUEUE}.{name}"
        refused(lambda value, name=name: producer.send(Message(b""), **{name: value}), values, where)
        refused(lambda value, name=name: producer.send_async(Message(b""), print, **{name: value}), values, where)
        refused(lambda value, name=name: setattr(producer, "defaults", SendOptions(**{name: value})), values, where)
    refused(lambda value: producer.send(Message(b""), trace=value), [None, *NO_FLAG], f"producer of {QUEUE}.trace")
    refused(lambda value: setattr(producer, "defaults", value), NO_OPTIONS, f"producer of {QUEUE}.defaults")
    refused(
        lambda value: producer.send_async(Message(b""), value),
        [None, *NO_FUNCTION],
        f"completion of producer of {QUEUE}",
    )
    assert producer.defaults == SendOptions()
    for value in NO_MESSAGE[:-1]:
        with pytest.raises(UsageError, match="^E7504 send: "):
            producer.send(value)
        with pytest.raises(UsageError, match="^E7504 send: "):
            session.request(QUEUE, value, 0)
    assert list(session.create_browser(QUEUE).enumerate()) == []


def test_a_receive_refuses_values_of_wrong_types(session):
    consumer = session.create_consumer(QUEUE)
    refused(consumer.receive, NO_TIME, f"consumer of {QUEUE}.timeout_s")
    refused(consumer.set_listener, NO_FUNCTION, f"listener of consumer of {QUEUE}")
    refused(lambda value: session.request(QUEUE, Message(b""), value), NO_TIME, "request.timeout_s")
    session.create_producer(QUEUE).send(Message(b"1"))
    assert consumer.receive(10**400).body == b"1"


@pytest.mark.parametrize("mode", AcknowledgeMode)
def test_an_acknowledgement_refuses_what_is_no_message(connector, mode):
    with ConnectionFactory(*connector).create_connection() as connection:
        refused(connection.create_session(mode).acknowledge, NO_MESSAGE, "session.acknowledge")


def test_the_end_of_a_transaction_refuses_values_of_wrong_types(connector):
    with ConnectionFactory(*connector).create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        session.create_producer(QUEUE).send(Message(b"1"))
        refused(session.prepare, [None, *NO_NAME], "prepare.name")
        session.prepare("n")  # it is still open
        refused(lambda value: session.resolve(value, commit=True), [None, *NO_NAME], "resolve.name")
        refused(lambda value: session.resolve("n", commit=value), [None, *NO_FLAG], "resolve.commit")
        session.resolve("n", commit=False)  # it is still prepared: "false" has not committed it
        assert list(session.create_browser(QUEUE).enumerate()) == []


def test_what_names_no_temporary_destination_is_refused(session):
    for value in [None, *NO_NAME]:
        with pytest.raises(UsageError, match="^E7512 .*: this connection has no such temporary destination") as told:
            session.delete_temporary(value)
        assert told.value.where.isprintable()


def test_the_password_of_options_is_not_told(connector):
    with pytest.raises(UsageError) as told:
        ConnectionFactory(connector[0], [("password", "hunter2")]).create_connection()
    assert "hunter2" not in str(told.value)


def test_a_limit_of_browsers_above_every_number_of_messages_is_no_limit(connector):
    with ConnectionFactory(*connector, queue_browser_read_max=10**400).create_connection() as connection:
        session = connection.create_session()
        session.create_producer(QUEUE).send(Message(b"1"))
        assert [message.body for message in session.create_browser(QUEUE).enumerate()] == [b"1"]


def test_asynchronous_sessions_refuse_the_same(connector):
    async def use():
        for factory in [None, {}, "x", 5]:
            with pytest.raises(UsageError, match="^E7540 connection.factory: .* is not allowed"):
                await AsyncConnection.connect(factory)
        async with await AsyncConnection.connect(ConnectionFactory(*connector)) as connection:
            session = await connection.create_session()
            with pytest.raises(UsageError, match=f"^E7540 consumer of {QUEUE}.selector"):
                await session.create_consumer(QUEUE, 5)
            consumer = await session.create_consumer(QUEUE)
            for value in NO_TIME:
                with pytest.raises(UsageError, match=f"^E7540 consumer of {QUEUE}.timeout_s"):
                    await consumer.receive(value)

    asyncio.run(use())


@pytest.mark.parametrize("value", [None, *NO_TEXT])
def test_a_text_message_refuses_what_is_no_text(value):
    with pytest.raises(UsageError, match="^E7549 text message: the body cannot be of this kind"):
        kinds.text_message(value)
