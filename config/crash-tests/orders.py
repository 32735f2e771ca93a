"""A monitor that survives crashes, and one that looks the same and does not."""

from typing import Any

from correlator import Monitor, event, on


@event
class Order:
    """A customer buys for an amount."""

    id: int
    customer: str
    amount: int


@event
class Bill:
    """What the customer has to pay in all, with this order."""

    id: int
    customer: str
    total: int


class Totals(Monitor, persistent=True):
    """Keeps what each customer has to pay: an annotated attribute is in the checkpoint."""

    totals: dict[str, int] = {}

    @on(Order)
    def order(self, order: Order) -> None:
        """Add it up."""
        total = self.totals.get(order.customer, 0) + order.amount
        self.totals[order.customer] = total
        self.send(Bill(id=order.id, customer=order.customer, total=total), to="bills")


class BrokenTotals(Totals, persistent=True, name="Totals"):
    """The same with a cache in front, which is in no checkpoint: it has no annotation, and a crash empties it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.cache: dict[str, int] = {}

    @on(Order)
    def order(self, order: Order) -> None:
        """Add it up, quickly."""
        total = self.cache.get(order.customer, 0) + order.amount
        self.cache[order.customer] = total
        self.send(Bill(id=order.id, customer=order.customer, total=total), to="bills")
