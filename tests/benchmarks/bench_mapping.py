"""What mapping costs (rules A9.16, A9.9): messages as they are, JSON events, events field by field; extra threads.

python -m tests.benchmarks.bench_mapping [--messages 100000] [--rounds 5]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from correlator import Message
from correlator.core.fields import FieldMapping
from correlator.core.mapping import ReceiveMapping
from correlator.runtime.mapper import Mapper
from tests.benchmarks.bench_engine import BATCH, Trade, messages

FROM_BODY = {"account": "${body.account}", "quantity": "${body.quantity}", "note": "${body.note}"}
FROM_PROPERTIES = {"account": "${property.account}", "quantity": "${property.quantity}", "note": "${key}"}


def mapping(event_type: type[Any] | None, fields: dict[str, str] | None) -> ReceiveMapping:
    """The mapping of an EXACTLY_ONCE receiver."""
    return ReceiveMapping(
        "in",
        event_type,
        "${property.uniqueMessageId}",
        "${property.messageSourceId}",
        deduplicated=True,
        max_message_bytes=1_000_000,
        fields=FieldMapping(fields, event_type, "queue:in", "receiver in") if fields and event_type else None,
    )


def flat(message: Message, at: int) -> Message:
    """The same trade in properties."""
    return Message(b"", {**message.properties, "account": f"A{at % 1000:05d}", "quantity": at % 90}, "x" * 200)


def rate_of(inputs: list[Message], one: ReceiveMapping, threads: int) -> float:
    """Messages a second through a mapper, in batches."""
    mapper = Mapper(one, threads, "bench", lambda: 0.0)
    begin = time.perf_counter()
    for first in range(0, len(inputs), BATCH):
        mapper.add(inputs[first : first + BATCH])
        done = mapper.finish()
        assert not done.dead_letters
        mapper.forget()
    elapsed = time.perf_counter() - begin
    mapper.close()
    return len(inputs) / elapsed


def main() -> None:
    """Run each in turn, several rounds; rates, and the ratio to messages as they are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bodies = messages(options.messages)
    properties = [flat(message, at) for at, message in enumerate(bodies)]
    ways: dict[str, Callable[[], float]] = {
        "as they are": lambda: rate_of(bodies, mapping(None, None), 0),
        "JSON body is the event": lambda: rate_of(bodies, mapping(Trade, None), 0),
        "field by field, properties": lambda: rate_of(properties, mapping(Trade, FROM_PROPERTIES), 0),
        "field by field, JSON body": lambda: rate_of(bodies, mapping(Trade, FROM_BODY), 0),
        "the same, 4 extra threads": lambda: rate_of(bodies, mapping(Trade, FROM_BODY), 4),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, run in ways.items():
            rates[name].append(run())
    base = statistics.median(rates["as they are"])
    for name, found in rates.items():
        median = statistics.median(found)
        print(f"{name:30} {median:>12,.0f}/s  {1e6 / median:6.2f} µs  ratio {median / base:.3f}")


if __name__ == "__main__":
    main()
