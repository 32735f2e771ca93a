"""The flights example: SparkProcessor against plain Python, however the input is cut into batches."""

import csv
import json
import random
import runpy
from datetime import datetime, timedelta

import pytest

from correlator.configuration import read_file
from correlator.events import Message
from correlator.pipeline.processor import SparkProcessor
from correlator.pipeline.spec import PipelineFile
from tests.pipeline.conftest import CONFIG, TinyEngine

NAMES = ("carrier", "flight", "date", "origin", "dest", "scheduled", "dep_delay", "distance")


def sample() -> list[str]:
    return (CONFIG / "data" / "flights.csv").read_text().splitlines()[1:]


def reference(lines: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Delayed, alerts and malformed records, by plain means."""
    delayed, alerts, malformed, carriers = [], [], [], {}
    for line in lines:
        fields = next(csv.reader([line]))
        if len(fields) != 8 or fields[6] == "late":
            malformed.append(line)
            continue
        row = dict(zip(NAMES, fields, strict=True))
        if row["dep_delay"] == "" or int(row["dep_delay"]) <= 15:
            continue
        for name in ("flight", "dep_delay", "distance"):
            row[name] = int(row[name])
        delayed.append(text({**row, "scheduled": micros(row["scheduled"])}))
        alerts.extend(alert_of(carriers.setdefault(row["carrier"], []), row))
    return delayed, alerts, malformed


def alert_of(history: list[dict], row: dict) -> list[str]:
    """Works from the whole history of the carrier, unlike the monitor."""
    before = very_late(history)
    history.append(row)
    if not (before < 10 <= very_late(history)):
        return []
    delays = [entry["dep_delay"] for entry in history]
    return [
        text(
            {
                "carrier": row["carrier"],
                "scheduled": micros(row["scheduled"]),
                "departures": len(delays),
                "mean_delay": round(sum(delays) / len(delays), 1),
                "worst_delay": max(delays),
            }
        )
    ]


def very_late(history: list[dict]) -> int:
    times = [datetime.fromisoformat(entry["scheduled"]) for entry in history]
    return sum(
        entry["dep_delay"] > 60 and time > max(times) - timedelta(hours=6)
        for entry, time in zip(history, times, strict=True)
    )


def micros(scheduled: str) -> str:
    return scheduled.replace("Z", ".000000Z")


def text(row: dict) -> str:
    return json.dumps(row, separators=(",", ":"))


def cuttings(count: int):
    yield [count]
    chance, sizes = random.Random(1), []
    while sum(sizes) < count:
        sizes.append(min(chance.choice((1, 2, 30, 500, 1500, 3000)), count - sum(sizes)))
    yield sizes


@pytest.fixture
def delays(session):
    settings = read_file(
        CONFIG / "flights.yaml", PipelineFile, environment={}, connectors=("file", "embedded")
    ).settings
    processor = SparkProcessor(settings.pipelines[0], session, [str(CONFIG)])
    processor.open()
    yield processor
    processor.close()


def test_sample_agrees_with_plain_python_however_it_is_cut(delays):
    lines = sample()
    expected_delayed, expected_alerts, malformed = reference(lines)
    assert len(expected_delayed) > 1000
    assert len(expected_alerts) >= 10
    assert len(malformed) == 20
    finals = []
    for sizes in cuttings(len(lines)):
        engine, at = TinyEngine(delays), 0
        for size in sizes:
            engine.run(*lines[at : at + size])
            at += size
        assert engine.bodies("delayed") == expected_delayed
        assert engine.bodies("alerts") == expected_alerts
        assert [message.key for message in engine.sends["alerts"]] == [
            json.loads(body)["carrier"] for body in expected_alerts
        ]
        assert [letter.message.body.decode() for letter in engine.dead] == malformed
        finals.append(engine.state.entries)
    assert all(final == finals[0] for final in finals)
    assert all(owner == "step:delays/monitor:CarrierDelays#0" for owner, _ in finals[0])


def test_the_sample_is_what_the_script_writes():
    make_data = runpy.run_path(str(CONFIG / "flights" / "make_data.py"))
    lines = list(make_data["sample"]())
    assert lines == sample()
    assert len(lines) - len(set(lines)) == 60
    weather = (CONFIG / "data" / "weather.csv").read_text().splitlines()
    assert weather == [make_data["WEATHER_HEADER"], *make_data["weather_sample"]()]


def test_dead_letters_tell_message_and_reason(delays):
    engine = TinyEngine(delays)
    bad = Message(b"UA,1,2013-01-01,EWR,IAH,2013-01-01T10:15:00Z,late,1400", {"uniqueMessageId": "7:x"})
    engine.run(bad, "too,few")
    first, second = engine.dead
    assert (first.kind, first.origin, first.message, first.unique_id, first.time) == ("step", "delays", bad, "7:x", 7.5)
    assert first.reason.startswith(
        "E5101 pipeline delays step 1 (decode): not csv of the schema: a value has another type than its column: 'UA,1,"
    )
    assert second.reason.endswith(": 2 values, must be 8: 'too,few'")
