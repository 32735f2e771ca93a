"""The reports of campaigns, as JSON."""

import json
from typing import Any

import pytest

from correlator.testing.files import as_json
from tests.connectors.http_campaign import rounds as of_http
from tests.connectors.kafka_campaign import rounds as of_kafka
from tests.connectors.webhook_campaign import rounds as of_webhook


@pytest.mark.parametrize("rounds", [of_http, of_kafka, of_webhook], ids=["http", "kafka", "webhook"])
def test_a_report_has_the_kills_by_place(rounds: Any) -> None:
    result = rounds.Result(7)
    result.figures.kills["any"] += 2
    report = json.loads(as_json(result.report()))
    assert (report["seed"], report["figures"]["kills"]) == (7, {"any": 2})
