"""The file connector: records, positions, torn ends, and files that people change."""

import hashlib
import json
import os
from pathlib import Path
from random import Random

import pytest

from connectors.file import FileConnection
from connectors.file.columns import csv_columns
from connectors.records import ends_within_quotes
from correlator.core.mapping import ReceiveMapping
from correlator.errors import ConnectionLost
from correlator.events import CUT_FROM, Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


@pytest.fixture
def files(tmp_path: Path) -> FileConnection:
    return FileConnection("files", ConnectionSettings(type="file", options={"path": str(tmp_path)}))


def source_of(files, name, *, follow=False, connect=True, **settings):
    options = {"follow": follow} if follow else {}
    source = files.source(
        ReceiverSettings(id="r", connection="c", destination=f"queue:{name}", options=options, **settings)
    )
    if connect:
        source.connect()
    return source


def sink_of(files, name):
    sink = files.sink(SenderSettings(id="s", connection="c", destination=f"queue:{name}"))
    sink.connect()
    return sink


def read_all(source, size=1000):
    """All messages up to the end of the file; acknowledges them."""
    messages = []
    while not (chunk := source.receive(size, 0.0)).ended:
        messages += chunk.messages
        source.acknowledge(chunk.tokens)
    source.close()
    return messages


def send(sink, *contents, first=1, source="life", destination="queue:out.jsonl"):
    return sink.send([Outgoing(n, source, destination, Message(body)) for n, body in enumerate(contents, first)])


def digest(beginning: bytes) -> str:
    return hashlib.sha256(beginning).hexdigest()[:8]


def ids(files, name, *, receiver="r"):
    """The ids of all lines of the file, read from its beginning."""
    source = files.source(ReceiverSettings(id=receiver, connection="c", destination=f"queue:{name}"))
    source.connect()
    return [m.properties["uniqueMessageId"] for m in read_all(source)]


CSV = [
    ("plain", b"h\na\nb\n", [b"a", b"b"], [2, 3]),
    ("no line end at the end", b"h\na\nb", [b"a", b"b"], [2, 3]),
    ("CRLF", b"h\r\na\r\nb\r\n", [b"a", b"b"], [2, 3]),
    ("CRLF without the last", b"h\r\na\r", [b"a"], [2]),
    ("byte order mark", b"\xef\xbb\xbfh\na\n", [b"a"], [2]),
    ("empty lines", b"\n\nh\n\na\n\r\n\nb\n\n", [b"a", b"b"], [5, 8]),
    ("header only", b"h\n", [], []),
    ("header without a line end", b"h", [], []),
    ("empty", b"", [], []),
    ("only a byte order mark", b"\xef\xbb\xbf", [], []),
    ("a quoted line end", b'h,i\n"a\nb",1\nc,2\n', [b'"a\nb",1', b"c,2"], [2, 4]),
    ("a quoted line end in the last", b'h,i\n1,"a\r\nb"', [b'1,"a\r\nb"'], [2]),
    ("quoted quotes", b'h\n"a ""b""\n""c"""\nd\n', [b'"a ""b""\n""c"""', b"d"], [2, 4]),
    ("an empty quoted field", b'h,i\n"",1\n1,""\n', [b'"",1', b'1,""'], [2, 3]),
    ("a stray quote", b'h,i\n5" pipe,1\n6" pipe,2\n', [b'5" pipe,1', b'6" pipe,2'], [2, 3]),
    ("a quoted line end in the header", b'"h\ni",j\na,b\n', [b"a,b"], [3]),
    ("a quote that is never closed", b'h\na\n"b\nc\n', [b"a", b'"b\nc\n'], [2, 3]),
    ("not UTF-8", b"h\n\xff\xfe\n", [b"\xff\xfe"], [2]),
    ("zero bytes", b"h\na\0b\n", [b"a\0b"], [2]),
    ("only spaces is a record", b"h\n  \n", [b"  "], [2]),
]


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize(("content", "wanted", "lines"), [case[1:] for case in CSV], ids=[case[0] for case in CSV])
def test_records_of_csv(files, tmp_path, content, wanted, lines, size) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    source = source_of(files, "a.csv")
    messages = read_all(source, size)
    assert [m.body for m in messages] == wanted
    assert [m.properties["line"] for m in messages] == lines


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
def test_blocks_change_nothing(files, tmp_path, monkeypatch, block) -> None:
    monkeypatch.setattr("connectors.records.BLOCK_BYTES", block)
    content = b'h,i\r\n"a\r\nb ""c""",1\r\n\r\nd,2\n"e,\n",3\n5" f,4'
    (tmp_path / "a.csv").write_bytes(content)
    messages = read_all(source_of(files, "a.csv"))
    assert [m.body for m in messages] == [b'"a\r\nb ""c""",1', b"d,2", b'"e,\n",3', b'5" f,4']
    assert [m.properties["line"] for m in messages] == [2, 5, 6, 8]


@pytest.mark.parametrize(
    ("line", "within", "wanted"),
    [
        (b"a,b", False, False),
        (b'"a', False, True),
        (b'"a"', False, False),
        (b'"a""', False, True),
        (b'"a"""', False, False),
        (b'a,"b', False, True),
        (b'a"b', False, False),
        (b'a"b,"c', False, True),
        (b'a",b', True, False),
        (b'a"",b', True, True),
        (b'a","b', True, True),
        (b"", True, True),
        (b"", False, False),
    ],
)
def test_open_quotes(line, within, wanted) -> None:
    assert ends_within_quotes(line, within=within) is wanted


def test_properties_by_default(files, tmp_path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv").write_bytes(b"x,y\n1,2\n")
    (message,) = read_all(source_of(files, "sub/a.csv"))
    assert message.properties == {
        "file": "sub/a.csv",
        "line": 2,
        "uniqueMessageId": "sub/a.csv:2:" + digest(b"x,y\n1,2"),
        "messageSourceId": "sub/a.csv",
    }
    assert message.headers is not None
    assert message.headers.message_id == message.properties["uniqueMessageId"]
    assert message.destination is None


def test_columns_that_templates_mention(files, tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes('id,"na,me",other\n1,"A ""b""\nc",x\n2\nü,,\n'.encode())
    source = source_of(files, "a.csv", unique_message_id="${row.id}-${row.na,me}", message_source_id="fixed")
    messages = read_all(source)
    values = [{k: v for k, v in m.properties.items() if k not in ("file", "line")} for m in messages]
    assert values == [{"row.id": "1", "row.na,me": 'A "b"\nc'}, {"row.id": "2"}, {"row.id": "ü", "row.na,me": ""}]


@pytest.mark.parametrize("rest", [b"", b'"a",b\n'])
def test_rows_in_another_encoding_have_different_ids(files, tmp_path, rest) -> None:
    """A replacement character would make one id of all letters that are not UTF-8: all rows but one would be lost."""
    names = ["René", "Renè", "Ren\ufffd"]
    rows = [names[0].encode("latin-1"), names[1].encode("latin-1"), names[2].encode()]
    (tmp_path / "a.csv").write_bytes(b"name,town\n" + b"".join(row + b",x\n" for row in rows) + rest)
    messages = read_all(source_of(files, "a.csv", unique_message_id="${row.name}"))[:3]
    assert [message.properties["row.name"] for message in messages] == ["Ren\\xe9", "Ren\\xe8", "Ren\ufffd"]
    assert [message.body for message in messages] == [row + b",x" for row in rows]


def test_the_records_around_it_do_not_change_the_columns_of_a_record() -> None:
    """Plain records of a block are split together, others one by one."""
    values = [b"", b"a", b"\xc3\xa4", b"\xe2\x82", b"\xff", b"\r", b"\0", b'"b,c"', b'"\n"', b'5"']
    random = Random(7)
    for _ in range(2000):
        records = [
            b",".join(random.choices(values[: random.choice((7, 7, 10))], k=random.choice((3, 3, 3, 2, 4))))
            for _ in range(random.randint(1, 4))
        ]
        read = csv_columns("receiver r", b"x,y,z", random.choice((["x"], ["z", "x"], ["y", "z"])))
        together = [{"line": at} for at, _ in enumerate(records)]
        read(records, together)
        alone = [{"line": at} for at, _ in enumerate(records)]
        for record, its in zip(records, alone, strict=True):
            read([record, b'"",,'], [its, {}])  # the quote leaves each record of the block to itself
        assert together == alone, records


def test_fields_that_templates_mention(files, tmp_path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"id":7,"n":{"x":[1]},"z":1.50}\nnot json\n{"id":null}\n{"id":"\\u00fc","more":0}\n[]\n'
    )
    source = source_of(files, "a.jsonl", unique_message_id="${row.id}/${row.n}")
    rows = [{k: v for k, v in m.properties.items() if k.startswith("row.")} for m in read_all(source)]
    assert rows == [{"row.id": "7", "row.n": '{"x":[1]}'}, {}, {}, {"row.id": "ü"}, {}]


def test_a_column_that_is_missing(files, tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n1,2\n")
    with pytest.raises(ConnectionLost, match=r"E7015 .*has no column 'nam'.*'id', 'name'"):
        source_of(files, "a.csv", unique_message_id="${row.nam}")


def test_a_field_of_any_length(files, tmp_path) -> None:
    long = "a" * 200_000
    (tmp_path / "a.csv").write_text(f'id,text\n1,"{long}"\n2,b\n')
    messages = read_all(source_of(files, "a.csv", unique_message_id="${row.text}"))
    assert [m.properties["row.text"] for m in messages] == [long, "b"]


@pytest.mark.parametrize("row", [b'1\r1,"a"', b'1,"a"\rb'])
def test_a_row_that_is_no_csv_has_no_id(files, tmp_path, row) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n0,x\n" + row + b"\n2,b\n")
    messages = read_all(source_of(files, "a.csv", unique_message_id="${row.id}"))
    assert [m.properties["row.id"] for m in messages] == ["0", row, "2"]
    mapping = ReceiveMapping("r", None, "${row.id}", "", deduplicated=True, max_message_bytes=1000)
    mapped = mapping.map(messages, 0.0)
    assert mapped.ids == ["0", "", "2"]
    assert [letter.reason[:5] for letter in mapped.dead_letters] == ["E5403"]


def test_a_header_that_is_no_csv(files, tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes(b'"id",a\rb\n1,2\n')
    with pytest.raises(ConnectionLost, match=r"E7015 .*header that is not CSV"):
        source_of(files, "a.csv", unique_message_id="${row.id}")


LONG_LINES = [
    ("in the middle", b"1\n%s\n2\n", [2, 3]),
    ("first", b"%s\n2\n", [1, 2]),
    ("last", b"1\n%s\n", [2]),
    ("without a line end", b"1\n%s", [2]),
]


@pytest.mark.parametrize("length", [300, 512, 1000])
@pytest.mark.parametrize(("content", "lines"), [case[1:] for case in LONG_LINES], ids=[case[0] for case in LONG_LINES])
def test_a_line_that_is_too_large_is_cut_and_the_others_are_whole(
    files, tmp_path, monkeypatch, content, lines, length
) -> None:
    monkeypatch.setattr("connectors.records.BLOCK_BYTES", 32)
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 150)
    line = b'"%s"' % (b"x" * (length - 2))
    (tmp_path / "a.jsonl").write_bytes(content % line)
    messages = read_all(source_of(files, "a.jsonl", max_message_bytes=100))
    wanted = [one if len(one) < 100 else line[:101] for one in (content % line).splitlines()]
    assert [m.body for m in messages] == wanted
    assert [m.properties["line"] for m in messages] == list(range(1, len(wanted) + 1))
    cut = [m for m in messages if CUT_FROM in m.properties]
    assert [(m.properties["line"], m.properties[CUT_FROM]) for m in cut] == [(lines[0], length)]
    mapped = ReceiveMapping("r", None, "", "", deduplicated=False, max_message_bytes=100).map(messages, 0.0)
    assert [letter.reason for letter in mapped.dead_letters] == [
        f"E5001 receiver r: message of {length} bytes, the limit is 100."
    ]


def test_a_line_that_grows_too_large_is_one_message(files, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    source = source_of(files, "a.jsonl", follow=True, max_message_bytes=100)
    for more in (b"x" * 150, b"x" * 150):
        with path.open("ab") as file:
            file.write(more)
        assert not source.receive(10, 0.0).messages
    with path.open("ab") as file:
        file.write(b"x\n1\n")
    messages = source.receive(10, 0.0).messages + source.receive(10, 0.0).messages
    assert [(len(m.body), m.properties.get(CUT_FROM)) for m in messages] == [(101, 301), (1, None)]


def test_a_line_is_as_long_as_the_receiver_allows(files, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("connectors.records.BLOCK_BYTES", 32)
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 100)
    for name, content in (("a.jsonl", b"x" * 500), ("a.csv", b'h\n"' + b"x" * 498 + b'"')):
        (tmp_path / name).write_bytes(content)
        (message,) = read_all(source_of(files, name, max_message_bytes=500))
        assert (len(message.body), CUT_FROM in message.properties) == (500, False)


@pytest.mark.parametrize("block", [8, 32, 100])
def test_a_record_with_a_quote_that_is_not_closed_is_one_dead_letter(files, tmp_path, monkeypatch, block) -> None:
    """Given such a record, when it is read, then its first line is a dead letter and every other line is read."""
    monkeypatch.setattr("connectors.records.BLOCK_BYTES", block)
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 100)
    lines = [b"1", b'"open', *(b"%d" % number for number in range(3, 200)), b'"a', b'b"', b"last"]
    (tmp_path / "a.csv").write_bytes(b"h\n" + b"\n".join(lines) + b"\n")
    messages = read_all(source_of(files, "a.csv", max_message_bytes=60))
    (cut,) = [m for m in messages if CUT_FROM in m.properties]
    assert cut.properties["line"] == 3
    assert cut.properties[CUT_FROM] > 100
    assert (len(cut.body), cut.body[:8]) == (61, b'"open\n3\n')
    others = [m.body for m in messages if m is not cut]
    assert others == [b"1", *(b"%d" % number for number in range(3, 200)), b'"a\nb"', b"last"]
    mapped = ReceiveMapping("r", None, "", "", deduplicated=False, max_message_bytes=60).map(messages, 0.0)
    assert [letter.reason[:5] for letter in mapped.dead_letters] == ["E5001"]


def test_a_line_of_csv_that_is_too_large_is_cut_at_its_end(files, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("connectors.records.BLOCK_BYTES", 32)
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 100)
    (tmp_path / "a.csv").write_bytes(b'h\n1\n"' + b"x" * 498 + b'"\n2\n')
    messages = read_all(source_of(files, "a.csv", max_message_bytes=60))
    assert [(len(m.body), m.properties["line"], m.properties.get(CUT_FROM)) for m in messages] == [
        (1, 2, None),
        (61, 3, 500),
        (1, 4, None),
    ]


def test_a_record_that_does_not_end_is_the_same_when_it_is_read_again(files, tmp_path, monkeypatch) -> None:
    """It is read again as after a crash between receipt and acknowledgement."""
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 100)
    (tmp_path / "a.csv").write_bytes(b'h\n1\n"open\n' + b"2\n" * 200)
    lives = []
    for _ in range(2):
        source = source_of(files, "a.csv", max_message_bytes=60)
        lives.append([(m.body, m.properties) for m in source.receive(10, 0.0).messages])
        lives[-1] += [(m.body, m.properties) for m in source.receive(10, 0.0).messages]
        source.close()
    assert lives[0] == lives[1]
    assert len(lives[0]) >= 2


def test_a_header_that_does_not_end_is_refused(files, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("connectors.records.MAX_RECORD_BYTES", 100)
    (tmp_path / "a.csv").write_bytes(b'"h\n' + b"b\n" * 100)
    with pytest.raises(ConnectionLost, match=r"E7014 .*the header has no end within .* bytes.*quote"):
        source_of(files, "a.csv", max_message_bytes=60)


REPLACED = [
    ("other lines", b"h\na\nb\n", b"h\nx\ny\n", 0),
    ("another header", b"h\na\nb\n", b"i\na\nb\n", 0),
    ("a beginning in common", b"h\na\nb\nc\n", b"h\na\nx\nc\n", 1),
    ("longer lines", b"h\n" + b"a" * 5000 + b"\nb\n", b"h\n" + b"c" * 5000 + b"\nb\n", 0),
]


@pytest.mark.parametrize(("old", "new", "common"), [case[1:] for case in REPLACED], ids=[case[0] for case in REPLACED])
def test_another_file_that_takes_the_name_is_no_repeat(files, tmp_path, old, new, common) -> None:
    """It happens after the advice of E7011: remove the position, and read the file from its beginning."""
    path = tmp_path / "a.csv"
    path.write_bytes(old)
    before = ids(files, "a.csv")
    path.write_bytes(new)
    (tmp_path / ".positions" / "a.csv.r.position").unlink()
    after = ids(files, "a.csv")
    assert len(set(after)) == len(after)
    assert [one for one in after if one in before] == before[:common]


@pytest.mark.parametrize("size", [1, 700, 100_000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_the_same_file_read_again_is_a_repeat(files, tmp_path, size, ending) -> None:
    """This holds for any size, with or without a last line end, and for each receiver."""
    path = tmp_path / "a.jsonl"
    lines = [b"%d" % n * (1 + n % 9) for n in range(2000)]
    whole = ending.join(lines) + ending
    path.write_bytes(whole)
    wanted = ids(files, "a.jsonl")
    assert len(set(wanted)) == 2000
    path.write_bytes(whole[:size] if size == 1 else ending.join(lines[:size]))
    part = ids(files, "a.jsonl", receiver="another")
    path.write_bytes(whole)
    assert part == wanted[: len(part)]
    assert part


def test_a_missing_file_may_appear(files, tmp_path) -> None:
    source = source_of(files, "a.csv", connect=False)
    with pytest.raises(ConnectionLost, match=r"E7010 .*no such file"):
        source.connect()
    (tmp_path / "a.csv").write_bytes(b"h\na\n")
    source.connect()
    assert [m.body for m in read_all(source)] == [b"a"]


def test_a_directory_in_place_of_a_file(files, tmp_path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(ConnectionLost, match="E7003"):
        source_of(files, "a.csv")


def test_a_pipe_in_place_of_a_file(files, tmp_path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(ConnectionLost, match=r"E7003 .*a\.csv is not a regular file"):
        source_of(files, "a.csv")


def test_a_link_that_leads_out(files, tmp_path, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.csv").write_bytes(b"h\nsecret\n")
    (tmp_path / "a.csv").symlink_to(outside / "secret.csv")
    (tmp_path / "b").symlink_to(outside)
    for name in ("a.csv", "b/secret.csv"):
        with pytest.raises(ConnectionLost, match=r"E7013 .*leads out"):
            source_of(files, name)
    with pytest.raises(ConnectionLost, match=r"E7013 .*leads out"):
        sink_of(files, "b/new.jsonl")
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]


def test_a_file_is_followed(files, tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"")
    source = source_of(files, "a.csv", follow=True)
    seen = []
    for more, wanted in [(b"h", []), (b"\na", []), (b"b\n", [b"ab"]), (b'"c\n', []), (b'd"\n', [b'"c\nd"'])]:
        with path.open("ab") as file:
            file.write(more)
        chunk = source.receive(10, 0.0)
        assert not chunk.ended
        assert [m.body for m in chunk.messages] == wanted
        seen += chunk.messages
    assert [m.properties["line"] for m in seen] == [2, 3]


def test_reading_goes_on_where_it_was_acknowledged(files, tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"h\n" + b"".join(b"%d\n" % n for n in range(5000)))
    source = source_of(files, "a.csv")
    source.acknowledge(source.receive(1000, 0.0).tokens)
    source.receive(1000, 0.0)
    source.close()
    position = tmp_path / ".positions" / "a.csv.r.position"
    assert position.stat().st_mode & 0o777 == 0o600
    assert json.loads(position.read_bytes())["line"] == 1002
    with path.open("ab") as file:
        file.write(b"last\n")
    messages = read_all(source_of(files, "a.csv"))
    assert [m.body for m in messages] == [*(b"%d" % n for n in range(1000, 5000)), b"last"]
    assert messages[0].properties["uniqueMessageId"] == "a.csv:1002:" + digest(
        path.read_bytes().partition(b"\n1001\n")[0]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"h\nx\ny\nz\n"),
        lambda path: path.write_bytes(b"h\na\n"),
        lambda path: path.write_bytes(b"i\na\nb\nc\n"),
        lambda path: path.write_bytes(b""),
    ],
    ids=["other records", "cut", "other header", "empty"],
)
def test_another_file_under_the_name_is_refused(files, tmp_path, change) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"h\na\nb\nc\n")
    read_all(source_of(files, "a.csv"))
    change(path)
    with pytest.raises(ConnectionLost, match="E7011"):
        source_of(files, "a.csv")


def test_a_file_that_is_cut_while_it_is_read(files, tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"h\na\nb\n")
    source = source_of(files, "a.csv")
    source.receive(10, 0.0)
    os.truncate(path, 2)
    with pytest.raises(ConnectionLost, match=r"E7011 .*was cut"):
        source.receive(10, 0.0)


def test_a_damaged_position(files, tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes(b"h\na\n")
    (tmp_path / ".positions").mkdir()
    (tmp_path / ".positions" / "a.csv.r.position").write_bytes(b"{")
    with pytest.raises(ConnectionLost, match=r"E7011 .*position file is damaged"):
        source_of(files, "a.csv")


def test_a_receiver_has_a_file_for_itself(files, tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes(b"h\na\n")
    source = source_of(files, "a.csv")
    with pytest.raises(ConnectionLost, match="E7012"):
        source_of(files, "a.csv")
    source.close()
    source_of(files, "a.csv").close()


def test_a_sender_has_a_file_for_itself(files) -> None:
    sink = sink_of(files, "out.jsonl")
    with pytest.raises(ConnectionLost, match="E7012"):
        sink_of(files, "out.jsonl")
    sink.close()
    sink_of(files, "out.jsonl").close()


@pytest.mark.parametrize("tail", [b'{"n":2}\n', b'{"n":2}\n{"n"', b"{"])
def test_what_was_not_confirmed_is_cut_off(files, tmp_path, tail) -> None:
    """It is there when the process was killed between the append and the sidecar, or within the append."""
    path = tmp_path / "out.jsonl"
    sink = sink_of(files, "out.jsonl")
    send(sink, b'{"n":1}')
    sink.close()
    with path.open("ab") as file:
        file.write(tail)
    sink = sink_of(files, "out.jsonl")
    send(sink, b'{"n":2}', b'{"n":3}', first=2)
    sink.close()
    assert path.read_bytes() == b'{"n":1}\n{"n":2}\n{"n":3}\n'


@pytest.mark.parametrize(("content", "kept"), [(b"theirs\n", b"theirs\n"), (b"theirs", b"theirs\n"), (b"", b"")])
def test_what_others_wrote_before_is_kept(files, tmp_path, content, kept) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    for _ in range(2):
        sink_of(files, "out.jsonl").close()
    sink = sink_of(files, "out.jsonl")
    send(sink, b"1")
    sink.close()
    assert path.read_bytes() == kept + b"1\n"


def test_a_file_that_was_moved_away_is_begun_anew(files, tmp_path) -> None:
    sink = sink_of(files, "out.jsonl")
    send(sink, b"1")
    sink.close()
    (tmp_path / "out.jsonl").rename(tmp_path / "done.jsonl")
    sink = sink_of(files, "out.jsonl")
    send(sink, b"1", b"2")
    sink.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b"2\n"


def test_a_written_file_that_was_cut_is_refused(files, tmp_path) -> None:
    sink = sink_of(files, "out.jsonl")
    send(sink, b"1", b"2")
    sink.close()
    os.truncate(tmp_path / "out.jsonl", 2)
    with pytest.raises(ConnectionLost, match=r"E7011 .*2 bytes, 4 were written"):
        sink_of(files, "out.jsonl")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b'{"a": 1.10}', b'{"a": 1.10}'),
        (b'{\n "a":\r\n 1 }', b'{  "a":   1 }'),
        (b"7", b"7"),
        ('"ü"'.encode(), '"ü"'.encode()),
        (b"", None),
        (b"{", None),
        (b"{}{}", None),
        (b"\xff", None),
        (b'"\xff"', None),
        (b'"a\nb"', None),
        (b"[" * 100_000, None),
    ],
)
def test_bodies_become_lines(files, tmp_path, body, line) -> None:
    sink = sink_of(files, "out.jsonl")
    results = send(sink, b"1", body, b"3")
    sink.close()
    assert [result and result.code for result in results] == [None, None if line else "E8110", None]
    wanted = b"\n".join([b"1", *([line] if line else []), b"3", b""])
    assert (tmp_path / "out.jsonl").read_bytes() == wanted


def test_long_and_strange_names(files, tmp_path) -> None:
    """Each pair of file and receiver has a sidecar with a name of its own, whatever the two are called."""
    for name in ("x" * 240 + ".jsonl", "ü" * 100 + ".jsonl", "a b/c%2Fd.jsonl", "a b%2Fc/d.jsonl"):
        sink = sink_of(files, name)
        send(sink, b"1", destination=f"queue:{name}")
        sink.close()
        assert [m.body for m in read_all(source_of(files, name))] == [b"1"]
    assert len(list((tmp_path / ".positions").glob("*.position"))) == 4


def test_acknowledging_before_there_is_a_header_moves_nothing(files, tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"")
    source = source_of(files, "a.csv", follow=True)
    source.acknowledge(source.receive(1, 0.0).tokens)
    path.write_bytes(b"h\na\n")
    assert [m.body for m in source.receive(10, 0.0).messages] == [b"a"]
