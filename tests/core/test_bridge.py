"""Bridges: what they select, how they map, and what becomes a dead letter (docs/bridges.md)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.core.batch_context import Delivered
from correlator.core.bridge import Bridge, bridges_of
from correlator.errors import ConfigError
from correlator.events import Headers, Message
from correlator.settings import BridgeSettings, EngineSettings, ReceiverSettings

ORDER = Message(
    b'{"number": 7, "customer": "ada", "lines": [1, 2], "note": null}',
    {"branch": "north", "euros": 20, "seal": b"\xff"},
    "old",
    headers=Headers(correlation_id="c", priority=3),
)


def a_bridge(to=("out",), selector=None, destinations=None, **mapping):
    settings = BridgeSettings(name="b", from_=("in",), to=to, selector=selector, mapping=mapping)
    return Bridge(settings, destinations or {"in": "queue:in"}, "bridges[0]")


def processed(bridge, *messages):
    return bridge.process([Delivered("in", number, one) for number, one in enumerate(messages, 1)], None, 4.0)


def sent(message=ORDER, **mapping):
    """The one message that a bridge with this mapping sends."""
    effects = processed(a_bridge(**mapping), message)
    assert not effects.dead_letters
    [(_, made)] = effects.sends
    return made


def refused(message=ORDER, **mapping):
    """The reason of the dead letter that a bridge with this mapping makes."""
    effects = processed(a_bridge(**mapping), message)
    assert not effects.sends
    [letter] = effects.dead_letters
    assert (letter.kind, letter.origin, letter.receiver, letter.number, letter.time) == ("step", "b", "in", 1, 4.0)
    assert letter.message is message
    return letter.reason


def test_without_a_mapping_a_message_stays_as_it_is():
    assert sent() == ORDER


def test_the_destination_is_that_of_the_sender_unless_it_is_mapped():
    received = msgspec.structs.replace(ORDER, destination="topic:where it came from")
    assert sent(received).destination is None
    assert sent(received, destination="queue:${property.branch}").destination == "queue:north"
    assert sent(received, **{"property.from": "${header.destination}"}).properties["from"] == received.destination
    assert sent(**{"property.from": "${header.destination}"}).properties["from"] == "queue:in"


def test_each_sender_sends_each_message_in_order():
    second = msgspec.structs.replace(ORDER, body=b"2")
    effects = processed(a_bridge(to=("a", "b")), ORDER, second)
    assert [(sender, one.body) for sender, one in effects.sends] == [
        ("a", ORDER.body),
        ("b", ORDER.body),
        ("a", b"2"),
        ("b", b"2"),
    ]


def test_what_is_not_selected_is_not_sent():
    large = msgspec.structs.replace(ORDER, properties={"euros": 200})
    effects = processed(a_bridge(selector="euros > 100"), ORDER, large, Message(b""))
    assert effects.sends == [("out", large)]
    assert not effects.dead_letters


def test_parts_are_replaced_one_by_one():
    made = sent(
        key="${body.number}-${property.branch}",
        **{
            "property.customer": "${body.customer}",
            "property.branch": "south",
            "header.priority": "${body.number}",
            "header.type": "order",
        },
    )
    assert made.key == "7-north"
    assert made.properties == {"branch": "south", "euros": 20, "seal": b"\xff", "customer": "ada"}
    assert made.headers == Headers(correlation_id="c", priority=7, type="order")
    assert made.body == ORDER.body


def test_a_part_whose_source_is_missing_is_left_out():
    made = sent(
        key="${property.none}",
        destination="queue:${body.none}",
        **{
            "property.branch": "${body.note}",
            "header.priority": "${body.none}",
            "body.a": "${key}",
            "body.b": "${body.none}",
        },
    )
    assert (made.key, made.destination, made.headers) == (None, None, Headers(correlation_id="c"))
    assert made.properties == {"euros": 20, "seal": b"\xff"}
    assert made.body == b'{"a":"old"}'


def test_properties_are_replaced_as_a_whole():
    assert sent(properties="${properties}").properties == ORDER.properties
    assert sent(properties="${headers}").properties.items() >= {"correlation_id": "c", "priority": 3}.items()
    assert sent(properties="${body.none}", **{"property.one": "1"}).properties == {"one": "1"}


def test_a_body_is_made_of_its_members():
    made = sent(
        **{"body.whole": "${body}", "body.lines": "${body.lines}", "body.text": "of ${body.customer}: ${body.lines}"}
    )
    assert msgspec.json.decode(made.body) == {
        "whole": msgspec.json.decode(ORDER.body),
        "lines": [1, 2],
        "text": "of ada: [1,2]",
    }


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("${body}", ORDER.body),
        ("${body.customer}", b"ada"),
        ("${body.lines}", b"[1,2]"),
        ("${property.seal}", b"\xff"),
        ("${properties}", b'{"branch":"north","euros":20,"seal":"/w=="}'),
        ("text", b"text"),
        ("${body.none}", b"null"),
    ],
)
def test_a_body_is_one_value(source, body):
    assert sent(body=source).body == body


@given(st.binary(max_size=40), st.sampled_from(["body.a", "property.a", "key", "body", "destination", "header.type"]))
def test_any_body_is_sent_or_a_dead_letter(body, target):
    """No body makes a bridge raise, and what it sends is what brokers can carry."""
    for source in ("${body}", "${body.a}", "x${body}", "${body.a}${property.seal}"):
        effects = processed(a_bridge(**{target: source}), msgspec.structs.replace(ORDER, body=body))
        assert len(effects.sends) + len(effects.dead_letters) == 1


@pytest.mark.parametrize(
    ("body", "mapping", "reason"),
    [
        (b"{", {"key": "${body.a}"}, "E5101 bridge b.mapping: "),
        (b"\xff", {"body.a": "${body}"}, "E5101 bridge b.mapping: "),
        (b"[" * 100_000, {"key": "${body.a}"}, "E5101 bridge b.mapping: "),
        (b"{}", {"key": "${property.seal}"}, "E5202 bridge b.mapping.key: 'b'\\xff'' is not UTF-8"),
        (b'{"a": 10}', {"header.priority": "${body.a}"}, "E5202 bridge b.mapping.header.priority: 10 is not in 0..9"),
        (b'{"a": "x"}', {"header.time_to_live_ms": "${body.a}"}, "E5202 bridge b.mapping.header.time_to_live_ms: "),
        (b'{"a": 1}', {"properties": "${body.a}"}, "E5202 bridge b.mapping.properties: '1' is not a mapping"),
        (b'{"a": [1]}', {"property.a": "${body.a}"}, "E5202 send: "),
        (b'{"a": 99999999999999999999}', {"property.a": "${body.a}"}, "E5202 send: "),
    ],
)
def test_what_cannot_be_mapped_becomes_a_dead_letter_alone(body, mapping, reason):
    wrong = msgspec.structs.replace(ORDER, body=body)
    assert refused(wrong, **mapping).startswith(reason)
    effects = processed(a_bridge(**mapping), Message(b"{}"), wrong, Message(b"{}"))
    assert [len(effects.sends), [letter.number for letter in effects.dead_letters]] == [2, [2]]


@pytest.mark.parametrize(
    ("mapping", "code"),
    [
        ({"key": "${event.a}"}, "E1061"),
        ({"key": "${nothing}"}, "E1061"),
        ({"key": "a ${body"}, "E1061"),
        ({"properties": "all"}, "E1061"),
        ({"properties": "${properties}${headers}"}, "E1061"),
        ({"key": "x${header.colour}"}, "E1065"),
        ({"header.colour": "red"}, "E1065"),
        ({"header.message_id": "1"}, "E1067"),
        ({"colour": "red"}, "E1066"),
        ({"body.": "red"}, "E1066"),
        ({"body": "red", "body.a": "blue"}, "E1066"),
    ],
)
def test_a_mapping_that_cannot_work_is_refused(mapping, code):
    with pytest.raises(ConfigError, match=code):
        a_bridge(**mapping)


def test_bridges_know_the_physical_destinations_of_their_receivers():
    settings = EngineSettings(
        name="e",
        destinations={"orders": "queue:orders.v2"},
        receivers=(ReceiverSettings(id="in", connection="c", destination="orders"),),
        bridges=(BridgeSettings(name="b", from_=("in",), to=("out",), mapping={"key": "${header.destination}"}),),
    )
    [bridge] = bridges_of(settings)
    [(_, made)] = processed(bridge, ORDER).sends
    assert made.key == "queue:orders.v2"
