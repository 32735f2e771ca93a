"""Channels by subscription: who receives, when it ends, what survives."""

from typing import Any

import pytest

from correlator.core.context import Context
from correlator.core.monitor import Monitor, on
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.core.tape import Tape
from correlator.errors import UsageError
from correlator.runtime.names import resolve
from tests.core.listening import A, B, Listening


class Subscriber(Monitor, persistent=True):
    heard: list[int] = []

    def onload(self) -> None:
        self.subscribe("news")

    @on(A)
    def news(self, one: A) -> None:
        self.heard.append(one.n)
        if one.n < 0:
            self.unsubscribe("news")

    @on(B)
    def end(self, one: B) -> None:
        self.stop()


class Another(Subscriber, persistent=True):
    pass


def contexts(routes: Routes, **monitors: list[Monitor]) -> list[Context]:
    made = []
    for name, ones in monitors.items():
        context = Context(name, routes, resolve)
        routes.subscribe(name, context.queue)
        for one in ones:
            one.home = context
            context.load(one, "stop")
            context.call_one(one, "onload")
        made.append(context)
    return made


class Sends(Monitor):
    def now(self, what: Any, to: str) -> None:
        self.what, self.to = what, to
        self.home.queue.deliver(run(B()))
        self.home.work(1, 0.0)

    @on(B)
    def go(self, one: B) -> None:
        self.send(self.what, to=f"channel:{self.to}")


def run(one: Any) -> Run:
    return Run("", 0, (), (one,), stored=True)


def test_a_send_reaches_every_context_with_a_subscribed_monitor_once():
    sends, one, other, third = Sends(), Subscriber(), Subscriber(), Another()
    _, first, second, _ = contexts(Routes(), sends=[sends], first=[one], second=[other, third], third=[Sends()])
    sends.now(A(n=1), "news")
    first.work(10, 0.0)
    second.work(10, 0.0)
    assert (one.heard, other.heard, third.heard) == ([1], [1], [1])


def test_the_last_monitor_that_unsubscribes_ends_the_subscription_of_its_context():
    sends, other, third = Sends(), Subscriber(), Another()
    _, second = contexts(Routes(), sends=[sends], second=[other, third])
    second.monitors.leave((second.monitors.instances[third], "news"))
    sends.now(A(n=1), "news")
    sends.now(A(n=-1), "news")
    second.work(10, 0.0)
    assert (other.heard, third.heard) == ([1, -1], [1, -1])
    with pytest.raises(UsageError, match="E8001 .* no context receives channel 'news'"):
        sends.now(A(n=2), "news")


def test_a_monitor_that_ends_ends_its_subscription():
    sends = Sends()
    _, second = contexts(Routes(), sends=[sends], second=[Subscriber()])
    second.queue.deliver(run(B()))
    second.work(10, 0.0)
    with pytest.raises(UsageError, match="E8001"):
        sends.now(A(n=2), "news")


def test_a_context_receives_its_own_name_whoever_subscribes_to_it():
    class Own(Monitor):
        def onload(self) -> None:
            self.heard: list[int] = []
            self.subscribe("own")
            self.unsubscribe("own")

        @on(A)
        def news(self, one: A) -> None:
            self.heard.append(one.n)

    sends, own = Sends(), Own()
    _, context = contexts(Routes(), sends=[sends], own=[own])
    sends.now(A(n=1), "own")
    context.work(10, 0.0)
    assert own.heard == [1]


def test_a_subscription_survives_a_restart_and_so_does_its_end():
    world = Listening(Subscriber())
    world.restart()
    assert [queue is world.context.queue for queue in world.context._binding._routes.channels["news"]] == [True]
    world.hear(A(n=-1))
    world.restart()
    assert "news" not in world.context._binding._routes.channels


@pytest.mark.parametrize("name", ["", "channel:news", "\ud800", None, 5, b"news"])
def test_a_subscription_names_a_channel(name):
    class Wrong(Monitor):
        def onload(self) -> None:
            self.subscribe(name)

    with pytest.raises(UsageError, match="E4115 monitor Wrong: .* is not the name of a channel"):
        Listening(Wrong())


class Wanders(Monitor, persistent=True):
    """Hears one channel after the other."""

    at: int = 0

    @on(A)
    def go_on(self, one: A) -> None:
        self.unsubscribe(f"c{self.at}")
        self.at += 1
        self.subscribe(f"c{self.at}")


@pytest.mark.parametrize("taped", [False, True])
def test_100000_channels_that_nobody_hears_any_more_leave_nothing(taped):
    routes = Routes()
    view = Tape("main", routes, lambda _: None).view if taped else routes
    one, context = Wanders(), Context("main", view, resolve)
    context.load(one, "stop")
    for _ in range(100):
        for _ in range(1000):
            context.queue.deliver(run(A(n=1)))
        context.work(1000, 0.0)
        assert list(routes.channels) == [f"c{one.at}"]
        assert list(view.channels) == [f"c{one.at}"]
        assert list(context.monitors._subscribed) == [f"c{one.at}"]
    assert one.at == 100_000
