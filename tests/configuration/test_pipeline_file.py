"""The architecture's example of a pipeline file, and the published JSON Schema.

Run as a program, this module writes `config/schema.json`.
"""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from correlator.configuration import json_schema, read_text
from correlator.errors import ConfigError
from correlator.pipeline.spec import DecodeStep, MonitorStep, PipelineFile, RouteStep, WhereStep
from correlator.reliability import Reliability

SCHEMA_FILE = Path(__file__).parents[2] / "config" / "schema.json"
FLIGHTS = """
version: 1
name: flights                              # identity of the instance; its store opens under no other name
store: ${CORRELATOR_STORE:sqlite:///flights.db}      # or postgresql://…
checkpoint: {interval: 200ms}
spark: {master: "local[*]"}
connections:
  files:  {type: file, path: data}
  local:  {type: embedded}
receivers:
  - {id: departures, connection: files, destination: "queue:flights.csv", reliability: EXACTLY_ONCE,
     unique_message_id: "${row.carrier}-${row.flight}-${row.date}-${row.origin}"}
senders:
  - {id: alerts,  connection: local, destination: "queue:alerts",  reliability: EXACTLY_ONCE}
  - {id: delayed, connection: files, destination: "queue:delayed.jsonl", reliability: EXACTLY_ONCE}
pipelines:
  - name: delays
    from: [departures]
    steps:
      - decode: {format: csv, schema: "carrier STRING, flight INT, origin STRING, dep_delay INT, scheduled TIMESTAMP"}
      - where: dep_delay > 15
      - route: {to: delayed}
      - monitor: {class: "flights.monitors:CarrierDelays", key: carrier, event_time: scheduled}
      - route: {to: alerts}
tests:
  - {name: an early flight is not reported, given: ["AA,1,JFK,-3,2013-01-01 05:15:00"], then: []}
"""


def published() -> str:
    return json.dumps(json_schema(PipelineFile), indent=2, ensure_ascii=False) + "\n"


def test_the_example_of_the_architecture():
    loaded = read_text(FLIGHTS, PipelineFile, environment={}, connectors=["file", "embedded"])
    (pipeline,) = loaded.settings.pipelines
    assert pipeline.from_ == ("departures",)
    assert pipeline.steps == (
        DecodeStep(
            format="csv", schema="carrier STRING, flight INT, origin STRING, dep_delay INT, scheduled TIMESTAMP"
        ),
        WhereStep(condition="dep_delay > 15"),
        RouteStep(to="delayed"),
        MonitorStep(class_="flights.monitors:CarrierDelays", key="carrier", event_time="scheduled"),
        RouteStep(to="alerts"),
    )
    assert loaded.settings.receivers[0].reliability is Reliability.EXACTLY_ONCE
    assert loaded.settings.tests[0].given == ("AA,1,JFK,-3,2013-01-01 05:15:00",)
    assert loaded.settings.spark.master == "local[*]"
    assert loaded.warnings == ()


def test_the_example_is_valid_by_the_schema():
    jsonschema.Draft202012Validator(json_schema(PipelineFile)).validate(yaml.safe_load(FLIGHTS))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "- decode: {format: csv",
            "- decode: {fromat: csv",
            "pipelines[0].steps[0].decode.fromat: unknown key. Did you",
        ),
        (
            "where: dep_delay > 15",
            "were: dep_delay > 15",
            "pipelines[0].steps[1].were: unknown key. Did you mean 'where'?",
        ),
        ("from: [departures]", "from: departures", "pipelines[0].from: is a single value, must be a list"),
        ("where: dep_delay > 15", "where: ''", "steps[1].where: '' has 0 characters, must have at least 1."),
        ("key: carrier", "key: 1", "pipelines[0].steps[3].monitor.key: YAML reads this unquoted as the number 1"),
        ("flights.monitors:CarrierDelays", "flights.monitors", "is not an import path. Write module:Class"),
        (
            'local[*]"}',
            'local", config: {spark.hadoop.fs.s3a.secret.key: 017}}',
            "reads this unquoted as something else",
        ),
    ],
)
def test_mistakes_in_pipelines(old, new, says):
    assert old in FLIGHTS
    with pytest.raises(ConfigError) as caught:
        read_text(FLIGHTS.replace(old, new), PipelineFile, environment={}, connectors=["file", "embedded"])
    assert says in str(caught.value)


def test_a_secret_of_spark_is_warned_of():
    text = FLIGHTS.replace('local[*]"}', 'local", config: {spark.hadoop.fs.s3a.secret.key: hidden}}')
    loaded = read_text(text, PipelineFile, environment={}, connectors=["file", "embedded"])
    assert [warning.code for warning in loaded.warnings] == ["W9001"]
    assert loaded.secrets.redact("hidden") == "***"


def test_the_published_schema_is_up_to_date():
    assert SCHEMA_FILE.read_text() == published(), f"write it anew: python {Path(__file__).name}"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(published())
