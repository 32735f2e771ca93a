"""The command of the fuzz rounds; its exit status is 1 if a round fails."""

import argparse
import logging
import sys
import time

import structlog

from tests.connectors.fuzz.feeds import FEEDS
from tests.connectors.fuzz.rounds import campaign

_EVERY_S = 60.0


def main() -> int:
    """Run the rounds that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.fuzz")
    parser.add_argument("--connector", choices=FEEDS, required=True)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    begun = said = time.monotonic()

    def say(line: str) -> None:
        nonlocal said
        if time.monotonic() - said > _EVERY_S:
            said = time.monotonic()
            print(line, flush=True)  # noqa: T201  # how the command answers

    total = campaign(parsed.connector, parsed.messages, parsed.seed, say)
    print(f"{parsed.connector}: {total}, {time.monotonic() - begun:.0f} s")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
