"""Crash tests of the pipelines and bridges in this directory.

Run them from the directory above:  pytest config/test_pipelines.py

The outputs must be those that plain Python computes, wherever the engine dies.
"""

import csv
import json
from pathlib import Path

from correlator import Message
from correlator.testing import crash_test

DATA = Path(__file__).parent / "data"
EVENING = slice(5817, 5857)
"""Some records of the stormy evening of January 31st."""


def flights():
    """The records of this evening, as dictionaries and as lines."""
    lines = (DATA / "flights.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))[EVENING]
    return rows, lines[1:][EVENING]


def messages():
    """The records as the connector `file` delivers them: with the columns that the unique id is made of."""
    for row, line in zip(*flights(), strict=True):
        yield Message(line.encode(), {f"row.{name}": row[name] for name in ("carrier", "flight", "date", "origin")})


def late(more_than):
    """The departures that were so many minutes late."""
    return [row for row in flights()[0] if row["dep_delay"] and int(row["dep_delay"]) > more_than]


@crash_test(config="flights.yaml", budget="20s")
def test_every_late_departure_is_reported_in_order(world):
    world.publish("queue:flights.csv", list(messages()))
    world.run_until_quiet()
    world.check()
    expected = [int(row["flight"]) for row in late(15)]
    assert world.sent("delayed").values("flight") == expected != []


@crash_test(config="weather.yaml", budget="20s")
def test_departures_in_bad_weather_are_those_of_plain_python(world):
    world.publish("queue:flights.csv", list(messages()))
    world.run_until_quiet()
    world.check()
    with (DATA / "weather.csv").open() as file:
        weather = {(row["origin"], row["hour"]): row for row in csv.DictReader(file)}
    expected = []
    for row in late(60):
        there = weather[row["origin"], f"{row['scheduled'][:13]}:00:00Z"]
        if float(there["visib"]) < 1 or float(there["wind_speed"]) > 25:
            expected.append(int(row["flight"]))
    assert world.sent("bad_weather").values("flight") == expected != []


ORDERS = [
    {"order": n, "at": f"2026-01-05T10:{n:02}:00Z", "customer": "abc"[n % 3], "cents": 100 * n} for n in range(1, 31)
]
PAYMENTS = [
    {"order": one["order"], "at": f"2026-01-05T10:{one['order'] + 5:02}:00Z", "cents": one["cents"], "payment": "p"}
    for one in ORDERS
    if one["order"] % 4
]
NEXT_DAY = {"order": 99, "at": "2026-01-06T10:00:00Z", "customer": "a", "cents": 1}
"""Shows that the time of all other orders is over; it waits for its own payment."""


@crash_test(config="payments.yaml", budget="20s")
def test_each_order_is_paid_or_unpaid_and_none_is_both(world):
    world.publish("queue:orders", ORDERS)
    world.publish("queue:payments", PAYMENTS[::-1])
    world.run_until_quiet()
    world.publish("queue:orders", [NEXT_DAY])
    world.run_until_quiet()
    world.check()
    assert sorted(world.sent("paid").values("order")) == sorted(one["order"] for one in PAYMENTS)
    assert sorted(world.sent("unpaid").values("order")) == [n for n in range(1, 31) if n % 4 == 0]
    assert world.sent("unknown").bodies() == []


BOUGHT = [{"order": f"A{n}", "customer": "abc"[n % 3], "amount": 10 * n, "at": ORDERS[n]["at"]} for n in range(30)]
TRANSFERS = [{"order": one["order"], "amount": one["amount"] - n % 3, "at": one["at"]} for n, one in enumerate(BOUGHT)]


@crash_test(config="pulsar-to-rabbitmq.yaml", budget="20s")
def test_each_order_is_shipped_or_goes_back_to_the_shop(world):
    world.publish("queue:orders", [Message(json.dumps(one).encode(), {"order": one["order"]}) for one in BOUGHT])
    payments = [Message(json.dumps(one).encode(), {"payment": f"P{n}"}) for n, one in enumerate(TRANSFERS)]
    world.publish("queue:payments", [*payments[::-1], payments[0]])  # the bank repeats one
    world.run_until_quiet()
    world.check()
    paid = [one["order"] for n, one in enumerate(BOUGHT) if n % 3 == 0]
    assert sorted(world.sent("shipments").values("order")) == sorted(paid) != []
    rest = [one["order"] for one in BOUGHT if one["order"] not in paid]
    assert sorted(world.sent("underpaid").values("order")) == sorted(rest) != []


COPIED = [{"order": n, "customer": "abc"[n % 3], "cents": 100 * (n % 7), "day": "2026-01-05"} for n in range(1, 41)]


@crash_test(config="spark-to-lake.yaml", budget="20s")
def test_each_order_of_more_than_nothing_becomes_one_row(world):
    world.publish("queue:orders", COPIED)
    world.run_until_quiet()
    world.check()
    expected = [one["order"] for one in COPIED if one["cents"]]
    assert world.sent("table").values("order") == expected != []


@crash_test(config="outbox-to-lake.yaml", budget="20s")
def test_each_departure_that_was_not_cancelled_becomes_one_row(world):
    records = [
        {**row, "flight": int(row["flight"]), "dep_delay": int(row["dep_delay"]) if row["dep_delay"] else None}
        for row in flights()[0]
    ]
    world.publish("queue:outbox", records)
    world.run_until_quiet()
    world.check()
    departed = [row for row in records if row["dep_delay"] is not None]
    assert 0 < len(departed) < len(records)
    assert world.sent("table").values("flight") == [row["flight"] for row in departed]
    assert world.sent("table").values("late") == [row["dep_delay"] > 15 for row in departed]


@crash_test(config="webhook-to-table-and-topic.yaml", budget="20s")
def test_each_order_is_in_the_table_and_in_the_topic(world):
    orders = [{"id": number, "customer": f"c{number % 3}", "cents": 100 * number} for number in range(1, 31)]
    world.publish("queue:orders", orders)
    world.run_until_quiet()
    world.check()
    for sender in ("table", "topic"):
        assert world.sent(sender).values("id") == [order["id"] for order in orders]
        assert [message.key for message in world.sent(sender)] == [order["customer"] for order in orders]
