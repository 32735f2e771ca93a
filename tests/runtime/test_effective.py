"""The settings with which an engine runs, each with its source (docs/status-page.md)."""

import pytest

from correlator import Reliability
from correlator.configuration import EngineFile, Origin, read_file
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.effective import LONGEST_VALUE, effective_settings
from correlator.settings import ConnectionSettings, EngineSettings, HttpSettings, MonitorSettings, ReceiverSettings

SENTINEL = "sentinel-p4ss"
FILE = """\
name: shop
store: "sqlite:///${PLACE}/shop.db"
http: {port: 0, token: "${TOKEN}"}
stop_timeout: 200ms
connections:
  local:
    type: embedded
    default_sender_reliability: EXACTLY_ONCE
    store: sqlite:///broker.db
receivers:
  - id: orders
    connection: local
    destination: queue:orders
    reliability: EXACTLY_ONCE
    max_batch_bytes: 3MiB
senders:
  - {id: bills, connection: local, destination: "queue:bills", mapping: {key: "${body}"}}
"""
PIPELINE = """\
name: shop
connections: {local: {type: embedded}}
receivers: [{id: in, connection: local, destination: "queue:in"}]
senders: [{id: out, connection: local, destination: "queue:out"}]
spark: {config: {spark.some.password: sentinel-p4ss}}
pipelines:
  - name: all
    from: [in]
    steps:
      - decode: {format: json, schema: "id bigint"}
      - where: id > 1
      - aggregate: {key: id, event_time: "timestamp_seconds(id)", window: 90s, values: {n: count(*)}}
      - route: out
"""


@pytest.fixture
def read(tmp_path):
    """Reads a file, and returns the values and sources of its settings by part and name."""

    def read(text, root=EngineFile, *, environment=None, overrides=()):
        file = tmp_path / "shop.yaml"
        file.write_text(text)
        file.chmod(0o600)
        loaded = read_file(file, root, environment=environment or {}, overrides=overrides)
        found = list(effective_settings(loaded.settings, loaded.origin))
        by_name = {(one.part, one.name): (one.value, one.source.replace(f"{tmp_path}/", "")) for one in found}
        assert len(by_name) == len(found)
        return by_name

    return read


def test_each_setting_has_its_value_with_its_unit_and_its_source(read):
    environment = {"PLACE": "here", "TOKEN": SENTINEL * 3}
    found = read(FILE, environment=environment, overrides=["senders[0].max_tries=7"])
    expected = {
        ("engine", "name"): ("shop", "shop.yaml:1"),
        ("engine", "store"): ("sqlite:///here/shop.db", "shop.yaml:2"),
        ("engine", "http.token"): ("***", "shop.yaml:3"),
        ("engine", "http.host"): ("127.0.0.1", "default"),
        ("engine", "stop_timeout"): ("200ms", "shop.yaml:4"),
        ("engine", "status_interval"): ("5s", "default"),
        ("engine", "checkpoint.interval"): ("200ms", "default"),
        ("engine", "fail_fast"): ("false", "default"),
        ("engine", "opentelemetry"): ("", "default"),
        ("connection local", "type"): ("embedded", "shop.yaml:7"),
        ("connection local", "store"): ("sqlite:///broker.db", "shop.yaml:9"),
        ("connection local", "default_receiver_reliability"): ("BEST_EFFORT", "default"),
        ("receiver orders", "reliability"): ("EXACTLY_ONCE", "shop.yaml:14"),
        ("receiver orders", "max_batch_bytes"): ("3MiB", "shop.yaml:15"),
        ("receiver orders", "max_message_bytes"): ("10MiB", "default"),
        ("receiver orders", "dup_detection_domain_id"): ("local:queue:orders", "default"),
        ("receiver orders", "durable_topic_subscription_name"): ("orders", "default"),
        ("sender bills", "reliability"): ("EXACTLY_ONCE", "shop.yaml:8"),  # of the connection
        ("sender bills", "mapping.key"): ("${body}", "shop.yaml:17"),
        ("sender bills", "max_tries"): ("7", "command line"),
        ("sender bills", "time_to_live"): ("", "default"),
    }
    assert {name: found[name] for name in expected} == expected
    assert not [name for name in found if name[1] in ("version", "tests")]


def test_steps_of_pipelines_are_settings_too(read):
    found = read(PIPELINE, PipelineFile)
    expected = {
        ("pipeline all", "from"): ("in", "shop.yaml:8"),
        ("pipeline all", "steps[0].decode.schema"): ("id bigint", "shop.yaml:10"),
        ("pipeline all", "steps[1].where.condition"): ("id > 1", "shop.yaml:11"),
        ("pipeline all", "steps[2].aggregate.window"): ("90s", "shop.yaml:12"),
        ("pipeline all", "steps[2].aggregate.values.n"): ("count(*)", "shop.yaml:12"),
        ("pipeline all", "steps[2].aggregate.output"): ("final", "default"),
        ("pipeline all", "steps[3].route.to"): ("out", "shop.yaml:13"),
        ("engine", "spark.config.spark.some.password"): ("***", "shop.yaml:5"),
    }
    assert {name: found[name] for name in expected} == expected


def test_settings_of_code_have_no_place():
    settings = EngineSettings(
        name="shop",
        connections={"local": ConnectionSettings(type="embedded", options={"store": "sqlite:///b.db"})},
        receivers=(
            ReceiverSettings(
                id="in", connection="local", destination="queue:in", reliability=Reliability.AT_LEAST_ONCE
            ),
        ),
        monitors=(
            MonitorSettings(type="shop:Positions", options={"limit": 5, "names": ["ä", 1], "long": "x" * 9_000}),
        ),
    )
    found = {(one.part, one.name): one[2:] for one in effective_settings(settings, Origin())}
    assert found["connection local", "store"] == ("sqlite:///b.db", "code")
    assert found["receiver in", "reliability"] == ("AT_LEAST_ONCE", "code")
    assert found["receiver in", "dup_detection_domain_id"] == ("", "default")  # it detects none
    assert found["monitor shop:Positions", "options.limit"] == ("5", "code")
    assert found["monitor shop:Positions", "options.names"] == ('["ä", 1]', "code")
    assert found["monitor shop:Positions", "options.long"] == ("x" * LONGEST_VALUE + "…", "code")
    assert found["monitor shop:Positions", "on_error"] == ("stop", "default")


SECRETS = {
    "store": f"store: 'postgresql://me:{SENTINEL}@h/d'",
    "a variable with the name of a secret": "input_log: 'here/${DB_PASSWORD}'",
    "a file of a secret": "input_log: 'here/${file:%s}'",
    "an option of a connection": f"connections: {{c: {{type: embedded, password: {SENTINEL}}}}}",
    "within an option": f"connections: {{c: {{type: embedded, auth: {{client_secret: {SENTINEL}}}}}}}",
    "in a list": f"connections: {{c: {{type: embedded, token: [{SENTINEL}]}}}}",
    "in a URL of an option": f"connections: {{c: {{type: embedded, url: 'http://h/?api_key={SENTINEL}'}}}}",
    "an option of a monitor": f"monitors: [{{type: 'a:B', options: {{api_key: {SENTINEL}}}}}]",
    "a value of a mapping that is secret elsewhere": (
        f"connections: {{c: {{type: embedded, password: {SENTINEL}}}}}\n"
        f"senders: [{{id: s, connection: c, mapping: {{body: '{SENTINEL}'}}}}]"
    ),
    "the token": f"http: {{port: 0, token: {SENTINEL * 3}}}",
}


@pytest.mark.parametrize("place", SECRETS)
def test_o22_secrets_are_hidden_wherever_they_stand(read, tmp_path, place):
    secret = tmp_path / "secret"
    secret.write_text(SENTINEL)
    secret.chmod(0o600)
    text = SECRETS[place].replace("%s", str(secret))
    found = read(f"name: shop\n{text}\n", environment={"DB_PASSWORD": SENTINEL})
    assert SENTINEL not in repr(found)
    assert "***" in repr(found)


def test_o22_the_secrets_of_settings_of_code_are_known_by_name():
    options = {"password": SENTINEL, "auth": {"secret": SENTINEL}, "url": f"amqp://u:{SENTINEL}@h", "pin_password": 0}
    settings = EngineSettings(
        name="shop",
        store=f"postgresql://me:{SENTINEL}@h/d",
        http=HttpSettings(port=0, token=SENTINEL * 3),
        connections={"c": ConnectionSettings(type="x", options=options)},
    )
    found = {one.name: one.value for one in effective_settings(settings, Origin())}
    assert SENTINEL not in repr(found)
    assert (found["password"], found["pin_password"], found["http.token"]) == ("***", "***", "***")
    assert found["url"] == "amqp://u:***@h"
