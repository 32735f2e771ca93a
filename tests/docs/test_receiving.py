"""The pattern of docs/receiving.md: an order is acknowledged when its invoice is at the broker (rule A5.10)."""

from collections import Counter

from connectors.embedded import EmbeddedConnection
from correlator.settings import ConnectionSettings
from tests.docs.test_pages import ROOT, run_examples


def test_a5_10_flushes_while_sending_goes_on_and_transactions_that_can_be_told_apart(tmp_path):
    printed = run_examples(ROOT / "docs" / "receiving.md", tmp_path)
    store = f"sqlite:///{tmp_path / 'broker.db'}"
    broker = EmbeddedConnection("local", ConnectionSettings(type="embedded", options={"store": store}))
    invoices = list(broker.browse("queue:invoices", 10_000))
    assert list(broker.browse("queue:orders", 10_000)) == []
    assert sorted(one.body for one in invoices) == sorted(b"invoice for order %d" % number for number in range(5000))
    sizes = Counter(one.properties["transaction"] for one in invoices)
    assert max(sizes.values()) <= 1000
    told = [line for line in printed.splitlines() if line.startswith("transaction ")]
    assert told == [f"transaction {number}: 0 failed" for number in range(1, len(told) + 1)]
    assert max(sizes) <= len(told)
