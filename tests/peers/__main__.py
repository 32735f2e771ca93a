"""The command of the campaign; its exit status is 1 if correlator has broken a promise, and if a row proves nothing."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.service.__main__ import machine, names
from tests.connectors.campaign.command import carry_out
from tests.peers.peers import PEERS
from tests.peers.runs import Result, campaign
from tests.peers.sites import Servers


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers")
    parser.add_argument("--peers", type=names(tuple(PEERS)), default=tuple(PEERS))
    parser.add_argument("--kills", type=int, default=25, help="of the process")
    parser.add_argument("--broker-kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parsed = parser.parse_args()

    def run(directory: Path, say: Callable[[str], None]) -> Result:
        say(machine())
        with Servers() as servers:
            return campaign(
                servers,
                directory,
                parsed.peers,
                kills=parsed.kills,
                broker_kills=parsed.broker_kills,
                seed=parsed.seed,
                say=say,
            )

    return carry_out("peers", parsed.json, run)


if __name__ == "__main__":
    sys.exit(main())
