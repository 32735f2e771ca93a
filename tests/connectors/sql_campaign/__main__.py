"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.sql_campaign.bridge import CAPTURE, OUTBOX, POLLED, SNAPSHOT
from tests.connectors.sql_campaign.rounds import SERVERS, campaign


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.sql_campaign")
    parser.add_argument("--kills", type=int, default=200, help="of the process")
    parser.add_argument("--server-kills", type=int, default=0, help="with a database that has one")
    parser.add_argument("--database", choices=("sqlite", *SERVERS), default="sqlite")
    sources = parser.add_mutually_exclusive_group()
    for source, what in (
        (POLLED, "the bridge polls the program's table; with sqlite or postgres"),
        (CAPTURE, "the bridge captures changes; with postgres"),
        (SNAPSHOT, "it captures changes, and begins with the rows that are there; with postgres"),
    ):
        sources.add_argument(f"--{source}", dest="source", action="store_const", const=source, help=what)
    parser.set_defaults(source=OUTBOX)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()
    if parsed.server_kills and parsed.database == "sqlite":
        parser.error("SQLite has no server")
    if parsed.source in (CAPTURE, SNAPSHOT) and parsed.database != "postgres":
        parser.error("only PostgreSQL lets a receiver capture changes")
    if parsed.source == POLLED and parsed.database == "mysql":
        parser.error("MySQL has no column that orders rows by their transactions")
    kills = {"kills": parsed.kills, "server_kills": parsed.server_kills}
    return carry_out(
        "sql",
        parsed.report,
        lambda directory, say: campaign(
            directory, parsed.database, **kills, source=parsed.source, seed=parsed.seed, say=say
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
