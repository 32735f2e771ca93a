"""Settings with shares: what each share gets, and what is refused."""

from dataclasses import replace

import pytest

from correlator.configuration import EngineFile, check_member_settings, in_schema, of_share, read_text, schema_of
from correlator.errors import ConfigError, UsageError
from correlator.reliability import Reliability
from correlator.settings import EngineSettings, ShareSettings
from correlator.storage import database

FILE = """
name: Risk-1
store: postgresql://me:secret@db/trades?connect_timeout=3&options=-cwork_mem%3D1MB
shares: {count: 12, lease: 5s}
connections:
  broker: {type: embedded, client: "c-${share}"}
destinations: {in: "queue:in-${share}"}
receivers:
  - {id: trades, connection: broker, destination: in, reliability: EXACTLY_ONCE, options: {part: "${share}"}}
  - {id: news, connection: broker, destination: "topic:news", durable_topic_subscription_name: "news-${share}"}
senders:
  - {id: out, connection: broker, destination: "queue:all", mapping: {property.share: "${share}"}}
"""


@pytest.fixture
def settings() -> EngineFile:
    return read_text(FILE, EngineFile, file="risk.yaml").settings


def test_the_placeholder_stays_until_a_share_is_chosen(settings):
    assert settings.shares == ShareSettings(count=12, lease=5.0)
    assert settings.destinations["in"] == "queue:in-${share}"


def test_a_share_has_its_number_in_every_text(settings):
    share = of_share(settings, 11)
    assert share.name == "Risk-1/11"
    assert share.shares is None
    assert share.destinations == {"in": "queue:in-11"}
    assert share.connections["broker"].options == {"client": "c-11"}
    assert share.receivers[0].options == {"part": "11"}
    assert share.receivers[0].reliability is Reliability.EXACTLY_ONCE
    assert share.receivers[1].subscription == "news-11"
    assert share.senders[0].mapping == {"property.share": "11"}
    assert isinstance(share, EngineFile)


def test_a_share_has_a_schema_of_its_own(settings):
    url = database.parse(of_share(settings, 3).store)
    assert url.password == "secret"
    assert dict(url.query) == {
        "connect_timeout": "3",
        "options": "-cwork_mem=1MB -csearch_path=risk_1_share_3",
        "application_name": "risk_1_share_3",
    }
    assert schema_of(replace(settings, shares=ShareSettings(count=1, schema="other"))) == "other"


def test_the_hosts_of_a_url_all_stay():
    url = in_schema("postgresql://u@/d?host=a:1&host=b:2", "s")
    assert database.parse(url).query["host"] == ("a:1", "b:2")


@pytest.mark.parametrize("number", [-1, 12])
def test_there_is_no_such_share(settings, number):
    with pytest.raises(UsageError, match=rf"E2060 share {number}: the engine Risk-1 has the shares 0 to 11"):
        of_share(settings, number)


def test_an_engine_without_shares_has_none(settings):
    with pytest.raises(UsageError, match=r"E2060 .*has no shares"):
        of_share(of_share(settings, 0), 0)


def problems(text):
    with pytest.raises(ConfigError) as refused:
        read_text(text, EngineFile, file="risk.yaml")
    return [(one.code, one.where.rpartition(" ")[2]) for one in refused.value.problems]


PG = "store: postgresql://me@db/trades"
HEAD = "name: risk\nshares: {count: 8}\nconnections: {broker: {type: embedded}}\n"
IN = 'receivers: [{id: r, connection: broker, destination: "queue:in-${share}"}]\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HEAD + IN, [("E1331", "store")]),
        (f"{HEAD}store: sqlite:///a.db\n{IN}", [("E1331", "store")]),
        (f"{HEAD}{PG}?options=-csearch_path%3Dmine\n{IN}", [("E1331", "store")]),
        (f"{HEAD}{PG}\n{IN}".replace("-${share}", ""), [("E1332", "receivers[0].destination")]),
        (f"{HEAD}{PG}\n{IN}".replace("queue:in-${share}", "queue:in-$${share_}"), [("E1332", "receivers[0].destination")]),
        (f"{HEAD}{PG}\ninput_log: here.log\n{IN}", [("E1332", "input_log")]),
        (f"{HEAD}{PG}\nhttp: {{port: 8080}}\n{IN}", [("E1334", "http.port")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", "count: 8, schema: pg_mine"), [("E1333", "shares.schema")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", 'count: 8, schema: "a b"'), [("E1333", "shares.schema")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", 'count: 8, schema: "a;DROP"'), [("E1333", "shares.schema")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", "count: 8, schema: Ä"), [("E1333", "shares.schema")]),
        (f"{HEAD}{PG}\n{IN}".replace("risk", "9lives"), [("E1333", "shares.schema")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", f"count: 8, schema: {'a' * 57}"), [("E1333", "shares.schema")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", "count: 0"), [("E1022", "shares.count")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", "count: 1001"), [("E1022", "shares.count")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", "count: 8, lease: 10"), [("E1025", "shares.lease")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", "count: 8, lease: 100ms"), [("E1025", "shares.lease")]),
        (f"{HEAD}{PG}\n{IN}".replace("{count: 8}", "{lease: 9s}"), [("E1021", "shares")]),
        (f"{HEAD}{PG}\n{IN}".replace("count: 8", "count: '${share}'"), [("E1022", "shares.count")]),
        (f"{HEAD}{PG}\n{IN}".replace("shares: {count: 8}\n", ""), [("E1031", "receivers[0].destination")]),
    ],
)  # fmt: skip
def test_what_shares_cannot_have(text, found):
    assert problems(text) == found


def test_a_schema_may_have_63_bytes():
    longest = "a" * 56
    loaded = read_text(f"{HEAD}{PG}\n{IN}".replace("count: 8", f"count: 1000, schema: {longest}"), EngineFile)
    assert len(f"{schema_of(loaded.settings)}_leases") == 63


def test_code_has_the_same_rules():
    with pytest.raises(ConfigError, match=r"E1331 .*E1332|E1331"):
        check_member_settings(EngineSettings(name="risk", shares=ShareSettings(count=8)))
    with pytest.raises(ConfigError, match="E1022"):
        check_member_settings(EngineSettings(name="risk", shares=ShareSettings(count="8")))  # type: ignore[arg-type]
