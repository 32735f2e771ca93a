"""Monitors of the tests of expressions and channels in a running engine; in a module since the store names them."""

from typing import Any

from correlator import Message, Monitor, at, event, match, on, wait

CONTEXTS = 10


@event
class Placed:
    id: str


@event
class Paid:
    id: str


@event
class Number:
    lane: int
    n: int


class Payments(Monitor, persistent=True):
    """Sends what it has put together; a message is `order ID` or `payment ID`."""

    _placed = match(Placed)

    @on(Message)
    def message(self, message: Message) -> None:
        kind, _, name = message.body.decode().partition(" ")
        self.send(Placed(id=name) if kind == "order" else Paid(id=name), to="channel:main")

    @on(_placed.then(match(Paid, id=_placed["id"])).within(3600))
    def paid(self, placed: Placed, paid: Paid) -> None:
        self.send(f"paid {placed.id}".encode(), to="out")


class Reminds(Monitor, persistent=True):
    """Sends a reminder for each message, some time after it, unless another one comes before."""

    @on(match(Message).then(wait(60) & ~match(Message)))
    def remind(self, message: Message) -> None:
        self.send(b"remind " + message.body, to="out")

    @on(at(hour=0, minute=30))
    def daily(self) -> None:
        self.send(b"daily", to="out")


class Spreads(Monitor, persistent=True):
    """Sends every number to its lane and to the news; the body of a message is the number."""

    @on(Message)
    def message(self, message: Message) -> None:
        n = int(message.body)
        self.send(Number(lane=n % CONTEXTS, n=n), to=f"channel:lane-{n % CONTEXTS}")
        self.send(Number(lane=-1, n=n), to="channel:news")


class Lane(Monitor, persistent=True):
    """Base of the monitors of the lanes, each in a context of its own."""

    lane: int = 0
    own: list[int] = []
    news: list[int] = []

    def onload(self) -> None:
        self.subscribe(f"lane-{self.lane}")
        self.subscribe("news")

    @on(Number)
    def number(self, number: Number) -> None:
        (self.news if number.lane < 0 else self.own).append(number.n)


def _lane(number: int) -> Any:
    return type(f"Lane{number}", (Lane,), {"__module__": __name__, "lane": number}, persistent=True)


Lane0, Lane1, Lane2, Lane3, Lane4, Lane5, Lane6, Lane7, Lane8, Lane9 = (_lane(number) for number in range(CONTEXTS))
LANES = [Lane0, Lane1, Lane2, Lane3, Lane4, Lane5, Lane6, Lane7, Lane8, Lane9]
