"""docs/flights.md: its pictures are those of the output, and its examples are those of the pipeline.

`tests/crash/test_flights.py` runs its commands after a run that was killed again and again.
"""

import json
import re
import runpy
from pathlib import Path

from tests.docs.test_pages import ROOT
from tests.pipeline.test_flights import reference, sample

PAGE = (ROOT / "docs" / "flights.md").read_text()
IMAGES = ROOT / "docs" / "images"
PROGRAM = ROOT / "docs" / "examples" / "flights_plots.py"
PICTURES = ("flights-hours.svg", "flights-airlines.svg", "flights-week.svg")


def output() -> tuple[list[str], list[str], list[str]]:
    """Late departures, alerts and malformed records, by plain Python: what the pipeline gives, as other tests show."""
    return reference(list(dict.fromkeys(sample())))


def draw(place: Path, delayed: list[str], alerts: list[str]) -> dict[str, bytes]:
    (place / "delayed.jsonl").write_text("".join(f"{line}\n" for line in delayed))
    (place / "alerts.json").write_text(json.dumps([{"body": body} for body in alerts]))
    main = runpy.run_path(str(PROGRAM))["main"]
    main(str(place / "delayed.jsonl"), str(place / "alerts.json"), str(place))
    return {name: (place / name).read_bytes() for name in PICTURES}


def test_the_pictures_are_those_of_the_output(tmp_path):
    delayed, alerts, _ = output()
    published = {name: (IMAGES / name).read_bytes() for name in PICTURES}
    assert draw(tmp_path, delayed, alerts) == published
    assert draw(tmp_path, delayed, sorted(alerts)) == published, "the order of the alerts of two airlines may vary"
    assert draw(tmp_path, delayed[1:], alerts) != published
    assert all(f"(images/{name})" in PAGE for name in PICTURES)


def test_the_numbers_of_the_page_are_those_of_the_sample():
    delayed, alerts, malformed = output()
    lines = sample()
    different = list(dict.fromkeys(lines))
    told = [int(number.replace(",", "")) for number in re.findall(r"\*\*([\d,]+)\*\*", PAGE)]
    assert told == [
        len(lines),
        len(lines) - len(different),
        len(malformed),
        len(delayed),
        len(alerts),
    ]


def test_the_rows_and_steps_that_the_page_shows_are_those_of_the_example():
    delayed, alerts, _ = output()
    (late,) = re.findall(r"^\{.*dep_delay.*\}$", PAGE, re.MULTILINE)
    (alert,) = re.findall(r"^\{.*worst_delay.*\}$", PAGE, re.MULTILINE)
    assert (late, alert) == (delayed[0], alerts[0])
    assert f"```\n{(ROOT / 'config/data/flights.csv').read_text().splitlines()[0]}\n{sample()[0]}\n```" in PAGE
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown in (ROOT / "config/flights.yaml").read_text()
