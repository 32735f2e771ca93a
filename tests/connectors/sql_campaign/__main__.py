"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.sql_campaign.bridge import CAPTURE, OUTBOX
from tests.connectors.sql_campaign.rounds import SERVERS, campaign


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.sql_campaign")
    parser.add_argument("--kills", type=int, default=200, help="of the process")
    parser.add_argument("--server-kills", type=int, default=0, help="with a database that has one")
    parser.add_argument("--database", choices=("sqlite", *SERVERS), default="sqlite")
    parser.add_argument("--capture", action="store_true", help="the bridge captures changes; with --database postgres")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()
    if parsed.server_kills and parsed.database == "sqlite":
        parser.error("SQLite has no server")
    if parsed.capture and parsed.database != "postgres":
        parser.error("only PostgreSQL lets a receiver capture changes")
    source = CAPTURE if parsed.capture else OUTBOX
    kills = {"kills": parsed.kills, "server_kills": parsed.server_kills}
    return carry_out(
        "sql",
        parsed.report,
        lambda directory, say: campaign(directory, parsed.database, **kills, source=source, seed=parsed.seed, say=say),
    )


if __name__ == "__main__":
    sys.exit(main())
