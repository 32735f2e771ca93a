"""The command `correlator`, whose batches may take a few seconds only."""

import sys

from correlator.cli import entry
from correlator.pipeline import deadline

deadline.LEAST_S = 15.0

if __name__ == "__main__":
    sys.argv[0] = "correlator"
    entry.main()
