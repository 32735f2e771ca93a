"""The command that hunts every mutant of the catalogue; exit status 1 when one survives."""

import argparse
import sys
from pathlib import Path

from tests.harness import mutants


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.mutants", description=__doc__)
    parser.add_argument("--report", type=Path, help="write figures as JSON")
    return mutants.command(parser.parse_args().report)


if __name__ == "__main__":
    sys.exit(main())
