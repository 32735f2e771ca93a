"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import contextlib
import sys
from pathlib import Path

from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings
from tests.connectors.campaign.command import carry_out
from tests.servers import PostgresServer, running
from tests.spark_programs.campaign.rounds import campaign


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark_programs.campaign")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--drivers", type=int, default=20, help="how many of the kills end the driver")
    parser.add_argument("--broker", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()
    shared = SharedSession(SparkSettings(master="local[2]"))
    with contextlib.ExitStack() as end:
        fresh = None
        if parsed.broker == "postgresql":
            fresh = end.enter_context(running(PostgresServer())).fresh_schema
        spark = shared.acquire()
        end.callback(shared.release)
        return carry_out(
            "spark",
            parsed.report,
            lambda directory, say: campaign(
                spark, directory, fresh, kills=parsed.kills, drivers=parsed.drivers, seed=parsed.seed, say=say
            ),
        )


if __name__ == "__main__":
    sys.exit(main())
