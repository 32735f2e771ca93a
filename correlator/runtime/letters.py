"""Discards the dead letters of a running engine, and brings their messages back (docs/dead-letters.md)."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager

from correlator.core.commit import DiscardCommit, Endpoint
from correlator.core.deadletters import Letter, receiver_of, refused, together, why_not
from correlator.core.differences import joined
from correlator.core.pieces import pieces, size_of
from correlator.errors import NotDone, UsageError
from correlator.events import DeadLetter, Message
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.clock import Clock
from correlator.runtime.parts import Parts
from correlator.runtime.requests import DiscardRequest, Request
from correlator.runtime.returning import Returning
from correlator.runtime.timeline import Timeline
from correlator.storage.inspect import Selection, counted_dead_letters, dead_letters


class Letters:
    """Carries the orders out. Any thread may call its methods; no two of them work on the same dead letter at a time.

    A received message goes through the thread of its receiver, between two batches: one transaction stores it with the
    next number of the receiver and deletes the dead letter. A send is staged in a context: the next checkpoint stores
    it and deletes the dead letter.

    Args:
        parts: the parts of the engine.
        endpoints: returns the entries of the registry by id.
        commit: commits a request, and waits until it is durable.
        checkpointer: takes the checkpoints.
        read: returns the dead letters with these numbers; raises `UsageError` E2021 if one does not exist.
        clock: monotonic seconds.
        timeline: gets an entry for each order that was carried out.
    """

    def __init__(
        self,
        parts: Parts,
        endpoints: Callable[[], Mapping[str, Endpoint]],
        commit: Callable[[Request[None]], None],
        checkpointer: Checkpointer,
        read: Callable[[Sequence[int]], Sequence[Letter]],
        clock: Clock,
        timeline: Timeline,
    ) -> None:
        self._parts = parts
        self._endpoints = endpoints
        self._commit = commit
        self._checkpointer = checkpointer
        self._read = read
        self._clock = clock
        self._timeline = timeline
        self._claimed: set[int] = set()
        self._reserved_above: int | None = None
        self._staged: dict[int, int] = {}
        """Dead letters whose sends are staged, with the orders of their checkpoints: until such an order is answered,
        nobody may bring the send back again."""
        self._claiming = threading.Lock()

    def discard(self, numbers: Sequence[int]) -> None:
        """Delete dead letters. Numbers that do not exist any more have no effect. Raises `NotDone` E8311."""
        with self._claim(numbers):
            self._commit(DiscardRequest(DiscardCommit(numbers=numbers)))
        self._timeline.add("discarded", count=len(numbers))

    def reserve(self, above: int) -> bool:
        """Let nobody discard dead letters with larger numbers, or bring them back, until `release`. Return whether this
        is possible, since nobody is doing so at present.
        """
        with self._claiming:
            self._forget_stored()
            if any(number > above for number in self._claimed):
                return False
            self._reserved_above = above
            return True

    def release(self) -> None:
        """End what `reserve` has begun."""
        with self._claiming:
            self._reserved_above = None

    def stage(self, sends: Sequence[tuple[int, str, Message]], timeout: float) -> int | None:
        """Stage sends in the place of dead letters, and order the checkpoint that stores the sends and deletes the
        letters. Until it is there, other orders for these dead letters are refused.

        Args:
            sends: for each dead letter its number, the id of the sender, and the message.
            timeout: longest wait for a context in seconds.

        Returns the number of the order; `None` if no context was to be had in time.
        """
        thread = next(iter(self._parts.contexts.values()), None)
        if thread is None or not thread.lock.acquire(timeout=timeout):
            return None
        try:
            order = self._checkpointer.ask()  # its cut needs the lock, so it holds these sends
            numbers = [number for number, _, _ in sends]
            with self._claiming:
                self._claimed.update(numbers)
                self._staged.update(dict.fromkeys(numbers, order))
            for number, sender, message in sends:
                thread.context.staging.bring_back(sender, message, number)
        finally:
            thread.lock.release()
        return order

    def replay(self, numbers: Sequence[int], timeout: float) -> list[int]:
        """Bring the messages of dead letters back; return the numbers of the dead letters whose messages are back.

        A message that still cannot be mapped stays a dead letter, and its number is not among the result.

        Raises:
            UsageError: E2021, a number does not exist; E2023, a message cannot go back. In both cases nothing has
                changed.
            NotDone: E8311, somebody else works on one of them; E8310, not all are back in time.
        """
        deadline = self._clock.monotonic() + timeout
        with self._claim(numbers):
            letters = self._read(numbers)
            self._refuse(letters)
            back = self._stage([(number, one) for number, one in letters if one.kind == "send"], deadline)
            for receiver, some in _by_receiver(letters).items():
                back += self._return(receiver, some, deadline)
        if back:
            self._timeline.add("replayed", count=len(back))
        return sorted(back)

    @contextmanager
    def _claim(self, numbers: Iterable[int]) -> Iterator[None]:
        wanted = set(numbers)
        with self._claiming:
            self._forget_stored()
            if taken := sorted(number for number in wanted if self._is_taken(number)):
                where = f"dead letter {', '.join(map(str, taken))}"
                raise NotDone("E8311", where, "is just being brought back, discarded or sent", "", "Repeat it later")
            self._claimed |= wanted
        try:
            yield
        finally:
            with self._claiming:
                self._forget_stored()
                self._claimed -= wanted - self._staged.keys()

    def _forget_stored(self) -> None:
        stored = [number for number, order in self._staged.items() if self._checkpointer.answered(order)]
        for number in stored:
            del self._staged[number]
        self._claimed.difference_update(stored)

    def _is_taken(self, number: int) -> bool:
        return number in self._claimed or (self._reserved_above is not None and number > self._reserved_above)

    def _refuse(self, letters: Iterable[Letter]) -> None:
        endpoints = self._endpoints()
        refusals = [
            refused(number, one, why)
            for number, one in letters
            if (why := why_not(one, endpoints) or self._gone(one) or self._recorded(one))
        ]
        if refusals:
            raise joined(refusals)

    def _gone(self, letter: DeadLetter) -> str:
        parts = self._parts
        if letter.kind == "send":
            name = letter.origin
            return "" if name in parts.senders and name not in parts.routes.closing else f"sender '{name}' is not there"
        name = receiver_of(letter)
        return "" if name in parts.receivers else f"receiver '{name}' is not there"

    def _recorded(self, letter: DeadLetter) -> str:
        recorded = letter.kind == "send" and self._parts.recording is not None
        return "the engine records an input log, whose replay would not know of it" if recorded else ""

    # --- sends ---

    def _stage(self, letters: Sequence[Letter], deadline: float) -> list[int]:
        """Let the next checkpoint store these sends again, and wait for it."""
        if not letters:
            return []
        left = self._left(deadline)
        order = self.stage([(number, letter.origin, letter.message) for number, letter in letters], left)
        if order is None:
            raise _late("a context", left)
        left = self._left(deadline)
        if not self._checkpointer.wait_answered(order, left):
            raise _late("the next checkpoint", left, "Their sends leave with it, unless the engine stops before")
        return sorted(number for number, _ in letters)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    # --- received messages ---

    def _return(self, receiver: str, letters: Sequence[tuple[list[int], Message]], deadline: float) -> list[int]:
        part = self._parts.receivers[receiver]
        back: list[int] = []
        sizes = [size_of(message) for _, message in letters]
        for some in pieces(letters, sizes, part.settings.max_batch_size):
            numbers: Future[Sequence[int]] = Future()
            returning = Returning(some, numbers.set_result)
            part.bring_back(returning)
            left = self._left(deadline)
            if not wait([numbers], left).done and part.withdraw(returning):
                raise _late(f"receiver {receiver} ({'paused' if part.paused else part.state.value})", left)
            back += numbers.result()
        return back


def read_letters(store: str | None, engine: str, numbers: Sequence[int]) -> Sequence[Letter]:
    """Read the dead letters with these numbers.

    Args:
        store: the URL of the store; `None` for a store that a program has passed in.
        engine: name of the engine.
        numbers: numbers of dead letters.

    Raises `UsageError` E2011 without a URL, E2021 if one of them is not there.
    """
    if store is None:
        what = "got its store from a program, so it cannot read dead letters"
        raise UsageError("E2011", f"engine {engine}", what)
    selection = Selection(numbers=numbers)
    counted_dead_letters(store, selection)
    return [(row.number, row.letter) for row in dead_letters(store, selection)]


def _by_receiver(letters: Iterable[Letter]) -> dict[str, list[tuple[list[int], Message]]]:
    """The received messages, each with the numbers of all dead letters about it."""
    found: dict[str, list[tuple[list[int], Message]]] = {}
    received = {number: letter for number, letter in letters if letter.kind != "send"}
    for numbers in together(received.items()):
        letter = received[numbers[0]]
        found.setdefault(receiver_of(letter), []).append((numbers, letter.message))
    return found


def _late(what: str, seconds: float, others: str = "The others stay dead letters") -> NotDone:
    said = f"are not back: {what} has not taken them within {seconds:g} s"
    return NotDone("E8310", "dead letters", said, others, "List the dead letters, and repeat the command")
