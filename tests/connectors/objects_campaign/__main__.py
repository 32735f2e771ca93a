"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.objects_campaign.rounds import campaign


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.objects_campaign")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--place", choices=("folder", "bucket"), default="folder")
    parser.add_argument("--versitygw", type=Path, help="binary of an S3 server, which is killed before each kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()
    return carry_out(
        "objects",
        parsed.report,
        lambda directory, say: campaign(
            directory, parsed.place, kills=parsed.kills, seed=parsed.seed, program=parsed.versitygw, say=say
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
