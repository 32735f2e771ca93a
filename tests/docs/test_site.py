"""The site of the documentation: Sphinx finds every page from the start page, and no link or anchor leads nowhere."""

import subprocess
import sys

from tests.docs.test_pages import ROOT


def test_the_site_is_built_without_a_warning(tmp_path):
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy", "docs", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
