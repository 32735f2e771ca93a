"""The command of the campaign of power cuts; exit status 1 on a violation, or if a control shows none."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from correlator.testing.files import write_json
from tests.harness.power.campaign import campaign


def main(arguments: Sequence[str] | None = None) -> int:
    """Check images, print one line, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.power", description=__doc__)
    parser.add_argument("--images", type=int, default=100_000, help="how many disks are checked")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--control", choices=("NORMAL", "OFF"), help="weaken SQLite: this must be found bad")
    parser.add_argument("--report", type=Path, help="file for the figures as JSON")
    parsed = parser.parse_args(arguments)
    figures = campaign(parsed.images, seed=parsed.seed, synchronous=parsed.control or "FULL")
    for one in figures.told:
        sys.stdout.write(f"{one}\n")
    sys.stdout.write(figures.line() + "\n")
    if parsed.report:
        write_json(parsed.report, figures)
    return int(bool(figures.bad) is not bool(parsed.control))


if __name__ == "__main__":
    sys.exit(main())
