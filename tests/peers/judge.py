"""Judges, from outside, what a peer has done: by its results, and by its state."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Result(NamedTuple):
    """A result as it came out: an order, its customer, and the count; `None` from a peer that does not count."""

    order: int
    customer: str
    count: int | None


class Verdict(NamedTuple):
    """What is wrong.

    Attributes:
        lost: orders without a result.
        doubled: results beyond the first of an order.
        contradicted: orders that have results with different counts.
        wrong: by how many orders the counts of the state are off, over all customers; `None` without a state.
        unordered: orders whose first result came behind that of a later order of the same customer.
    """

    lost: int
    doubled: int
    contradicted: int
    wrong: int | None
    unordered: int


def judge(orders: Sequence[str], results: Sequence[Result], state: Mapping[str, int] | None) -> Verdict:
    """Compare what came out with what was published.

    Args:
        orders: the customer of each order; its place is the number of the order.
        results: all results, as they stand in the queue.
        state: how many orders of each customer the peer has counted.

    Raises:
        ValueError: a result belongs to no order.
    """
    counts = defaultdict(set)
    latest: dict[str, int] = {}
    unordered = 0
    for result in results:
        if not 0 <= result.order < len(orders) or orders[result.order] != result.customer:
            raise ValueError(f"{result} belongs to none of the {len(orders)} orders")
        if result.order not in counts:
            unordered += result.order < latest.get(result.customer, -1)
            latest[result.customer] = max(result.order, latest.get(result.customer, -1))
        counts[result.order].add(result.count)
    return Verdict(
        lost=len(orders) - len(counts),
        doubled=len(results) - len(counts),
        contradicted=sum(len(one) > 1 for one in counts.values()),
        wrong=None if state is None else _difference(Counter(orders), state),
        unordered=unordered,
    )


def _difference(expected: Mapping[str, int], state: Mapping[str, int]) -> int:
    return sum(abs(expected.get(customer, 0) - state.get(customer, 0)) for customer in expected.keys() | state.keys())
