"""The documentation says what rules promise in words alone."""

import re

import pytest

from tests.docs.test_pages import ROOT


def said_on(page: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / "docs" / f"{page}.md").read_text())


@pytest.mark.parametrize(
    ("rule", "statement"),
    [
        ("A6.1", "given stable storage that keeps what it has confirmed"),
        ("A6.1", "a broker that keeps its word, and messages that can be mapped"),
        ("A6.3", "Consider `AT_LEAST_ONCE` with consumers that tolerate repeats first"),
        ("A6.3", "needs windows of the right size"),
        ("A8.11", "a common domain costs needless look-ups"),
        ("A8.19", "`expiry_time` two to three times the broker's redelivery time-out"),
        ("Z9", "The receiver on the other side deduplicates by the id, or the broker does"),
    ],
)
def test_a6_1_a6_3_a8_11_it_is_said(rule, statement):
    assert statement in said_on("guarantees"), rule


@pytest.mark.parametrize(
    ("rule", "statement"),
    [
        ("A4.13", "| max_batch_size | max_batch_interval_ms | messages a second | delay of a single message |"),
        ("A4.13", "So up to a size of about 1,000, the size determines the rate"),
        ("A4.13", "The interval only determines the delay of a message in a quiet queue"),
        ("A9.12", "The engine guarantees no maximum delay"),
        ("A9.12", "It is designed for throughput"),
    ],
)
def test_a4_13_a9_12_it_is_said(rule, statement):
    assert statement in said_on("receiving"), rule
