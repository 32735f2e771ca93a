"""The crash test of docs/calls.md passes, and calls nothing."""

import subprocess
import sys

from tests.docs.test_pages import ROOT, write_files


def test_the_crash_test_of_the_page_passes(tmp_path):
    write_files(ROOT / "docs" / "calls.md", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_payments.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
