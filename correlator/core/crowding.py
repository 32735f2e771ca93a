"""Back-pressure between contexts: a context that sends more than others handle waits until they have caught up."""

from correlator.core.queue import InputQueue

MAX_WAITING_FROM_INSIDE = 100_000
"""How many runs may wait in a context to which another context sends; if more wait, the send raises E8010."""
CROWDED = MAX_WAITING_FROM_INSIDE // 10
"""A queue with at least this number of waiting runs is *crowded*, and contexts that send to it wait.

The rest of the room is for the sends of the event that a context handles when it finds the queue crowded.
"""


class Crowding:
    """The other contexts to which one context has sent, and which it may have crowded. Owner: the context's thread.

    Args:
        own: the queue of the context itself.

    Attributes:
        sent_to: queues to which the context has sent, and which it has not found uncrowded since. For each queue, the
            value of `InputQueue.finished` up to which the context waits; `None` until the queue is found crowded.
    """

    def __init__(self, own: InputQueue) -> None:
        self.sent_to: dict[InputQueue, int | None] = {}
        self._own = own

    def sends_to(self, queue: InputQueue) -> None:
        """Note that the context sends to another context, which has this queue."""
        self.sent_to[queue] = None

    def crowds(self) -> bool:
        """Whether the context must wait for a queue that it has crowded.

        The context with the fullest queue never waits, so contexts cannot all wait for one another. If a queue stays
        crowded because its own context sends to it, the context waits only until that context has handled the runs that
        the queue held at first.
        """
        mine = max(len(self._own), CROWDED - 1)
        crowded: dict[InputQueue, int | None] = {}
        for queue, turn in self.sent_to.items():
            waiting = len(queue)
            if waiting > mine and (turn is None or queue.finished < turn):
                crowded[queue] = queue.finished + waiting if turn is None else turn
        self.sent_to = crowded
        return bool(crowded)
