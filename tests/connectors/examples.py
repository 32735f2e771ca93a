"""What the tests of example pipelines share."""

import subprocess
from pathlib import Path

from tests.cli.commands import COMMAND, environment


def check_what_it_says_of_itself(file: Path, directory: Path, patience_s: float) -> None:
    """Nothing is wrong with a configuration file, and its own tests pass; no server is needed for either."""
    for command in ("lint", "test"):
        done = subprocess.run(
            [COMMAND, command, str(file)],
            cwd=directory,
            env=environment({"RABBITMQ_PASSWORD": "unused"}),
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == file.read_text().count("    given:")
