"""The contract of connectors, held against the template."""

from pathlib import Path

import pytest
from correlator_spool import SpoolConnection

from correlator.settings import ConnectionSettings
from correlator.testing.contract import BrokerWorld, Check, checks_for


class SpoolWorld(BrokerWorld):
    features = SpoolConnection.features
    topics = False

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def connection(self) -> SpoolConnection:
        return SpoolConnection("spool", ConnectionSettings(type="spool", options={"path": str(self._path)}))


@pytest.mark.parametrize("check", checks_for(SpoolWorld), ids=lambda check: check.__name__)
def test_contract(check: Check, tmp_path: Path) -> None:
    check(SpoolWorld(tmp_path))
