"""Delays between tries: they double, are bounded, and chance takes up to half off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from correlator.core.backoff import Backoff


def test_delays_double_up_to_the_longest():
    assert [Backoff(0.5, 3.0).delay(failures, 0.0) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 2.0), (0.5, 1.5), (1.0, 1.0)])
def test_chance_takes_up_to_half_off(chance, delay):
    assert Backoff(1.0, 30.0).delay(2, chance) == delay


@given(st.floats(0, 100), st.floats(0, 1000), st.integers(1, 10**9), st.floats(0, 1))
def test_no_delay_is_longer_than_the_longest(first, longest, failures, chance):
    assert 0 <= Backoff(first, longest).delay(failures, chance) <= longest
