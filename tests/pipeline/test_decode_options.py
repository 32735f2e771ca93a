"""The options of `decode`: each allowed one has an effect, and every other one is refused."""

import pytest

from correlator.cli import main
from correlator.errors import ConfigError
from correlator.pipeline.decode_options import ALLOWED, HARMFUL, WITHOUT_EFFECT
from correlator.pipeline.spec import DecodeStep, RouteStep

EFFECTS = [
    ("csv", "sep", "|", "a STRING, b STRING", "x|y"),
    ("csv", "delimiter", "\\t", "a STRING, b STRING", "x\ty"),
    ("csv", "sep", "||", "a STRING, b STRING", "x||y"),
    ("csv", "quote", "'", "a STRING, b STRING", "'x,z',y"),
    ("csv", "quote", "", "a STRING, b STRING", '"x,y"'),
    ("csv", "escape", "^", "a STRING, b STRING", '"x^",z",y'),
    ("csv", "charToEscapeQuoteEscaping", "^", "a STRING, b STRING", '"x\\^"",y'),
    ("csv", "unescapedQuoteHandling", "STOP_AT_CLOSING_QUOTE", "a STRING, b STRING", '"x"z,y",y'),
    ("csv", "ignoreLeadingWhiteSpace", "true", "a STRING", " x"),
    ("csv", "ignoreTrailingWhiteSpace", "true", "a STRING", "x "),
    ("csv", "nullValue", "-", "a STRING", "-"),
    ("csv", "emptyValue", "E", "a STRING", '""'),
    ("csv", "nanValue", "-", "a DOUBLE", "-"),
    ("csv", "positiveInf", "++", "a DOUBLE", "++"),
    ("csv", "negativeInf", "--", "a DOUBLE", "--"),
    ("csv", "dateFormat", "dd.MM.yyyy", "a DATE", "01.02.2026"),
    ("csv", "timestampFormat", "dd.MM.yyyy HH:mm", "a TIMESTAMP", "01.02.2026 10:00"),
    ("csv", "timestampNTZFormat", "dd.MM.yyyy HH:mm", "a TIMESTAMP_NTZ", "01.02.2026 10:00"),
    ("csv", "timeFormat", "HH.mm", "a TIME", "10.30"),
    ("csv", "locale", "de-DE", "a DECIMAL(9,2)", '"1234,50"'),
    ("csv", "timeZone", "America/New_York", "a TIMESTAMP", "2026-01-05T10:00:00"),
    ("csv", "maxColumns", "1", "a STRING, b STRING", "x,y"),
    ("csv", "maxCharsPerColumn", "2", "a STRING", "xyz"),
    ("json", "allowBackslashEscapingAnyCharacter", "true", "a STRING", '{"a":"\\x"}'),
    ("json", "allowComments", "true", "a INT", '{/* */"a":1}'),
    ("json", "allowNonNumericNumbers", "false", "a DOUBLE", '{"a":NaN}'),
    ("json", "allowNumericLeadingZeros", "true", "a INT", '{"a":01}'),
    ("json", "allowSingleQuotes", "true", "a INT", "{'a':1}"),
    ("json", "ALLOWSINGLEQUOTES", "TRUE", "a INT", "{'a':1}"),
    ("json", "allowUnquotedControlChars", "true", "a STRING", '{"a":"\t"}'),
    ("json", "allowUnquotedFieldNames", "true", "a INT", "{a:1}"),
    ("json", "dateFormat", "dd.MM.yyyy", "a DATE", '{"a":"01.02.2026"}'),
    ("json", "timestampFormat", "dd.MM.yyyy HH:mm", "a TIMESTAMP", '{"a":"01.02.2026 10:00"}'),
    ("json", "timestampNTZFormat", "dd.MM.yyyy HH:mm", "a TIMESTAMP_NTZ", '{"a":"01.02.2026 10:00"}'),
    ("json", "timeFormat", "HH.mm", "a TIME", '{"a":"10.30"}'),
    ("json", "locale", "de-DE", "a DECIMAL(9,2)", '{"a":"1.234,50"}'),
    ("json", "timeZone", "America/New_York", "a TIMESTAMP", '{"a":"2026-01-05T10:00:00"}'),
    ("json", "maxNumLen", "3", "a STRING", '{"a":12345}'),
    ("json", "maxStringLen", "3", "a STRING", '{"a":"12345"}'),
]
"""Format, option, value, schema, and a body of which the option makes something else."""


@pytest.mark.parametrize(("format_", "name", "value", "schema", "body"), EFFECTS, ids=lambda one: str(one)[:20])
def test_an_allowed_option_has_an_effect(engine, format_, name, value, schema, body):
    outcomes = []
    for options in ({}, {name: value}):
        e = engine(DecodeStep(format=format_, schema=schema, options=options), RouteStep(to="out"))
        effects = e.run(body, large=False)
        outcomes.append(e.bodies() or "a dead letter")
        assert len(effects.sends) + len(effects.dead_letters) == 1
    assert outcomes[0] != outcomes[1]


@pytest.mark.parametrize(("format_", "body"), [("json", '{"d": "2026-01-05"}'), ("csv", "2026-01-05")])
def test_the_fallback_of_dates_has_an_effect_beside_a_format(engine, format_, body):
    for fallback, count in (("false", 0), ("true", 1)):
        options = {"dateFormat": "dd.MM.yyyy", "enableDateTimeParsingFallback": fallback}
        e = engine(DecodeStep(format=format_, schema="d DATE", options=options), RouteStep(to="out"))
        e.run(body, large=False)
        assert len(e.bodies()) == count


def test_every_allowed_option_has_a_case():
    tried = {(format_, name) for format_, name, *_ in EFFECTS}
    every = {(format_, name) for format_, names in ALLOWED.items() for name in names}
    assert every - tried == {(format_, "enableDateTimeParsingFallback") for format_ in ALLOWED}


@pytest.mark.parametrize(("format_", "of_spark"), [("json", "json.JSONOptions"), ("csv", "csv.CSVOptions")])
def test_every_option_of_spark_is_judged(session, format_, of_spark):
    jvm = session.acquire()._jvm
    names = set(getattr(jvm, f"org.apache.spark.sql.catalyst.{of_spark}").getAllOptions().mkString(" ").split())
    session.release()
    assert names >= set(ALLOWED[format_]) - {"maxNumLen", "maxStringLen"}
    assert names <= {*ALLOWED[format_], *HARMFUL, *WITHOUT_EFFECT}


@pytest.mark.parametrize(
    ("format_", "options", "setting", "what", "todo"),
    [
        ("json", {"mode": "FAILFAST"}, "mode", "'mode' would stop the engine or lose messages: a malformed body always becomes a dead letter", "Remove it"),
        ("csv", {"MODE": "DROPMALFORMED"}, "MODE", "'MODE' would stop the engine or lose messages: a malformed body always becomes a dead letter", "Remove it"),
        ("json", {"columnNameOfCorruptRecord": "c"}, "columnNameOfCorruptRecord", "'columnNameOfCorruptRecord' would make rows of malformed bodies, which become dead letters", "Remove it"),
        ("csv", {"comment": "#"}, "comment", "'comment' would make a row of NULLs of a body that is a comment", "Remove it"),
        ("csv", {"header": "true"}, "header", "'header' has no effect on a single body", "Remove it"),
        ("json", {"multiLine": "true"}, "multiLine", "'multiLine' has no effect on a single body", "Remove it"),
        ("json", {"sep": ";"}, "sep", "'sep' is an option of csv, the format is json", ""),
        ("csv", {"delimeter": ";"}, "delimeter", "'delimeter' is not an option", "Did you mean 'delimiter'?"),
        ("csv", {"xyz": ";"}, "xyz", "'xyz' is not an option", ""),
        ("csv", {"sep": ""}, "sep", "'sep' is '', must be not empty", ""),
        ("csv", {"quote": "ab"}, "quote", "'quote' is 'ab', must be one character or empty", ""),
        ("csv", {"maxColumns": "many"}, "maxColumns", "'maxColumns' is 'many', must be a whole number above 0", ""),
        ("csv", {"unescapedQuoteHandling": "RAISE_ERROR"}, "unescapedQuoteHandling", "'unescapedQuoteHandling' is 'RAISE_ERROR', must be STOP_AT_CLOSING_QUOTE, STOP_AT_DELIMITER or BACK_TO_DELIMITER", ""),
        ("json", {"locale": "de_DE"}, "locale", "'locale' is 'de_DE', must be a language tag such as en-US", ""),
        ("json", {"allowComments": "yes"}, "allowComments", "'allowComments' is 'yes', must be true or false", ""),
        ("csv", {"sep": ";", "SEP": "|"}, "SEP", "'SEP' is there twice", "Remove one"),
        ("csv", {"sep": ";", "Delimiter": "|"}, "Delimiter", "'Delimiter' is there twice", "Remove one"),
    ],
)  # fmt: skip
def test_another_option_is_refused(format_, options, setting, what, todo):
    with pytest.raises(ConfigError) as caught:
        DecodeStep(format=format_, schema="a INT", options=options)
    error = caught.value
    assert (error.code, error.where, error.what, error.todo) == ("E1527", f"options.{setting}", what, todo)


@pytest.mark.parametrize(("format_", "schema"), [("text", None), ("avro", "{}")])
def test_a_format_without_options_refuses_them(format_, schema):
    with pytest.raises(ConfigError, match=f"E1510 options: format {format_} has 'options'. It is for json and csv"):
        DecodeStep(format=format_, schema=schema, options={"locale": "de"})


@pytest.mark.parametrize("format_", ["json", "csv"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dateFormat": "foo"}, "Unrecognized datetime pattern: 'foo'"),
        ({"timestampFormat": "xyz'"}, "Unrecognized datetime pattern"),
        ({"timestampNTZFormat": "dd.MM.yyyy bb"}, "Unrecognized datetime pattern"),
        ({"timeFormat": "foo"}, "Unrecognized datetime pattern"),
        ({"timeZone": "Mars"}, "The timezone: Mars is invalid"),
    ],
)
def test_a_value_that_spark_refuses_is_refused_at_the_start(engine, format_, options, words):
    with pytest.raises(ConfigError, match=r"E1527 pipeline p step 1 \(decode\): options: ") as caught:
        engine(DecodeStep(format=format_, schema="a INT", options=options), RouteStep(to="out"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lint_shows_the_line_of_an_option(tmp_path, capsys):
    file = tmp_path / "p.yaml"
    file.write_text(
        "version: 1\nname: p\nconnections: {local: {type: embedded}}\n"
        'receivers: [{id: a, connection: local, destination: "queue:a", reliability: BEST_EFFORT}]\n'
        'senders: [{id: b, connection: local, destination: "queue:b", reliability: BEST_EFFORT}]\n'
        "pipelines:\n  - name: p\n    from: [a]\n    steps:\n      - decode:\n          format: json\n"
        "          schema: a INT\n          options:\n            locale: de\n            mode: FAILFAST\n      - route: b\n"
    )
    file.chmod(0o600)
    assert main.execute(["lint", str(file)]) == 2
    place = f"{file}:15:19 pipelines[0].steps[0].decode.options.mode"
    assert f"E1527 {place}: 'mode' would stop the engine" in " ".join(capsys.readouterr().out.split())
