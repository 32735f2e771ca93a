"""The command `correlator`, whose batches may take a few seconds and fail three times in a row."""

import sys

from correlator.cli import entry
from correlator.pipeline import deadline, processor

deadline.LEAST_S = 10.0
processor.MOST_ATTEMPTS = 3

if __name__ == "__main__":
    sys.argv[0] = "correlator"
    entry.main()
