"""Draws what config/flights.yaml has found, from its output alone.

    python docs/examples/flights_plots.py DELAYED ALERTS DIRECTORY

DELAYED is the file that the sender `delayed` has written, ALERTS is what `correlator browse --json` shows of the queue
`alerts`. The program writes three pictures into DIRECTORY. The same output gives the same bytes.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

NEW_YORK = timezone(timedelta(hours=-5))
"""Its time in January."""
VERY_LATE_MINUTES = 60
PART_OF_DAY = 6
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM = 760, 270, 50, 745, 235
TOP = {False: 60, True: 130}
"""Where the highest bar may end: alerts stand above the bars."""
STEPS = (10, 20, 50, 100, 200, 500)
MOST_LINES = 6
FONT = 'font-family="sans-serif" font-size="13"'
INK, LATE, VERY_LATE, ALERT = "#24292f", "#54aeff", "#0550ae", "#a40e26"


class Bar(NamedTuple):
    """How many departures were late, how many of them more than an hour, and which airlines had an alert."""

    label: str
    late: int
    very_late: int
    alerts: Sequence[str] = ()


def bar(label: str, rows: Iterable[dict[str, Any]], alerts: Iterable[dict[str, Any]] = ()) -> Bar:
    """The bar of these departures and alerts."""
    delays = [row["dep_delay"] for row in rows]
    very_late = sum(delay > VERY_LATE_MINUTES for delay in delays)
    return Bar(label, len(delays), very_late, sorted(alert["carrier"] for alert in alerts))


def local(row: dict[str, Any]) -> datetime:
    """The scheduled time of a row in New York."""
    return datetime.fromisoformat(row["scheduled"]).astimezone(NEW_YORK)


def hours(delayed: list[dict[str, Any]]) -> list[Bar]:
    """A bar for each hour of the day."""
    found = sorted({local(row).hour for row in delayed})
    every = range(found[0], found[-1] + 1)
    return [bar(str(hour), (row for row in delayed if local(row).hour == hour)) for hour in every]


def airlines(delayed: list[dict[str, Any]]) -> list[Bar]:
    """A bar for each airline, the one with the most late departures first."""
    found = sorted({row["carrier"] for row in delayed})
    bars = [bar(carrier, (row for row in delayed if row["carrier"] == carrier)) for carrier in found]
    return sorted(bars, key=lambda one: -one.late)


def week(delayed: list[dict[str, Any]], alerts: list[dict[str, Any]]) -> list[Bar]:
    """A bar for each quarter of a day, with its alerts; the first quarter of a day has the date."""
    begin = min(map(local, delayed)).replace(hour=0, minute=0)
    quarter = timedelta(hours=PART_OF_DAY)
    bars = []
    while begin <= max(map(local, delayed)):
        end = begin + quarter
        label = f"January {begin.day}" if begin.hour == PART_OF_DAY else ""
        rows, told = ([row for row in given if begin <= local(row) < end] for given in (delayed, alerts))
        bars.append(bar(label, rows, told))
        begin = end
    return bars


def picture(title: str, bars: Sequence[Bar]) -> str:
    """The bars as SVG. It has a background of its own, so it is readable on a light and on a dark page."""
    most = max(one.late for one in bars)
    alerts = any(one.alerts for one in bars)
    height = (BOTTOM - TOP[alerts]) / most
    width = (RIGHT - LEFT) / len(bars)
    step = next(step for step in STEPS if most / step < MOST_LINES)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT} fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#f6f8fa"/>',
        text(20, 28, title, 'font-size="15" font-weight="bold"'),
        *legend(alerts),
    ]
    for value in range(0, most + 1, step):
        y = BOTTOM - value * height
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#d0d7de"/>')
        parts.append(text(LEFT - 8, y + 4, str(value), 'text-anchor="end"'))
    for number, one in enumerate(bars):
        x = LEFT + number * width
        middle = x + width / 2
        for count, color in ((one.late, LATE), (one.very_late, VERY_LATE)):
            tall = count * height
            parts.append(
                f'<rect x="{x + width * 0.1:.1f}" y="{BOTTOM - tall:.1f}" width="{width * 0.8:.1f}" '
                f'height="{tall:.1f}" fill="{color}"/>'
            )
        for above, carrier in enumerate(one.alerts):
            y = BOTTOM - one.late * height - 6 - 13 * above
            parts.append(text(middle, y, carrier, f'text-anchor="middle" font-weight="bold" fill="{ALERT}"'))
        if one.label:
            at = x + width if alerts else middle  # a date stands below the middle of its day
            parts.append(text(at, BOTTOM + 20, one.label, 'text-anchor="middle"'))
    return "\n".join([*parts, "</svg>", ""])


def legend(alerts: bool) -> list[str]:
    """What the colors mean."""
    entries = [(LATE, "late"), (VERY_LATE, "more than an hour late")]
    parts = []
    for x, (color, meaning) in zip((500, 560), entries, strict=True):
        parts.append(f'<rect x="{x}" y="18" width="12" height="12" fill="{color}"/>')
        parts.append(text(x + 18, 28, meaning))
    if alerts:
        parts.append(text(560, 48, "EV", f'font-weight="bold" fill="{ALERT}"'))
        parts.append(text(584, 48, "alert for this airline"))
    return parts


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{words}</text>'.replace(" >", ">")


def main(delayed_file: str, alerts_file: str, directory: str) -> None:
    """Read the output and write the pictures."""
    delayed = [json.loads(line) for line in Path(delayed_file).read_text("utf-8").splitlines()]
    alerts = [json.loads(message["body"]) for message in json.loads(Path(alerts_file).read_text("utf-8"))]
    pictures = {
        "flights-hours.svg": picture("Late departures by hour of the day", hours(delayed)),
        "flights-airlines.svg": picture("Late departures by airline", airlines(delayed)),
        "flights-week.svg": picture("Late departures in each quarter of a day", week(delayed, alerts)),
    }
    for name, content in pictures.items():
        (Path(directory) / name).write_text(content, "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
