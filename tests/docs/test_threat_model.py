"""docs/threat-model.md: each claim names tests that exist; and claims that no other test checks."""

import os
import re
import socket
from collections.abc import Iterator

import pytest

from correlator.cli.lint import lint
from correlator.runtime.control import server
from tests.docs.test_pages import ROOT

PAGE = (ROOT / "docs" / "threat-model.md").read_text()
_DEFINED = re.compile(r"^\s*def (test_\w+)\(", re.MULTILINE)
_NOBODY = 65534


def claims() -> Iterator[str]:
    """The rows of the tables of attackers."""
    for line in PAGE.splitlines():
        if line.startswith("|") and "---" not in line and not line.endswith("| checked by |"):
            yield line


def test_every_claim_names_tests_that_exist():
    there = {name for file in (ROOT / "tests").rglob("test_*.py") for name in _DEFINED.findall(file.read_text())}
    assert len(list(claims())) > 30
    assert [line for line in claims() if not re.findall(r"`test_\w+`", line.rpartition(" | ")[2])] == []
    assert sorted({*re.findall(r"`(test_\w+)`", PAGE)} - there) == []


def test_lint_runs_the_modules_that_a_file_names(tmp_path, monkeypatch):
    """A file is code: this is not prevented, so the page says it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile_module.py").write_text("open('ran', 'w').close()\n")
    file = tmp_path / "engine.yaml"
    file.write_text("name: x\nmonitors: [{type: 'hostile_module:Monitor'}]\n")
    with pytest.raises(BaseException, match="2"):
        lint([file])
    assert (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_control_an_engine():
    """Even where no permissions of a file keep them from connecting."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0correlator-test-{os.getpid()}")
        listening.listen()
        for user, may in ((_NOBODY, False), (0, True)):
            with socket.socket(socket.AF_UNIX) as asking:
                os.seteuid(user)
                try:
                    asking.connect(listening.getsockname())
                finally:
                    os.seteuid(0)
                client, _ = listening.accept()
                with client:
                    assert server._may_control(client) is may
