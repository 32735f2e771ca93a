"""To which contexts a receiver delivers, from which message on, and what each context still has to handle.

For each receiver whose messages are stored, the registry records the contexts to which it delivers. For each context it
records the number of the last message that the context does not get. The record is committed before the receiver takes
another message. So a context that is new or renamed begins with the messages that are received from then on, even if
slower contexts still need older messages of the receive log. A configuration that takes a receiver away from a context
with unhandled messages of the receiver is refused.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from correlator.core.commit import ContextCut, Endpoint
from correlator.core.differences import Difference, Verdict
from correlator.errors import RecoveryRefused
from correlator.reliability import RECEIVING, Reliability
from correlator.settings import MonitorSettings


class Layout(NamedTuple):
    """The contexts of a configuration.

    Attributes:
        monitors: names of the contexts of monitors.
        pipelines: for each pipeline, which is a context too, the receivers that it names.
    """

    monitors: Sequence[str]
    pipelines: Mapping[str, Collection[str]] = {}

    def targets(self, receiver: str) -> list[str]:
        """The contexts to which a receiver delivers: the pipelines that name it, or all contexts of monitors if no
        pipeline does.
        """
        return [name for name, receivers in self.pipelines.items() if receiver in receivers] or list(self.monitors)

    @property
    def contexts(self) -> list[str]:
        """The names of all contexts."""
        return [*self.monitors, *self.pipelines]


def layout_of(monitors: Iterable[MonitorSettings], pipelines: Mapping[str, Collection[str]]) -> Layout:
    """The contexts of a configuration; without monitors and pipelines it has the context "main"."""
    names = list(dict.fromkeys(monitor.context for monitor in monitors))
    return Layout(names if names or pipelines else ["main"], pipelines)


class Received(NamedTuple):
    """Which received messages a store holds, by their numbers.

    Attributes:
        contexts: the contexts in the last checkpoint.
        consumed: for each receiver, the last number deleted from the receive log.
        logged: for each receiver, the last number in the receive log.
    """

    contexts: Sequence[ContextCut] = ()
    consumed: Mapping[str, int] = {}
    logged: Mapping[str, int] = {}

    def last_number(self, receiver: str) -> int:
        """The highest number that a receiver has ever given to a message; 0 for none."""
        entered = max((context.entered.get(receiver, 0) for context in self.contexts), default=0)
        return max(entered, self.consumed.get(receiver, 0), self.logged.get(receiver, 0))

    def unhandled(self, context: str, receiver: str, after: int) -> int:
        """Return how many messages of a receiver with numbers above `after` a context still has to handle."""
        cut = self._cut_of(context)
        waiting = sum(run.count for run in cut.queue if run.receiver == receiver) if cut else 0
        return waiting + max(0, self.last_number(receiver) - self.entered(context, receiver, after))

    def entered(self, context: str, receiver: str, after: int) -> int:
        """Return the last number that has entered the queue of a context.

        `after` is the last number that the context does not get; the result is at least this number. If a context has
        forgotten a receiver whose removal was not completed, it continues after the last message that every context has
        handled.
        """
        cut = self._cut_of(context)
        numbers = cut.entered if cut else {}
        return max(after, numbers.get(receiver, self.consumed.get(receiver, 0)))

    def _cut_of(self, context: str) -> ContextCut | None:
        return next((one for one in self.contexts if one.context == context), None)


class DeliveryDifference(Difference, frozen=True, kw_only=True):
    """A receiver and one of its contexts.

    Attributes:
        receiver: id of the receiver.
        context: name of the context.
        after: the last number that the context does not get; `None` when it gets no more messages.
    """

    receiver: str
    context: str
    after: int | None = None


def is_stored(endpoint: Endpoint) -> bool:
    """Whether the endpoint is a receiver whose messages are in the receive log until all contexts have handled them."""
    return endpoint.kind == "receiver" and RECEIVING[Reliability(endpoint.reliability)].stored


def compare_deliveries(endpoints: Iterable[Endpoint], layout: Layout, received: Received) -> list[DeliveryDifference]:
    """Compare the receivers from which each context gets messages with those that the registry has recorded.

    Args:
        endpoints: the registry as the start leaves it; nothing is recorded for a new receiver.
        layout: the contexts of the configuration.
        received: the numbers of the messages that the store holds.
    """
    return [one for endpoint in endpoints if is_stored(endpoint) for one in _compare(endpoint, layout, received)]


def deliveries(differences: Iterable[DeliveryDifference]) -> dict[str, dict[str, int]]:
    """Return the record: for each receiver its contexts, and for each context the last number that it does not get."""
    found: dict[str, dict[str, int]] = {}
    for one in differences:
        contexts = found.setdefault(one.receiver, {})
        if one.after is not None:
            contexts[one.context] = one.after
    return found


def recorded(endpoint: Endpoint, received: Received) -> dict[str, int]:
    """Return the contexts that the registry has recorded for a receiver, each with the last number that it does not
    get.

    A store of a version that did not record contexts has none. For such a store the result is the contexts of the last
    checkpoint that got messages of the receiver, and every context gets the whole receive log.
    """
    if endpoint.delivers_to:
        return endpoint.delivers_to
    receiver = endpoint.id
    given = [
        one for one in received.contexts if receiver in one.entered or any(r.receiver == receiver for r in one.queue)
    ]
    return {one.context: received.consumed.get(receiver, 0) for one in given}


def missing(context: str, receiver: str, expected: int, found: int) -> RecoveryRefused:
    """Return the refusal (E4204) of a receive log that lacks messages which a context has not handled."""
    return RecoveryRefused(
        "E4204",
        f"context '{context}'",
        f"{expected} messages of receiver '{receiver}' are not handled yet, but the receive log holds {found} of them",
        "",
        "Restore the store from a backup. Without one the other messages are lost; 'correlator db reset' begins anew",
    )


def _compare(endpoint: Endpoint, layout: Layout, received: Received) -> Iterator[DeliveryDifference]:
    before, targets = recorded(endpoint, received), layout.targets(endpoint.id)
    since = received.last_number(endpoint.id) if endpoint.delivers_to else received.consumed.get(endpoint.id, 0)
    for context in targets:
        if context in before:
            yield _difference(endpoint, context, Verdict.UNCHANGED, after=before[context])
        else:
            note = f"gets the messages after number {since}" if since else ""
            yield _difference(endpoint, context, Verdict.NEW, after=since, note=note)
    for context in before:
        if context not in targets:
            yield _compare_dropped(endpoint, context, layout, received.unhandled(context, endpoint.id, before[context]))


def _compare_dropped(endpoint: Endpoint, context: str, layout: Layout, unhandled: int) -> DeliveryDifference:
    if not unhandled:
        return _difference(endpoint, context, Verdict.CHANGED, note="gets no more messages; it has handled all")
    if context not in layout.contexts:
        code, what = "E4315", "the configuration has no such context"
    else:
        code, what = "E4316", f"it takes nothing from receiver '{endpoint.id}' any more"
    refusal = RecoveryRefused(
        code,
        f"context '{context}'",
        f"has not handled {unhandled} messages of receiver '{endpoint.id}', and {what}",
        "",
        "Put it back, let the engine run until they are handled, stop it in order, then change it",
    )
    return _difference(endpoint, context, Verdict.REFUSED, refusals=[refusal])


def _difference(
    endpoint: Endpoint,
    context: str,
    verdict: Verdict,
    *,
    after: int | None = None,
    note: str = "",
    refusals: Sequence[RecoveryRefused] = (),
) -> DeliveryDifference:
    return DeliveryDifference(
        kind="delivery",
        name=f"{endpoint.id} to {context}",
        verdict=verdict,
        note=note,
        refusals=refusals,
        receiver=endpoint.id,
        context=context,
        after=after,
    )


def with_deliveries(endpoint: Endpoint, contexts: Mapping[str, int]) -> Endpoint:
    """Return the entry of a receiver that delivers to these contexts."""
    return msgspec.structs.replace(endpoint, delivers_to=dict(contexts))
