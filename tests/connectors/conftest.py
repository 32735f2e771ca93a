"""Fixtures of the tests of connectors. A module that needs another broker defines its own."""

import pytest

from tests.connectors.embedded import Broker, address


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def broker(request, tmp_path):
    broker = Broker(address(request, tmp_path))
    yield broker
    broker.close()
