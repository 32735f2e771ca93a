"""From messages to events: bad inputs one by one, ids and templates (rule A8.2)."""

import zlib

import msgspec
import pytest

from correlator.core.fields import FieldMapping
from correlator.core.mapping import MAX_ID_BYTES, ReceiveMapping, Template
from correlator.core.messages import to_message
from correlator.errors import ConfigError, MappingError
from correlator.events import CUT_FROM, Headers, Message, event

LIMIT = 10_000_000


@event
class Order:
    """What bodies become here."""

    id: int
    price: float = 0.0
    note: str | None = None


def a_mapping(
    event_type=Order, *, unique_id="${property.uniqueMessageId}", limit=LIMIT, deduplicated=True, fields=None
):
    return ReceiveMapping(
        "orders",
        event_type,
        unique_id,
        "${property.messageSourceId}",
        deduplicated=deduplicated,
        max_message_bytes=limit,
        fields=fields,
    )


REFUSED = {
    "bad input 69: empty body": (b"", "E5101"),
    "bad input 70: one byte": (b"{", "E5101"),
    "bad input 71: too large": (b"x" * (LIMIT + 1), "E5001"),
    "bad input 72: invalid UTF-8": (b'{"id": 1, "note": "\xff\xfe"}', "E5101"),
    "bad input 73: invalid JSON": (b'{"id": 1, "price" 2}', "E5101"),
    "bad input 74: depth 100,000": (b"[" * 100_000, "E510"),
    "bad input 74: depth 100,000 in a field that nobody asked for": (b'{"id": 1, "x": ' + b"[" * 100_000, "E5101"),
    "bad input 76: NaN": (b'{"id": 1, "price": NaN}', "E5101"),
    "bad input 76: Infinity": (b'{"id": 1, "price": -Infinity}', "E5101"),
    "bad input 77: number of 5,000 digits": (b'{"id": ' + b"9" * 5000 + b"}", "E510"),
    "bad input 78: float overflow": (b'{"id": 1, "price": 1e400}', "E510"),
    "bad input 79: wrong type": (b'{"id": 1, "price": "abc"}', "E5102"),
    "bad input 79: a list instead of an object": (b"[1]", "E5102"),
    "bad input 80: missing field": (b'{"price": 1}', "E5102"),
    "bad input 82: null for required": (b'{"id": null}', "E5102"),
    "bad input 85, trap T56: Java serialized object": (b"\xac\xed\x00\x05sr\x00", "E5101"),
    "bad input 84: truncated gzip": (b"\x1f\x8b\x08\x00", "E5101"),
}


@pytest.mark.parametrize(("body", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_t55_a_bad_body_becomes_a_dead_letter_and_the_rest_of_its_batch_does_not(body, code):
    good = Message(b'{"id": 1}', {"uniqueMessageId": "a"})
    bad = Message(body)
    mapped = a_mapping().map([good, bad, good], 7.5)
    assert [one.id for one in mapped.events] == [1, 1]
    assert (len(mapped.messages), mapped.ids, len(mapped.digests)) == (2, ["a", "", "a"], 3)
    assert mapped.failed == [1]
    (letter,) = mapped.dead_letters
    assert letter.reason.startswith(code)
    assert len(letter.reason) < 500
    assert (letter.kind, letter.origin, letter.message, letter.time) == ("mapping", "orders", bad, 7.5)


ACCEPTED = {
    "bad input 75: duplicate keys: the last counts": (b'{"id": 1, "id": 2}', Order(id=2)),
    "bad input 77: the largest integer of 64 bits": (b'{"id": 18446744073709551615}', Order(id=2**64 - 1)),
    "bad input 81: extra field": (b'{"id": 1, "extra": [1, {"a": 2}]}', Order(id=1)),
    "bad input 82: null where it is allowed": (b'{"id": 1, "note": null}', Order(id=1)),
    "an integer for a float": (b'{"id": 1, "price": 2}', Order(id=1, price=2.0)),
    "spaces around": (b' \n {"id": 1}\r\n', Order(id=1)),
}


@pytest.mark.parametrize(("body", "expected"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_body_that_maps(body, expected):
    mapped = a_mapping().map([Message(body)], 0.0)
    assert (mapped.events, mapped.dead_letters) == ([expected], [])


def test_83_a_content_type_decides_nothing():
    said = {"amqp_content_type": "image/png", "amqp_content_encoding": "gzip"}
    assert a_mapping().map([Message(b'{"id": 1}', said)], 0.0).events == [Order(id=1)]


def test_73_the_reason_names_line_and_column():
    (letter,) = a_mapping().map([Message(b'{"id": 1,\n "price" 2}')], 0.0).dead_letters
    assert "E5101 receiver orders: body is not JSON: line 2 column 10" in letter.reason


def test_79_the_reason_names_the_field():
    (letter,) = a_mapping().map([Message(b'{"id": 1, "price": "abc"}')], 0.0).dead_letters
    assert "$.price" in letter.reason


@pytest.mark.parametrize(("size", "dead"), [(9, 0), (10, 0), (11, 1)])
def test_71_the_limit_of_a_message(size, dead):
    mapped = a_mapping(None, limit=10).map([Message(b"x" * size)], 0.0)
    assert len(mapped.dead_letters) == dead


def test_a_receiver_without_event_type_takes_any_body_as_it_is():
    messages = [Message(b""), Message(b"\xff\x00"), Message(b"[" * 100_000)]
    mapped = a_mapping(None).map(messages, 0.0)
    assert [one.body for one in mapped.events] == [one.body for one in messages]
    assert (mapped.messages, mapped.dead_letters) == (messages, [])


def test_a_message_that_is_the_event_knows_its_receiver_and_what_is_stored_does_not():
    came = Message(b"x", {"a": 1}, "k", None, Headers(type="T"))
    mapped = a_mapping(None).map([came], 0.0)
    assert mapped.events == [Message(b"x", {"a": 1}, "k", None, Headers(type="T"), "orders")]
    assert mapped.messages == [came]


def test_a_message_that_is_sent_on_does_not_say_who_received_it():
    for properties in ({}, {"a": 1}):
        received = Message(b"x", dict(properties), "k", "queue:there", Headers(type="T"), "orders")
        assert to_message(received, None, None) == Message(b"x", properties, "k", "queue:there", Headers(type="T"))


def test_a_stored_message_that_no_longer_maps_leaves_a_gap():
    messages = [Message(b'{"id": 1}'), Message(b"broken"), Message(b'{"id": 3}')]
    events, dead = a_mapping().remap(messages, 11, 0.0)
    assert events == [Order(id=1), None, Order(id=3)]
    assert [(letter.message, letter.number) for letter in dead] == [(messages[1], 12)]


# --- unique ids ---

IDS = {
    "bad input 89: no id": ({}, ""),
    "bad input 90: empty id": ({"uniqueMessageId": ""}, ""),
    "bad input 92: NUL, newline, emoji, marks": ({"uniqueMessageId": "a\x00\n🐘‏"}, "a\x00\n🐘‏"),
    "bad input 93: a number": ({"uniqueMessageId": 17}, "17"),
    "bad input 93: a boolean": ({"uniqueMessageId": True}, "True"),
    "bad input 96: opaque": ({"uniqueMessageId": ":"}, ":"),
    "bad input 91: the longest": ({"uniqueMessageId": "x" * MAX_ID_BYTES}, "x" * MAX_ID_BYTES),
}


@pytest.mark.parametrize(("properties", "expected"), IDS.values(), ids=IDS.keys())
def test_a_unique_id(properties, expected):
    mapped = a_mapping(None).map([Message(b"", properties)], 0.0)
    assert (mapped.ids, mapped.dead_letters) == ([expected], [])


@pytest.mark.parametrize(
    ("value", "code"),
    [
        pytest.param("x" * (MAX_ID_BYTES + 1), "E5404", id="bad input 91: one byte too long"),
        pytest.param("x" * 1_000_000, "E5404", id="bad input 91: a megabyte"),
        pytest.param("é" * (MAX_ID_BYTES // 2 + 1), "E5404", id="bad input 91: bytes count, not characters"),
        pytest.param(b"bytes", "E5403", id="bad input 93: bytes"),
    ],
)
@pytest.mark.parametrize("name", ["uniqueMessageId", "messageSourceId"])
def test_t20_an_id_that_cannot_be_used_is_a_dead_letter(name, value, code):
    (letter,) = a_mapping(None).map([Message(b"", {name: value})], 0.0).dead_letters
    assert letter.reason.startswith(code)
    assert len(letter.reason) < 200


@pytest.mark.parametrize(("length", "dead"), [(256, 0), (257, 1)])
@pytest.mark.parametrize("role", ["unique_id", "source"])
def test_t20_an_id_of_several_parts_is_as_long_as_all_of_them(role, length, dead):
    templates = {"unique_id": "${key}", "source": "", role: "${property.a}${property.b}"}
    mapping = ReceiveMapping("r", None, **templates, deduplicated=True, max_message_bytes=LIMIT)
    for text in ("x" * length, "é" * (length // 2) + "x" * (length % 2)):
        mapped = mapping.map([Message(b"", {"a": text, "b": text}, "k")] * 2, 0.0)
        assert [letter.reason[:5] for letter in mapped.dead_letters] == ["E5404"] * 2 * dead


def test_t20_text_between_the_parts_counts_too():
    template = Template("${property.a}" + "-" * MAX_ID_BYTES + "${property.b}", "here")
    message = Message(b"", {"a": "x", "b": "y"})
    with pytest.raises(MappingError, match="E5404 here: a unique id of 514 characters. At most 512 bytes."):
        template.column([message], [message])


def test_97_a_missing_source_is_the_shared_one():
    assert a_mapping(None).map([Message(b"", {"uniqueMessageId": "a"})], 0.0).sources == [""]


def test_modes_without_detection_ask_for_no_ids():
    mapped = a_mapping(deduplicated=False).map([Message(b'{"id": 1}', {"uniqueMessageId": b"bytes"})], 0.0)
    assert (mapped.ids, mapped.dead_letters) == ([], [])


# --- templates ---

MESSAGE = Message(
    b'{"id": 5, "deep": {"x": 1}}', {"a": "A", "n": 3, "row.col": "C"}, "key", None, Headers(message_id="M", type="T")
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("fixed", "fixed"),
        ("${property.a}", "A"),
        ("${property.a}-${property.n}", "A-3"),
        ("x${header.message_id}y", "xMy"),
        ("${body.id}", "5"),
        ("${row.col}", "C"),
        ("${row.col}/${body.id}/${header.type}", "C/5/T"),
        ("${property.missing}", ""),
        ("A-${property.missing}", ""),
        ("${header.correlation_id}", ""),
        ("${body.missing}", ""),
    ],
)
def test_a8_2_templates(template, expected):
    extract = Template(template, "here")
    assert extract.fill(MESSAGE, MESSAGE) == expected
    assert extract.column([MESSAGE, MESSAGE], [MESSAGE, MESSAGE]) == [expected, expected]


@pytest.mark.parametrize(
    "odd",
    [{"a": "y"}, {"a": ""}, {"a": 7}, {"a": None}, {"a": "x" * 129}, {"a": "é%s"}],
    ids=["text", "empty", "number", "null", "long", "percent"],
)
def test_several_properties_are_filled_in_at_once_as_they_are_one_by_one(odd):
    template = Template("100% ${row.100%}-${property.a}${property.a}%s", "here")
    messages = [Message(b"", {"row.100%": "r", "a": "x"}), Message(b"", {"row.100%": "r", **odd})]
    texts = [template.fill(message, message) for message in messages]
    assert texts[0] == "100% r-xx%s"
    assert template.column(messages, messages) == texts
    lacking = [*messages, Message(b"", {"a": "x"})]
    assert template.column(lacking, lacking) == [*texts, ""]
    wrong = [*messages, Message(b"", {"row.100%": b"r", "a": "x"})]
    with pytest.raises(MappingError, match="E5403"):
        template.column(wrong, wrong)


def test_a_template_of_the_body_reads_the_event():
    assert Template("${body.price}", "here").fill(Message(b""), Order(id=1, price=2.5)) == "2.5"


def test_a_template_without_headers_or_json_gives_nothing():
    for template in ("${header.type}", "${body.id}"):
        message = Message(b"not JSON")
        assert Template(template, "here").fill(message, message) == ""


@pytest.mark.parametrize("template", ["${", "${property}", "${env.A}", "${property.a} ${", "${body.}"])
def test_a_template_that_is_not_understood(template):
    with pytest.raises(ConfigError, match="E1060 receiver r.unique_message_id"):
        Template(template, "receiver r.unique_message_id")


class Named(Message, frozen=True):
    """Has a property beside its fields."""

    @property
    def name(self) -> str:
        """The name."""
        return "n"


@pytest.mark.parametrize(
    ("template", "event_type", "what"),
    [
        ("const", Order, "is the same for every message"),
        ("", None, "is the same for every message"),
        ("$5", None, "is the same for every message"),
        ("$body.number", Order, "'$body.number' is not understood"),
        ("${key}-$number", None, "is not understood"),
        ("${body.numbr}", Order, "Order has no field 'numbr'. There are: id, price, note."),
        ("${body.fill_in}", Named, "has no field 'fill_in'"),
        ("${header.mesage_id}", None, "there is no header 'mesage_id'. There are: message_id,"),
        ("${body.id}-${header.mesage_id}", Order, "there is no header 'mesage_id'"),
    ],
)
def test_an_id_that_would_be_the_same_or_missing_in_every_message_is_refused(template, event_type, what):
    with pytest.raises(ConfigError, match="E1060 receiver orders.unique_message_id") as refused:
        a_mapping(event_type, unique_id=template)
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("template", "event_type"),
    [
        ("${body.name}", Named),
        ("${body.any}", Message),
        ("${body.any}", None),
        ("$5 ${key}", Order),
        ("$${key}", Order),
    ],
)
def test_an_id_whose_parts_a_message_may_have_is_accepted(template, event_type):
    a_mapping(event_type, unique_id=template)


def test_a_constant_id_is_refused_where_it_is_used_and_a_constant_source_nowhere():
    a_mapping(unique_id="const", deduplicated=False)
    ReceiveMapping("r", None, "${key}", "one", deduplicated=True, max_message_bytes=LIMIT)
    with pytest.raises(ConfigError, match="E1060 receiver r.message_source_id: Order has no field 'shop'"):
        ReceiveMapping("r", Order, "${key}", "${body.shop}", deduplicated=True, max_message_bytes=LIMIT)


# --- what application code raises, and other surprises ---


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


RAISES = {
    "ratio": ZeroDivisionError(),
    "key": KeyError("x"),
    "half a surrogate": ValueError("\ud800"),
    "unspeakable": Unspeakable(),
    "good": None,
}


@event
class Fragile:
    """Raises what its kind says, while it is made or when it is asked."""

    kind: str
    when: str = "made"

    def __post_init__(self) -> None:
        if self.when == "made":
            self.uid  # noqa: B018

    @property
    def uid(self) -> str:
        if error := RAISES[self.kind]:
            raise error
        return self.kind


def fragile(kind: str, when: str) -> Message:
    return Message(msgspec.json.encode({"kind": kind, "when": when}), {"kind": kind, "when": when})


@pytest.mark.parametrize(
    "fields", [None, {"kind": "${property.kind}", "when": "${property.when}"}], ids=["JSON", "parts"]
)
@pytest.mark.parametrize(("when", "code"), [("made", "E5102"), ("asked", "E5103")])
@pytest.mark.parametrize("kind", [kind for kind, error in RAISES.items() if error])
def test_what_an_event_raises_is_the_dead_letter_of_its_message_alone(kind, when, code, fields):
    mapping = a_mapping(
        Fragile,
        unique_id="${body.uid}",
        fields=FieldMapping(fields, Fragile, "queue:in", "receiver orders") if fields else None,
    )
    good, bad = fragile("good", when), fragile(kind, when)
    mapped = mapping.map([good, bad, good], 7.5)
    assert mapped.messages == [good, good]
    assert (mapped.ids[0], mapped.ids[2], len(mapped.ids)) == ("good", "good", 3)
    (letter,) = mapped.dead_letters
    assert (letter.kind, letter.message) == ("mapping", bad)
    assert letter.reason.startswith(f"{code} receiver orders")
    assert type(RAISES[kind]).__name__ in letter.reason or isinstance(RAISES[kind], ValueError)
    letter.reason.encode()  # can be stored


def test_the_reason_holds_what_was_raised():
    (letter,) = a_mapping(Fragile).map([fragile("key", "made")], 0.0).dead_letters
    assert letter.reason == "E5102 receiver orders: making the event raised KeyError: 'x'."
    mapping = a_mapping(Fragile, unique_id="${body.uid}")
    (letter,) = mapping.map([fragile("key", "asked")], 0.0).dead_letters
    assert letter.reason == "E5103 receiver orders.unique_message_id: filling it in raised KeyError: 'x'."


@pytest.mark.parametrize("body", [b'{"id": "\xff"}', b"[" * 100_000], ids=["invalid UTF-8", "depth 100,000"])
def test_a_body_that_a_template_fails_on_is_a_dead_letter(body):
    mapping = a_mapping(None, unique_id="${body.id}")
    good, bad = Message(b'{"id": 1}'), Message(body)
    mapped = mapping.map([good, bad, good], 0.0)
    assert (mapped.messages, mapped.ids) == ([good, good], ["1", "", "1"])
    assert [letter.reason[:5] for letter in mapped.dead_letters] == ["E5103"]
    assert mapping.name_of(bad) == ""


@event
class Halved:
    """Its id cannot be stored."""

    id: int

    @property
    def uid(self) -> str:
        return "\ud800"


def test_an_id_with_half_a_surrogate_pair_is_a_dead_letter():
    (letter,) = a_mapping(Halved, unique_id="${body.uid}").map([Message(b'{"id": 1}')], 0.0).dead_letters
    assert letter.reason.startswith("E5103 receiver orders.unique_message_id")


def test_a_message_that_its_source_cut_is_too_large_by_its_own_size():
    cut = Message(b"x" * 11, {CUT_FROM: 70_000_000})
    (letter,) = a_mapping(None, limit=10).map([cut], 0.0).dead_letters
    assert letter.reason == "E5001 receiver orders: message of 70000000 bytes, the limit is 10."


@event
class Aged:
    """An event of which one field may fail while another one is the id."""

    number: int
    age: int


AGED = FieldMapping({"number": "${property.number}", "age": "${property.age}"}, Aged, "queue:in", "receiver orders")


@pytest.mark.parametrize(
    ("bad", "unique_id", "fields", "expected"),
    [
        (Message(b"no JSON", {"uniqueMessageId": "a"}), "${property.uniqueMessageId}", None, "a"),
        (Message(b"no JSON", {}, None, None, Headers(message_id="m1")), "x-${header.message_id}", None, "x-m1"),
        (Message(b"no JSON", key="k"), "${key}", None, "k"),
        (Message(b"no JSON"), "${body}", None, "no JSON"),
        (Message(b'{"number": 7, "age": "old"}'), "${body.number}", None, "7"),
        (Message(b"", {"number": "7", "age": "old"}), "${body.number}", AGED, "7"),
        (Message(b'{"number": "seven", "age": 1}'), "${body.number}", None, ""),
        (Message(b'{"age": "old"}'), "${body.number}", None, ""),
        (Message(b"no JSON"), "${body.number}", None, ""),
        (Message(b"no JSON", {"uniqueMessageId": b"a"}), "${property.uniqueMessageId}", None, ""),
        (Message(b"\xff"), "${body}", None, ""),
        (Message(b"x" * 513), "${body}", None, ""),
    ],
)
def test_the_id_of_what_cannot_be_mapped_is_that_of_the_event_wherever_it_can_be_told(bad, unique_id, fields, expected):
    mapping = a_mapping(Aged, unique_id=unique_id, fields=fields)
    mapped = mapping.map([bad], 1.0)
    assert (mapped.ids, mapped.digests, mapped.failed) == ([expected], [zlib.crc32(bad.body)], [0])
    assert mapped.dead_letters[0].unique_id == (expected or None)


def test_without_deduplication_the_letter_of_what_cannot_be_mapped_has_its_id_all_the_same():
    mapped = a_mapping(deduplicated=False).map([Message(b"no", {"uniqueMessageId": "a"})], 1.0)
    assert (mapped.ids, mapped.dead_letters[0].unique_id) == ([], "a")


def test_duplicates_are_left_out_wherever_they_stand_in_a_batch():
    good, bad = Message(b'{"id": 1}', {"uniqueMessageId": "a"}), Message(b"no", {"uniqueMessageId": "b"})
    mapped = a_mapping().map([bad, good, bad, good], 1.0)
    assert mapped.failed == [0, 2]
    messages, events, letters = mapped.without({2, 3})
    assert (messages, [one.id for one in events], [one.message for one in letters]) == ([good], [1], [bad])
    left = mapped.without_failed()
    assert (left.ids, len(left.sources), len(left.digests), left.dead_letters) == (["a", "a"], 2, 2, [])
    assert (left.messages, mapped.failed) == ([good, good], [0, 2])


@pytest.mark.parametrize(
    ("unique_id", "expected"), [("${body}", "b"), ("${key}", "k"), ("${key}/${body}/${property.p}", "k/b/p")]
)
def test_an_id_may_be_made_of_body_and_key(unique_id, expected):
    mapped = a_mapping(None, unique_id=unique_id).map([Message(b"b", {"p": "p"}, "k"), Message(b"", {"p": "p"})], 0.0)
    assert mapped.ids == [expected, ""]
